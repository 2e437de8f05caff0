"""The runtime: raises the scheduler's events on the node's loop and carries out its actions.

Everything that the scheduler owns is touched on the loop and nowhere else. Other threads `post`
events: they append to a queue and wake the loop, once for however many. The runtime has one epoll
of its own, which the loop watches: the sockets of all engine processes and the descriptor of the
wake-up. So a blocking call on the loop's own thread can wait there too (`wait`).

One turn (`work`) raises what was posted and what executors answered, carries out actions in order,
and sends what was collected for each engine process in one message. After `TURN_NS` it leaves the
rest to the next turn of the loop, so that others on the loop go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError, DeadlineExceeded, EngineDied
from dandelion.executors import Executor, StartedEngine, to_dandelion_error
from dandelion.executors.batches import divided
from dandelion.node.capacity import BusyMeter
from dandelion.node.jobs import Jobs
from dandelion.node.observer import Observer
from dandelion.node.reloads import RELOADS, ReloadWatch
from dandelion.scheduler import (
    CallState,
    EngineState,
    Flow,
    InvocationState,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import (
    Action,
    Check,
    Discard,
    End,
    Fetch,
    Look,
    Plan,
    Send,
    Start,
    Stop,
)

TURN_NS = 2_000_000
"""After how long the loop's other work has its turn."""
LOOK_EVERY = 32
"""After how many events the runtime looks at the clock."""
LOOKS = 16
"""How often the loop looks for answers, without sleeping, before its other work has its turn."""
STARVED_NS = 2_000_000
"""After how long without an answer of short calls in threads the loop waits for one. A thread asks
for the interpreter only after it has waited 5 ms without any release of it. So a loop that releases
it more often, for microseconds each time, would keep it for ever."""
ANSWER_S = 0.002
"""How long it waits at most."""
LOOK_NS = 500_000
"""How old the last look for answers may be when an invocation begins."""
LATE_S = 0.1
"""How often engines are asked for calls that are late."""

log = logging.getLogger("dandelion.node")
_CROWDED = (
    "functions take turns in memory: %d were loaded again within 10 s, and calls wait for that; "
    "their memory has %d bytes, set a larger 'functions_bytes' (it is part of 'arena_bytes')"
)


