"""A device whose workers share it, with a virtual clock: how fast k calls at once are.

Each flow has a curve: `speed(k)` is the throughput of k calls of it that run at once, relative to
one alone. So each of k running calls proceeds at `speed(k) / k`, whatever the others are.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import CompositionPlan, Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.errors import BackendUnavailable, EngineDied
from dandelion.function import CodeObject, FunctionSpec
from dandelion.policies import policy_of
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import End, Send, Start
from dandelion.scheduler.concurrency import WorkerPool

MS, S = 1_000_000, 1_000_000_000
DEVICE = ("gpu", "0")
INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)
MOST_WORKERS = 8
CHECK_EVERY = 13
"""Invariants are checked after one event of so many; a prime, since events alternate."""
Curve = Callable[[int], float]


def scales_to(most: float, loss: float = 0.0) -> Curve:
    """Throughput grows up to so many calls; each further one costs a part of it."""
    return lambda k: min(k, most) * max(0.1, 1 - loss * max(0.0, k - most))


SMALL = scales_to(16)
MEDIUM = scales_to(3, 0.06)
NEARLY_FULL = scales_to(1.8, 0.05)
FILLING = scales_to(1.0, 0.12)


@dataclass(eq=False)
class Load:
    """Callers of one flow, each of which calls again when it has its answer.

    Attributes:
        alone: times of calls that run alone, in nanoseconds.
        until_ns: when they end.
        speeds: values of the curve; they are asked for at each event.
    """

    name: str
    curve: Curve
    alone: Iterator[int]
    callers: int = 32
    begin_ns: int = 0
    until_ns: int = 1 << 62
    pause_ns: int = 0

    def __post_init__(self) -> None:
        self.speeds = [self.curve(at_once) for at_once in range(MOST_WORKERS + 1)]


@dataclass(eq=False)
class Running:
    call: CallState
    load: Load
    left_ns: float
    alone_ns: float


@dataclass
class SharedDevice:
    """A node with one device and workers.

    Attributes:
        workers: how many there are.
        fixed: all are always active, as with a number in the settings.
        start_ns: how long a worker takes to start.
        broken: workers that cannot be started.
        shared_faults: they have one fault domain.
        answered: for each call that ended: its load, its end, its time alone, and how long it
            waited for its engine.
        counts: of active workers, with their times.
    """

    policy: str = "fair"
    workers: int = MOST_WORKERS
    fixed: bool = False
    start_ns: int = 0
    broken: frozenset[int] = frozenset()
    shared_faults: bool = False
    check: Callable[[Scheduler], None] = lambda scheduler: None
    now_ns: int = 0
    answered: list[tuple[Load, int, float, int]] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of(self.policy), 1 << 30, lambda flow: (0, 0))
        self._pools = self.scheduler.calls.sending.concurrency.pools
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = self._number = self._acts = 0
        self._loads: dict[str, Load] = {}
        self._plans: dict[Load, CompositionPlan] = {}
        self._tenants: dict[str, Tenant] = {}
        self._running: dict[int, Running] = {}
        self._moved_ns = 0
        self._version = 0
        self.engines = [
            EngineState(
                number,
                frozenset({"gpu"}),
                DEVICE,
                1,
                True,
                self.shared_faults,
                elastic=not self.fixed,
            )
            for number in range(self.workers)
        ]
        for engine in self.engines:
            self.scheduler.fleet.added(engine)
        start_ns, self.start_ns = self.start_ns, 0  # the first ones are there from the begin
        self._act()
        self.run(1)
        self.start_ns = start_ns

    @property
    def pool(self) -> WorkerPool:
        return self._pools[DEVICE]

    def add(self, load: Load, weight: float = 1.0) -> Load:
        """Have callers call; each load is a tenant."""
        tenant = self._tenants[load.name] = Tenant(load.name, weight=weight)
        self.scheduler.tenant_changed(tenant, self.now_ns)
        spec = FunctionSpec(load.name, (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("gpu"),))
        self._plans[load] = direct_plan(spec)
        for number in range(load.callers):
            self._later(max(self.now_ns, load.begin_ns) + number, partial(self._submit, load))
        return load

    def run(self, until_ns: int) -> None:
        """Run until a time."""
        while self._events and self._events[0][0] < until_ns:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
        self.now_ns = max(self.now_ns, until_ns)

    def speed(self, begin_ns: int, end_ns: int, load: Load | None = None) -> float:
        """Return the work done in a time: time alone of the calls that ended, for each of it."""
        done = sum(
            alone_ns
            for one, ended_ns, alone_ns, _ in self.answered
            if begin_ns <= ended_ns < end_ns and load in (None, one)
        )
        return done / (end_ns - begin_ns)

    def waits(self, load: Load, begin_ns: int = 0) -> list[int]:
        """Return how long each call of a load waited."""
        return [
            waited for one, ended, _, waited in self.answered if one is load and ended >= begin_ns
        ]

    def _later(self, at_ns: int, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ns, self._order, event))

    def _submit(self, load: Load) -> None:
        if self.now_ns >= load.until_ns:
            return
        self._number += 1
        tenant = self._tenants[load.name]
        walk = Walk(self._plans[load], Partitioning("auto", 1, 2))
        invocation = InvocationState(
            str(self._number), tenant, walk, INPUTS, 1 << 62, 1.0, INPUTS[0].size_bytes
        )
        self._loads[invocation.id] = load
        self.scheduler.submitted(invocation, self.now_ns)
        self._act()

    def _act(self) -> None:
        self._acts += 1
        if self._acts % CHECK_EVERY == 0:
            self.check(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                self._send(action.call)
            elif isinstance(action, End):
                load = self._loads.pop(action.invocation.id)
                self._later(self.now_ns + load.pause_ns, partial(self._submit, load))
            elif isinstance(action, Start):
                self.starts.append((self.now_ns, action.engine.id))
                self._later(self.now_ns + self.start_ns, partial(self._up, action.engine))
        if self._pools:
            active = self.pool.active
            if not self.counts or self.counts[-1][1] != active:
                self.counts.append((self.now_ns, active))

    def _up(self, engine: EngineState) -> None:
        if engine.id in self.broken:
            error = BackendUnavailable("gpu", "no room")
            self.scheduler.fleet.failed(engine, error, self.now_ns)
        else:
            self.scheduler.fleet.up(engine, f"e{engine.id}", Capacity(), self.now_ns)
        self._act()

    def lose(self, engine: EngineState) -> None:
        """Have an engine die; its calls are run again."""
        self._advance()
        for call in engine.sent:
            del self._running[call]
        self._schedule()
        error = EngineDied(engine.name, "it died")
        self.scheduler.fleet.lost(engine, error, {}, self.now_ns)
        self._act()

    # the device

    def _send(self, call: CallState) -> None:
        self._advance()
        load = self._loads[call.invocation.id]
        alone_ns = float(next(load.alone))
        call.started_ns = self.now_ns
        self._running[call.id] = Running(call, load, alone_ns, alone_ns)
        self._schedule()

    def _advance(self) -> None:
        passed_ns, self._moved_ns = self.now_ns - self._moved_ns, self.now_ns
        at_once = len(self._running)
        for one in self._running.values():
            one.left_ns -= passed_ns * one.load.speeds[at_once] / at_once

    def _schedule(self) -> None:
        self._version += 1
        if not self._running:
            return
        at_once = len(self._running)
        first = min(one.left_ns / one.load.speeds[at_once] for one in self._running.values())
        at_ns = self.now_ns + max(1, int(first * at_once) + 1)
        self._later(at_ns, partial(self._ends, self._version))

    def _ends(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        for one in [one for one in self._running.values() if one.left_ns <= 0]:
            del self._running[one.call.id]
            self._schedule()
            waited_ns = one.call.sent_ns - one.call.queued_ns
            self.answered.append((one.load, self.now_ns, one.alone_ns, waited_ns))
            self.scheduler.calls.done(one.call, INPUTS, self.now_ns)
            self._act()


def jittered(alone_ns: int, part: float, seed: int) -> Iterator[int]:
    """Times that differ by up to a part."""
    source = random.Random(seed)
    while True:
        yield int(alone_ns * source.uniform(1 - part, 1 + part))


@functools.cache
def best_fixed(
    loads: Callable[[], list[Load]], until_ns: int = S, most: int = MOST_WORKERS
) -> float:
    """Return the highest speed with a fixed number of workers; the same loads run once."""
    speeds = []
    for workers in range(1, most + 1):
        device = SharedDevice(workers=workers, fixed=True)
        for load in loads():
            device.add(load)
        device.run(until_ns)
        speeds.append(device.speed(until_ns // 4, until_ns))
    return max(speeds)


def steady(alone_ns: int) -> Iterator[int]:
    """Times that are all equal."""
    return repeat(alone_ns)
