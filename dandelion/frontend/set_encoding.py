"""Writing sets: responses as JSON or MessagePack, requests of clients as MessagePack.

`dandelion.frontend.codecs` describes the documents. A large one is a list of chunks, and the data
of large items are views.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from dandelion.arrays import Array, are_finite, declared_dtype, kind_of
from dandelion.data import Bytes, Item, ItemSet
from dandelion.errors import TooLarge
from dandelion.frontend.chunks import CHUNK_BYTES, Chunks
from dandelion.frontend.codecs import BIN_LIMIT_BYTES, PackItem, SetType

_JOINED_BYTES = 1024 * 1024
_pack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()


def encode_json(invocation: str, sets: Mapping[str, ItemSet | None]) -> list[Bytes]:
    """Write a JSON response.

    Items are ``numbers`` if they are arrays that JSON can express, ``value`` if their set is
    declared as JSON, else ``text`` where the data is printable UTF-8, else ``data`` in base64.
    """
    plain = {name: _json_items(value) for name, value in sets.items()}
    return [_json.encode({"id": invocation, "sets": plain, **_declared(sets)})]


def encode_msgpack(invocation: str, sets: Mapping[str, ItemSet | None]) -> list[Bytes]:
    """Write a MessagePack response without copying the data of large items."""
    head = {"id": invocation, **_declared(sets)}
    return _document(head, {name: s.items if s else None for name, s in sets.items()})


def encode_request(sets: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> list[Bytes]:
    """Write a MessagePack request.

    Args:
        sets: by name None, a sequence of `PackItem` or `Item`, or a value in a shorthand that
            MessagePack can express.
        values: plain values by name, which the node converts.
    """
    return _document({"values": values} if values else {}, sets)


def _declared(sets: Mapping[str, ItemSet | None]) -> dict[str, Any]:
    """List the types of sets, and their forms if there are any."""
    given = [(name, s) for name, s in sets.items() if s is not None]
    types = {name: SetType(s.dtype, s.shape) for name, s in given if s.dtype}
    forms = {name: s.form for name, s in given if s.form}
    return {"types": types, "forms": forms} if forms else {"types": types}


def _json_items(value: ItemSet | None) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    return [
        {"name": item.name, "key": item.key, **_json_content(item, value)} for item in value.items
    ]


def _json_content(item: Item, declared: ItemSet) -> dict[str, Any]:
    if item.dtype is not None:
        return {**_type(item), **_json_numbers(item, item.numpy())}
    if declared.dtype is not None:
        return _json_numbers(item, item.numpy(declared.dtype, _fitting(item, declared)))
    if declared.form.startswith("json"):
        try:
            return {"value": msgspec.json.decode(item.data)}
        except (msgspec.DecodeError, RecursionError):
            pass  # a declared form is not checked before
    try:
        text = str(item.data, "utf-8")
    except UnicodeDecodeError:
        return {"data": item.data}
    printable = text.isprintable() or text.translate(_BREAKS).isprintable()
    return {"text": text} if printable else {"data": item.data}


def _json_numbers(item: Item, array: Array) -> dict[str, Any]:
    if not array.size:  # its shape may need any number of empty lists
        return {"numbers": []}
    kind = kind_of(array.dtype)
    if kind in "biu" or (kind == "f" and are_finite(array).all()):
        return {"numbers": array.tolist()}
    return {"data": item.data}


_BREAKS = dict.fromkeys(map(ord, "\t\n\r"))


def _fitting(item: Item, declared: ItemSet) -> tuple[int, ...]:
    """Return the declared shape with its open dimension filled in; flat if several are open."""
    shape = declared.shape
    if shape is None or sum(size < 0 for size in shape) > 1:
        return (-1,)
    count = item.size_bytes // declared_dtype(declared.dtype).itemsize
    fixed = math.prod(size for size in shape if size >= 0)
    return shape if fixed and count else (0,) if not count else (-1,)


def _document(head: dict[str, Any], sets: Mapping[str, Any]) -> list[Bytes]:
    if all(_is_small(items) for items in sets.values()):
        small = {n: [*map(_fields, i)] if type(i) is tuple else i for n, i in sets.items()}
        return [_pack.encode({**head, "sets": small})]
    out = _PackChunks()
    out.small += _map_header(len(head) + 1)
    for key, value in head.items():
        out.small += _pack.encode(key)
        out.small += _pack.encode(value)
    out.small += _pack.encode("sets")
    out.small += _map_header(len(sets))
    for name, items in sets.items():
        out.small += _pack.encode(name)
        if isinstance(items, tuple):
            out.small += _array_header(len(items))
            for item in items:
                out.item(item)
        else:
            out.small += _pack.encode(items)
    return out.done()


def _is_small(items: Any) -> bool:
    if type(items) is not tuple:
        return True
    return len(items) <= 4 and all(len(item.data) < CHUNK_BYTES // 4 for item in items)


class _PackChunks(Chunks):
    """A MessagePack document in chunks."""

    __slots__ = ()

    def item(self, item: Item | PackItem) -> None:
        """Add an item."""
        data = item.data
        size = len(data)
        if size < CHUNK_BYTES:
            self.small += _pack.encode(_fields(item))
            if len(self.small) > _JOINED_BYTES:
                self.flush()
            return
        if size > BIN_LIMIT_BYTES:
            raise TooLarge(f"item '{item.name}'", size, BIN_LIMIT_BYTES)
        fields = {**_fields(item), "data": b""}
        self.small += _pack.encode(fields)[:-2]  # without the empty binary, which comes last
        self.small += struct.pack(">BI", 0xC6, size)
        self.large(data)


def _fields(item: Item | PackItem) -> dict[str, Any]:
    if item.dtype is None:
        return {"name": item.name, "key": item.key, "data": item.data}
    return {"name": item.name, "key": item.key, **_type(item), "data": item.data}


def _type(item: Item | PackItem) -> dict[str, Any]:
    return {"dtype": item.dtype} | ({} if item.shape is None else {"shape": item.shape})


def _map_header(count: int) -> bytes:
    return struct.pack(">B", 0x80 | count) if count < 16 else struct.pack(">BI", 0xDF, count)


def _array_header(count: int) -> bytes:
    return struct.pack(">B", 0x90 | count) if count < 16 else struct.pack(">BI", 0xDD, count)
