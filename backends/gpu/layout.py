"""Where buffers lie in the pool: two may share memory if they never need it at the same time.

Every buffer has a lifetime over the launches of a plan. A buffer that must begin with zeros may
take memory that another one used before only if it is zeroed in between; that costs time, so it is
done only where memory would not suffice (`tight`). A buffer whose first launch promises to write
without reading (`Access.WRITE`) takes such memory as it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

ALIGNMENT_BYTES = 256
"""Every buffer begins at a multiple of this: what OpenCL sub-buffers and vector loads need."""


def aligned(size_bytes: int) -> int:
    """Round up to the alignment; an empty buffer has an address of its own as well."""
    return max(-(-size_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Slot:
    """A buffer's place in the pool, in bytes."""

    offset_bytes: int
    size_bytes: int


@dataclass(slots=True)
class Lifetime:
    """A buffer's life.

    Attributes:
        size_bytes: its size.
        first: position of the first launch that uses it; -1 if it is filled before the first.
        last: position of the last one; the number of launches if it is copied out.
        fresh: what lies there when it begins does not matter.
    """

    size_bytes: int
    first: int
    last: int
    fresh: bool

    def extend(self, first: int, last: int) -> None:
        """Account for a loop over the positions `first` to `last`. Inner loops come first."""
        if self.last < first or self.first > last:
            return
        inside = first <= self.first and self.last <= last
        if not (inside and self.fresh):
            self.first = min(self.first, first)
            self.last = max(self.last, last)


IsOrdered: TypeAlias = Callable[[str, str], bool]
"""Takes the names of two buffers; returns whether all uses of one come after those of the other."""


@dataclass(slots=True)
class _Column:
    """Buffers with the same place, by the position at which they begin.

    None of them needs it while another one does, and only the first may have to begin with zeros.
    """

    start: int
    end: int
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    fresh: bool = True

    def takes(self, name: str, life: Lifetime, fresh: bool, is_ordered: IsOrdered | None) -> bool:
        """Tell whether a buffer can have this place too; only its neighbours in time matter."""
        at = bisect_left(self.firsts, life.first)
        if at and (not fresh or self.lasts[at - 1] >= life.first):
            return False
        if at < len(self.firsts) and (self.firsts[at] <= life.last or not (at or self.fresh)):
            return False
        near = self.names[max(at - 1, 0) : at + 1]
        return is_ordered is None or all(is_ordered(name, other) for other in near)

    def add(self, name: str, life: Lifetime, fresh: bool) -> None:
        """Give a buffer this place."""
        at = bisect_left(self.firsts, life.first)
        self.firsts.insert(at, life.first)
        self.lasts.insert(at, life.last)
        self.names.insert(at, name)
        if not at:
            self.fresh = fresh


def place(
    lifetimes: Mapping[str, Lifetime], tight: bool, is_ordered: IsOrdered | None = None
) -> tuple[dict[str, Slot], tuple[str, ...]]:
    """Give each buffer an offset: largest first, each at the lowest offset that is free for it.

    Args:
        lifetimes: by name of the buffer.
        tight: share memory also where it must be zeroed in between.
        is_ordered: only buffers of which it says so share memory; an order of all uses, also where
            launches run side by side. None for all that do not live at the same time.

    Returns:
        The slots, and the names of the buffers whose memory must be zeroed when they begin.
    """
    order = sorted(
        lifetimes, key=lambda n: (lifetimes[n].first >= 0, -lifetimes[n].size_bytes)
    )  # what is copied in lies in front, so that it never moves
    columns: list[_Column] = []  # by their start
    by_range: dict[tuple[int, int], _Column] = {}
    slots: dict[str, Slot] = {}
    for name in order:
        life = lifetimes[name]
        size, fresh = aligned(life.size_bytes), life.fresh or tight
        offset = 0
        for column in columns:
            if column.start >= offset + size:
                break
            if column.end > offset and not column.takes(name, life, fresh, is_ordered):
                offset = column.end
        slots[name] = Slot(offset, life.size_bytes)
        found = by_range.get((offset, offset + size))
        if found is None:
            found = by_range[offset, offset + size] = _Column(offset, offset + size)
            insort(columns, found, key=_start)
        found.add(name, life, fresh)
    return slots, _to_zero(lifetimes, slots) if tight else ()


def _start(column: _Column) -> int:
    return column.start


def used_bytes(slots: Mapping[str, Slot]) -> int:
    """Give how much of the pool is used, from its start."""
    return max((s.offset_bytes + aligned(s.size_bytes) for s in slots.values()), default=0)


def is_shared(slots: Mapping[str, Slot]) -> bool:
    """Tell whether two buffers share memory."""
    ranges = sorted(
        (s.offset_bytes, s.offset_bytes + aligned(s.size_bytes)) for s in slots.values()
    )
    return any(end > start for (_, end), (start, _) in pairwise(ranges))


def _to_zero(lifetimes: Mapping[str, Lifetime], slots: Mapping[str, Slot]) -> tuple[str, ...]:
    stale = [n for n, life in lifetimes.items() if not life.fresh and life.first >= 0]
    return tuple(
        name
        for name in stale
        if any(
            lifetimes[other].first < lifetimes[name].first and _share(slots[name], slots[other])
            for other in slots
            if other != name
        )
    )


def _share(a: Slot, b: Slot) -> bool:
    a_end = a.offset_bytes + aligned(a.size_bytes)
    b_end = b.offset_bytes + aligned(b.size_bytes)
    return a.offset_bytes < b_end and b.offset_bytes < a_end
