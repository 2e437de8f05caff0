"""The node's side of the converter: starts it, and handles each job in a thread.

Such a thread mostly waits for a child, and its own steps are short, so it does not delay the event
loop. Two documents are converted at a time; others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from dandelion.data import Bytes, Item, ItemSet, SetSpec
from dandelion.documents import Content, RegistrationDocument
from dandelion.engine_process.channel import Channel, Ended
from dandelion.errors import InternalError, from_record
from dandelion.frontend.codecs import SetMap, Specs
from dandelion.frontend.conversion.contents import with_contents
from dandelion.frontend.conversion.messages import (
    INLINE_BYTES,
    Collected,
    Decode,
    Document,
    Done,
    Draw,
    Encode,
    Failed,
    Need,
    Order,
    Parse,
    Part,
    ReadTensors,
    Room,
    ToNode,
    WireItem,
    WriteTensors,
    node_channel,
    parts,
    wire_item,
)
from dandelion.frontend.conversion.process import LIMIT_S, MEMORY_BYTES
from dandelion.frontend.kserve.documents import InferRequest, InferResponse
from dandelion.frontend.problem import TooCostly
from dandelion.frontend.records import read_document
from dandelion.frontend.service import Service
from dandelion.memory import Context
from dandelion.search_path import environment, one_blas_thread

AT_ONCE = 2
_T = TypeVar("_T")


class Converter:
    """Converts large documents. Its process starts with the first one.

    Args:
        node: has the arena with the documents.
    """

    def __init__(self, node: Service) -> None:
        self._node = node
        self._threads = ThreadPoolExecutor(AT_ONCE, "dandelion-convert")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    # --- jobs: called on the event loop; cancelling one ends its child ----------------------------

    async def sets(self, body: Bytes, media_type: str, specs: Specs, items_limit: int) -> SetMap:
        """Read the sets of an invocation; raises as the codec does, and `TooCostly`."""

        def work(job: _Job) -> SetMap:
            lying = job.placed(body)
            spec: tuple[SetSpec, ...] = tuple(specs.values())
            return job.run(Decode(media_type, *lying, spec, items_limit))[0]

        return await self._run(work)

    async def document(self, body: Bytes, media_type: str) -> RegistrationDocument:
        """Read a registration document; raises as `read_document`, and `TooCostly`, `TooLarge`."""

        def work(job: _Job) -> RegistrationDocument:
            lying = job.placed(body)
            sets, declarations = job.run(Document(media_type, *lying))
            taken = iter(sets[""] or ()) if "" in sets else iter(())
            bare = read_document(declarations, "application/msgpack")
            return with_contents(bare, lambda _: Content(data=job.copied(next(taken).data)))

        return await self._run(work)

    async def parsed(
        self, body: Bytes, parser: str, limit: int, *, copy: bool = False
    ) -> tuple[SetMap, bytes]:
        """Parse the body of another protocol.

        Args:
            body: to be parsed.
            parser: a name in `dandelion.frontend.conversion.parsers`.
            limit: for the parser.
            copy: whether the data of items is copied out of the arena, to be kept for long.

        Returns:
            Sets, and a document without their data.

        Raises:
            DandelionError: see the parser; also `TooCostly`.
        """

        def work(job: _Job) -> tuple[SetMap, bytes]:
            sets, document = job.run(Parse(parser, *job.placed(body), limit))
            if copy:
                sets = {name: job.copied_set(one) for name, one in sets.items()}
            return sets, document

        return await self._run(work)

    async def json_response(self, id_: str, sets: Mapping[str, ItemSet | None]) -> Bytes:
        """Write the JSON response of an invocation."""

        def work(job: _Job) -> Bytes:
            return _only(job.run(Encode(id_), sets)[0])

        return await self._run(work)

    async def tensors(self, body: Bytes) -> tuple[InferRequest, SetMap]:
        """Read the JSON of a KServe inference; raises as `read_tensors`, and `TooCostly`."""

        def work(job: _Job) -> tuple[InferRequest, SetMap]:
            sets, document = job.run(ReadTensors(*job.placed(body)))
            return msgspec.msgpack.decode(document, type=InferRequest), sets

        return await self._run(work)

    async def tensors_response(self, response: InferResponse, tensors: SetMap) -> Bytes:
        """Write the JSON of a KServe response; raises as `write_tensors`, and `TooCostly`."""

        def work(job: _Job) -> Bytes:
            order = WriteTensors(msgspec.msgpack.encode(response))
            return _only(job.run(order, tensors)[0])

        return await self._run(work)

    async def drawing(self, text: str, name: str, format_: str) -> Bytes:
        """Draw a composition; raises as `draw_text`, and `TooCostly`."""

        def work(job: _Job) -> Bytes:
            return bytes(_only(job.run(Draw(text, name, format_))[0]))

        return await self._run(work)

    async def elsewhere(self, work: Callable[[], _T]) -> _T:
        """Run a function in a thread of the converter. Its steps must be short."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _run(self, work: Callable[[_Job], _T]) -> _T:
        job = _Job(self._node, self._order)

        def done() -> _T:
            try:
                return work(job)
            finally:
                job.close()

        try:
            return await self.elsewhere(done)
        except asyncio.CancelledError:
            job.abandon()
            raise

    # --- the process ------------------------------------------------------------------------------

    def _order(self, job: socket.socket) -> None:
        """Fork a child for a socket; start the converter if it does not run."""
        with self._lock:
            for _ in range(2):
                if self._control is None:
                    self._start()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [b"j"], [job.fileno()])
                except OSError:  # it died, or was killed
                    self._stop()
                else:
                    return
        raise InternalError("the converter does not start")

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arena = self._node.arena
        files = (theirs.fileno(), arena.fd)
        inherited = (*files, *self._node.arena_descriptors)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "dandelion.frontend.conversion",
                    *map(str, (*files, arena.size_bytes, os.getpid())),
                ],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                env=environment(one_blas_thread()),
            )

    def _stop(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop the process and the threads. Running jobs fail."""
        with self._lock:
            self._stop()
        self._threads.shutdown(cancel_futures=True)


class _Job:
    """One document: its socket and its memory."""

    def __init__(self, node: Service, order: Callable[[socket.socket], None]) -> None:
        self._node = node
        self._order = order
        self._channel: Channel[ToNode] | None = None
        self._kept: list[Bytes] = []  # what the child reads
        self._result: Context | None = None
        self._abandoned = False

    def placed(self, data: Bytes) -> tuple[int, int]:
        """Return offset and size of data in the arena; copy it there if necessary."""
        offset = self._node.arena.locate(data)
        if offset is None:
            data = self._node.acquire_to_fill(len(data)).write(0, data)
            offset = self._node.arena.locate(data)
            assert offset is not None
        self._kept.append(data)
        return offset, len(data)

    def copied(self, data: Bytes) -> bytes:
        """Copy data out of the arena by a system call, which releases the interpreter lock."""
        offset = self._node.arena.locate(data)
        if offset is None:
            return bytes(data)
        return os.pread(self._node.arena.fd, len(data), offset)

    def copied_set(self, one: ItemSet | None) -> ItemSet | None:
        """Copy a set out of the arena."""
        if one is None:
            return None
        items = [msgspec.structs.replace(item, data=self.copied(item.data)) for item in one.items]
        return msgspec.structs.replace(one, items=tuple(items))

    def run(
        self, order: Order, sets: Mapping[str, ItemSet | None] | None = None
    ) -> tuple[SetMap, bytes]:
        """Send sets and the order, and receive the result.

        Raises:
            TooCostly: the child exceeded its limits or died.
        """
        ours, theirs = socket.socketpair()
        self._channel = channel = node_channel(ours)
        with theirs:
            self._order(theirs)
        try:
            for part in parts(sets or {}, self._wire):
                channel.send(part)
            channel.send(order)
            return self._answer(channel)
        except (Ended, OSError):
            what = "response" if isinstance(order, Encode | WriteTensors) else "body"
            raise TooCostly(what, LIMIT_S, MEMORY_BYTES) from None

    def _answer(self, channel: Channel[ToNode]) -> tuple[SetMap, bytes]:
        collected = Collected(self._view)
        while True:
            message = None if self._abandoned else channel.receive()
            if isinstance(message, Part):
                collected.add(message)
            elif isinstance(message, Need):
                self._result = self._node.acquire_to_fill(message.size)
                channel.send(Room(self._result.offset_bytes))
            elif isinstance(message, Done):
                return collected.sets(), message.document
            elif isinstance(message, Failed):
                raise from_record(message.error)
            else:
                raise Ended("abandoned")

    def _wire(self, item: Item) -> WireItem:
        size = item.size_bytes
        if size <= INLINE_BYTES:
            return wire_item(item, item.bytes())
        return wire_item(item, None, self.placed(item.data)[0])

    def _view(self, offset: int, size: int) -> Bytes:
        """Return a view of bytes that the child named, in its input or its output."""
        result = self._result
        if result is not None and 0 <= offset - result.offset_bytes <= result.size_bytes - size:
            return result.read(offset - result.offset_bytes, size)
        for data in self._kept:
            begin = self._node.arena.locate(data)
            if begin is not None and 0 <= offset - begin <= len(data) - size:
                return memoryview(data)[offset - begin : offset - begin + size]
        raise InternalError("the converter named memory outside its document")

    def abandon(self) -> None:
        """End the child, and thereby `run`. May be called from any thread."""
        self._abandoned = True
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._kept.clear()


def _only(sets: SetMap) -> Bytes:
    (one,) = sets.values()
    assert one is not None
    return one.items[0].data
