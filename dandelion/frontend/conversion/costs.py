"""Whether a document is converted on the event loop or by the converter.

A document that takes at most some milliseconds is converted on the event loop. The cost is
estimated without decoding. The number of values matters more than the number of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from dandelion.data import Bytes, Item, ItemSet

SMALL_BYTES = 16 * 1024
LARGE_BYTES = 1024 * 1024
"""Size of text and numbers. A binary value of MessagePack of any size costs nothing."""

VALUES = 4096
ITEMS = 2048
ITEM_COST = 512
NUMBER_COST = 32
"""Cost of an item, and of each byte of an array of numbers, in bytes of text."""

JSON_COST = 16
"""Cost of each byte of a JSON value, in bytes of text."""

DRAWN_LENGTH = 1024
"""Of the text of a composition; drawing takes 10 ms, and seven times as much 250 ms."""


def costs_json(body: Bytes) -> bool:
    """Return whether a JSON document takes long to decode."""
    if len(body) <= SMALL_BYTES:
        return False
    if len(body) > LARGE_BYTES:
        return True
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == 0x2C)) > VALUES  # commas


_FIXED = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3}
_FIXED |= {0xD2: 5, 0xD3: 9, 0xCA: 5, 0xCB: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
_BINARY = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def costs_msgpack(body: Bytes) -> bool:
    """Return whether a MessagePack document takes long to decode; walks over its first values.

    Source: the MessagePack specification, formats.
    """
    size = len(body)
    if size <= SMALL_BYTES:
        return False
    position, wanted, text = 0, 1, 0
    for _ in range(VALUES):
        if not wanted or position >= size:  # the decoder refuses an invalid document
            return text > LARGE_BYTES
        first = body[position]
        wanted -= 1
        if first < 0x80 or first >= 0xE0:
            position += 1
        elif first < 0x90:
            position, wanted = position + 1, wanted + 2 * (first & 15)
        elif first < 0xA0:
            position, wanted = position + 1, wanted + (first & 15)
        elif first < 0xC0:
            position += 1 + (first & 31)
        elif first in _FIXED:
            position += _FIXED[first]
        elif first in _BINARY:
            width, more = _BINARY[first]
            position += 1 + width + more + _length(body, position, width)
        elif first in _TEXT:
            length = _length(body, position, _TEXT[first])
            position, text = position + 1 + _TEXT[first] + length, text + length
        elif first in _NESTED:
            width, each = _NESTED[first]
            wanted += each * _length(body, position, width)
            position += 1 + width
        else:
            return text > LARGE_BYTES
    return True


def _length(body: Bytes, position: int, width: int) -> int:
    return int.from_bytes(body[position + 1 : position + 1 + width], "big")


def costs_registration(body: Bytes, media_type: str) -> bool:
    """Tell whether a registration document takes long to read; its contents are copied."""
    if len(body) > LARGE_BYTES:
        return True
    return costs_msgpack(body) if media_type == "application/msgpack" else costs_json(body)


def costs_drawing(text: str) -> bool:
    """Tell whether it takes long to draw the compositions of a text."""
    return len(text) > DRAWN_LENGTH


def many_items(sets: Mapping[str, ItemSet | None]) -> bool:
    """Return whether a response has many items."""
    count = 0
    for one in sets.values():
        if one is not None:
            count += len(one.items)
    return count > ITEMS


def costs_json_response(sets: Mapping[str, ItemSet | None]) -> bool:
    """Return whether a response takes long to encode as JSON; numbers cost most."""
    cost = 0
    for one in sets.values():
        if one is None:
            continue
        if len(one.items) > ITEMS:
            return True
        size = one.size_bytes
        if size > SMALL_BYTES and (one.dtype is not None or any(map(_is_array, one.items))):
            size *= NUMBER_COST
        elif one.form.startswith("json"):  # it is read and written again
            size *= JSON_COST
        cost += size + ITEM_COST * len(one.items)
    return cost > LARGE_BYTES


def _is_array(item: Item) -> bool:
    return any(field is not None for field in msgspec.structs.astuple(item)[3:])
