"""What executors are tested with: a loop that the test turns, and processes that the test plays.

Nothing happens by itself but what runs in an executor's own thread: `Loop.until` turns the loop
until something holds, `HeldPool.run` does what was given to the pool.
"""

from __future__ import annotations

import itertools
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Run as Instance
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Demand, InstanceSets
from dandelion.engine_process.channel import Channel, Ended
from dandelion.engine_process.messages import (
    Begun,
    Done,
    Failed,
    Load,
    Open,
    Planned,
    Ready,
    Reply,
    Request,
    Run,
    WireSet,
    reply_channel,
    request_channel,
    wire_set,
)
from dandelion.errors import DandelionError, EngineDied
from dandelion.executors import (
    Demands,
    Processes,
    ProcessExecutor,
    StartedEngine,
    Surroundings,
)
from dandelion.executors.processes import Process
from dandelion.function import CodeObject, Function, FunctionSpec, Limits
from dandelion.memory import SharedDomain, Transfers
from dandelion.scheduler import CallState, EngineState, Flow, InvocationState, Tenant
from dandelion.scheduler.records import Presence

T = TypeVar("T")
LIMIT_S = 30.0
READY = Ready("played", "played:0", ("0",), "played", plans=True)
_numbers = itertools.count(1)


# --- calls --------------------------------------------------------------------------------------


def flow_of(name: str = "f", wall_s: float = 60.0, tenant: str = "t") -> Flow:
    """Make a function of a tenant, with input set ``a`` and output set ``b``."""
    limits = Limits(wall_s=wall_s, output_bytes=4096)
    code = CodeObject("x")
    spec = FunctionSpec(name, (SetSpec("a"),), (SetSpec("b"),), code=(code,), limits=limits)
    flow = Flow(Tenant(tenant), spec, Presence.PRESENT)
    flow.functions["x"] = Function(spec, code)
    return flow


def call_of(flow: Flow, *data: bytes, deadline_s: float = 60.0) -> CallState:
    """Make a call of a function, with an item for each bytes."""
    walk = Walk(direct_plan(flow.spec), Partitioning("auto", 1, 1))
    items = tuple(Item(str(key), key, one) for key, one in enumerate(data or (b"data",)))
    deadline_ns = time.monotonic_ns() + int(deadline_s * 1e9)
    invocation = InvocationState(
        str(next(_numbers)), flow.tenant, walk, (ItemSet("a", items),), deadline_ns, deadline_s
    )
    [run] = walk.start(invocation.inputs)
    assert isinstance(run, Instance)
    return CallState(next(_numbers), invocation, run, flow)


def text_of(outputs: InstanceSets) -> bytes:
    """Give the only item of the only output set."""
    [item_set] = outputs
    assert item_set is not None
    return bytes(item_set.items[0].data)


class Loaded:
    """The functions of flows."""

    def loaded(self, flow: Flow, code_format: str) -> Function:
        return flow.functions[code_format]


# --- the loop -----------------------------------------------------------------------------------


