"""Calls go to an engine process and come back without a thread in between.

The loop sends calls (`send`, `flush`) and reads answers when the socket is readable. What takes
time runs in a thread and comes back with an event: starting and ending the process, copying large
inputs into the arena, finding memory that has to be zeroed first.

A call passes two lists::

    _waiting --- it is prepared: its inputs lie where they are sent from ---> _out

`_out` has the calls that the process has, in order; it answers in that order. The first one is the
one that runs: its time counts from the answer before, or from `Begun`. A process that does not
answer until the deadline and a grace after it is killed, and the scheduler is told that the engine
is lost, with all its calls. What a lost process may still read or write is kept until it is gone.

What is sent, and what of an answer is believed, depends on the process: see `arena_process` and
`confined`.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import msgspec

from dandelion.data import Bytes
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import (
    Ready,
    Reply,
    StopCall,
)
from dandelion.errors import Cancelled, DandelionError
from dandelion.executors.contract import (
    Executor,
    StartedEngine,
    Surroundings,
    function_of,
    timed_out,
)
from dandelion.executors.failures import to_dandelion_error
from dandelion.executors.loaded_functions import LoadedFunctions
from dandelion.executors.lost_process import LostProcess
from dandelion.executors.processes import CODE_LIMIT_S, LEAVE_LIMIT_S, Process, Processes
from dandelion.executors.sent_calls import SentCall, Watcher
from dandelion.executors.staging import Order, Stager
from dandelion.executors.worker import Worker
from dandelion.function import Function
from dandelion.scheduler import CallState, EngineState, Flow

GRACE_NS = 250_000_000
"""How long after a call's deadline its process may still answer before it is killed."""


