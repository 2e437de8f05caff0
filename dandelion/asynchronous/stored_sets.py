"""Sets as bytes, for a store: a head, then the data of all items.

::

    offset 0   magic "DKI1"
    offset 4   CRC-32 of everything from offset 8 on, little-endian
    offset 8   length of the head in bytes, little-endian, 32 bits
    offset 12  the head in MessagePack: a list of `_StoredSet`
    then       the data of all items, one after the other

The checksum finds torn writes and damaged disks; it is no protection against forgery. Reading
copies nothing: items are views of the bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from dandelion.data import Bytes, Item, ItemSet

_MAGIC = b"DKI1"
_PREFIX = struct.Struct("<4sII")
_JOIN_BYTES = 64 * 1024


class _StoredItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    key: int
    size: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class _StoredSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    items: tuple[_StoredItem, ...] | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    form: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[_StoredSet, ...])


class DamagedSets(ValueError):
    """Bytes are not what `encode_sets` wrote."""


def size_of(sets: Mapping[str, ItemSet | None]) -> int:
    """Return about how many bytes `encode_sets` gives; the data and a share for each item."""
    found = [one for one in sets.values() if one is not None]
    return 64 + sum([one.size_bytes + 64 * len(one.items) for one in found])


def encode_sets(sets: Mapping[str, ItemSet | None]) -> list[Bytes]:
    """Write sets as chunks, without copying large items."""
    stored = tuple(_stored(name, one) for name, one in sets.items())
    head = _encoder.encode(stored)
    chunks: list[Bytes] = [len(head).to_bytes(4, "little") + head]
    for one in sets.values():
        if one is not None:
            chunks += [_flat(item.data) for item in one.items]
    checksum = 0
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
    prefix = _MAGIC + checksum.to_bytes(4, "little")
    if sum(map(len, chunks)) <= _JOIN_BYTES:
        return [b"".join([prefix, *chunks])]
    return [prefix, *chunks]


def _flat(data: Bytes) -> Bytes:
    return data if isinstance(data, bytes) else data.cast("B")


def _stored(name: str, one: ItemSet | None) -> _StoredSet:
    if one is None:
        return _StoredSet(name, None)
    items = tuple(_StoredItem(i.name, i.key, i.size_bytes, i.dtype, i.shape) for i in one.items)
    return _StoredSet(name, items, one.dtype, one.shape, one.form)


def decode_sets(data: Bytes) -> dict[str, ItemSet | None]:
    """Read sets; their items are views of the bytes.

    Raises:
        DamagedSets: the bytes are cut off, damaged, or something else.
    """
    view = memoryview(data).cast("B").toreadonly()
    if len(view) < _PREFIX.size:
        raise DamagedSets(f"{len(view)} bytes are too few")
    magic, checksum, head_bytes = _PREFIX.unpack_from(view)
    if magic != _MAGIC or zlib.crc32(view[8:]) != checksum:
        raise DamagedSets(f"{len(view)} bytes do not have their checksum")
    end = _PREFIX.size + head_bytes
    try:
        stored = _decoder.decode(view[_PREFIX.size : end])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedSets(str(error)) from None
    sets: dict[str, ItemSet | None] = {}
    for one in stored:
        if one.items is None:
            sets[one.name] = None
            continue
        items, end = _items(one.items, view, end)
        sets[one.name] = ItemSet(one.name, items, one.dtype, one.shape, one.form)
    return sets


def _items(
    stored: Sequence[_StoredItem], view: memoryview, start: int
) -> tuple[tuple[Item, ...], int]:
    items = []
    for one in stored:
        end = start + one.size
        items.append(Item(one.name, one.key, view[start:end], one.dtype, one.shape))
        start = end
    return tuple(items), start
