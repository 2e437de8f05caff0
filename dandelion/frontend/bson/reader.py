"""Reading BSON without copies and in bounded time.

A document is a length, elements and a NUL. An element is a type, a name and a value. `BsonReader`
yields elements with the place of their value; the data of a binary value is a view into the body.
It counts elements, so that a reader on the event loop can stop and leave a document to the
converter.

An array of integers below 256 is how the original's clients send bytes: a million elements for an
executable. Elements whose names ("0", "1", ...) have equally many digits have the same length, so
numpy reads each such group as the rows of a table.

Source: bsonspec.org, version 1.1. Regular expressions (type 0x0B) are refused: their length is only
known by searching, and no client sends them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np

from dandelion.data import Bytes
from dandelion.errors import InvalidInput, TooMany

STRING = 0x02
DOCUMENT = 0x03
ARRAY = 0x04
BINARY = 0x05
NULL = 0x0A
INT32 = 0x10
INT64 = 0x12

NAME_BYTES = 255
"""Longest name of an element."""

_FIXED = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, NULL: 0, INT32: 4, 0x11: 8, INT64: 8}
_FIXED |= {0x13: 16, 0x7F: 0, 0xFF: 0}
_COUNTED = {STRING: (4, 1), 0x0D: (4, 1), 0x0E: (4, 1), 0x0C: (16, 1), BINARY: (5, 0)}
_COUNTED |= {DOCUMENT: (0, 5), ARRAY: (0, 5), 0x0F: (0, 14)}
"""Bytes beside those that the length counts, and the smallest length."""
_LEAST_BYTES = 5  # an empty document
_int32 = struct.Struct("<i").unpack_from
_int64 = struct.Struct("<q").unpack_from


class BsonElement(NamedTuple):
    """An element: its type, its name, and where its value is in the body, in bytes."""

    kind: int
    name: bytes
    start: int
    end: int


class BsonReader:
    """Reads one body.

    Args:
        data: one document and nothing else.
        elements_limit: how many elements are read, without those of arrays that numpy reads.
    """

    def __init__(self, data: Bytes, elements_limit: int) -> None:
        self._data = data
        self._limit = elements_limit
        self._count = 0

    def body(self) -> Iterator[BsonElement]:
        """Yield the elements of the body.

        Raises:
            InvalidInput: it is not one whole document.
            TooMany: it has more elements than the limit.
        """
        size = len(self._data)
        if size < _LEAST_BYTES or _int32(self._data, 0)[0] != size:
            self._refuse(0, f"the length of the document is not that of the body, {size} bytes")
        return self._elements(0, size)

    def inside(self, element: BsonElement) -> Iterator[BsonElement]:
        """Yield the elements of a document or an array; raises as `body`."""
        return self._elements(element.start, element.end)

    def _elements(self, start: int, end: int) -> Iterator[BsonElement]:
        data = self._data
        last = end - 1
        if data[last]:
            self._refuse(last, "a document does not end with NUL")
        at = start + 4
        while at < last:
            kind = data[at]
            piece = bytes(data[at + 1 : min(at + 2 + NAME_BYTES, last)])
            size = piece.find(0)
            if size < 0:
                self._refuse(at, f"the name of an element does not end within {NAME_BYTES} bytes")
            start = at + size + 2
            at = self._value_end(kind, start, last)
            self._count += 1
            if self._count > self._limit:
                raise TooMany("body", "BSON elements", self._count, self._limit)
            yield BsonElement(kind, piece[:size], start, at)

    def _value_end(self, kind: int, start: int, last: int) -> int:
        fixed = _FIXED.get(kind)
        if fixed is not None:
            end = start + fixed
        elif kind in _COUNTED:
            beside, least = _COUNTED[kind]
            size = _int32(self._data, start)[0] if start + 4 <= last else -1
            if size < least:
                self._refuse(start, f"{size} is not the length of a value of type {kind:#04x}")
            end = start + beside + size
        else:
            self._refuse(start, f"type {kind:#04x} is not supported")
        if end > last:
            self._refuse(start, "a value ends behind its document")
        return end

    # --- values -----------------------------------------------------------------------------------

    def text(self, where: str, element: BsonElement) -> str:
        """Read a string.

        Raises:
            InvalidInput: it is not a string of valid UTF-8.
        """
        if element.kind != STRING:
            raise _differs(where, element, "a string")
        data = bytes(self._data[element.start + 4 : element.end])
        if data[-1]:
            self._refuse(element.end - 1, "a string does not end with NUL")
        try:
            return data[:-1].decode()
        except UnicodeDecodeError:
            raise InvalidInput(where, "it is not valid UTF-8") from None

    def integer(self, where: str, element: BsonElement, limit: int) -> int:
        """Read an integer from 0 to below `limit`, of 32 or 64 bits.

        Raises:
            InvalidInput: it is something else.
        """
        if element.kind == INT32:
            value: int = _int32(self._data, element.start)[0]
        elif element.kind == INT64:
            value = _int64(self._data, element.start)[0]
        else:
            raise _differs(where, element, "an integer")
        if not 0 <= value < limit:
            raise InvalidInput(where, f"{value} is outside 0..{limit - 1}")
        return value

    def binary(self, where: str, element: BsonElement) -> Bytes:
        """View the data of a binary value of any subtype.

        Raises:
            InvalidInput: it is not binary.
        """
        if element.kind != BINARY:
            raise _differs(where, element, "binary")
        if isinstance(self._data, memoryview):
            return self._data[element.start + 5 : element.end]
        return memoryview(self._data)[element.start + 5 : element.end]

    def byte_values(self, where: str, element: BsonElement) -> bytes:
        """Read bytes: binary, or an array with an integer from 0 to 255 for each byte.

        Raises:
            InvalidInput: it is something else.
            TooMany: numpy cannot read the array, and it has more elements than the limit.
        """
        if element.kind == BINARY:
            return bytes(self.binary(where, element))
        if element.kind != ARRAY:
            raise _differs(where, element, "an array of integers, or binary")
        fast = read_int32_array(self._data[element.start : element.end])
        if fast is not None:
            return fast
        return bytes(self.integer(where, e, 256) for e in self.inside(element))

    def _refuse(self, offset: int, message: str) -> NoReturn:
        raise InvalidInput("body", f"not valid BSON at byte {offset}: {message}")


def read_int32_array(data: Bytes) -> bytes | None:
    """Read an array of 32-bit integers below 256 whose names are the indices.

    Each group of elements with equally many digits is one table. A row is a type, digits, NUL and a
    little-endian integer. Names are not compared with indices: it is enough that they have as many
    bytes and no NUL, since then the rows are the elements.

    Args:
        data: the array, with its length and its NUL.

    Returns:
        The lowest byte of each integer; None if the array has another form.
    """
    table = np.frombuffer(data, np.uint8)
    at, last = 4, len(data) - 1
    if table[last]:
        return None
    pieces = []
    digits = 1
    while at < last:
        row = digits + 6
        count = min(10 if digits == 1 else 9 * 10 ** (digits - 1), (last - at) // row)
        if not count:
            return None
        rows = table[at : at + count * row].reshape(count, row)
        value = digits + 2
        whole = (
            bool((rows[:, 0] == INT32).all())
            and bool(rows[:, 1 : digits + 1].all())
            and not rows[:, digits + 1].any()
            and not rows[:, value + 1 :].any()
        )
        if not whole:
            return None
        pieces.append(rows[:, value])
        at += count * row
        digits += 1
    return np.concatenate(pieces).tobytes() if pieces else b""


def _differs(where: str, element: BsonElement, expected: str) -> InvalidInput:
    return InvalidInput(where, f"it has the BSON type {element.kind:#04x}", f"send {expected}")
