"""The inside of a fake engine process: what its script can do. See `FakeEngineProcess`."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import Capacity, Demand
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import (
    Begun,
    Done,
    Failed,
    Load,
    Open,
    Plan,
    Planned,
    Ready,
    Request,
    Run,
    WireItem,
    WireSet,
    request_channel,
    wire_set,
)
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.memory import ArenaMap

_ALIGNMENT_BYTES = 256
_STEP_S = 0.002


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """A call that came in.

    Attributes:
        request: as it came.
        function: the function's name.
        main: the blob of its code.
        inputs: the sets that are not static, in the arena.
    """

    request: Run
    function: str
    main: bytes
    inputs: tuple[ItemSet | None, ...]


class Played:
    """An engine process without an engine. Each method does one thing that such a process does.

    Args:
        arguments: of `dandelion.engine_process`.
        folder: where processes and their test leave signs for each other.

    Attributes:
        node: the channel to the node.
        peer: its socket, for what is no message.
        options: of the backends.
        role: ``sequential`` or ``worker``, or empty.
        order: how the node wanted the engine to be opened, once `opened` has returned.
        demand: what a call of a function (its name) with these inputs needs; None has no planner.
        reads: the integers in the inputs that this depends on; see `Planned`.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        socket_fd, _, arena_fd, arena_bytes, resource, _, options, *backends = arguments
        self.peer = socket.socket(fileno=int(socket_fd))
        self.node = request_channel(self.peer)
        self.resource, self.backends = resource or "0", backends
        self.options = msgspec.json.decode(options, type=dict[str, dict[str, str]])
        self.role = next((o["role"] for o in self.options.values() if "role" in o), "")
        self.order = Open()
        self.demand: Callable[[str, tuple[ItemSet | None, ...]], Demand] | None = None
        self.reads: tuple[tuple[int, int], ...] = ()
        self._arena = ArenaMap(int(arena_fd), int(arena_bytes))
        self._folder = folder
        self._functions: dict[str, Load] = {}

    # coming up

    def opened(self) -> None:
        """Wait until the node starts the engine; a standby process waits here.

        Raises:
            Ended: the node does not want it.
        """
        while not isinstance(order := self.node.receive(), Open):
            pass
        self.order = order

    def ready(
        self,
        capacity: Capacity = Capacity(),  # noqa: B008  # frozen
        workers: int = 0,
        standby: bool = False,
        backend: str = "",
        resources: tuple[str, ...] = (),
        elastic: bool = False,
    ) -> None:
        """Say that the engine is up; it answers `Plan` if `demand` is set.

        Args:
            capacity: of the engine.
            workers, standby: what the node should start besides; only said by what is no worker.
            backend: which of the backends it is; by default the first.
            resources: all that the backend has here; by default the one in use.
            elastic: the node chooses how many workers run.
        """
        name = backend or self.backends[0]
        alone = self.role != "worker"
        self.node.send(
            Ready(
                name,
                f"{name}:{self.resource}",
                resources or (self.resource,),
                f"played {name}",
                capacity,
                workers if alone else 0,
                standby and alone,
                self.demand is not None,
                elastic and alone,
            )
        )

    def unavailable(self, missing: str = "no room") -> None:
        """Say that no backend works, and leave."""
        error = BackendUnavailable(self.backends[0], missing)
        self.node.send(Failed(-1, error.record()))
        raise SystemExit(1)

    # calls

    def request(self) -> Request:
        """Wait for the next request of any kind; functions that are loaded are kept.

        Raises:
            Ended: there will be none.
        """
        request = self.node.receive()
        assert request is not None, "it waits without a limit"
        if isinstance(request, Load):
            self._functions[request.identity] = request
        return request

    def call(self) -> PlayedCall:
        """Wait for the next call; what comes before it is answered with `demand`.

        Raises:
            Ended: there will be none.
        """
        while True:
            request = self.request()
            if isinstance(request, Plan):
                self.planned(request)
            elif isinstance(request, Run):
                loaded = self._functions[request.identity]
                inputs = self.inputs(request)
                return PlayedCall(request, loaded.spec.name, self._bytes(loaded.main), inputs)

    def inputs(self, request: Plan | Run) -> tuple[ItemSet | None, ...]:
        """Give the inputs of a request."""
        return tuple(None if wire is None else self._set(wire) for wire in request.inputs)

    def planned(self, request: Plan) -> None:
        """Answer what a call needs."""
        assert self.demand is not None, "the node was told that there is no planner"
        name = self._functions[request.identity].spec.name
        demand = self.demand(name, self.inputs(request))
        self.node.send(Planned(request.call, demand, self.reads))

    def calls(self) -> Iterator[PlayedCall]:
        """Give calls as they come, until the node leaves."""
        while True:
            yield self.call()

    def begun(self, call: PlayedCall) -> None:
        """Say that a call begins only now."""
        self.node.send(Begun(call.request.call))

    def answer(
        self,
        call: PlayedCall,
        *outputs: Bytes | None,
        stages: Mapping[str, int] | None = None,
        number: int | None = None,
    ) -> None:
        """Answer a call.

        Args:
            call: which.
            outputs: the bytes of the item of each output set; None, or no more, is an empty set.
            stages: durations in nanoseconds.
            number: another call's id, for an answer that is wrong.
        """
        request = call.request
        names = self._functions[request.identity].spec.output_names
        sets: list[WireSet | None] = [None] * len(names)
        offset = request.result_offset
        for at, (name, data) in enumerate(zip(names, outputs, strict=False)):
            if data is not None:
                size = memoryview(data).nbytes
                self._arena.view[offset : offset + size] = data
                view = self._arena.view[offset : offset + size].toreadonly()
                sets[at] = wire_set(ItemSet(name, (Item(name, 0, view),)), self._arena)
                offset += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        answered = request.call if number is None else number
        self.node.send(Done(answered, tuple(sets), dict(stages or {})))

    def fail(self, call: PlayedCall, error: DandelionError, fatal: bool = False) -> None:
        """Answer a call with an error; after a fatal one the process leaves."""
        self.node.send(Failed(call.request.call, error.record(), {}, fatal))
        if fatal:
            raise SystemExit(0)

    # nonsense

    def frame(self, body: bytes) -> None:
        """Send a message of any bytes."""
        self.send(struct.pack("<I", len(body)) + body)

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.peer.setblocking(True)
        self.peer.sendall(data)
        self.peer.setblocking(False)

    # signs

    def first(self, name: str) -> bool:
        """Leave a sign; True for the first process that leaves it."""
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait_for(self, name: str) -> None:
        """Wait until a sign exists."""
        while not (self._folder / name).exists():
            time.sleep(_STEP_S)

    def note(self, name: str, line: str) -> None:
        """Add a line to a file in the folder, in one piece."""
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def _bytes(self, wire: bytes | WireItem) -> bytes:
        if isinstance(wire, bytes):
            return wire
        return bytes(self._arena.view[wire.offset : wire.offset + wire.size])

    def _set(self, wire: WireSet) -> ItemSet:
        view = self._arena.view
        items = tuple(
            Item(i.name, i.key, view[i.offset : i.offset + i.size].toreadonly(), i.dtype, i.shape)
            for i in wire.items
        )
        return ItemSet(wire.name, items, wire.dtype, wire.shape)


def play(arguments: Sequence[str], folder: str, script: str) -> int:
    """Run a script as an engine process; the program of `FakeEngineProcess` calls this."""
    process = Played(arguments, Path(folder))
    try:
        exec(compile(script, "<script>", "exec"), {"process": process})
    except (Ended, OSError):  # the node is gone
        pass
    finally:
        process.node.close()
    return 0
