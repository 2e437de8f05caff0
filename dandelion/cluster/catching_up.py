"""When a node that was started has what the others had registered: pure, events in, no clock."""

from __future__ import annotations

from collections.abc import Iterable

LIMIT_NS = 10_000_000_000
"""After so long a node is used all the same: what it lacks may not come soon."""


class CatchingUp:
    """Follows what a node learns of others after its start.

    Args:
        others: names of the nodes that may have more of the log than this one.

    Attributes:
        is_done: this node has carried out what each of them had when it was first heard of, except
            for those that cannot be reached.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self._unheard = set(others)
        self._length = 0
        self._until_ns: int | None = None
        self.is_done = not self._unheard

    def heard(self, name: str, length: int) -> None:
        """Another node has so many commands."""
        if name in self._unheard:
            self._unheard.discard(name)
            self._length = max(self._length, length)

    def failed(self, name: str) -> None:
        """Another node cannot be reached."""
        self._unheard.discard(name)

    def tick(self, carried: int, now_ns: int) -> None:
        """Time has passed; this node has carried out so many commands."""
        if self._until_ns is None:
            self._until_ns = now_ns + LIMIT_NS
        is_current = not self._unheard and carried >= self._length
        self.is_done = self.is_done or is_current or now_ns >= self._until_ns