class Runtime:
    """Drives one scheduler. Unless said otherwise, for the loop's thread only.

    Args:
        scheduler: used by this runtime only.
        jobs: carries out what the scheduler requests outside of engines.
        observer: sees what happens.
        spin_us: how long the loop looks for answers of engine processes before it sleeps.
        meanwhile: something short to be done when calls were sent to engine processes.

    Attributes:
        executors: by id of the engine.
        ended: called with each invocation that ended.
        changed: called when an engine is up, lost, or could not be started.
        starting: preparations for further engines that are under way.
        longest_turn_ns: of all turns.
        meter: of the time that engines are busy.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Jobs,
        observer: Observer,
        spin_us: int = 0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.scheduler = scheduler
        self.executors: dict[int, Executor] = {}
        self.ended: Callable[[InvocationState], None] = lambda invocation: None
        self.changed: Callable[[], None] = lambda: None
        self.starting = 0
        self.longest_turn_ns = 0
        self.meter = BusyMeter()
        self._jobs = jobs
        self._reloads = ReloadWatch()
        self._observer = observer
        self._meanwhile = meanwhile
        self._spin_ns = 1000 * spin_us
        self._spin_until_ns = 0
        self._looked_ns = 0
        self._answered_ns = 0  # when another thread last posted something
        self._posted: deque[Callable[[], None]] = deque()
        self._begun: deque[Callable[[], None]] = deque()  # posted by other threads
        self._events: deque[Callable[[], None]] = deque()  # answers of executors; they come first
        self._woken = False
        self._working = False
        self._carrying = False  # an action is carried out, so no event is under way
        self._gathering = False  # events are raised, and worked on right after
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, Callable[[], None]] = {self._wake: self._take_posted}
        self._in_threads: list[Executor] = []
        self._sent_to: dict[Executor, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._late: asyncio.TimerHandle | None = None
        self._continues = False
        self._carriers: dict[type[Action], Callable[[Action], None]] = {
            Send: self._send,  # type: ignore[dict-item]  # each takes its own action
            End: self._end,  # type: ignore[dict-item]
            Plan: self._plan,  # type: ignore[dict-item]
            Stop: self._stop,  # type: ignore[dict-item]
            Fetch: self._fetch,  # type: ignore[dict-item]
            Discard: self._discard,  # type: ignore[dict-item]
            Look: self._look,  # type: ignore[dict-item]
            Start: self._start_engine,  # type: ignore[dict-item]
            Check: self._check,  # type: ignore[dict-item]
        }

    # --- the loop -------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to work on a running loop; on that loop."""
        self._loop = loop
        loop.add_reader(self._epoll.fileno(), self._on_ready)
        self._late = loop.call_later(LATE_S, self._on_late)
        self.work()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it works on."""
        assert self._loop is not None, "it was started"
        return self._loop

    def stop(self) -> None:
        """Stop working; on the loop."""
        assert self._loop is not None, "it was started"
        self._loop.remove_reader(self._epoll.fileno())
        for timer in (self._timer, self._late):
            if timer is not None:
                timer.cancel()
        self._loop = None

    def close(self) -> None:
        """Close descriptors; after `stop`."""
        self._epoll.close()
        os.close(self._wake)
        self._wake = -1

    def post(self, event: Callable[[], None]) -> None:
        """Have something done on the loop soon. From any thread."""
        self._posted.append(event)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):  # closed: nothing is worked on any more
                os.eventfd_write(self._wake, 1)

    def _take_posted(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._woken = False  # first: what is posted from here on wakes the loop again
        posted = self._posted
        if posted:
            self._answered_ns = time.monotonic_ns()
        while posted:
            self._begun.append(posted.popleft())

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever there is something to read."""
        self._watched[fd] = ready
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop that; the descriptor is still open."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def _on_ready(self) -> None:
        self._look_for_answers(0)
        self.work()
        if self._spin_until_ns:
            self._spin()

    def _look_for_answers(self, limit_s: float | None) -> bool:
        found = self._epoll.poll(limit_s)
        self._looked_ns = time.monotonic_ns()
        outer, self._gathering = self._gathering, True
        try:
            for fd, _ in found:
                ready = self._watched.get(fd)
                if ready is not None:
                    ready()
        finally:
            self._gathering = outer
        return bool(found)

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Work once, at the end of the block, on all invocations that begin and end in it."""
        assert not self._gathering, "blocks are not nested"
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            self.work()

    def _spin(self) -> None:
        """Look for answers without sleeping, in turns with everything else on the loop."""
        for _ in range(LOOKS):
            if self._loop is None:
                return
            if self._look_for_answers(0):
                self.work()
                break
        if self._loop is not None and time.monotonic_ns() < self._spin_until_ns:
            self._loop.call_soon(self._spin)
        else:
            self._spin_until_ns = 0

    def wait(self, ended: Callable[[], bool], limit_s: float) -> None:
        """Work until something is so; for a blocking call on the loop's own thread."""
        end_ns = time.monotonic_ns() + int(limit_s * 1e9)
        finished = self.work()
        while not ended() and (now_ns := time.monotonic_ns()) < end_ns:
            due_ns = min(end_ns, self.scheduler.next_tick_ns or end_ns)
            self._look_for_answers(max(0, due_ns - now_ns) / 1e9 if finished else 0.0)
            self.scheduler.tick(time.monotonic_ns())  # the loop's timers do not run meanwhile
            finished = self.work()

    # --- work -----------------------------------------------------------------------------------

    def work(self) -> bool:
        """Raise events and carry out actions. False if a turn is over before there are none."""
        if self._working:
            return True
        self._working = True
        started_ns = time.monotonic_ns()
        try:
            finished = self._turn(started_ns + TURN_NS)
        finally:
            self._working = False
        self._flush()
        turn_ns = time.monotonic_ns() - started_ns
        if turn_ns > self.longest_turn_ns:
            self.longest_turn_ns = turn_ns
        if not finished:
            self._look_for_answers(self._patience_s(started_ns + turn_ns))
            self._continue_soon()
        self._set_timer()
        return finished

    def _patience_s(self, now_ns: int) -> float:
        """How long to wait for answers, so that threads with short calls get the interpreter."""
        if now_ns - self._answered_ns > STARVED_NS:
            self._answered_ns = now_ns
            for executor in self._in_threads:
                engine = executor.engine
                if engine.sent and engine.mean_ns < engine.short_call_ns:
                    return ANSWER_S
        return 0.0

    def _continue(self) -> None:
        self._continues = False
        self.work()

    def _turn(self, end_ns: int) -> bool:
        """Work for a while. False if there is more to do."""
        scheduler, carriers = self.scheduler, self._carriers
        events, begun = self._events, self._begun
        action: Action | None
        count = 0
        while True:
            self._carrying = True
            for action in scheduler.take():
                try:
                    carriers[type(action)](action)
                except Exception as error:
                    self._repair(action, to_dandelion_error(error))
            action = None  # the last one may hold the data of an invocation that ended
            self._carrying = False
            count += 1
            look = not count % LOOK_EVERY
            if look:
                if time.monotonic_ns() > end_ns:
                    return False
                if self._posted:
                    self._take_posted()
            if scheduler.has_actions and not (look and begun):
                continue  # but calls that answer at once do not keep others from beginning
            if events or begun:
                event = begun.popleft() if begun and (look or not events) else events.popleft()
                try:
                    event()
                except Exception:  # a bug; everything else goes on
                    log.exception("an event of the scheduler failed")
                del event
            elif self._posted:
                self._take_posted()
            elif scheduler.has_turns:
                scheduler.turn(time.monotonic_ns())
            else:
                return True

    def _repair(self, action: Action, error: DandelionError) -> None:
        """An action could not be carried out: end what waits for its answer."""
        if isinstance(action, Send):
            self.failed(action.call, error, begun=False)
        elif isinstance(action, Plan | Look):
            self._events.append(
                partial(self.scheduler.calls.failed, action.call, error, time.monotonic_ns())
            )
        elif isinstance(action, Start):
            self.start_failed(action.engine, error)

    def _flush(self) -> None:
        if not self._sent_to:
            return
        sent_to, self._sent_to = self._sent_to, {}
        for executor in sent_to:
            executor.flush()
        self._meanwhile()
        if self._spin_ns and self._loop is not None:
            begins = not self._spin_until_ns
            self._spin_until_ns = time.monotonic_ns() + self._spin_ns
            if begins:
                self._loop.call_soon(self._spin)

    def _set_timer(self) -> None:
        due_ns = self.scheduler.next_tick_ns
        if due_ns is None or (self._timer_ns and self._timer_ns <= due_ns) or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        delay_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ns = 0
        self.scheduler.tick(time.monotonic_ns())
        self.work()

    def _on_late(self) -> None:
        now_ns = time.monotonic_ns()
        for executor in list(self.executors.values()):
            executor.late(now_ns)
        self.meter.sample(self.scheduler.calls.engines.all.values(), now_ns)
        self.work()
        if self._loop is not None:
            self._late = self._loop.call_later(LATE_S, self._on_late)

    # --- callers --------------------------------------------------------------------------------

    def submit(self, invocation: InvocationState) -> None:
        """Begin an invocation; raises as `Scheduler.submitted`.

        Under load one iteration of the loop takes long. So answers are taken here too, or engines
        would wait for their next calls.
        """
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns > LOOK_NS and not self._working:
            self._look_for_answers(self._patience_s(now_ns))
        try:
            self.scheduler.submitted(invocation, now_ns)
        except DandelionError as error:
            self._observer.refused(invocation, error)
            if (self._events or self._begun) and not self._gathering:
                self.work()
            raise
        if not self._gathering:
            self.work()

    def cancel(self, invocation: InvocationState, error: DandelionError) -> None:
        """End an invocation before its time."""
        self.scheduler.cancelled(invocation, error, time.monotonic_ns())
        if not self._gathering:
            self.work()

    def expire(self, invocation: InvocationState) -> None:
        """End an invocation whose deadline has passed."""
        self.cancel(invocation, DeadlineExceeded(invocation.deadline_s))

    def tenant_changed(self, tenant: Tenant) -> None:
        """A tenant is new, or has another quota or weight."""
        self.scheduler.tenant_changed(tenant, time.monotonic_ns())
        self.work()

    def removed(self, tenant: Tenant, name: str, version: int) -> None:
        """A version of a function is no longer registered."""
        self.scheduler.calls.removed(tenant, name, version)
        self.work()

    def reload_functions(self, changed: Set[tuple[str, str]]) -> None:
        """Load functions again that use changed secrets, given as tenants and names."""
        for flow in list(self.scheduler.calls.flows.values()):
            spec, tenant = flow.spec, flow.tenant
            if any((tenant.name, name) in changed for name in spec.secrets.values()):
                self.scheduler.calls.removed(tenant, spec.name, spec.version)
        self.work()

    def add(self, executor: Executor) -> None:
        """Add an engine; it is started."""
        self.executors[executor.engine.id] = executor
        if executor.in_thread:
            self._in_threads.append(executor)
        self.scheduler.fleet.added(executor.engine)
        self.work()

    def shut(self) -> None:
        """End all invocations and admit no more."""
        self.scheduler.close(time.monotonic_ns())
        self.work()

    # --- answers of executors; see `dandelion.executors.contract.Events` --------------------------

    def _raise(self, event: Callable[[], None]) -> None:
        """Raise an event: at once while an action is carried out, else in the next turn."""
        if self._carrying:
            event()
            return
        self._events.append(event)
        if not self._working and not self._gathering:
            self._continue_soon()

    def _continue_soon(self) -> None:
        if not self._continues and self._loop is not None:
            self._continues = True
            self._loop.call_soon(self._continue)

    def up(self, engine: EngineState, info: StartedEngine) -> None:
        self._raise(partial(self._up, engine, info))

    def _up(self, engine: EngineState, info: StartedEngine) -> None:
        self.scheduler.fleet.up(engine, info.name, info.capacity, time.monotonic_ns())
        self.changed()

    def resized(self, engine: EngineState, places: int) -> None:
        """An engine that stands for those of other nodes takes another number of calls."""
        self._raise(
            lambda: self.scheduler.fleet.resized(engine, places, time.monotonic_ns()),
        )

    def start_failed(self, engine: EngineState, error: DandelionError) -> None:
        self._raise(partial(self._start_failed, engine, error))

    def _start_failed(self, engine: EngineState, error: DandelionError) -> None:
        self.scheduler.fleet.failed(engine, error, time.monotonic_ns())
        self.changed()

    def lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        self._raise(partial(self._lost, engine, error, begun))

    def _lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        for call in engine.sent.values():
            if call.id in begun:
                self._observer.call_ended(call, begun[call.id])
        self.scheduler.fleet.lost(engine, error, begun, time.monotonic_ns())
        self.changed()

    def done(self, call: CallState, outputs: InstanceSets) -> None:
        if self._carrying:  # as in `_raise`, for the most frequent event
            self._done(call, outputs)
        else:
            self._raise(partial(self._done, call, outputs))

    def _done(self, call: CallState, outputs: InstanceSets) -> None:
        if call.members:
            self._batch_done(call, outputs)
            return
        self._observer.call_ended(call)
        self._observer.answered(call, outputs)
        if call.content:
            self._jobs.keep(call, outputs)
        self.scheduler.calls.done(call, outputs, call.ended_ns)

    def _batch_done(self, batch: CallState, outputs: InstanceSets) -> None:
        try:
            parts = divided([call.run for call in batch.members], outputs)
        except DandelionError as error:
            self._failed(batch, error, True)
            return
        self._observer.call_ended(batch)
        for call, part in zip(batch.members, parts, strict=True):
            self._observer.answered(call, part)
            if call.content:
                self._jobs.keep(call, part)
        self.scheduler.calls.batch_done(batch, parts, batch.ended_ns)

    def failed(self, call: CallState, error: DandelionError, begun: bool = True) -> None:
        self._raise(partial(self._failed, call, error, begun))

    def _failed(self, call: CallState, error: DandelionError, begun: bool) -> None:
        if call.engine is not None:
            self._observer.call_ended(call, error)
        if not call.members:
            self._observer.answered(call, error)
        self.scheduler.calls.failed(call, error, time.monotonic_ns(), begun)

    def planned(self, call: CallState) -> None:
        self._raise(partial(self._planned, call))

    def _planned(self, call: CallState) -> None:
        assert call.demand is not None, "its executor wrote it down"
        self.scheduler.calls.planned(call, call.demand, time.monotonic_ns())

    # --- actions ----------------------------------------------------------------------------------

    def _flush_later(self, executor: Executor) -> None:
        """Have what an executor collects leave at the end of the turn."""
        if executor.collects:
            self._sent_to[executor] = None

    def _send(self, action: Send) -> None:
        call = action.call
        assert call.engine is not None, "the scheduler chose one"
        executor = self.executors[call.engine.id]
        executor.send(call, action.evict, action.keep)
        if executor.collects:
            self._sent_to[executor] = None

    def _plan(self, action: Plan) -> None:
        executor = self.executors[action.engine.id]
        executor.plan(action.call)
        self._flush_later(executor)

    def _stop(self, action: Stop) -> None:
        call = action.call
        assert call.engine is not None, "it was sent"
        executor = self.executors[call.engine.id]
        executor.stop(call)
        self._flush_later(executor)

    def _fetch(self, action: Fetch) -> None:
        if self._reloads.loads(action.flow, time.monotonic_ns()):
            log.warning(_CROWDED, RELOADS, self.scheduler.calls.residency.node.capacity_bytes)
        self._jobs.fetch(action.flow, self._fetched)

    def _fetched(self, flow: Flow, error: DandelionError | None) -> None:
        now_ns = time.monotonic_ns()
        if error is None:
            self.scheduler.calls.fetched(flow, now_ns)
        else:
            self.scheduler.calls.fetch_failed(flow, error, now_ns)

    def _discard(self, action: Discard) -> None:
        self._reloads.evicted(action.flow)
        for executor in self.executors.values():
            executor.forget(action.flow)
            self._flush_later(executor)
        action.flow.functions.clear()

    def _look(self, action: Look) -> None:
        self._jobs.look(action.call, self._looked)

    def _looked(self, call: CallState, outputs: InstanceSets | None) -> None:
        now_ns = time.monotonic_ns()
        if outputs is None:
            self.scheduler.calls.missed(call, now_ns)
        else:
            self._observer.found(call, outputs, now_ns)
            self.scheduler.calls.found(call, outputs, now_ns)

    def _start_engine(self, action: Start) -> None:
        self.executors[action.engine.id].start()

    def _check(self, action: Check) -> None:
        self.executors[action.engine.id].check()

    def _end(self, action: End) -> None:
        invocation = action.invocation
        self._observer.invocation_ended(invocation)
        self.ended(invocation)
