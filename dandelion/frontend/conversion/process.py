"""The converter and its children; see the package.

Run by the node as ``python -m dandelion.frontend.conversion CONTROL_FD ARENA_FD ARENA_BYTES
PARENT``. It has one thread and forks, so that a child has all modules loaded. It exits when the
control socket is closed.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import resource
import signal
import socket
import sys

import msgspec

from dandelion.confinement import libc
from dandelion.confinement.lockdown import leave_namespaces, restrict_files
from dandelion.data import Bytes, Item, ItemSet
from dandelion.documents import Content, RegistrationDocument
from dandelion.engine_process.channel import Channel, Ended
from dandelion.errors import DandelionError, InternalError, TooLarge
from dandelion.frontend.codecs import SetMap, decode_json, decode_msgpack
from dandelion.frontend.conversion.contents import with_contents
from dandelion.frontend.conversion.messages import (
    INLINE_BYTES,
    Collected,
    Decode,
    Document,
    Done,
    Encode,
    Failed,
    Need,
    Order,
    Parse,
    Part,
    ReadTensors,
    Room,
    ToChild,
    WireItem,
    WriteTensors,
    child_channel,
    parts,
    wire_item,
)
from dandelion.frontend.conversion.parsers import PARSERS
from dandelion.frontend.graphs import MEDIA_TYPES, draw_text
from dandelion.frontend.kserve.documents import InferResponse
from dandelion.frontend.kserve.json_tensors import read_tensors, write_tensors
from dandelion.frontend.negotiation import Codec
from dandelion.frontend.problem import TooCostly
from dandelion.frontend.records import encode_document, read_document
from dandelion.frontend.set_encoding import encode_json
from dandelion.memory import ArenaMap

LIMIT_S = 30
"""Processor time for one document, in seconds."""

MEMORY_BYTES = 4 << 30
DECLARATIONS_LIMIT_BYTES = 4 * 1024 * 1024
"""Size of a registration document without its contents, which the node decodes itself."""

_ALIGNMENT_BYTES = 64
_PR_SET_PDEATHSIG = 1
_TEXT = "function f(a) => (b); composition c(x) => (y) { f(a = all x) => (y = b); }"


def main() -> int:
    """Fork a child for each received socket, until the node closes the control socket."""
    control_fd, arena_fd, size_bytes, parent = map(int, sys.argv[1:5])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node handles Ctrl-C
    if os.getppid() != parent:
        return 1
    arena = ArenaMap(arena_fd, size_bytes)
    for format_ in MEDIA_TYPES:  # loads the grammar while files can be read
        draw_text(_TEXT, "c", format_)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    restrict_files()
    leave_namespaces()
    gc.freeze()
    with socket.socket(fileno=control_fd) as control:
        while True:
            try:
                order, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            except ConnectionError:
                return 0
            if not order:
                return 0
            child = os.fork()
            if not child:
                control.close()
                _serve(descriptors[0], arena)
            for descriptor in descriptors:
                os.close(descriptor)
            _reap()


def _reap() -> None:
    """Reap children that exited. Some may remain until the next document."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _serve(descriptor: int, arena: ArenaMap) -> None:
    """Run as a child: handle one order and exit."""
    code = 1
    try:
        gc.disable()  # the process is short-lived
        _limit()
        child = Child(child_channel(socket.socket(fileno=descriptor)), arena)
        child.serve()
        code = 0
    except BaseException as error:
        if not isinstance(error, OSError | Ended):  # the node closed the socket
            print(f"converter: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _limit() -> None:
    for limit, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, LIMIT_S),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """Handles one order."""

    def __init__(self, channel: Channel[ToChild], arena: ArenaMap) -> None:
        self._channel = channel
        self._arena = arena

    def serve(self) -> None:
        """Receive sets and the order, and send the result."""
        given = Collected(self._read)
        message = self._channel.receive()
        while isinstance(message, Part):
            given.add(message)
            message = self._channel.receive()
        assert message is not None
        assert not isinstance(message, Room)
        die_with(self._channel.peer)
        document = b""
        failure: DandelionError | None = None
        try:
            sets, document = self._done(message, given.sets())
        except DandelionError as error:
            failure = error
        except MemoryError:
            failure = TooCostly("body", LIMIT_S, MEMORY_BYTES)
        except Exception as error:
            failure = InternalError(f"converting: {type(error).__name__}: {error}")
        stay_without(self._channel.peer)
        if failure is not None:
            self._channel.send(Failed(failure.record()))
            return
        self._send(sets)
        self._channel.send(Done(document))

    def _done(self, order: Order, given: SetMap) -> tuple[SetMap, bytes]:
        if isinstance(order, Decode):
            body = self._read(order.offset, order.size)
            specs = {spec.name: spec for spec in order.specs}
            decode = decode_json if order.media_type == Codec.JSON.value else decode_msgpack
            return decode(body, specs, order.items_limit), b""
        if isinstance(order, Document):
            read = read_document(self._read(order.offset, order.size), order.media_type)
            return _taken_apart(read)
        if isinstance(order, Parse):
            return PARSERS[order.parser](self._read(order.offset, order.size), order.limit)
        if isinstance(order, Encode):
            (chunk,) = encode_json(order.id, given)
            return _alone(chunk), b""
        if isinstance(order, ReadTensors):
            request, tensors = read_tensors(self._read(order.offset, order.size))
            return tensors, msgspec.msgpack.encode(request)
        if isinstance(order, WriteTensors):
            response = msgspec.msgpack.decode(order.response, type=InferResponse)
            return _alone(write_tensors(response, given)), b""
        return _alone(draw_text(order.text, order.name, order.format).encode()), b""

    def _read(self, offset: int, size: int) -> Bytes:
        return self._arena.view[offset : offset + size].toreadonly()

    def _send(self, sets: SetMap) -> None:
        """Copy large items into the arena and send all items."""
        need = 0
        for item in _items(sets):
            if self._is_loose(item):
                need += -(-item.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        end = 0
        if need:
            self._channel.send(Need(need))
            room = self._channel.receive()
            if not isinstance(room, Room):
                raise ConnectionError("the node has no memory for the result")
            end = room.offset

        def wire(item: Item) -> WireItem:
            nonlocal end
            size = item.size_bytes
            if size <= INLINE_BYTES:
                return wire_item(item, item.bytes())
            offset = self._arena.locate(item.data)
            if offset is None:
                offset = end
                self._arena.view[offset : offset + size] = item.data
                end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            return wire_item(item, None, offset)

        for part in parts(sets, wire):
            self._channel.send(part)

    def _is_loose(self, item: Item) -> bool:
        return item.size_bytes > INLINE_BYTES and self._arena.locate(item.data) is None


def die_with(peer: socket.socket) -> None:
    """Exit at once when the other side closes a socket. Nothing else may arrive there.

    Source: ``fcntl(2)``, O_ASYNC; the default action of SIGIO is to terminate.
    """
    fcntl.fcntl(peer, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(peer, fcntl.F_SETFL, fcntl.fcntl(peer, fcntl.F_GETFL) | os.O_ASYNC)


def stay_without(peer: socket.socket) -> None:
    """Revert `die_with`."""
    fcntl.fcntl(peer, fcntl.F_SETFL, fcntl.fcntl(peer, fcntl.F_GETFL) & ~os.O_ASYNC)


def _items(sets: SetMap) -> list[Item]:
    return [item for one in sets.values() if one is not None for item in one.items]


def _alone(data: Bytes) -> SetMap:
    return {"": ItemSet("", (Item("", 0, data),))}


def _taken_apart(document: RegistrationDocument) -> tuple[SetMap, bytes]:
    """Separate the contents from a document."""
    taken: list[Item] = []

    def take(content: Content) -> Content:
        taken.append(Item("", 0, content.bytes()))
        return Content(text="")

    declarations = encode_document(with_contents(document, take))
    if len(declarations) > DECLARATIONS_LIMIT_BYTES:
        where = "declarations and composition texts"
        raise TooLarge(where, len(declarations), DECLARATIONS_LIMIT_BYTES)
    return {"": ItemSet("", tuple(taken)) if taken else None}, declarations
