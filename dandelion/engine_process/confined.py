"""An engine process that maps no arena: data comes and goes with the messages.

It runs code of users, so it is confined before the first function comes, and nothing of the node is
in its memory but the functions and calls that it was sent.

While a call runs, the main thread does not read the socket. A second thread, the **watcher**, looks
now and then whether the same call still runs, and only then reads requests for it, so that the node
can stop a call. It is asleep while short calls follow each other. Requests that it finds wait in a
queue for the main thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TypeAlias

from dandelion.data import Bytes, Item
from dandelion.driver import Engine, EngineFactory, InstanceSets
from dandelion.engine_process.channel import Channel, Ended
from dandelion.engine_process.messages import (
    Done,
    Failed,
    Load,
    Request,
    Run,
    StopCall,
    WireItem,
    WireSet,
)
from dandelion.engine_process.serving import EngineProcess
from dandelion.errors import Cancelled
from dandelion.function import Function
from dandelion.memory import HeapDomain, MemoryDomain

LOOK_S = 0.02
"""How often the watcher looks; a call that runs longer can be stopped."""
_PATIENCE = 50
"""After so many looks without a call the watcher sleeps until there is one."""
_ALIGNMENT_BYTES = 4096

Received: TypeAlias = tuple[Request, memoryview]
"""A request, and the data that followed it."""


class ConfinedProcess(EngineProcess):
    """Serves one engine to the node, without an arena.

    Args:
        node: the channel to the node.
    """

    def __init__(self, node: Channel[Request]) -> None:
        super().__init__(node, None)
        self._data = memoryview(b"")
        self._received: deque[Received] = deque()
        self._partial: tuple[Request, memoryview, int] | None = None
        self._reading = threading.Lock()
        self._running = 0
        self._asleep = True
        self._wake = threading.Event()
        self._engine: Engine | None = None

    def _confine(self, factory: EngineFactory, engine: Engine) -> None:
        self._engine = engine
        factory.confine(engine, self.node.fileno(), self._start_watcher)

    def _start_watcher(self) -> None:
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    # --- requests -------------------------------------------------------------------------------

    def _next(self) -> Request:
        with self._reading:
            received = self._received.popleft() if self._received else self._receive()
        request, self._data = received
        return request

    def _receive(self) -> Received:
        received = self._take()
        polls = received is None and self._polling.begin()
        while received is None:
            polls = polls and self._polling.again()
            if not polls:
                self.node.wait()
            received = self._take()
        self._polling.ended()
        return received

    def _take(self) -> Received | None:
        """Take the next request with its data; None if they are not here yet."""
        if self._partial is None:
            request = self.node.take()
            if request is None:
                return None
            size = request.data_bytes if isinstance(request, Run | Load) else 0
            if not size:
                return request, memoryview(b"")
            self._partial = request, memoryview(bytearray(size)), 0
        request, data, at = self._partial
        at += self.node.fill(data[at:])
        if at < len(data):
            self._partial = request, data, at
            return None
        self._partial = None
        return request, data.toreadonly()

    # --- the watcher ----------------------------------------------------------------------------

    def _watch(self) -> None:
        last = idle = 0
        while True:
            if idle > _PATIENCE:
                self._asleep = True
                if not self._running:  # else the call began just now
                    self._wake.wait()
                self._wake.clear()
                self._asleep = False
                idle = 0
            time.sleep(LOOK_S)
            running = self._running
            idle = 0 if running else idle + 1
            if running and running == last:
                self._look(running)
            last = running

    def _look(self, running: int) -> None:
        """Read requests while a call runs; stop it if the node requests that."""
        assert self._engine is not None
        while self._running == running:
            if running in self._stopped:
                self._engine.cancel(running)
            if not self.node.wait(LOOK_S):
                continue
            with self._reading:
                if self._running != running:
                    return
                try:
                    self._take_all(running)
                except Ended:
                    os._exit(0)  # the node is gone

    def _take_all(self, running: int) -> None:
        while (received := self._take()) is not None:
            request = received[0]
            if not isinstance(request, StopCall):
                self._received.append(received)
            elif request.call == running or any(
                isinstance(other, Run) and other.call == request.call for other, _ in self._received
            ):
                self._stopped.add(request.call)

    def _waiting_calls(self) -> int:
        with self._reading, contextlib.suppress(Ended):  # `serve` comes to that later
            self._take_all(self._running)
        return len(self._received)

    # --- calls ----------------------------------------------------------------------------------

    def _run(self, engine: Engine, request: Run) -> bool:
        if request.call in self._stopped:
            self._stopped.discard(request.call)
            self.node.send(Failed(request.call, Cancelled("before it began").record()))
            return False
        self._running = request.call
        if self._asleep:
            self._wake.set()
        try:
            return super()._run(engine, request)
        finally:
            self._running = 0
            self._data = memoryview(b"")

    def _domain(self, function: Function, request: Run) -> MemoryDomain:
        limits = function.spec.limits
        return HeapDomain(limits.output_bytes + _ALIGNMENT_BYTES * (limits.output_items + 1))

    def _binary(self, request: Load) -> Bytes:
        return b"" if request.binary is None else bytes(self._item(request.binary).data)

    def _item(self, wire: WireItem) -> Item:
        data = self._data[wire.offset : wire.offset + wire.size] if wire.size else b""
        return Item(wire.name, wire.key, data, wire.dtype, wire.shape)

    def _done(self, request: Run, sets: InstanceSets, stages: dict[str, int]) -> None:
        data = FollowingData()
        outputs = tuple(
            [
                None
                if s is None
                else WireSet(s.name, tuple([data.item(i.name, i.key, i.data) for i in s.items]))
                for s in sets
            ]
        )
        rest = self.node.post(Done(request.call, outputs, stages, data.size_bytes), *data.pieces)
        if rest:
            self.node.push(rest)


class FollowingData:
    """The data of items, to be sent behind a message.

    Attributes:
        pieces: what is sent, in order.
        size_bytes: of all pieces.
    """

    __slots__ = ("pieces", "size_bytes")

    def __init__(self) -> None:
        self.pieces: list[Bytes] = []
        self.size_bytes = 0

    def item(
        self,
        name: str,
        key: int,
        data: Bytes,
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> WireItem:
        """Add the data of an item, and name the item by its place there."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        wire = WireItem(name, key, self.size_bytes if size else 0, size, dtype, shape)
        if size:
            self.pieces.append(data)
            self.size_bytes += size
        return wire
