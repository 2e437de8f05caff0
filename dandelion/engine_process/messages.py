"""What a node and an engine process say to each other: MessagePack, length-prefixed, over a socket.

Data never travels here: sets name items by (offset, size) in the arena, which both sides map.

========== ================================ =====================================================
request    answer                           meaning
========== ================================ =====================================================
`Open`     `Ready`, `Failed`                make the engine
`Load`     -                                keep a function, before its first `Plan` or `Run`
`Plan`     `Planned`, `Failed`              what a call needs
`Run`      `Begun`*, then `Done`, `Failed`  run a call; `Begun`: its time counts from now
`StopCall` -                                end a call soon; the call itself is answered
`Evict`    -                                drop the constants of a function from the device
`Forget`   -                                drop a function
========== ================================ =====================================================

Answers to `Run` come in order. Several requests may be sent at once. The end of the stream is the
order to leave, so an engine process never outlives its node.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Generic, TypeAlias, TypeVar

import msgspec

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import Capacity, Demand
from dandelion.errors import ErrorRecord, InternalError
from dandelion.function import CodeObject, FunctionSpec
from dandelion.memory import ArenaMap

_HEADER = struct.Struct("<I")
MESSAGE_LIMIT_BYTES = 1 << 30
_BUFFER_BYTES = 64 * 1024
LONG_S = 86400.0
"""The longest sleep in one piece: the system knows no limit beyond some weeks."""


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item by reference: name, key, offset and size in the arena, in bytes; its type."""

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
    """

    identity: str
    spec: FunctionSpec
    code: CodeObject
    main: bytes | WireItem
    files: Mapping[str, bytes | WireItem]
    static: dict[str, WireSet]
    scope: str = ""


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
    """

    call: int
    identity: str
    inputs: WireSets
    result_offset: int
    result_bytes: int
    latest_ns: int
    limit_s: float
    keep: bool = False


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


class Done(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="done"):
    """A call gave its outputs; `stages` are durations in nanoseconds."""

    call: int
    outputs: WireSets
    stages: dict[str, int]


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


Reply: TypeAlias = Ready | Planned | Begun | Done | Failed

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_NOTHING = memoryview(b"")
_Message = TypeVar("_Message")


class Ended(Exception):
    """The other side is gone, or sent an invalid message."""


class Channel(Generic[_Message]):
    """One end of the conversation: whole messages, never half of one.

    Nothing here waits unless it is told to: a reply is looked for by threads that have better to do
    than to sleep. One thread at a time sends, one at a time takes.

    Args:
        peer: a stream socket; it becomes non-blocking. The channel closes it.
        decoder: of what comes in.
        limit_bytes: of a message that comes in; a longer one is the end.
    """

    def __init__(
        self,
        peer: socket.socket,
        decoder: msgspec.msgpack.Decoder[_Message],
        limit_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> None:
        peer.setblocking(False)
        self.peer = peer
        self._limit_bytes = limit_bytes
        self._decoder = decoder
        self._out = bytearray(_HEADER.size)
        self._in = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._in)
        self._held = 0

    def fileno(self) -> int:
        """Give the descriptor, to wait for it."""
        return self.peer.fileno()

    def close(self) -> None:
        """Close the socket; the other side takes that as the end."""
        self.peer.close()

    def post(self, *messages: msgspec.Struct) -> memoryview:
        """Send without waiting, all at once.

        Returns:
            What there was no room for; it has to be `push`ed before anything else.

        Raises:
            OSError: the other side is gone.
        """
        out = self._out
        at = 0
        for message in messages:
            start = at + _HEADER.size
            if len(out) < start:
                out.extend(bytes(start - len(out)))
            _ENCODER.encode_into(message, out, start)
            _HEADER.pack_into(out, at, len(out) - start)
            at = len(out)
        try:
            sent = self.peer.send(out)
        except BlockingIOError:
            sent = 0
        if sent == at and at <= _BUFFER_BYTES:
            return _NOTHING
        self._out = bytearray(_HEADER.size)
        return memoryview(out)[sent:]

    def push(self, data: Bytes, limit_s: float | None = None) -> None:
        """Send what is left of a message, and wait until it is.

        Raises:
            OSError: the other side is gone, or takes longer than the limit.
        """
        left = memoryview(data)
        while len(left):
            if not self._wait(select.POLLOUT, limit_s):
                raise TimeoutError("the other side does not read")
            with contextlib.suppress(BlockingIOError):
                left = left[self.peer.send(left) :]

    def send(self, message: msgspec.Struct, limit_s: float | None = None) -> None:
        """Send a message and wait until it is sent; raises as `push`."""
        rest = self.post(message)
        if len(rest):
            self.push(rest, limit_s)

    def take(self) -> _Message | None:
        """Give the next message, or None if it is not here yet.

        Raises:
            Ended: there will be none.
        """
        while True:
            size = _HEADER.size
            if self._held >= size:
                size += _HEADER.unpack_from(self._in)[0]
                if size > self._limit_bytes:
                    raise Ended("a message beyond all limits")
                if self._held >= size:
                    return self._cut(size)
            self._make_room(size)
            try:
                got = self.peer.recv_into(self._view[self._held :])
            except BlockingIOError:
                return None
            except OSError as error:
                raise Ended(str(error)) from None
            if not got:
                raise Ended("the end of the stream")
            self._held += got

    def receive(self, limit_s: float | None = None, spin_ns: int = 0) -> _Message | None:
        """Wait for the next message; None if it takes longer than the limit.

        Args:
            limit_s: how long in all; None waits for ever.
            spin_ns: how long to look for it before this thread sleeps.

        Raises:
            Ended: there will be none.
        """
        message = self.take()
        if message is None and spin_ns:
            end_ns = time.monotonic_ns() + spin_ns
            while message is None and time.monotonic_ns() < end_ns:
                message = self.take()
        end = None if limit_s is None else time.monotonic() + limit_s
        while message is None:
            if not self._wait(select.POLLIN, None if end is None else end - time.monotonic()):
                return None
            message = self.take()
        return message

    def _cut(self, size: int) -> _Message:
        try:
            message = self._decoder.decode(self._view[_HEADER.size : size])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Ended(f"a message that cannot be read: {error}") from None
        rest = self._held - size
        if rest:
            self._view[:rest] = self._in[size : self._held]
        self._held = rest
        if len(self._in) > _BUFFER_BYTES and rest <= _BUFFER_BYTES:
            self._resize(_BUFFER_BYTES)
        return message

    def _make_room(self, size: int) -> None:
        """Grow with what really comes, not with what a header promises."""
        if self._held == len(self._in) and size > len(self._in):
            self._resize(min(size, 4 * len(self._in)))

    def _resize(self, size: int) -> None:
        grown = bytearray(size)
        grown[: self._held] = self._view[: self._held]
        self._in, self._view = grown, memoryview(grown)

    def _wait(self, events: int, limit_s: float | None) -> bool:
        poll = select.poll()
        try:
            poll.register(self.peer, events)
        except ValueError:
            raise OSError("the channel was closed") from None
        if limit_s is None:
            return bool(poll.poll())
        while limit_s > LONG_S:
            if poll.poll(LONG_S * 1e3):
                return True
            limit_s -= LONG_S
        return bool(poll.poll(max(0.0, limit_s) * 1e3))


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
