"""Sets as a node names them to a frontend: small data in the message, other data by its place."""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.data import ItemSet
from dandelion.frontend_process.wire import (
    INLINE_BYTES,
    PART_ITEMS,
    WireItem,
    WireSet,
    WireSets,
    inline_item,
)
from dandelion.memory import ArenaMap


def wired(sets: Mapping[str, ItemSet | None], arena: ArenaMap) -> tuple[WireSets, bool] | None:
    """Name sets for one message, and tell whether data is named by its place in the arena.

    Returns:
        None if one message cannot name them: they have more than `PART_ITEMS` items, or data that
        is not small lies elsewhere.
    """
    named = []
    count = 0
    by_place = False
    for name, one in sets.items():
        if one is None:
            named.append(WireSet(name))
            continue
        count += len(one.items)
        if count > PART_ITEMS:
            return None
        items = []
        for item in one.items:
            data = item.data
            size = item.size_bytes
            if size <= INLINE_BYTES:
                made = inline_item(item, data if isinstance(data, bytes) else bytes(data))
            else:
                offset = arena.locate(data)
                if offset is None:
                    return None
                by_place = True
                made = WireItem(item.name, item.key, None, item.dtype, item.shape, offset, size)
            items.append(made)
        named.append(WireSet(name, tuple(items), one.dtype, one.shape, one.form))
    return tuple(named), by_place
