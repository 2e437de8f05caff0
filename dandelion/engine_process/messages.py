"""What a node and an engine process say to each other: MessagePack, length-prefixed, over a socket.

Sets name items by (offset, size). This is a place in the arena, which both sides map; or, if the
process is confined and maps no arena, in the data that follows the message, `data_bytes` long.

========== ================================ =====================================================
request    answer                           meaning
========== ================================ =====================================================
`Open`     `Ready`, `Failed`                make the engine
`Load`     -                                keep a function, before its first `Plan` or `Run`
`Plan`     `Planned`, `Failed`              what a call needs
`Run`      `Begun`*, then `Done`, `Failed`  run a call; `Begun`: its time counts from now;
           `Shared`* before that            `Shared`: other engines can map its constants
`StopCall` -                                end a call soon; the call itself is answered
`Evict`    -                                drop the constants of a function from the device
`Forget`   -                                drop a function
========== ================================ =====================================================

Answers to `Run` come in order. Several requests may be sent at once. The end of the stream is the
order to leave, so an engine process never outlives its node.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from dandelion.data import Item, ItemSet
from dandelion.driver import Capacity, Demand
from dandelion.engine_process.channel import MESSAGE_LIMIT_BYTES, Channel
from dandelion.errors import ErrorRecord, InternalError
from dandelion.function import CodeObject, FunctionSpec
from dandelion.memory import ArenaMap


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item by reference: name, key, offset and size in bytes, see the module; its type."""

    name: str
    key: int
    offset: int
    size: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class WireSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A set by reference."""

    name: str
    items: tuple[WireItem, ...]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


WireSets: TypeAlias = tuple[WireSet | None, ...]


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Make the engine. Until this comes, a process prepares what takes nothing from others.

    Attributes:
        failover: it replaces one that was lost.
        device_bytes: device memory that the lost one had for a call; 0 if that is not known.
    """

    failover: bool = False
    device_bytes: int = 0


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Keep this function; it is named by its identity from now on.

    The node keeps its code and its static sets in the arena until `Forget`.

    Attributes:
        scope: see `Function`.
        main, files: its code, by reference or as it is.
        static: its static sets, by name.
        binary: see `Function`.
        data_bytes: of the data that follows.
    """

    identity: str
    spec: FunctionSpec
    code: CodeObject
    main: bytes | WireItem
    files: Mapping[str, bytes | WireItem]
    static: dict[str, WireSet]
    scope: str = ""
    binary: WireItem | None = None
    data_bytes: int = 0


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Drop a function and everything that was made of it."""

    identity: str


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="run"):
    """Run a loaded function.

    Attributes:
        call: id of the call.
        identity: which function.
        inputs: its sets that are not static, in order.
        result_offset, result_bytes: the context for its outputs.
        latest_ns: when its invocation ends, on the clock that all processes of a machine share.
        limit_s: how long it may run, from when the process begins with it.
        keep: the device keeps the function's constants.
        data_bytes: of the data that follows.
        shared: the key of `SharedConstants`, whose descriptor was sent; empty if none was.
    """

    call: int
    identity: str
    inputs: WireSets
    result_offset: int
    result_bytes: int
    latest_ns: int
    limit_s: float
    keep: bool = False
    data_bytes: int = 0
    shared: str = ""


class Plan(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="plan"):
    """Find out what a call of a loaded function needs."""

    call: int
    identity: str
    inputs: WireSets


class StopCall(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="stop"):
    """The result of a call is not wanted any more."""

    call: int


class Evict(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="evict"):
    """Drop the constants of a function from the device."""

    identity: str


Request: TypeAlias = Open | Load | Plan | Run | StopCall | Evict | Forget


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The engine is up.

    Attributes:
        backend: which of the asked backends it is.
        engine: its name.
        resources: names of all resources that the backend has here.
        description: of the resource in use, for people.
        capacity: what the engine has.
        workers: how many further engines should share the resource.
        standby: a process should wait to take this one's place.
        plans: it answers `Plan`; otherwise every call fits.
        elastic: the node chooses how many of the workers run.
    """

    backend: str
    engine: str
    resources: tuple[str, ...]
    description: str
    capacity: Capacity = Capacity()
    workers: int = 0
    standby: bool = False
    plans: bool = False
    elastic: bool = False


class Begun(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="begun"):
    """A call begins only now: it waited for what is not its own time. May come again."""

    call: int


class Shared(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="shared"):
    """A call has copied constants to the device; a descriptor of their memory was sent.

    Attributes:
        key: as of `SharedConstants`.
    """

    call: int
    key: str


class Done(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="done"):
    """A call gave its outputs.

    Attributes:
        stages: durations in nanoseconds.
        data_bytes: of the data that follows.
    """

    call: int
    outputs: WireSets
    stages: dict[str, int]
    data_bytes: int = 0


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A call, or the start of the engine (call -1), failed. After `fatal` the process leaves."""

    call: int
    error: ErrorRecord
    stages: dict[str, int] = {}
    fatal: bool = False


class Planned(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="planned"):
    """What a call needs.

    Attributes:
        reads: integers in its inputs that this depends on, beside their sizes: position of the set
            and offset in bytes.
    """

    call: int
    demand: Demand
    reads: tuple[tuple[int, int], ...]


Reply: TypeAlias = Ready | Planned | Begun | Shared | Done | Failed

_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def request_channel(peer: socket.socket) -> Channel[Request]:
    """Make the engine process's end."""
    return Channel(peer, _REQUESTS)


def reply_channel(peer: socket.socket, limit_bytes: int = MESSAGE_LIMIT_BYTES) -> Channel[Reply]:
    """Make the node's end."""
    return Channel(peer, _REPLIES, limit_bytes)


def wire_item(item: Item, arena: ArenaMap) -> WireItem:
    """Name an item by its place in the arena.

    Raises:
        InternalError: it lies elsewhere.
    """
    size = item.size_bytes
    offset = arena.locate(item.data) if size else 0
    if offset is None:
        raise InternalError(f"item '{item.name}' is not in the arena")
    return WireItem(item.name, item.key, offset, size, item.dtype, item.shape)


def wire_set(item_set: ItemSet, arena: ArenaMap) -> WireSet:
    """Name a set's items by their place in the arena; raises as `wire_item`."""
    items = tuple([wire_item(item, arena) for item in item_set.items])
    return WireSet(item_set.name, items, item_set.dtype, item_set.shape)
