"""What a node and an engine process say to each other: MessagePack, length-prefixed, over a socket.

Data never travels here: sets name items by (offset, size) in the arena, which both sides map.
One conversation is one call at a time: the node sends `Load` (once for each function) and `Run`,
the process answers a `Run` with `Done` or `Failed`. `Forget` has no answer. The end of the stream
is the order to leave, so an engine process never outlives its node.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeAlias

import msgspec

from dandelion.data import ItemSet
from dandelion.errors import ErrorRecord, InternalError
from dandelion.function import CodeObject, FunctionSpec
from dandelion.memory import ArenaMap

_HEADER = struct.Struct("<I")
MESSAGE_LIMIT_BYTES = 1 << 30


class WireItem(msgspec.Struct, frozen=True, array_like=True):
    """An item by reference: name, key, offset and size in the arena, in bytes."""

    name: str
    key: int
    offset: int
    size: int


class WireSet(msgspec.Struct, frozen=True, array_like=True):
    """A set by reference."""

    name: str
    items: tuple[WireItem, ...]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


WireSets: TypeAlias = tuple[WireSet | None, ...]


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Keep this function; it is named by its identity from now on."""

    identity: str
    spec: FunctionSpec
    code: CodeObject
    main: bytes
    files: dict[str, bytes]


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Drop a function and everything that was made of it."""

    identity: str


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run a loaded function.

    Attributes:
        call: id of the call.
        identity: which function.
        inputs: its sets, by position.
        result_offset, result_bytes: the context for its outputs.
        left_ns: time until the call's deadline.
    """

    call: int
    identity: str
    inputs: WireSets
    result_offset: int
    result_bytes: int
    left_ns: int


Request: TypeAlias = Load | Forget | Run


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is up.

    Attributes:
        backend: which of the asked backends it is.
        engine: its name.
        resources: names of all resources that the backend has here.
        description: of the resource in use, for people.
        device_bytes, blocks: the engine's capacity.
        workers: how many further engines should share the resource.
    """

    backend: str
    engine: str
    resources: tuple[str, ...]
    description: str
    device_bytes: int = 0
    blocks: int = 0
    workers: int = 0


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A call gave its outputs; `stages` are durations in nanoseconds."""

    call: int
    outputs: WireSets
    stages: dict[str, int]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A call, or the start of the engine (call -1), failed. After `fatal` the process leaves."""

    call: int
    error: ErrorRecord
    stages: dict[str, int] = {}
    fatal: bool = False


Reply: TypeAlias = Ready | Done | Failed

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Load | Forget | Run)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Ready | Done | Failed)


def send(peer: socket.socket, message: Request | Reply) -> None:
    """Send one message whole."""
    body = _ENCODER.encode(message)
    peer.sendall(_HEADER.pack(len(body)) + body)


def receive_request(peer: socket.socket) -> Request | None:
    """Wait for a request; None when the node is gone."""
    body = _receive(peer)
    return None if body is None else _REQUESTS.decode(body)


def receive_reply(peer: socket.socket) -> Reply | None:
    """Wait for a reply, as long as the socket's timeout says; None when the process is gone."""
    body = _receive(peer)
    return None if body is None else _REPLIES.decode(body)


def _receive(peer: socket.socket) -> bytes | None:
    header = _exactly(peer, _HEADER.size)
    if header is None:
        return None
    (size,) = _HEADER.unpack(header)
    return _exactly(peer, size) if size <= MESSAGE_LIMIT_BYTES else None


def _exactly(peer: socket.socket, size: int) -> bytes | None:
    first = peer.recv(size)
    if len(first) == size:
        return first
    parts = [first]
    missing = size - len(first)
    while missing and parts[-1]:
        parts.append(peer.recv(min(missing, 1 << 20)))
        missing -= len(parts[-1])
    return b"".join(parts) if not missing else None


def wire_set(item_set: ItemSet, arena: ArenaMap) -> WireSet:
    """Name a set's items by their place in the arena.

    Raises:
        InternalError: an item lies elsewhere.
    """
    items = []
    for item in item_set.items:
        size = item.size_bytes
        offset = arena.locate(item.data) if size else 0
        if offset is None:
            raise InternalError(f"item '{item.name}' of set '{item_set.name}' is not in the arena")
        items.append(WireItem(item.name, item.key, offset, size))
    return WireSet(item_set.name, tuple(items), item_set.dtype, item_set.shape)
