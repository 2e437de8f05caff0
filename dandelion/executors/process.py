"""An engine in a process of its own. Calls go there and come back without a thread in between.

The loop sends calls (`send`, `flush`) and reads answers when the socket is readable. What takes
time runs in a thread and comes back with an event: starting and ending the process, copying large
inputs into the arena, finding memory that has to be zeroed first.

A call passes two lists::

    _waiting --- its inputs lie in the arena, it has a context for its outputs ---> _out

`_out` has the calls that the process has, in order; it answers in that order. The first one is the
one that runs: its time counts from the answer before, or from `Begun`. A process that does not
answer until the deadline and a grace after it is killed, and the scheduler is told that the engine
is lost, with all its calls. What a lost process may still read or write is kept until it is gone.

Planning goes the same way: the process plans a call whose like it has not seen, and the demand is
kept (`demands`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import InstanceSets
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import (
    Begun,
    Done,
    Evict,
    Failed,
    Forget,
    Load,
    Plan,
    Planned,
    Ready,
    Reply,
    Run,
    StopCall,
    WireItem,
    WireSet,
    wire_item,
    wire_set,
)
from dandelion.errors import (
    Cancelled,
    DandelionError,
    EngineDied,
    InternalError,
    from_record,
)
from dandelion.executors.contract import (
    Executor,
    StartedEngine,
    Surroundings,
    finish,
    function_of,
    timed_out,
)
from dandelion.executors.demands import Demands
from dandelion.executors.failures import to_dandelion_error
from dandelion.executors.kept_constants import KeptConstants
from dandelion.executors.processes import Process, Processes
from dandelion.executors.staging import Order, Stager
from dandelion.executors.worker import Worker
from dandelion.function import Function
from dandelion.memory import Context
from dandelion.scheduler import CallState, EngineState, Flow

if TYPE_CHECKING:
    from dandelion.executors.confined import Incoming

GRACE_NS = 250_000_000
"""How long after a call's deadline its process may still answer before it is killed."""
CODE_LIMIT_S = 0.05
"""How long to wait for the exit code of a process that ended by itself."""
LEAVE_LIMIT_S = 2.0


class Watcher(Protocol):
    """Reports when descriptors are ready; see `dandelion.node.poll`."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call `ready` on the loop whenever there is something to read."""

    def unwatch(self, fd: int) -> None:
        """Stop that."""


@dataclass(slots=True, eq=False)
class SentCall:
    """A call that the process has.

    Attributes:
        result: the context for its outputs; None if the process maps no arena.
        incoming: its outputs, if they come behind the answer.
        deadline_ns: when it must have been answered, without the grace; meaningful for the first.
    """

    call: CallState
    function: Function
    result: Context | None
    limit_ns: int
    deadline_ns: int = 0
    incoming: Incoming | None = None

    def begin(self, now_ns: int) -> None:
        """Count its time from now."""
        self.call.started_ns = now_ns
        self.deadline_ns = min(self.call.invocation.deadline_ns, now_ns + self.limit_ns)


@dataclass(slots=True, eq=False)
class _Loaded:
    """A function that the process has, and for whom. It keeps the memory of its static sets."""

    function: Function
    flows: set[Flow]