@dataclass
class Loop:
    """Events of an executor as they come, and descriptors that it watches.

    Attributes:
        log: names of events, in order.
    """

    log: list[str] = field(default_factory=list)
    infos: list[StartedEngine] = field(default_factory=list)
    refused: list[DandelionError] = field(default_factory=list)
    losses: list[tuple[EngineDied, dict[int, DandelionError]]] = field(default_factory=list)
    outputs: dict[int, InstanceSets] = field(default_factory=dict)
    failures: dict[int, tuple[DandelionError, bool]] = field(default_factory=dict)
    demands: dict[int, Demand | None] = field(default_factory=dict)
    watched: dict[int, Callable[[], None]] = field(default_factory=dict)
    posted: SimpleQueue[Callable[[], None]] = field(default_factory=SimpleQueue)

    def post(self, event: Callable[[], None]) -> None:
        self.posted.put(event)

    def up(self, engine: EngineState, info: StartedEngine) -> None:
        self.log.append("up")
        self.infos.append(info)

    def start_failed(self, engine: EngineState, error: DandelionError) -> None:
        self.log.append("start_failed")
        self.refused.append(error)

    def lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        self.log.append("lost")
        self.losses.append((error, dict(begun)))

    def done(self, call: CallState, outputs: InstanceSets) -> None:
        self.log.append("done")
        assert call.id not in self.outputs.keys() | self.failures.keys(), "answered twice"
        self.outputs[call.id] = outputs

    def failed(self, call: CallState, error: DandelionError, begun: bool = True) -> None:
        self.log.append("failed")
        assert call.id not in self.outputs.keys() | self.failures.keys(), "answered twice"
        self.failures[call.id] = (error, begun)

    def planned(self, call: CallState) -> None:
        self.log.append("planned")
        self.demands[call.id] = call.demand

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        self.watched[fd] = ready

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def has_answers(self, count: int) -> bool:
        """Tell whether so many calls gave outputs."""
        return len(self.outputs) >= count

    def has_plans(self, count: int) -> bool:
        """Tell whether so many calls were planned."""
        return len(self.demands) >= count

    def turn(self) -> None:
        """Do what was posted, and tell of descriptors that are readable."""
        while not self.posted.empty():
            self.posted.get()()
        self.look()

    def look(self) -> None:
        """Tell of descriptors that are readable, and of nothing else."""
        for fd, ready in list(self.watched.items()):
            if select.select([fd], [], [], 0)[0]:
                ready()

    def until(self, condition: Callable[[], T]) -> T:
        """Turn until a condition holds."""
        end_s = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert time.monotonic() < end_s, f"it did not happen: {self.log}"
            self.turn()
            time.sleep(0.001)
        return found


