"""The pump: takes events, steps walks, hands calls to hosts. The heart of a node.

Events come from anywhere: a caller's thread that starts an invocation, an engine's thread that
ended a call, the event loop. Each is put into a queue, and **whoever finds nobody pumping pumps**,
until the queue is empty. So walks, placement and counts are touched by one thread at a time without
a thread of their own, and an invocation of functions that answer at once runs to its end in its
caller's thread. Hosts call back by posting an event, so nothing recurses, however long a chain is.

A caller's thread, or the event loop, must not be kept by the work of others, nor by a composition
that goes on for ever: after `TURN_NS` it leaves what there is to a thread that lives until the
queue is empty. Walks settle in slices, so everybody has a turn, and a deadline, which is an event
too, gets through.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ParamSpec

from dandelion.data import ItemSet
from dandelion.dispatcher import Cancel, Complete, Fail, Instruction, Run
from dandelion.driver import Call, Demand, InstanceSets
from dandelion.errors import (
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    DeviceFull,
    EngineDied,
    Faulted,
    NoEngine,
    SandboxLost,
    TimedOut,
)
from dandelion.memory import MemoryDomain
from dandelion.node.cache import ResultCache, content_key
from dandelion.node.failures import typed
from dandelion.node.hosts import EngineHost, State, Work
from dandelion.node.invocation import Invocation, WaitingCall
from dandelion.node.library import Library
from dandelion.node.metrics import InvocationCounts
from dandelion.node.placement import FifoPlacement, Needs
from dandelion.node.traces import CallRecord, Span, TraceStore

P = ParamSpec("P")
ATTEMPTS = 2
"""How often a call is run in all, if engines die under it."""
TURN_NS = 20_000_000
"""How long a thread that only came to post an event pumps, in nanoseconds."""
LOOK_EVERY = 64
"""After how many events a pumping thread looks at the clock."""
SLICE = 1024
"""How many sets a walk settles before others have their turn."""

log = logging.getLogger("dandelion.node")


class Pump:
    """Carries out the instructions of all walks of a node.

    Args:
        library: loads functions.
        domain: where engines put outputs.
        traces: keeps what happened.
        cache: keeps results of functions that opted in.
    """

    def __init__(
        self, library: Library, domain: MemoryDomain, traces: TraceStore, cache: ResultCache
    ) -> None:
        self._library = library
        self._domain = domain
        self._traces = traces
        self._cache = cache
        self._events: deque[Callable[[], None]] = deque()
        self._pumping = threading.Lock()
        self._placement: FifoPlacement[WaitingCall] = FifoPlacement()
        self._waiting: dict[Invocation, set[WaitingCall]] = {}
        self._next_call = 0
        self._closed = False
        self.hosts: list[EngineHost] = []
        self.running: set[Invocation] = set()
        self.counts = InvocationCounts()

    @property
    def waiting(self) -> int:
        """Number of calls that wait for an engine."""
        return len(self._placement)

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` carried out, one at a time with all others; soon, or before this returns."""
        self._events.append(event)
        # Who pumps looks again after letting go, so nothing is lost where this finds it locked.
        if not self._pumping.locked() and not self._pump(TURN_NS):
            threading.Thread(target=self._pump, name="dandelion-pump", daemon=True).start()

    def _pump(self, turn_ns: int | None = None) -> bool:
        """Carry out events until there are none, or somebody else does. False if a turn ended."""
        events = self._events
        done = end_ns = 0
        while events and self._pumping.acquire(blocking=False):
            try:
                while events:
                    event = events.popleft()
                    try:
                        event()
                    except Exception:  # a bug; all else goes on
                        log.exception("an event of the pump failed")
                    done += 1
                    if done % LOOK_EVERY or turn_ns is None:
                        continue
                    now_ns = time.monotonic_ns()
                    end_ns = end_ns or now_ns + turn_ns
                    if now_ns >= end_ns:
                        return False
            finally:
                self._pumping.release()
        return True

    # --- events; each runs inside the pump ----------------------------------------------------

    def start(self, invocation: Invocation, inputs: tuple[ItemSet | None, ...]) -> None:
        """Begin an invocation."""
        self.running.add(invocation)
        if self._closed:
            self._finish(invocation, None, Cancelled("the node is shutting down"))
            return
        self._step(invocation, invocation.walk.start, inputs)

    def cancel(self, invocation: Invocation, error: DandelionError) -> None:
        """End an invocation before its time."""
        self._step(invocation, invocation.walk.cancel, error)

    def shut(self) -> None:
        """End all invocations, and from now on every one that begins."""
        self._closed = True
        for invocation in list(self.running):
            self.cancel(invocation, Cancelled("the node is shutting down"))

    def add_host(self, host: EngineHost) -> None:
        """Use a host; it may be starting still."""
        self.hosts.append(host)
        self._placement.add_host(host)
        self.host_changed(host)

    def host_changed(self, host: EngineHost) -> None:
        """A host became ready, or turned out not to work here."""
        if host.state is State.READY:
            self._placement.add_host(host)  # again, if it was lost for a while
            self._reconsider()
            for other in list(self.hosts) if host.facts.shared_fault_domain else (host,):
                self._feed(other)  # its siblings waited for it, too
        elif host.state in (State.UNAVAILABLE, State.CLOSED):
            self._placement.remove_host(host)
            self._reconsider()
            for other in list(self.hosts):
                self._feed(other)  # what waited for the lost one may suit them now

    def _reconsider(self) -> None:
        """Look at the calls that wait: needs may be known now, or no engine may satisfy them."""
        for waiting in list(self._placement.waiting()):
            error: DandelionError | None = None
            try:
                asked = self._placement.asked(waiting.needs.formats)
                if asked is not None and asked[1] is not waiting.needs.driver:
                    waiting.needs = self._needs(waiting)
                    self._placement.renew(waiting.needs, waiting)
                if not self._placement.possible(waiting.needs):
                    error = self._no_engine(waiting)
            except Exception as found:
                error = typed(found)
            if error is None or not self._placement.drop(waiting):
                continue  # the failure of another call of its invocation may have dropped it
            self._waiting[waiting.invocation].discard(waiting)
            self._fail(waiting.invocation, waiting.run, error)

    def _ended(
        self,
        invocation: Invocation,
        run: Run,
        work: Work,
        outputs: InstanceSets | None,
        error: DandelionError | None,
    ) -> None:
        host = work.host
        assert host is not None
        host.vacate()
        _record(invocation, run, work, host)
        wanted = invocation.calls.pop(run.instance, None) is not None
        again = False
        if wanted and work.attempt - (not work.begun) < ATTEMPTS and _may_run_again(work, error):
            again = True
            alone = work.alone or (work.begun and host.facts.shared_fault_domain)
            attempt = work.attempt + work.begun
            self._place(WaitingCall(invocation, run, attempt, alone, work.cache_key), behind=alone)
        elif outputs is not None:
            if work.cache_key:
                self._cache.put(work.cache_key, run.function.name, outputs)
            self._step(invocation, invocation.walk.finished, run.instance, outputs)
        elif isinstance(error, TimedOut) and time.monotonic_ns() >= invocation.deadline_ns:
            self.cancel(invocation, DeadlineExceeded(invocation.deadline_s))
        elif error is not None:
            self._fail(invocation, run, _blamed(work, error))
        if host.state is State.STARTING and host.facts.shared_fault_domain:
            for other in self._placement.siblings(host):
                other.doubt()
        if again or host.state is State.STARTING:  # others may take what waits, if it was lost
            for other in self._placement.hosts(run.application.formats):
                self._feed(other)
        self._feed(host)

    # --- steps --------------------------------------------------------------------------------

    def _fail(self, invocation: Invocation, run: Run, error: DandelionError) -> None:
        self._step(invocation, invocation.walk.failed, run.instance, error)

    def _step(
        self,
        invocation: Invocation,
        step: Callable[P, list[Instruction]],
        *event: P.args,
        **_: P.kwargs,
    ) -> None:
        """Step a walk and carry out what it says. A bug ends its invocation, nothing else."""
        try:
            for instruction in step(*event, **_):
                self._carry_out(invocation, instruction)
        except Exception as error:
            for instruction in invocation.walk.cancel(typed(error)):
                self._carry_out(invocation, instruction)
        if invocation.walk.unsettled and not invocation.resuming:
            invocation.resuming = True
            self._events.append(partial(self._resume, invocation))

    def _resume(self, invocation: Invocation) -> None:
        invocation.resuming = False
        self._step(invocation, invocation.walk.resume)

    def _carry_out(self, invocation: Invocation, instruction: Instruction) -> None:
        if isinstance(instruction, Run):
            self._run(invocation, instruction)
        elif isinstance(instruction, Complete):
            self._finish(invocation, instruction.outputs, None)
        elif isinstance(instruction, Fail):
            self._finish(invocation, None, instruction.error)
        else:
            self._stop(invocation, instruction)

    def _run(self, invocation: Invocation, run: Run) -> None:
        waiting = WaitingCall(invocation, run)
        if not (run.function.cache and self._answered(waiting)):
            self._place(waiting)

    def _place(self, waiting: WaitingCall, behind: bool = False) -> None:
        """Give a call to a free host, or let it wait for one.

        Args:
            behind: it waits behind all others, which did no harm; whoever asks feeds hosts next.
        """
        try:
            waiting.needs = self._needs(waiting)
            placed = None if behind else self._placement.place(waiting.needs)
            if placed is None and not self._placement.possible(waiting.needs):
                raise self._no_engine(waiting)
        except Exception as error:
            self._fail_later(waiting, error)
            return
        if placed is not None:
            self._submit(waiting, *placed)
        else:
            waiting.since_ns = time.monotonic_ns()
            self._waiting.setdefault(waiting.invocation, set()).add(waiting)
            self._placement.wait(waiting.needs, waiting)

    def _needs(self, waiting: WaitingCall) -> Needs:
        """Find out what a call will need, where hosts differ in what they have."""
        run = waiting.run
        formats = run.application.formats
        asked = self._placement.asked(formats)
        if asked is None:
            return Needs(formats, alone=waiting.alone)
        code_format, driver = asked
        function = self._library.function(run.function, code_format)
        planner = driver.planner()
        inputs = function.with_static(run.inputs)
        demand = planner.demand(function, inputs) if planner is not None else Demand()
        return Needs(formats, demand, waiting.alone, function.identity, driver)

    def _answered(self, waiting: WaitingCall) -> bool:
        """Answer a call from the cache, if its result is there."""
        invocation, run = waiting.invocation, waiting.run
        waiting.cache_key = content_key(run.function, run.inputs, run.origin)
        found = self._cache.get(waiting.cache_key)
        if found is None:
            return False
        now = time.monotonic_ns()
        invocation.trace.add(Span(run.application.id, "cache", now, now, run.number))
        finished = partial(self._step, invocation, invocation.walk.finished, run.instance, found)
        self._events.append(finished)
        return True

    def forget(self, function: str) -> None:
        """A function was removed: its results are not given any more."""
        self._cache.drop(function)

    def _submit(self, waiting: WaitingCall, host: EngineHost, code_format: str) -> None:
        invocation, run = waiting.invocation, waiting.run

        def done(work: Work, outputs: InstanceSets | None, error: DandelionError | None) -> None:
            self.post(partial(self._ended, invocation, run, work, outputs, error))

        try:
            function = self._library.function(run.function, code_format)
            limit_s = run.function.limits.wall_s
            self._next_call += 1
            call = Call(
                self._next_call,
                function,
                function.with_static(run.inputs),
                self._domain,
                min(invocation.deadline_ns, time.monotonic_ns() + int(limit_s * 1e9)),
                min(limit_s, invocation.deadline_s),
                demand=waiting.needs.demand if host.driver is waiting.needs.driver else None,
                latest_ns=invocation.deadline_ns,
            )
            if run.origin is not None:
                call.origin = run.origin
            work = Work(
                call,
                done,
                waiting.since_ns,
                waiting.attempt,
                waiting.cache_key,
                alone=waiting.alone,
            )
            invocation.calls[run.instance] = work
            host.submit(work)
        except Exception as error:
            invocation.calls.pop(run.instance, None)
            self._fail_later(waiting, error)

    def _fail_later(self, waiting: WaitingCall, error: Exception) -> None:
        """Have a call fail, in an event of its own: its walk may be in the middle of a step."""
        failed = partial(self._fail, waiting.invocation, waiting.run, typed(error))
        self._events.append(failed)

    def _feed(self, host: EngineHost) -> None:
        """Give a host what waits for it."""
        while host.free > 0:
            found = self._placement.next_for(host)
            if found is None:
                return
            waiting, code_format = found
            self._waiting[waiting.invocation].discard(waiting)
            self._submit(waiting, host, code_format)

    def _stop(self, invocation: Invocation, instruction: Cancel) -> None:
        work = invocation.calls.pop(instruction.instance, None)
        if work is None or work.host is None:
            return
        try:
            work.host.cancel(work)
        except Exception:  # it may end when it likes; the invocation ends now
            log.exception("engine %s could not cancel a call", work.host.facts.name)

    def _finish(
        self,
        invocation: Invocation,
        outputs: tuple[ItemSet | None, ...] | None,
        error: DandelionError | None,
    ) -> None:
        if self._waiting:
            for waiting in self._waiting.pop(invocation, ()):
                self._placement.drop(waiting)
        self.running.discard(invocation)
        trace = invocation.trace
        trace.end_ns = time.monotonic_ns()
        trace.outcome = "ok" if error is None else type(error).__name__
        self.counts.add(trace.outcome, (trace.end_ns - trace.start_ns) / 1e9)
        self._traces.add(trace)
        invocation.finish(outputs, error)

    def _no_engine(self, waiting: WaitingCall) -> DandelionError:
        """Say why nothing here runs a call: it is too large, or the reason of a backend."""
        run = waiting.run
        formats = run.application.formats
        demand = waiting.needs.demand
        rooms = [h.facts for h in self._placement.hosts(formats) if h.facts.capacity.device_bytes]
        if rooms and demand is not None:
            best = max(rooms, key=lambda facts: facts.capacity.device_bytes)
            if demand.device_bytes > best.capacity.device_bytes:
                return DeviceFull(best.name, demand.device_bytes, best.capacity.device_bytes)
        for host in self.hosts:
            if host.error is not None and not host.formats.isdisjoint(formats):
                return replace(host.error)  # raised by many: each its own traceback
        ready = {f for h in self.hosts if h.state is State.READY for f in h.formats}
        return NoEngine(run.function.name, formats, tuple(sorted(ready)))


def _may_run_again(work: Work, error: DandelionError | None) -> bool:
    """Tell whether a failed call should be run once more. I/O never is.

    Pure functions are, if it was their engine that died, or if their engine shared its fate with
    others: then the fault may be another call's, and running alone tells.
    """
    if work.call.function.spec.kind != "compute" or work.host is None:
        return False
    shared = isinstance(error, Faulted) and work.host.facts.shared_fault_domain
    return shared or isinstance(error, EngineDied)


def _blamed(work: Work, error: DandelionError) -> DandelionError:
    """Blame the function if it took an engine with it every time that it was run.

    A sandbox that was lost is different: the function cannot do that.
    """
    if isinstance(error, SandboxLost):
        return error
    if isinstance(error, EngineDied) and work.attempt == ATTEMPTS:
        return Faulted(
            work.call.function.spec.name, f"{ATTEMPTS} engines died under it; {error.message}"
        ).because(error)
    return error


def _record(invocation: Invocation, run: Run, work: Work, host: EngineHost) -> None:
    invocation.trace.add(
        CallRecord(
            run.application.id,
            run.number,
            host.facts.name,
            work.queued_ns,
            work.started_ns,
            work.ended_ns,
            work.call.stages,
        )
    )
