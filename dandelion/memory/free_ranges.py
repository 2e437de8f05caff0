"""Free ranges of an address space: best fit, coalescing, O(log n)."""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeRanges:
    """The free parts of ``[0, size)``. Pure state: no memory is accessed.

    Best fit keeps large ranges whole. Free neighbours are joined at once, so there is one range
    again when all ranges were returned.
    """

    def __init__(self, size: int) -> None:
        self._by_size: list[tuple[int, int]] = []  # (size, start), sorted
        self._size_at: dict[int, int] = {}  # start -> size
        self._start_before: dict[int, int] = {}  # end -> start
        self.free = 0
        self.give(0, size)

    @property
    def largest(self) -> int:
        """Size of the largest free range."""
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, size: int) -> int | None:
        """Take `size` from the smallest range that is large enough; None if there is none."""
        index = bisect_left(self._by_size, (size, 0))
        if index == len(self._by_size):
            return None
        found, start = self._by_size.pop(index)
        del self._size_at[start], self._start_before[start + found]
        self.free -= found
        if found > size:
            self._insert(start + size, found - size)
        return start

    def give(self, start: int, size: int) -> None:
        """Return a range and join it with free neighbours."""
        end = start + size
        before = self._start_before.get(start)
        if before is not None:
            size += self._remove(before)
            start = before
        if end in self._size_at:
            size += self._remove(end)
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start
        self.free += size

    def _remove(self, start: int) -> int:
        size = self._size_at.pop(start)
        del self._start_before[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]
        self.free -= size
        return size
