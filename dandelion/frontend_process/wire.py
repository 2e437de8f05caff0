"""Items, sets and other bytes on the link between a node and a frontend process."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.data import Item

INLINE_BYTES = 4096
"""Data up to this size travels in the message."""
PART_ITEMS = 512
"""So many items of an invocation travel in one message at most."""
BLOB_BYTES = 64 * 1024
"""A document or an answer up to this size travels in the message."""


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item: its data, or where the data lies.

    Attributes:
        name, key, dtype, shape: those of `dandelion.data.Item`.
        data: the bytes; None if they lie in the arena.
        offset, size: from a frontend: within the lease; from the node: within the arena. In bytes.
        lease: number of the lease; 0 from the node.
    """

    name: str
    key: int
    data: bytes | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offset: int = 0
    size: int = 0
    lease: int = 0


class WireSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A set; without items it is absent."""

    name: str
    items: tuple[WireItem, ...] = ()
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    form: str = ""


WireSets: TypeAlias = tuple[WireSet, ...]


class Blob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes that are no item; `data`, or a place as in `WireItem`."""

    data: bytes | None
    offset: int = 0
    size: int = 0
    lease: int = 0


def inline_item(item: Item, data: bytes) -> WireItem:
    """Name an item with its data."""
    return WireItem(item.name, item.key, data, item.dtype, item.shape)


def joined(parts: list[WireSet], sets: WireSets) -> WireSets:
    """Give sets with the items of their parts, which come first."""
    items: dict[str, list[WireItem]] = {one.name: [] for one in sets}
    for part in parts:
        items.setdefault(part.name, []).extend(part.items)
    return tuple(
        WireSet(one.name, (*items[one.name], *one.items), one.dtype, one.shape, one.form)
        for one in sets
    )
