"""What every frontend has to know of the node at once: a page of the arena that the node writes.

A message would come too late: a client that was told of its registration by one frontend may send
its next request to another one, before that one reads its link. Each value is one aligned word, so
it is never seen half written.

Behind the status are the states of the tokens' rate limits, which all frontends write, see
`dandelion.tokens.table`.

The node also writes the time, several times a second. When that is old its event loop stands still,
which a frontend would not notice otherwise.
"""

from __future__ import annotations

import time

from dandelion.frontend.service import Service
from dandelion.memory import ArenaMap
from dandelion.tokens.table import BUCKETS_BYTES, Buckets

_SIZE_BYTES = 24
STALLED_NS = 10_000_000_000
"""So long the node may be silent."""


class StatusWriter:
    """The node's side.

    Args:
        node: whose status it is; memory is acquired from it.

    Attributes:
        offset_bytes: of the status in the arena.
    """

    def __init__(self, node: Service) -> None:
        self._node = node
        context = node.acquire_to_fill(_SIZE_BYTES + BUCKETS_BYTES)
        context.view[:] = bytes(_SIZE_BYTES + BUCKETS_BYTES)
        self.offset_bytes = context.offset_bytes
        self._words = context.view[:_SIZE_BYTES].cast("Q")
        self.update()

    def update(self) -> None:
        """Write down how the node is now."""
        self._words[0] = self._node.generation
        self._words[1] = self._node.ready()
        self._words[2] = time.monotonic_ns()


class StatusReader:
    """A frontend's side.

    Attributes:
        buckets: of the rate limits.
    """

    def __init__(self, arena: ArenaMap, offset_bytes: int) -> None:
        end = offset_bytes + _SIZE_BYTES
        self._words = arena.view[offset_bytes:end].toreadonly().cast("Q")
        self.buckets = Buckets.within(arena.view[end : end + BUCKETS_BYTES])

    @property
    def generation(self) -> int:
        """Of the catalogue."""
        return self._words[0]

    def ready(self) -> bool:
        """Whether the node is ready."""
        return bool(self._words[1]) and self.alive()

    def alive(self) -> bool:
        """Whether the node's event loop runs."""
        return time.monotonic_ns() - self._words[2] < STALLED_NS
