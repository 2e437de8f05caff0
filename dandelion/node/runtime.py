"""The runtime: raises the scheduler's events on the node's loop and carries out its actions.

Everything that the scheduler owns is touched on the loop and nowhere else. Other threads `post`
events: they append to a queue and wake the loop, once for however many. The runtime has one epoll
of its own (`poll`), which the loop watches: the sockets of all engine processes and the descriptor
of the wake-up. So a blocking call on the loop's own thread can wait there too (`wait`).

One turn (`work`) raises what was posted and what executors answered (`executor_answers`), carries
out actions in order (`action_carrier`), and sends what was collected for each engine process in one
message. After `TURN_NS` it leaves the rest to the next turn of the loop, so that others on the loop
go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Set
from functools import partial

from dandelion.errors import DandelionError, DeadlineExceeded
from dandelion.executors import Executor, to_dandelion_error
from dandelion.node.action_carrier import ActionCarrier
from dandelion.node.capacity import BusyMeter
from dandelion.node.executor_answers import Arguments, ExecutorAnswers
from dandelion.node.jobs import Jobs
from dandelion.node.observer import Observer
from dandelion.node.poll import Poll
from dandelion.polling import Allowance, Polling
from dandelion.scheduler import EngineState, InvocationState, Scheduler, Tenant
from dandelion.scheduler.actions import Action, Fetch, Look, Plan, Send, Start

TURN_NS = 2_000_000
"""After how long the loop's other work has its turn."""
LOOK_EVERY = 32
"""After how many events and actions the runtime looks at the clock."""
LOOKS = 4
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


