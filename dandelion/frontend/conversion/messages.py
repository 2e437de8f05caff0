"""Messages between a node and a child of the converter; see the package."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from dandelion.data import Bytes, Item, ItemSet, SetSpec
from dandelion.engine_process.channel import Channel
from dandelion.errors import ErrorRecord

INLINE_BYTES = 1024
"""Data up to this size is sent in the message; larger data is in the arena."""

PART_ITEMS = 512
PART_BYTES = 256 * 1024


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item: its data, or offset and size of the data in the arena, in bytes.

    `dtype` and `shape` are those of `Item`.
    """

    name: str
    key: int
    data: bytes | None
    offset: int = 0
    size: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Some items of a set. The parts of a set are consecutive. An absent set has one empty part.

    Attributes:
        dtype, shape, form: of the set's declaration.
    """

    name: str
    items: tuple[WireItem, ...] = ()
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    form: str = ""


class Decode(msgspec.Struct, frozen=True, array_like=True, tag="decode"):
    """Decode the sets of an invocation.

    Attributes:
        media_type: JSON or MessagePack.
        offset, size: of the body in the arena.
        specs: the sets that callers give.
        items_limit: how many items there may be.
    """

    media_type: str
    offset: int
    size: int
    specs: tuple[SetSpec, ...]
    items_limit: int


class Document(msgspec.Struct, frozen=True, array_like=True, tag="document"):
    """Decode a registration document. Its contents are returned as items of one set, in order."""

    media_type: str
    offset: int
    size: int


class Parse(msgspec.Struct, frozen=True, array_like=True, tag="parse"):
    """Parse the body of another protocol into sets and a document.

    Attributes:
        parser: which of the parsers in `dandelion.frontend.conversion.parsers`.
        offset, size: of the body in the arena.
        limit: of what that parser counts.
    """

    parser: str
    offset: int
    size: int
    limit: int


class Encode(msgspec.Struct, frozen=True, array_like=True, tag="encode"):
    """Encode the preceding sets as the JSON response of an invocation, one item."""

    id: str


class Draw(msgspec.Struct, frozen=True, array_like=True, tag="draw"):
    """Draw a composition of a text; the result is one item."""

    text: str
    name: str
    format: str


class Room(msgspec.Struct, frozen=True, array_like=True, tag="room"):
    """Reply to `Need`: the offset of the memory in the arena."""

    offset: int


class Need(msgspec.Struct, frozen=True, array_like=True, tag="need"):
    """Request memory in the arena, in bytes."""

    size: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """All parts were sent. `document` is a document, or what was parsed, without its contents."""

    document: bytes = b""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The order failed."""

    error: ErrorRecord


Order: TypeAlias = Decode | Document | Parse | Encode | Draw
ToChild: TypeAlias = Order | Part | Room
ToNode: TypeAlias = Need | Part | Done | Failed

_TO_CHILD: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(
    Decode | Document | Parse | Encode | Draw | Part | Room
)
_TO_NODE: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(Need | Part | Done | Failed)


def child_channel(peer: socket.socket) -> Channel[ToChild]:
    """Make the child's end of the channel."""
    return Channel(peer, _TO_CHILD)


def node_channel(peer: socket.socket) -> Channel[ToNode]:
    """Make the node's end of the channel."""
    return Channel(peer, _TO_NODE)


def parts(sets: Mapping[str, ItemSet | None], wire: Callable[[Item], WireItem]) -> Iterator[Part]:
    """Split sets into small parts.

    Args:
        sets: by name.
        wire: converts an item, see `wire_item`.
    """
    for name, one in sets.items():
        if one is None:
            yield Part(name)
            continue
        some: list[WireItem] = []
        size = 0
        for item in one.items:
            some.append(wire(item))
            size += len(some[-1].data or b"")
            if len(some) == PART_ITEMS or size > PART_BYTES:
                yield Part(name, tuple(some), one.dtype, one.shape, one.form)
                some, size = [], 0
        if some:
            yield Part(name, tuple(some), one.dtype, one.shape, one.form)


def wire_item(item: Item, data: bytes | None, offset: int = 0) -> WireItem:
    """Make the message of an item: with its data, or with its place in the arena."""
    size = item.size_bytes if data is None else 0
    return WireItem(item.name, item.key, data, offset, size, item.dtype, item.shape)


class Collected:
    """Joins the parts of sets.

    Args:
        read: returns the bytes at an offset of the arena, of a given size.
    """

    def __init__(self, read: Callable[[int, int], Bytes]) -> None:
        self._read = read
        self._parts: dict[str, list[Item]] = {}
        self._types: dict[str, tuple[str | None, tuple[int, ...] | None, str]] = {}

    def add(self, part: Part) -> None:
        """Add the next part."""
        items = self._parts.setdefault(part.name, [])
        self._types[part.name] = part.dtype, part.shape, part.form
        for wire in part.items:
            data = wire.data if wire.data is not None else self._read(wire.offset, wire.size)
            items.append(Item(wire.name, wire.key, data, wire.dtype, wire.shape))

    def sets(self) -> dict[str, ItemSet | None]:
        """Return the sets, in order."""
        return {
            name: ItemSet(name, tuple(items), *self._types[name]) if items else None
            for name, items in self._parts.items()
        }
