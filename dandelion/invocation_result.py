"""The result of an invocation, from a node or a client."""

from __future__ import annotations

import msgspec

from dandelion.data import Sets, elements_of
from dandelion.markup import page


class InvocationResult(msgspec.Struct, frozen=True, eq=False):
    """The result of an invocation.

    Attributes:
        id: of the invocation, for `trace` and `logs`.
        sets: the output sets by name; None where empty.
    """

    id: str
    sets: Sets

    def _repr_html_(self) -> str:
        return page(*elements_of(self.sets))
