"""Writing replies: ``{sets: [{identifier, items: [{identifier, key, data}]}]}``.

Keys have 64 bits, data has the binary subtype 0, and sets without items are left out. The data of
large items is not copied: a reply is a list of chunks. Since a BSON document begins with its
length, all lengths are computed first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dandelion.data import Bytes, ItemSet
from dandelion.errors import TooLarge
from dandelion.frontend.chunks import CHUNK_BYTES, Chunks

REPLY_LIMIT_BYTES = 2**31 - 1
"""A BSON document has a signed length of 32 bits."""

_length = struct.Struct("<i").pack
_BEFORE_ITEMS = b"\x04items\0"
_IDENTIFIER = b"\x02identifier\0"
_KEY = struct.Struct("<5sq6siB").pack
_ITEM_BYTES = 4 + len(_IDENTIFIER) + 5 + 5 + 8 + 6 + 5 + 1
"""An item without the bytes of its name and its data."""
_SET_BYTES = 4 + len(_IDENTIFIER) + 5 + len(_BEFORE_ITEMS) + 1
_BEFORE_SETS = b"\x04sets\0"


def encode_reply(sets: Sequence[tuple[str, ItemSet | None]]) -> list[Bytes]:
    """Write a reply.

    Args:
        sets: in order, with the names that the reply shows.

    Raises:
        TooLarge: BSON cannot express so large a reply.
    """
    given = [(name.encode(), one) for name, one in sets if one is not None]
    lists = [_items_bytes(one) for _, one in given]
    sizes = [_SET_BYTES + len(name) + size for (name, _), size in zip(given, lists, strict=True)]
    array = 5 + sum(sizes) + _names_bytes(len(given))
    whole = 4 + len(_BEFORE_SETS) + array + 1
    if whole > REPLY_LIMIT_BYTES:
        raise TooLarge("reply", whole, REPLY_LIMIT_BYTES)
    out = _BsonChunks()
    out.small += _length(whole) + _BEFORE_SETS + _length(array)
    for index, (name, one) in enumerate(given):
        out.small += b"\x03%d\0" % index + _length(sizes[index])
        out.small += _IDENTIFIER + _length(len(name) + 1) + name + b"\0"
        out.small += _BEFORE_ITEMS + _length(lists[index])
        _write_items(out, one)
        out.small += b"\0\0"
    out.small += b"\0\0"
    return out.done()


def _items_bytes(one: ItemSet) -> int:
    data = sum([item.size_bytes + len(item.name.encode()) for item in one.items])
    return 5 + data + len(one.items) * _ITEM_BYTES + _names_bytes(len(one.items))


def _write_items(out: _BsonChunks, one: ItemSet) -> None:
    for index, item in enumerate(one.items):
        name = item.name.encode()
        size = item.size_bytes
        out.small += b"\x03%d\0" % index + _length(_ITEM_BYTES + len(name) + size)
        out.small += _IDENTIFIER + _length(len(name) + 1) + name + b"\0"
        out.small += _KEY(b"\x12key\0", item.key, b"\x05data\0", size, 0)
        out.data(item.data, size)
        out.small += b"\0"


def _names_bytes(count: int) -> int:
    """Return the bytes of types and names of an array of so many documents."""
    total, digits, first = 0, 1, 0
    while first < count:
        last = min(count, 10**digits)
        total += (last - first) * (digits + 2)
        first, digits = last, digits + 1
    return total


class _BsonChunks(Chunks):
    """A BSON document in chunks."""

    __slots__ = ()

    def data(self, data: Bytes, size_bytes: int) -> None:
        """Add the data of an item."""
        if size_bytes < CHUNK_BYTES:
            self.small += data
        else:
            self.large(data)
