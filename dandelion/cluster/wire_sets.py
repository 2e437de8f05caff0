"""Sets to messages and back. See `messages.WireItem` for where the bytes of an item may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dandelion.arrays import checked_type
from dandelion.cluster.call_messages import RegionSize, WireItem, WireSet, WireSets
from dandelion.cluster.exchange import Exchange
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import INLINE_BYTES
from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import InstanceSets
from dandelion.errors import InvalidInput, TooMany
from dandelion.set_values import check_item

SHARED_BYTES = 256 * 1024
"""An item of this size is a region of its own, which is sent once for all calls that have it."""
OWN_REGIONS = 1024
"""So many items of a call are regions of their own at most; the others are in one together."""


@dataclass(slots=True)
class Packed:
    """Sets as they are sent.

    Attributes:
        sets: for the message.
        data: for its frame; empty if there is none.
        regions: that hold the rest.
        named: regions of the receiver that are named.
    """

    sets: WireSets
    data: list[Bytes]
    regions: list[RegionSize]
    named: list[int]


def pack(sets: InstanceSets, exchange: Exchange) -> Packed:
    """Prepare sets to be sent: small ones in the frame, others as regions of the exchange.

    Raises:
        TooMany: too many regions are held for other calls; none is held for these sets.
    """
    total = sum([s.size_bytes for s in sets if s is not None])
    if total <= INLINE_BYTES:
        return _inline(sets)
    regions: dict[int, RegionSize] = {}
    small: list[Bytes] = []
    named: list[int] = []
    at = 0

    def place(data: Bytes, size: int) -> tuple[int, int]:
        nonlocal at
        if size >= SHARED_BYTES and len(regions) < OWN_REGIONS:
            there = exchange.place_of(data)
            if there is not None:
                named.append(there[0])
                return -there[0], there[1]
            made = exchange.regions.export(data)
            if made.region in regions:  # the item is there twice, and is released once
                exchange.regions.withdraw([made.region])
            regions[made.region] = made
            return made.region, 0
        small.append(data)
        at += size
        return 0, at - size

    try:
        packed = _wire(sets, place)
        if at <= INLINE_BYTES:
            return Packed(packed, small, list(regions.values()), named)
        rest = exchange.regions.hold(small)
    except TooMany:
        exchange.regions.withdraw(list(regions))
        raise
    regions[rest.region] = rest
    return Packed(_moved(packed, rest.region), [], list(regions.values()), named)


def _inline(sets: InstanceSets) -> Packed:
    data: list[Bytes] = []
    at = 0

    def place(piece: Bytes, size: int) -> tuple[int, int]:
        nonlocal at
        data.append(piece)
        at += size
        return 0, at - size

    return Packed(_wire(sets, place), data, [], [])


def _wire(sets: InstanceSets, place: Callable[[Bytes, int], tuple[int, int]]) -> WireSets:
    made: list[WireSet | None] = []
    for one in sets:
        if one is None:
            made.append(None)
            continue
        items = []
        for item in one.items:
            size = item.size_bytes
            region, offset = place(item.data, size) if size else (0, 0)
            items.append(
                WireItem(item.name, item.key, region, offset, size, item.dtype, item.shape)
            )
        made.append(WireSet(one.name, tuple(items), one.dtype, one.shape))
    return tuple(made)


def _moved(sets: WireSets, region: int) -> WireSets:
    """Have the items of the frame be in a region instead."""
    return tuple(
        None
        if one is None
        else WireSet(
            one.name,
            tuple(
                WireItem(i.name, i.key, region, i.offset, i.size, i.dtype, i.shape)
                if not i.region and i.size
                else i
                for i in one.items
            ),
            one.dtype,
            one.shape,
        )
        for one in sets
    )


def named_regions(sets: WireSets) -> set[int]:
    """Return the regions of the receiver that items are in, as positive numbers."""
    return {-i.region for one in sets if one is not None for i in one.items if i.region < 0}


def whole_regions(sets: WireSets, regions: tuple[RegionSize, ...]) -> set[int]:
    """Return the regions that are one item each: they can be named in later calls."""
    sizes = {region.region: region.size for region in regions}
    return {
        i.region
        for one in sets
        if one is not None
        for i in one.items
        if i.region > 0 and i.size >= SHARED_BYTES and i.size == sizes.get(i.region)
    }


def unpack(
    sets: WireSets, data: memoryview | None, regions: Mapping[int, memoryview]
) -> InstanceSets:
    """Make sets of what arrived; items are views of it.

    Args:
        sets: of the message.
        data: of its frame.
        regions: by number; those of the receiver by their negative number.

    Raises:
        BadPeer: they do not fit together.
    """
    frame = memoryview(b"") if data is None else data.toreadonly()
    return tuple([None if one is None else _set(one, frame, regions) for one in sets])


def _set(one: WireSet, frame: memoryview, regions: Mapping[int, memoryview]) -> ItemSet:
    items = tuple([_item(item, frame, regions) for item in one.items])
    return ItemSet(one.name, items, one.dtype, one.shape)


def _item(item: WireItem, frame: memoryview, regions: Mapping[int, memoryview]) -> Item:
    source = regions.get(item.region) if item.region else frame
    end = item.offset + item.size
    if source is None or end > source.nbytes:
        raise BadPeer(f"item '{item.name[:80]}' lies outside of what was sent")
    try:
        check_item("set", item.name, item.key)
        if item.dtype is not None or item.shape is not None:
            checked_type(f"item '{item.name}'", item.dtype, item.shape, item.size)
    except InvalidInput as error:
        raise BadPeer(str(error)) from None
    return Item(item.name, item.key, source[item.offset : end], item.dtype, item.shape)
