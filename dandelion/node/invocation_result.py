"""The result of an invocation."""

from __future__ import annotations

import msgspec

from dandelion.data import Sets, elements_of
from dandelion.markup import page
from dandelion.traces import Trace


class InvocationResult(msgspec.Struct, frozen=True, eq=False):
    """The result of an invocation.

    Attributes:
        id: of the invocation.
        sets: the output sets by name; None where empty.
        trace: what happened when.
    """

    id: str
    sets: Sets
    trace: Trace

    def _repr_html_(self) -> str:
        return page(*elements_of(self.sets), self.trace.element())
