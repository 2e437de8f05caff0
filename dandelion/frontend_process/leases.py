"""Memory that a frontend has from the node, and when it goes back.

As everywhere, a view keeps its memory: when the last view of a lease or of a result is gone, its
number is noted, and goes to the node with the next messages. That may happen in any thread and
inside the garbage collector, so noting it is one append.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from dandelion.data import Bytes
from dandelion.memory import ArenaMap, Context, DomainStats, MemoryDomain
from dandelion.memory.lease import leased_view

SLAB_BYTES = 128 * 1024
SLAB_ITEM_BYTES = SLAB_BYTES // 4
"""Larger data gets a lease of its own. An invocation keeps the whole slab that its data lies in, so
slabs are small: those of `max_waiting` invocations are half of the default arena at most."""
_ALIGNMENT_BYTES = 64


class Leases(MemoryDomain):
    """The leases and results of one frontend. For the loop's thread, but for `acquire`.

    Args:
        arena: where they lie.
        ask: asks the node for a lease of so many bytes, with any content, and waits; for threads.
    """

    kind: ClassVar[str] = "shared"

    def __init__(self, arena: ArenaMap, ask: Callable[[int], Context]) -> None:
        self._arena = arena
        self._ask = ask
        self._gone: deque[int] = deque()
        self._starts: list[int] = []
        self._at: dict[int, tuple[int, int]] = {}  # by start: number and end
        self._sizes: dict[int, tuple[int, int]] = {}  # by number: start, or -1 of a result; size

    def leased(self, number: int, offset_bytes: int, size_bytes: int) -> Context:
        """Make the context of a lease that the node gave."""
        insort(self._starts, offset_bytes)
        self._at[offset_bytes] = number, offset_bytes + size_bytes
        self._sizes[number] = offset_bytes, size_bytes
        view = self._view(number, offset_bytes, size_bytes)
        return Context(self, offset_bytes, size_bytes, view)

    def result(self, number: int, offset_bytes: int, size_bytes: int) -> memoryview:
        """View the part of the arena that a result lies in; also other data may lie between."""
        self._sizes[number] = -1, size_bytes
        return self._view(number, offset_bytes, size_bytes).toreadonly()

    def _view(self, number: int, offset_bytes: int, size_bytes: int) -> memoryview:
        release = partial(self._gone.append, number)
        return leased_view(self._arena.view, offset_bytes, size_bytes, release)

    def find(self, data: Bytes) -> tuple[int, int] | None:
        """Give the lease that data lies in, and the offset there; None if it lies elsewhere."""
        offset = self._arena.locate(data)
        if offset is None:
            return None
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        start = self._starts[index]
        number, end = self._at[start]
        return (number, offset - start) if offset + len(data) <= end else None

    def gone(self) -> tuple[int, ...]:
        """Give the numbers whose last view is gone, once."""
        numbers = tuple(self._gone.popleft() for _ in range(len(self._gone)))
        for number in numbers:
            start, _ = self._sizes.pop(number)
            if start >= 0:
                del self._starts[bisect_right(self._starts, start) - 1]
                del self._at[start]
        return numbers

    @property
    def has_gone(self) -> bool:
        """Whether there is something to give back."""
        return bool(self._gone)

    def __len__(self) -> int:
        return len(self._sizes)

    def acquire_to_fill(self, size_bytes: int) -> Context:
        return self._ask(size_bytes)

    def _acquire(self, size_bytes: int) -> Context:
        context = self._ask(size_bytes)
        context.view[:] = bytes(size_bytes)
        return context

    def locate(self, data: Bytes) -> int | None:
        return self._arena.locate(data)

    def stats(self) -> DomainStats:
        used = sum(size for _, size in self._sizes.values())
        return DomainStats(self._arena.size_bytes, used, len(self._sizes))


class Slabs:
    """Cuts small pieces from slabs. One slab is in use, another one lies ready.

    Args:
        request: asks the node for a slab, without waiting.
    """

    def __init__(self, request: Callable[[], None]) -> None:
        self._request = request
        self._slabs: deque[tuple[int, Context]] = deque()
        self._asked = 0
        self._end = 0

    def __len__(self) -> int:
        return len(self._slabs)

    def fill(self) -> None:
        """Ask for the slabs that are missing."""
        while self._asked + len(self._slabs) < 2:
            self._asked += 1
            self._request()

    def add(self, number: int, slab: Context | None) -> None:
        """Take a slab that was asked for; None if there is no room for it."""
        self._asked -= 1
        if slab is not None:
            self._slabs.append((number, slab))

    def place(self, data: Bytes) -> tuple[int, int] | None:
        """Copy data into a slab; gives the number of the lease and the offset there.

        None if there is no slab: the node is asked for one, and the data has to travel otherwise.
        """
        size = len(data)
        if self._slabs and self._end + size > SLAB_BYTES:
            self._slabs.popleft()
            self._end = 0
        if len(self._slabs) < 2:
            self.fill()
        if not self._slabs:
            return None
        number, slab = self._slabs[0]
        start = self._end
        slab.view[start : start + size] = data
        self._end = -(-(start + size) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return number, start
