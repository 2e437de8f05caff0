"""Where buffers lie in the pool: two may share memory if they never need it at the same time.

Every buffer has a lifetime over the launches of a plan. A buffer that must begin with zeros may
take memory that another one used before only if it is zeroed in between; that costs time, so it is
done only where memory would not suffice (`tight`). A buffer whose first launch promises to write
without reading (`Access.WRITE`) takes such memory as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    def overlaps(self, other: Lifetime) -> bool:
        """Tell whether there is a position at which both live."""
        return self.first <= other.last and other.first <= self.last


def place(
    lifetimes: Mapping[str, Lifetime], tight: bool
) -> tuple[dict[str, Slot], tuple[str, ...]]:
    """Give each buffer an offset: largest first, each at the lowest offset that is free for it.

    Args:
        lifetimes: by name of the buffer.
        tight: share memory also where it must be zeroed in between.

    Returns:
        The slots, and the names of the buffers whose memory must be zeroed when they begin.
    """
    order = sorted(
        lifetimes, key=lambda n: (lifetimes[n].first >= 0, -lifetimes[n].size_bytes)
    )  # what is copied in lies in front, so that it never moves
    placed: list[tuple[int, int, Lifetime]] = []
    slots: dict[str, Slot] = {}
    for name in order:
        lifetime = lifetimes[name]
        size = aligned(lifetime.size_bytes)
        offset = 0
        for start, end, other in placed:
            if start >= offset + size:
                break
            if end > offset and _interferes(lifetime, other, tight):
                offset = end
        slots[name] = Slot(offset, lifetime.size_bytes)
        placed.append((offset, offset + size, lifetime))
        placed.sort(key=_start)
    return slots, _to_zero(lifetimes, slots)


def _start(entry: tuple[int, int, Lifetime]) -> int:
    return entry[0]


def _interferes(a: Lifetime, b: Lifetime, tight: bool) -> bool:
    if a.overlaps(b):
        return True
    later = a if a.first > b.first else b
    return not (tight or later.fresh)


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
