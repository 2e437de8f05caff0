"""The result of an invocation on a node, which has its trace."""

from __future__ import annotations

from dandelion.data import elements_of
from dandelion.invocation_result import InvocationResult
from dandelion.markup import page
from dandelion.traces import Trace


class TracedResult(InvocationResult, frozen=True, eq=False):
    """The result of an invocation.

    Attributes:
        trace: what happened when.
    """

    trace: Trace

    def _repr_html_(self) -> str:
        return page(*elements_of(self.sets), self.trace.element())
