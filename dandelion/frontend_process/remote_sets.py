"""Sets on the link: which data travels in messages, and where the rest lies."""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.data import Bytes, Item, ItemSet
from dandelion.frontend_process.leases import SLAB_ITEM_BYTES
from dandelion.frontend_process.remote_memory import RemoteMemory
from dandelion.frontend_process.wire import INLINE_BYTES, WireItem, WireSets, inline_item
from dandelion.frontend_process.wired_sets import wired


class RemoteSets:
    """Names the sets of requests, and reads those of answers.

    Args:
        memory: what the frontend has of the arena.
    """

    def __init__(self, memory: RemoteMemory) -> None:
        self._memory = memory
        self._leases = memory.leases

    def wired(self, sets: Mapping[str, ItemSet | None]) -> WireSets | None:
        """Name sets for one message; None if they need a lease or are too many items for that."""
        return wired(sets, self.wired_item)

    def wired_item(self, item: Item) -> WireItem | None:
        """Name an item for a message; None if its data has to be copied to a lease."""
        data = item.data
        if item.size_bytes <= INLINE_BYTES:
            return inline_item(item, data if isinstance(data, bytes) else bytes(data))
        place = self._leases.find(data)
        if place is None:
            place = self._memory.place(data)
            if place is None:
                if item.size_bytes > SLAB_ITEM_BYTES:
                    return None
                return inline_item(item, bytes(data))
        return placed(item, *place)

    def is_loose(self, item: Item) -> bool:
        """Tell whether the data of an item neither travels in a message nor lies in a lease."""
        return item.size_bytes > INLINE_BYTES and self._leases.find(item.data) is None

    def read(self, number: int, wire: WireSets) -> dict[str, ItemSet | None]:
        """Make sets of an answer; their data is views of the arena."""
        base = 0
        view: memoryview | None = None
        made: dict[str, ItemSet | None] = {}
        for one in wire:
            items = []
            for i in one.items:
                data: Bytes | None = i.data
                if data is None:
                    if view is None:
                        base, end = _span(wire)
                        view = self._leases.result(number, base, end - base)
                        self._memory.release_later()
                    data = view[i.offset - base : i.offset - base + i.size]
                items.append(Item(i.name, i.key, data, i.dtype, i.shape))
            made[one.name] = (
                ItemSet(one.name, tuple(items), one.dtype, one.shape, one.form) if items else None
            )
        return made


def placed(item: Item, lease: int, offset: int) -> WireItem:
    """Name an item whose data lies in a lease, `offset` bytes behind its start."""
    return WireItem(
        item.name, item.key, None, item.dtype, item.shape, offset, item.size_bytes, lease
    )


def _span(wire: WireSets) -> tuple[int, int]:
    """Give where in the arena the data of sets begins and ends."""
    places = [(i.offset, i.offset + i.size) for s in wire for i in s.items if i.data is None]
    return min(start for start, _ in places), max(end for _, end in places)