class Runtime:
    """Drives one scheduler. Unless said otherwise, for the loop's thread only.

    Args:
        scheduler: used by this runtime only.
        jobs: carries out what the scheduler requests outside of engines.
        observer: sees what happens.
        ended: called with each invocation that ended.
        spin_us: how long the loop polls for answers of engine processes at most.
        meanwhile: something short to be done when calls were sent to engine processes.

    Attributes:
        executors: by id of the engine.
        poll: what the loop waits for.
        post: has something done on the loop soon; from any thread.
        answers: of all executors.
        starting: preparations for further engines that are under way.
        longest_turn_ns: of all turns.
        meter: of the time that engines are busy.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Jobs,
        observer: Observer,
        ended: Callable[[InvocationState], None],
        spin_us: int = 0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.scheduler = scheduler
        self.executors: dict[int, Executor] = {}
        self.poll = Poll()
        self.post = self.poll.post
        self.answers = ExecutorAnswers(scheduler, jobs, observer, self._raise, self.post)
        self.starting = 0
        self.longest_turn_ns = 0
        self.meter = BusyMeter()
        self._observer = observer
        self._carrier = ActionCarrier(scheduler, self.executors, jobs, observer, ended)
        self._meanwhile = meanwhile
        self._polling = Polling(Allowance(spin_us))
        self._polls = False
        self._events: deque[Callable[[], None]] = deque()  # answers of executors; they come first
        self._working = False
        self._carrying = False  # an action is carried out, so no event is under way
        self._in_threads: list[Executor] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._late: asyncio.TimerHandle | None = None
        self._continues = False

    # --- the loop -------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to work on a running loop; on that loop."""
        self._loop = loop
        loop.add_reader(self.poll.fileno(), self._on_ready)
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
        remove_reader: Callable[[int], object] = self._loop.remove_reader  # uvloop's gives None
        remove_reader(self.poll.fileno())
        for timer in (self._timer, self._late):
            if timer is not None:
                timer.cancel()
        self._loop = None

    def close(self) -> None:
        """Close descriptors; after `stop`."""
        self.poll.close()

    def _on_ready(self) -> None:
        if not self._polls:
            self._polling.ended()
        self.poll.look(0)
        self.work()
        self._poll_soon()

    def gather(self, caller: Callable[[*Arguments], None], *given: *Arguments) -> None:
        """Call what begins and ends many invocations; work once, at its end, on all of them."""
        assert not self.poll.gathering, "such calls are not nested"
        self.poll.gathering = True
        try:
            caller(*given)
        finally:
            self.poll.gathering = False
            self.work()

    def _poll_soon(self) -> None:
        """Begin to wait for what comes next, and poll for it if that pays."""
        if self._is_crowded:
            return
        if self._polling.begin() and not self._polls and self._loop is not None:
            self._polls = True
            self._loop.call_soon(self._look)

    @property
    def _is_crowded(self) -> bool:
        """Whether engines work on so much that a loop that polls would be in their way."""
        return len(self.scheduler.invocations) > self._polling.allowance.most

    def _look(self) -> None:
        """Look for answers without sleeping, in turns with everything else on the loop."""
        loop = self._loop
        if loop is None or self._is_crowded:  # it was stopped, or invocations have begun
            self._polls = False
            return
        self._polling.resume()
        for _ in range(LOOKS):
            if self.poll.look(0):
                self._polls = False
                self.work()
                self._poll_soon()
                return
            if not self._polling.again():
                self._polls = False
                return
        loop.call_soon(self._look)

    def wait(self, ended: Callable[[], bool], limit_s: float) -> None:
        """Work until something is so; for a blocking call on the loop's own thread."""
        end_ns = time.monotonic_ns() + int(limit_s * 1e9)
        finished = self.work()
        while not ended() and (now_ns := time.monotonic_ns()) < end_ns:
            due_ns = min(end_ns, self.scheduler.next_tick_ns or end_ns)
            self.poll.look(max(0, due_ns - now_ns) / 1e9 if finished else 0.0)
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
            self.poll.look(self._patience_s(started_ns + turn_ns))
            self._continue_soon()
        self._set_timer()
        return finished

    def _patience_s(self, now_ns: int) -> float:
        """How long to wait for answers, so that threads with short calls get the interpreter."""
        if now_ns - self.poll.answered_ns > STARVED_NS:
            self.poll.answered_ns = now_ns
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
        scheduler, carriers = self.scheduler, self._carrier.by_kind
        events, poll = self._events, self.poll
        begun, posted = poll.begun, poll.posted
        action: Action | None
        count = 0
        while True:
            self._carrying = True
            actions = scheduler.take()
            count += 1 + len(actions)
            for action in actions:
                try:
                    carriers[type(action)](action)
                except Exception as error:
                    self._repair(action, to_dandelion_error(error))
            action = None  # these may hold the data of invocations that ended
            actions.clear()
            self._carrying = False
            look = count >= LOOK_EVERY
            if look:
                count = 0
                if time.monotonic_ns() > end_ns:
                    return False
                if posted:
                    poll.take_posted()
            if scheduler.has_actions and not (look and begun):
                continue  # but calls that answer at once do not keep others from beginning
            if events or begun:
                event = begun.popleft() if begun and (look or not events) else events.popleft()
                try:
                    event()
                except Exception:  # a bug; everything else goes on
                    log.exception("an event of the scheduler failed")
                del event
            elif posted:
                poll.take_posted()
            elif scheduler.has_turns:
                scheduler.turn(time.monotonic_ns())
            else:
                return True

    def _repair(self, action: Action, error: DandelionError) -> None:
        """An action could not be carried out: end what waits for its answer."""
        calls, now_ns = self.scheduler.calls, time.monotonic_ns()
        if isinstance(action, Send):
            self.answers.failed(action.call, error, begun=False)
        elif isinstance(action, Plan):
            self._events.append(partial(calls.failed, action.call, error, now_ns))
        elif isinstance(action, Look):
            self._events.append(partial(calls.missed, action.call, now_ns))
        elif isinstance(action, Fetch):
            self._events.append(partial(calls.fetch_failed, action.flow, error, now_ns))
        elif isinstance(action, Start):
            self.answers.start_failed(action.engine, error)

    def _flush(self) -> None:
        carrier = self._carrier
        if not carrier.sent_to:
            return
        sent_to, carrier.sent_to = carrier.sent_to, {}
        for executor in sent_to:
            executor.flush()
        self._meanwhile()
        self._poll_soon()

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
        if now_ns - self.poll.looked_ns > LOOK_NS and not self._working:
            self.poll.look(self._patience_s(now_ns))
        try:
            self.scheduler.submitted(invocation, now_ns)
        except DandelionError as error:
            self._observer.refused(invocation, error)
            if (self._events or self.poll.begun) and not self.poll.gathering:
                self.work()
            raise
        if not self.poll.gathering:
            self.work()

    def cancel(self, invocation: InvocationState, error: DandelionError) -> None:
        """End an invocation before its time."""
        self.scheduler.cancelled(invocation, error, time.monotonic_ns())
        if not self.poll.gathering:
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

    def resized(self, engine: EngineState, places: int) -> None:
        """An engine that stands for those of other nodes takes another number of calls."""
        self._raise(
            lambda: self.scheduler.fleet.resized(engine, places, time.monotonic_ns()),
        )

    def _raise(self, event: Callable[[*Arguments], None], *given: *Arguments) -> None:
        """Raise an event: at once while an action is carried out, else in the next turn."""
        if self._carrying:
            event(*given)
            return
        self._events.append(partial(event, *given))
        if not self._working and not self.poll.gathering:
            self._continue_soon()

    def _continue_soon(self) -> None:
        if not self._continues and self._loop is not None:
            self._continues = True
            self._loop.call_soon(self._continue)
