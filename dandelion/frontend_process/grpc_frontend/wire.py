"""Large tensors beside protobuf: raw contents are taken from a message and added without copies.

The library copies each bytes field several times, so a tensor of 64 MiB would be copied six times.
A message is a sequence of fields in any order, so those with raw contents are cut out before the
library reads the rest, and written behind what it has written. KServe has no groups, the fields
that end with a tag of their own; messages with groups are refused.

Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from dandelion.data import Bytes
from dandelion.errors import InvalidInput, TooLarge, TooMany

INPUTS, OUTPUTS, RAW_INPUTS = 5, 6, 7
RAW_OUTPUTS = 6
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_LIMIT_BYTES = 10
MESSAGE_LIMIT_BYTES = 2**31 - 1
"""Of protobuf and of gRPC."""
FIELDS_LIMIT = 4096
"""So many fields a message may have: four of 1024 values each."""
PART_FIELDS_LIMIT = 128
"""So many fields each tensor in it may have: parameters, dimensions, and some more."""


def split_raw(message: bytes, field: int) -> tuple[bytes, list[memoryview]]:
    """Take the values of a bytes field out of a message.

    Args:
        message: the whole message.
        field: number of the field.

    Returns:
        The message without them, and views of the values.

    Raises:
        InvalidInput: it is not a message.
        TooMany: it has more fields than `FIELDS_LIMIT`.
    """
    view = memoryview(message)
    kept: list[memoryview] = []
    raw: list[memoryview] = []
    for number, start, begin, end in _fields(view, FIELDS_LIMIT):
        if number == field and begin >= 0:
            raw.append(view[begin:end])
        else:
            kept.append(view[start:end])
    return b"".join(kept), raw


def check_parts(message: bytes, fields: Container[int]) -> None:
    """Limit the fields of messages in a message, which the library takes long to read.

    Args:
        message: the whole message.
        fields: numbers of the fields that are messages.

    Raises:
        InvalidInput: it is not a message, or a value of these fields is none.
        TooMany: a value of these fields has more fields than `PART_FIELDS_LIMIT`.
    """
    view = memoryview(message)
    for number, _, begin, end in _fields(view, FIELDS_LIMIT):
        if number in fields and begin >= 0:
            for _ in _fields(view[begin:end], PART_FIELDS_LIMIT):
                pass


def _fields(view: memoryview, limit: int) -> Iterator[tuple[int, int, int, int]]:
    """Give each field's number, its start, its value's begin if that has a length, its end."""
    size, end, count = len(view), 0, 0
    while end < size:
        count += 1
        if count > limit:
            raise TooMany("request", "fields of a message", count, limit)
        start, begin = end, -1
        tag, end = _varint(view, end)
        kind = tag & 7
        if kind == _LENGTH:
            length, begin = _varint(view, end)
            end = begin + length
        elif kind == _VARINT:
            _, end = _varint(view, end)
        elif kind in (_FIXED32, _FIXED64):
            end += 4 if kind == _FIXED32 else 8
        else:
            raise _malformed()
        if end > size:
            raise _malformed()
        yield tag >> 3, start, begin, end


def joined_raw(message: bytes, field: int, values: Iterable[list[Bytes]]) -> bytes:
    """Add values of a bytes field, each given in pieces, to a message.

    Raises:
        TooLarge: the message would be larger than one may be.
    """
    pieces: list[Bytes] = [message]
    for value in values:
        pieces += bytes_head(field, sum(map(len, value))), *value
    size = sum(map(len, pieces))
    if size > MESSAGE_LIMIT_BYTES:
        raise TooLarge("response", size, MESSAGE_LIMIT_BYTES, "request it over HTTP")
    return b"".join(pieces)


def bytes_head(field: int, size_bytes: int) -> bytes:
    """Write what precedes a field that has a length."""
    return _encoded(field << 3 | _LENGTH) + _encoded(size_bytes)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_LIMIT_BYTES):
        if position >= len(view):
            break
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position
    raise _malformed()


def _malformed() -> InvalidInput:
    return InvalidInput("request", "it is not a protobuf message, or has groups")