class EngineProcessExecutor(Executor):
    """Runs calls in an engine process. What they look like there is left to subclasses.

    Args:
        processes: of the engine; not started yet.
        watcher: reports when answers come.
        stager: prepares its calls.

    Attributes:
        overtakes: calls are sent before one that has to wait.
        stager: prepares its calls.
        answer: the first message of the process that is up.
    """

    collects: ClassVar[bool] = True
    overtakes: ClassVar[bool] = False

    def __init__(
        self,
        engine: EngineState,
        info: StartedEngine,
        around: Surroundings,
        processes: Processes,
        watcher: Watcher,
        stager: Stager,
    ) -> None:
        super().__init__(engine, info, around)
        self._processes = processes
        self.stager = stager
        self._watcher = watcher
        self._process: Process | None = None
        self._messages: list[msgspec.Struct | Bytes] = []
        self._waiting: deque[Order] = deque()
        self._out: deque[SentCall] = deque()
        self._plans: dict[int, Order] = {}
        self._functions = LoadedFunctions()
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
        found = self._processes.started(
            self.info.capacity.device_bytes, self.info.name or self.info.backend
        )
        if isinstance(found, Ready):
            self.events.post(partial(self._up, found))
        else:
            self.events.post(partial(self.events.start_failed, self.engine, found))

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
        self._process_gone()
        self._messages.clear()
        out = tuple(self._out)
        lost = LostProcess(self.info.name, out, list(self._plans.values()), begun)
        kept = (out, self._functions.memory())
        self._plans = {}
        self._out.clear()
        self._functions.clear()

        def end() -> None:
            self._processes.current = None  # here: if this comes too late, `close` ends the process
            limit_s = LEAVE_LIMIT_S if self._processes.leaving else code_limit_s
            code = self._processes.end(process, limit_s, kept)
            self.events.post(partial(self._report, lost, code))

        self._worker.submit(end)

    def _report(self, lost: LostProcess, code: int | None) -> None:
        planning = [order for order in self._waiting if order.is_plan]
        self._waiting.clear()
        self._functions.constants.clear()
        lost.report(self, code, planning)

    def _process_gone(self) -> None:
        """The process is not used any more."""

    def check(self) -> None:
        if not self._out and not self._waiting:
            self._lose({}, 0.0)

    def close(self) -> None:
        self._processes.abandon()
        self._worker.close(self._leave)  # the system kills a process when this thread ends
        self._process = None
        self._process_gone()

    def _leave(self) -> None:
        """Wait until the process has left, and end all others."""
        process, self._processes.current = self._processes.current, None
        if process is not None:
            self._watcher.unwatch(process.channel.fileno())
            kept = (tuple(self._out), self._functions.memory())
            self._processes.end(process, LEAVE_LIMIT_S, kept)
        self._processes.close()

    # --- calls on their way there -----------------------------------------------------------------

    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        # A batch is planned here: only now is it known which calls it has.
        is_plan = bool(call.members) and call.demand is None and self.engine.planner
        order = Order(call, function_of(self, call), is_plan, evict, keep)
        self._waiting.append(order)
        self._advance()

    def _advance(self) -> None:
        """Send what is ready to be sent; what takes time is prepared in a thread first."""
        held = 0
        while held < len(self._waiting) and not self._preparing and self._process is not None:
            order = self._waiting[held]
            if order.call.cancelled:
                del self._waiting[held]
                self._give_up(order, Cancelled("before it began"))
                held = 0
                continue
            try:
                prepared = self.stager.prepared(order)
            except Exception as error:
                del self._waiting[held]
                self._give_up(order, to_dandelion_error(error, self.info.name))
                held = 0
                continue
            if not prepared:
                self._preparing = True
                self.around.pool.submit(self._prepare, order)
                return
            if self._is_held(order):
                if not self.overtakes:
                    return
                held += 1
                continue
            del self._waiting[held]
            self._post(order)
            held = 0

    def _is_held(self, order: Order) -> bool:
        """Tell whether a call that is prepared has to wait."""
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
            if not self._functions.used(call.flow, function):
                self._load(order)
        except Exception as error:
            self._give_up(order, to_dandelion_error(error, self.info.name))
            return
        if order.is_plan:
            self._post_plan(order)
            return
        self._evict(order)
        order.keep = self._keeps(order)
        if order.keep:
            self._functions.constants.kept(call.flow, function)
        limit_s = min(function.spec.limits.wall_s, call.invocation.deadline_s)
        sent = SentCall(call, function, order.result, int(limit_s * 1e9))
        if not self._out:
            sent.begin(time.monotonic_ns())
        self._out.append(sent)
        self._messages += self._run_messages(order, limit_s)

    def _keeps(self, order: Order) -> bool:
        """Tell whether the device keeps the constants of a call that is sent now."""
        return order.keep

    def _post_plan(self, order: Order) -> None:
        """Have the process plan a call."""
        raise NotImplementedError("engines of this kind do not differ in what they have")

    @abc.abstractmethod
    def _run_messages(self, order: Order, limit_s: float) -> Sequence[msgspec.Struct | Bytes]:
        """Return what makes the process run a call."""

    def _evict(self, order: Order) -> None:
        """Have the device drop constants; the scheduler counts on it, even if no call follows."""
        self._messages += self._functions.constants.evictions(order.evict)

    def _load(self, order: Order) -> None:
        """Have the process load a function before the call that needs it."""
        messages = self._load_messages(order)
        self._functions.add(order.call.flow, order.function)
        self._messages += messages

    @abc.abstractmethod
    def _load_messages(self, order: Order) -> Sequence[msgspec.Struct | Bytes]:
        """Return what makes the process load the function of a call."""

    def has_loaded(self, function: Function) -> bool:
        """Tell whether the process has a function, or is about to get it."""
        return self._functions.has(function)

    def forget(self, flow: Flow) -> None:
        self._messages += self._functions.forget(flow)

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
                self._advance()
                return
        if any(sent.call is call for sent in self._out):
            self._messages.append(StopCall(call.id))

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

    @abc.abstractmethod
    def _answered(self, reply: Reply) -> None:
        """Take an answer: raise the event of its call, or lose the process."""

    def _next(self, now_ns: int) -> None:
        self._out.popleft()
        if self._out:
            self._out[0].begin(now_ns)

    def late(self, now_ns: int) -> None:
        if self._out and now_ns > self._out[0].deadline_ns + GRACE_NS:
            sent = self._out[0]
            limit_s = sent.limit_ns / 1e9
            self._lose({sent.call.id: timed_out(sent.function, limit_s)}, 0.0)