class ProcessExecutor(Executor):
    """Runs calls in an engine process.

    Args:
        processes: of the engine; not started yet.
        watcher: reports when answers come.
        demands: what calls need, for all engines of the node.

    Attributes:
        stager: prepares its calls.
        answer: the first message of the process that is up.
    """

    collects: ClassVar[bool] = True

    def __init__(
        self,
        engine: EngineState,
        info: StartedEngine,
        around: Surroundings,
        processes: Processes,
        watcher: Watcher,
        demands: Demands,
    ) -> None:
        super().__init__(engine, info, around)
        self._processes = processes
        self.stager = Stager(info, around, processes)
        self._watcher = watcher
        self._demands = demands
        self._process: Process | None = None
        self._messages: list[msgspec.Struct | Bytes] = []
        self._waiting: deque[Order] = deque()
        self._out: deque[SentCall] = deque()
        self._plans: dict[int, Order] = {}
        self._loaded: dict[str, _Loaded] = {}
        self._constants = KeptConstants()
        self._preparing = False
        self._pushing = False
        self._worker = Worker(f"engine-{info.backend}")
        self.answer: Ready

    # --- the process ----------------------------------------------------------------------------

    def start(self) -> None:
        self._worker.submit(self._start)

    def _start(self) -> None:
        """Start the process and wait for its first message; in a thread."""
        if self._processes.leaving:
            return
        try:
            reply = self._processes.start(self.info.capacity.device_bytes)
        except Exception as error:
            failure = to_dandelion_error(error, self.info.backend)
            self.events.post(partial(self.events.start_failed, self.engine, failure))
            return
        if isinstance(reply, Ready):
            self.events.post(partial(self._up, reply))
            return
        current, self._processes.current = self._processes.current, None
        code = None if current is None else self._processes.end(current, CODE_LIMIT_S)
        failure = (
            from_record(reply.error)
            if isinstance(reply, Failed)
            else EngineDied(self.info.name or self.info.backend, f"{_death(code)} before it was up")
        )
        self.events.post(partial(self.events.start_failed, self.engine, failure))

    def _up(self, answer: Ready) -> None:
        process = self._processes.current
        if process is None or self._processes.leaving:
            return
        self._process = process
        self.answer = answer
        self.info.name = answer.engine
        self.info.capacity = answer.capacity
        self._watcher.watch(process.channel.fileno(), self._read)
        self.ready(self)
        self.events.up(self.engine, self.info)

    def _lose(self, begun: dict[int, DandelionError], code_limit_s: float = CODE_LIMIT_S) -> None:
        """Take leave of the process; the scheduler is told when it is known how it ended.

        Args:
            begun: errors of calls that have one already, by id.
            code_limit_s: how long to wait for its exit code.
        """
        process = self._process
        if process is None:
            return
        self._process = None
        self._watcher.unwatch(process.channel.fileno())
        self._messages.clear()
        kept = (tuple(self._out), tuple(self._loaded.values()))
        planning, self._plans = list(self._plans.values()), {}
        planned = planning[0].call if planning and not self._comes_later(planning[0]) else None
        if planned is not None and planned.members:
            begun.setdefault(planned.id, EngineDied(self.info.name, ""))
        if self._out and planned is None:
            begun.setdefault(self._out[0].call.id, EngineDied(self.info.name, ""))
        self._out.clear()
        self._loaded.clear()
        self._constants.clear()

        def end() -> None:
            self._processes.current = None  # here: if this comes too late, `close` ends the process
            code = self._processes.end(process, code_limit_s, kept)
            self.events.post(partial(self._report, code, begun, planning, planned))

        self._worker.submit(end)

    def _comes_later(self, order: Order) -> bool:
        """Tell whether the process runs a call before it plans this one."""
        return any(sent.call.id == order.behind for sent in self._out)

    def _report(
        self,
        code: int | None,
        begun: dict[int, DandelionError],
        planning: list[Order],
        planned: CallState | None,
    ) -> None:
        error = EngineDied(self.info.name, _death(code))
        for number, own in begun.items():
            if isinstance(own, EngineDied) and not own.message:
                begun[number] = EngineDied(self.info.name, _death(code))
        planning += [order for order in self._waiting if order.is_plan]
        self._waiting.clear()
        self._constants.clear()
        self.events.lost(self.engine, error, begun)
        for order in planning:
            if order.call.members:
                continue  # the scheduler sent it
            died = EngineDied(self.info.name, _death(code))
            self.events.failed(order.call, died, begun=order.call is planned)

    def check(self) -> None:
        if not self._out and not self._waiting:
            self._lose({}, 0.0)

    def close(self) -> None:
        self._processes.abandon()
        self._worker.close()
        self._process = None
        process, self._processes.current = self._processes.current, None
        if process is not None:
            self._watcher.unwatch(process.channel.fileno())
            self._processes.end(process, LEAVE_LIMIT_S, (tuple(self._out), self._loaded))
        self._processes.close()

    # --- calls on their way there -----------------------------------------------------------------

    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        # A batch is planned here: only now is it known which calls it has.
        is_plan = bool(call.members) and call.demand is None and self.engine.planner
        order = Order(call, function_of(self, call), is_plan, evict, keep)
        self._waiting.append(order)
        self._advance()

    def plan(self, call: CallState) -> None:
        function = function_of(self, call)
        call.demand = self._demands.find(self.info.backend, function, call.run.inputs)
        if call.demand is not None:
            self.events.planned(call)
            return
        self._waiting.append(Order(call, function, is_plan=True))
        self._advance()

    def _advance(self) -> None:
        """Send what is ready to be sent; what takes time is prepared in a thread first."""
        while self._waiting and not self._preparing and self._process is not None:
            order = self._waiting[0]
            if order.call.cancelled:
                self._waiting.popleft()
                self._give_up(order, Cancelled("before it began"))
                continue
            try:
                prepared = self.stager.prepared(order)
            except Exception as error:
                self._waiting.popleft()
                self._give_up(order, to_dandelion_error(error, self.info.name))
                continue
            if prepared and self._is_held(order):
                return
            if not prepared:
                self._preparing = True
                self.around.pool.submit(self._prepare, order)
                return
            self._waiting.popleft()
            self._post(order)

    def _is_held(self, order: Order) -> bool:
        """Tell whether a call that is prepared waits until others are answered."""
        return False

    def _give_up(self, order: Order, error: DandelionError) -> None:
        self._evict(order)
        self.events.failed(order.call, error, begun=False)

    def _prepare(self, order: Order) -> None:
        """Prepare a call in a thread."""
        error = self.stager.prepare(order)
        self.events.post(partial(self._went_on, order, error))

    def _went_on(self, order: Order, error: DandelionError | None) -> None:
        """A call was prepared in a thread."""
        self._preparing = False
        if order in self._waiting and error is not None:
            self._waiting.remove(order)
            self._give_up(order, error)
        self._advance()
        self.flush()

    def _post(self, order: Order) -> None:
        call, function = order.call, order.function
        try:
            self._load(call.flow, order)
        except Exception as error:
            self._give_up(order, to_dandelion_error(error, self.info.name))
            return
        if order.is_plan and call.members:
            call.demand = self._demands.find(self.info.backend, function, call.run.inputs)
            if call.demand is not None:
                self._planned(order)
                return
        if order.is_plan:
            order.behind = self._out[-1].call.id if self._out else 0
            self._plans[call.id] = order
            self._messages.append(Plan(call.id, function.identity, self.stager.wire(order)))
            return
        self._evict(order)
        if order.keep:
            self._constants.kept(call.flow, function)
        limit_s = min(function.spec.limits.wall_s, call.invocation.deadline_s)
        sent = SentCall(call, function, order.result, int(limit_s * 1e9))
        if not self._out:
            sent.begin(time.monotonic_ns())
        self._out.append(sent)
        self._messages += self._run_messages(order, limit_s)

    def _run_messages(self, order: Order, limit_s: float) -> Sequence[msgspec.Struct | Bytes]:
        """Return what makes the process run a call."""
        call, result = order.call, order.result
        assert result is not None, "it is prepared"
        run = Run(
            call.id,
            order.function.identity,
            self.stager.wire(order),
            result.offset_bytes,
            result.size_bytes,
            call.invocation.deadline_ns,
            limit_s,
            order.keep,
        )
        return (run,)

    def _evict(self, order: Order) -> None:
        """Have the device drop constants; the scheduler counts on it, even if no call follows."""
        self._messages += self._constants.evictions(order.evict)

    def _load(self, flow: Flow, order: Order) -> None:
        """Have the process load a function before the call that needs it."""
        function = order.function
        loaded = self._loaded.get(function.identity)
        if loaded is not None:
            loaded.flows.add(flow)
            return
        messages = self._load_messages(order)
        self._loaded[function.identity] = _Loaded(function, {flow})
        self._messages += messages

    def has_loaded(self, function: Function) -> bool:
        """Tell whether the process has a function, or is about to get it."""
        return function.identity in self._loaded

    def _load_messages(self, order: Order) -> Sequence[msgspec.Struct | Bytes]:
        """Return what makes the process load the function of a call."""
        function = order.function
        arena, files = self.around.arena.map, function.files.items()
        code: dict[str, bytes | WireItem] = {
            name: wire_item(Item(name, 0, data), arena) for name, data in files
        }
        static = {name: wire_set(s, arena) for name, s in function.static.items()}
        main = wire_item(Item("main", 0, function.main), arena)
        load = Load(
            function.identity, function.spec, function.code, main, code, static, function.scope
        )
        return (load,)

    def flush(self) -> None:
        messages = self._messages
        if not messages or self._process is None or self._pushing:
            return
        self._messages = []
        try:
            rest = self._process.channel.post(*messages)
        except OSError:
            self._lose({})
            return
        if rest:
            self._send_rest(rest)

    def _send_rest(self, rest: list[memoryview]) -> None:
        """The socket is full: the process does not read. Send the rest in a thread."""
        process = self._process
        assert process is not None, "it was sent to"
        self._pushing = True

        def push() -> None:
            with contextlib.suppress(OSError):  # then the loop reads the end of the stream
                process.channel.push(rest)
            self.events.post(self._pushed)

        self.around.pool.submit(push)

    def _pushed(self) -> None:
        self._pushing = False
        self.flush()

    def stop(self, call: CallState) -> None:
        for order in self._waiting:
            if order.call is call and not self._preparing:
                self._waiting.remove(order)
                self._give_up(order, Cancelled("before it began"))
                return
        if any(sent.call is call for sent in self._out):
            self._messages.append(StopCall(call.id))

    def forget(self, flow: Flow) -> None:
        for function in flow.functions.values():
            loaded = self._loaded.get(function.identity)
            if loaded is None:
                continue
            loaded.flows.discard(flow)
            was_last = self._constants.dropped(flow, function)
            if not loaded.flows:
                del self._loaded[function.identity]
                self._messages.append(Forget(function.identity))
            elif was_last:
                self._messages.append(Evict(function.identity))

    # --- answers ----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take all answers that are here."""
        while (process := self._process) is not None:
            try:
                reply = self._take(process)
            except Ended:
                self._lose({})
                return
            if reply is None:
                return
            self._answered(reply)
            if process.channel.is_empty:
                return  # what comes now makes the socket readable again

    def _take(self, process: Process) -> Reply | None:
        """Take the next answer, if it is here.

        Raises:
            Ended: there will be none.
        """
        return process.channel.take()

    def _answered(self, reply: Reply) -> None:
        if isinstance(reply, Planned):
            self._take_plan(reply)
            return
        if isinstance(reply, Failed) and reply.call in self._plans:
            order = self._plans.pop(reply.call)
            self.events.failed(order.call, from_record(reply.error))
            return
        first = self._out[0] if self._out else None
        if first is None or isinstance(reply, Ready) or reply.call != first.call.id:
            self._lose(self._confused(first, reply))
            return
        now_ns = time.monotonic_ns()
        if isinstance(reply, Begun):
            first.begin(now_ns)
            return
        first.call.stages = reply.stages
        if isinstance(reply, Failed):
            error = from_record(reply.error)
            if reply.fatal:
                self._lose({first.call.id: error}, 0.0)
                return
            self._next(now_ns)
            finish(self.events, first.call, None, error)
            return
        # The process is trusted, and has checked the outputs against the declaration.
        try:
            outputs = self._outputs(reply, first)
        except Exception as error:
            text = f"{self.info.name} put outputs of call {first.call.id} elsewhere: {error}"
            self._lose({first.call.id: InternalError(text)})
            return
        self._next(now_ns)
        finish(self.events, first.call, outputs, None)

    def _outputs(self, reply: Done, sent: SentCall) -> InstanceSets:
        """Read the outputs of a call."""
        result = sent.result
        assert result is not None, "it was sent with one"
        return tuple([None if s is None else _read_set(s, result) for s in reply.outputs])

    def _next(self, now_ns: int) -> None:
        self._out.popleft()
        if self._out:
            self._out[0].begin(now_ns)

    def _confused(self, first: SentCall | None, reply: Reply) -> dict[int, DandelionError]:
        if first is None:
            return {}
        text = f"{self.info.name} answered {type(reply).__name__}, not call {first.call.id}"
        return {first.call.id: InternalError(text)}

    def _take_plan(self, reply: Planned) -> None:
        order = self._plans.pop(reply.call, None)
        if order is None:
            return
        call = order.call
        inputs = call.run.inputs
        self._demands.add(self.info.backend, order.function, inputs, reply.reads, reply.demand)
        call.demand = reply.demand
        if call.members:
            self._planned(order)
            self._advance()
            self.flush()
        else:
            self.events.planned(call)

    def _planned(self, order: Order) -> None:
        """The demand of a batch is known: send it before the others."""
        order.is_plan = False
        self._waiting.appendleft(order)

    def late(self, now_ns: int) -> None:
        if self._out and now_ns > self._out[0].deadline_ns + GRACE_NS:
            sent = self._out[0]
            limit_s = sent.limit_ns / 1e9
            self._lose({sent.call.id: timed_out(sent.function, limit_s)}, 0.0)


def _read_set(wire: WireSet, result: Context) -> ItemSet:
    start = result.offset_bytes
    items = tuple([_read_item(item, result, start) for item in wire.items])
    return ItemSet(wire.name, items, wire.dtype, wire.shape)


def _read_item(wire: WireItem, result: Context, start: int) -> Item:
    data = result.read(wire.offset - start, wire.size) if wire.size else b""
    return Item(wire.name, wire.key, data, wire.dtype, wire.shape)


def _death(code: int | None) -> str:
    if code is None:
        return "its process ended"
    return (
        f"its process was killed by signal {-code}" if code < 0 else f"it exited with code {code}"
    )
