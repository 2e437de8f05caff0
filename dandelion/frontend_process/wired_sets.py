"""Sets as both sides of a link name them: small data in the message, other data by its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dandelion.data import Item, ItemSet
from dandelion.frontend_process.wire import (
    INLINE_BYTES,
    PART_ITEMS,
    WireItem,
    WireSet,
    WireSets,
    inline_item,
)
from dandelion.memory import ArenaMap


def wired(
    sets: Mapping[str, ItemSet | None], wired_item: Callable[[Item], WireItem | None]
) -> WireSets | None:
    """Name sets for one message.

    Args:
        sets: with or without items.
        wired_item: names an item; None if it cannot.

    Returns:
        None if an item cannot be named, or if there are more than `PART_ITEMS`.
    """
    named = []
    count = 0
    for name, one in sets.items():
        if one is None:
            named.append(WireSet(name))
            continue
        count += len(one.items)
        if count > PART_ITEMS:
            return None
        items = []
        for item in one.items:
            made = wired_item(item)
            if made is None:
                return None
            items.append(made)
        named.append(WireSet(name, tuple(items), one.dtype, one.shape, one.form))
    return tuple(named)


def arena_item(arena: ArenaMap, item: Item) -> WireItem | None:
    """Name an item of the node; None if its data is not small and lies outside of the arena."""
    data = item.data
    size = item.size_bytes
    if size <= INLINE_BYTES:
        return inline_item(item, data if isinstance(data, bytes) else bytes(data))
    offset = arena.locate(data)
    if offset is None:
        return None
    return WireItem(item.name, item.key, None, item.dtype, item.shape, offset, size)


def names_places(sets: WireSets) -> bool:
    """Tell whether data is named by its place."""
    for one in sets:
        for item in one.items:
            if item.data is None:
                return True
    return False