class HeldPool(Pool):
    """A pool whose jobs wait until the test has them done."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], object]] = deque()

    def submit(self, job: Callable[..., Any], /, *args: Any, **given: Any) -> Future[Any]:
        self.jobs.append(partial(job, *args, **given))
        return Future()

    def run(self) -> None:
        """Do the next job, in this thread."""
        self.jobs.popleft()()


# --- processes ----------------------------------------------------------------------------------


class Child:
    """Takes the place of a child process: it leaves when it should, unless it is stubborn."""

    pid = 0

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.ended = False
        self.killed = False

    def wait(self, limit_s: float | None = None) -> int:
        if self.killed:
            self.ended = True
            return -9
        if self.code is None or limit_s == 0.0:
            raise subprocess.TimeoutExpired("child", limit_s or 0.0)
        self.ended = True
        return self.code

    def kill(self) -> None:
        self.killed = True


class Peer:
    """The test's end of the conversation with an executor: what an engine process does.

    Attributes:
        child: the process that it plays.
        loads: identities that were loaded, by the function's name.
    """

    def __init__(self, theirs: socket.socket, child: Child, arena: SharedDomain) -> None:
        self.child = child
        self.node: Channel[Request] = request_channel(theirs)
        self.loads: dict[str, str] = {}
        self._arena = arena

    def requests(self) -> list[Request]:
        """Take the requests that are here, but for `Open`."""
        found: list[Request] = []
        try:
            while (request := self.node.take()) is not None:
                if isinstance(request, Load):
                    self.loads[request.spec.name] = request.identity
                if not isinstance(request, Open):
                    found.append(request)
        except Ended:
            pass
        return found

    @property
    def left(self) -> bool:
        """Whether the node has left; what it said before is dropped."""
        try:
            while self.node.take() is not None:
                pass
        except Ended:
            return True
        return False

    def say(self, *replies: Reply) -> None:
        """Send replies."""
        for reply in replies:
            self.node.send(reply, LIMIT_S)

    def done(self, run: Request, data: bytes = b"result", number: int | None = None) -> None:
        """Answer a call with one item; or another one, by a number."""
        assert isinstance(run, Run)
        offset, view = run.result_offset, self._arena.map.view
        view[offset : offset + len(data)] = data
        item = Item("b", 0, view[offset : offset + len(data)].toreadonly())
        sets: tuple[WireSet | None, ...] = (wire_set(ItemSet("b", (item,)), self._arena.map),)
        self.say(Done(run.call if number is None else number, sets, {"run": 7}))

    def begun(self, run: Request) -> None:
        """Say that a call begins only now."""
        assert isinstance(run, Run)
        self.say(Begun(run.call))

    def fail(self, number: int, error: DandelionError, fatal: bool = False) -> None:
        """Answer a call with an error."""
        self.say(Failed(number, error.record(), {}, fatal))

    def planned(self, number: int, demand: Demand, reads: Sequence[tuple[int, int]] = ()) -> None:
        """Answer what a call needs."""
        self.say(Planned(number, demand, tuple(reads)))

    def die(self, code: int = 3) -> None:
        """Leave without a word."""
        self.child.code = code
        self.node.close()


class PlayedProcesses(Processes):
    """Processes that the test plays.

    Args:
        arena: mapped by them.

    Attributes:
        greetings: what the next processes say as they come up; without one they say `READY`. None
            says nothing.
        peers: all processes, in order.
        send_bytes: what a socket takes; 0 is the system's size.
    """

    def __init__(self, arena: SharedDomain) -> None:
        super().__init__(("played",), "", {}, {}, arena.map, 0)
        self.greetings: list[Reply | None] = []
        self.peers: list[Peer] = []
        self.send_bytes = 0
        self._domain = arena

    def _spawned(self) -> Process:
        ours, theirs = socket.socketpair()
        if self.send_bytes:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_bytes)
        child = Child(0)
        peer = Peer(theirs, child, self._domain)
        greeting = self.greetings.pop(0) if self.greetings else READY
        if greeting is not None:
            peer.say(greeting)
        self.peers.append(peer)
        return Process(cast("subprocess.Popen[bytes]", child), reply_channel(ours))


@dataclass
class Bench:
    """A process executor with all that it needs."""

    arena: SharedDomain = field(default_factory=lambda: SharedDomain(8 << 20))
    loop: Loop = field(default_factory=Loop)
    pool: HeldPool = field(default_factory=HeldPool)
    demands: Demands = field(default_factory=Demands)

    def __post_init__(self) -> None:
        self.processes = PlayedProcesses(self.arena)
        self.around = Surroundings(self.loop, Loaded(), self.arena, Transfers(), self.pool)
        self.executor = ProcessExecutor(
            EngineState(1, frozenset({"x"})),
            StartedEngine("", "played", "0"),
            self.around,
            self.processes,
            self.loop,
            self.demands,
        )

    @property
    def peer(self) -> Peer:
        """The process that came last."""
        return self.processes.peers[-1]

    def start(self) -> Peer:
        """Have the engine come up."""
        before = self.loop.log.count("up")
        self.executor.start()
        self.loop.until(lambda: self.loop.log.count("up") > before)
        self.peer.requests()
        return self.peer

    def send(self, *calls: CallState) -> list[Run]:
        """Send calls; gives what the process was told to run."""
        for call in calls:
            self.executor.send(call)
        self.executor.flush()
        return [request for request in self.peer.requests() if isinstance(request, Run)]

    def lose(self) -> tuple[EngineDied, dict[int, DandelionError]]:
        """Wait until the scheduler is told that the engine is lost."""
        before = len(self.loop.losses)
        self.loop.until(lambda: len(self.loop.losses) > before)
        return self.loop.losses[-1]

    def close(self) -> None:
        """Close everything; nothing may be left of processes."""
        self.executor.close()
        for peer in self.processes.peers:
            assert peer.child.ended or peer.child.killed
            assert peer.node.peer.fileno() < 0 or peer.left
            peer.node.close()
        self.loop.outputs.clear()
        self.arena.close()


def names(requests: Sequence[Request]) -> list[str]:
    """Give the kinds of requests."""
    return [type(request).__name__ for request in requests]


def surroundings(loop: Loop, arena: SharedDomain) -> Surroundings:
    """Give what executors in this process need."""
    return Surroundings(loop, Loaded(), arena, Transfers(), HeldPool())


def engine_state() -> EngineState:
    return EngineState(1, frozenset({"x"}))
