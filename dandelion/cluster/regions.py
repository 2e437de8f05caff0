"""Memory that this node holds for another one, over one data connection.

A **region** is a list of pieces of memory, which are numbered bytes to the other side. Nothing is
copied: the pieces are sent as they are. A region is held until

* the other side releases it, or
* the connection ends: then the other side is dead, or does not need it.

Equal memory that is held for several calls is one region (`Regions.export`), which is dropped with
the last of these calls. Of a result that the other side has copied this node may keep the
original (`kept`), so that a later call here can name it; such regions are dropped when they take
too much memory, oldest first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from dandelion.cluster.call_messages import RegionSize
from dandelion.data import Bytes
from dandelion.errors import TooMany
from dandelion.memory.lease import address_of

REGIONS_LIMIT = 65536


@dataclass(slots=True)
class Region:
    """Bytes in pieces.

    Attributes:
        starts: where each piece begins, in bytes from the beginning of the region.
        key: address and size of an exported one.
        uses: how often it was exported and not released or withdrawn.
    """

    pieces: list[memoryview]
    starts: list[int]
    size: int
    key: tuple[int, int] | None = None
    uses: int = 0


class Regions:
    """The regions of one connection.

    Args:
        kept_limit_bytes: of regions that the other side has a copy of.
    """

    def __init__(self, kept_limit_bytes: int) -> None:
        self._limit = kept_limit_bytes
        self._regions: dict[int, Region] = {}
        self._exported: dict[tuple[int, int], int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._kept_bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._regions)

    def hold(self, pieces: Sequence[Bytes]) -> RegionSize:
        """Hold memory until it is released.

        Raises:
            TooMany: so many regions are held for calls already.
        """
        views = [memoryview(piece).cast("B") for piece in pieces]
        starts, size = [], 0
        for view in views:
            starts.append(size)
            size += view.nbytes
        return self._added(Region(views, starts, size))

    def export(self, data: Bytes) -> RegionSize:
        """Hold memory for one more call; equal memory is one region. Raises as `hold`."""
        view = memoryview(data).cast("B")
        key = (address_of(view), view.nbytes)
        number = self._exported.get(key)
        if number is None:
            made = self._added(Region([view], [0], view.nbytes, key))
            number = self._exported[key] = made.region
        region = self._regions[number]
        region.uses += 1
        return RegionSize(number, region.size)

    def withdraw(self, numbers: Sequence[int]) -> list[int]:
        """Calls ended that regions were exported or held for; return those that have no user."""
        gone = []
        for number in numbers:
            region = self._regions.get(number)
            if region is None:
                continue
            region.uses -= 1
            if region.uses <= 0:
                self._drop(number)
                gone.append(number)
        return gone

    def _added(self, region: Region) -> RegionSize:
        if len(self._regions) >= REGIONS_LIMIT and self._kept:
            self._drop(next(iter(self._kept)))
        if len(self._regions) >= REGIONS_LIMIT:
            count = REGIONS_LIMIT + 1
            raise TooMany("a call on another node", "regions of memory", count, REGIONS_LIMIT)
        self._next += 1
        self._regions[self._next] = region
        return RegionSize(self._next, region.size)

    def released(self, numbers: Sequence[int], copied: bool) -> None:
        """The other side does not need regions any more, or has copied them."""
        for number in numbers:
            region = self._regions.get(number)
            if region is None:
                continue
            if not copied:
                region.uses -= 1
                if region.uses <= 0:
                    self._drop(number)
            elif number not in self._kept:
                self._kept[number] = None
                self._kept_bytes += region.size
        while self._kept_bytes > self._limit:
            self._drop(next(iter(self._kept)))

    def _drop(self, number: int) -> None:
        region = self._regions.pop(number)
        if region.key is not None:
            del self._exported[region.key]
        if number in self._kept:
            del self._kept[number]
            self._kept_bytes -= region.size

    def part(self, number: int, offset: int, size: int) -> list[Bytes] | None:
        """Return a part of a region, as views; None if there is none."""
        region = self._regions.get(number)
        if region is None or offset + size > region.size:
            return None
        found: list[Bytes] = []
        at = bisect_right(region.starts, offset) - 1
        while size:
            start = offset - region.starts[at]
            view = region.pieces[at][start : start + size]
            at += 1
            if view.nbytes:
                found.append(view)
                offset += view.nbytes
                size -= view.nbytes
        return found

    def whole(self, number: int) -> memoryview | None:
        """Return a region of one piece that is named in a call; None if it was dropped."""
        region = self._regions.get(number)
        if region is None or len(region.pieces) != 1:
            return None
        if number in self._kept:
            self._kept.move_to_end(number)
        return region.pieces[0].toreadonly()

    def clear(self) -> None:
        """The connection ended."""
        self._regions.clear()
        self._exported.clear()
        self._kept.clear()
        self._kept_bytes = 0
