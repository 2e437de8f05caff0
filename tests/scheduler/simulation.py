"""A deterministic simulation of a node: the real scheduler, and executors with a virtual clock.

Everything random comes from one seed: tenants and quotas, functions and their sizes, engines and
their kinds, how long things take, faults, and priorities. After every event the invariants are
checked, and every choice of a call (`watch`).

Run ``python -m tests.scheduler.simulation [--steps N] [POLICY ...]`` for many steps of each policy.
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from dandelion.controllers.cores import CoreDivision
from dandelion.data import Item, ItemSet
from dandelion.dataflow.sharding import Partitioning
from dandelion.driver import Capacity, Demand
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    CapacityError,
    DandelionError,
    EngineDied,
    Faulted,
    InternalError,
    Overloaded,
    PackagesLost,
    Raised,
)
from dandelion.policies import POLICIES
from dandelion.scheduler import EngineState, InvocationState, Scheduler
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
from dandelion.scheduler.concurrency import is_extra
from dandelion.scheduler.cores import CoreSide
from dandelion.scheduler.engine import EnginePhase
from dandelion.scheduler.records import CallState, Flow, Presence
from dandelion.testing.scheduler_invariants import check_invariants
from tests.scheduler.devices import SimulatedDevices
from tests.scheduler.random_workers import RandomPool
from tests.scheduler.remembering_walk import RememberingWalk
from tests.scheduler.watch import Watch, watched_policy
from tests.scheduler.world import World

MS = 1_000_000
MEMORY_BYTES = 1000
DRAIN_STEPS = 3000
"""In which all that runs must end; 294 is the most of 320 nodes."""


def sets(count: int) -> tuple[ItemSet | None, ...]:
    return (ItemSet("x", tuple(Item(str(i), i, b"%010d" % i) for i in range(count))),)


@dataclass
class Faults:
    """Probabilities of faults, and of changes by the operator."""

    call: float = 0.02
    engine: float = 0.005
    innocent: float = 0.3
    fetch: float = 0.02
    start: float = 0.3
    leave: float = 0.05
    bug: float = 0.001
    removal: float = 0.005
    quota: float = 0.0


@dataclass
class Simulation:
    """One run.

    Args:
        seed: of everything random.
        policy: name of the policy.
        faults: how often things go wrong.
        check: called after every event.
    """

    seed: int
    policy: str = "fifo"
    faults: Faults = field(default_factory=Faults)
    check: Callable[[Scheduler], None] = check_invariants
    now_ns: int = 0
    steps: int = 0
    submitted: int = 0
    batches: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.crowded = self.random.random() < 0.3  # many calls of few functions, so they are joined
        self.device_only = self.random.random() < 0.4  # many functions share devices
        self.cores = None  # they are divided between engines for "cpu" and "net"
        if self.seed % 3 == 1 and POLICIES[self.policy].elastic:
            self.cores = CoreDivision(1 + self.seed % 2, 1, controlled=True)
        self.scheduler = Scheduler(
            watched_policy(self.policy),
            MEMORY_BYTES,
            lambda flow: self.world.sizes[flow.spec.name],
            64,
            self.cores,
        )
        self.handles = self.seed % 3 == 2  # some compositions handle failures
        if self.handles:
            self.faults = replace(self.faults, call=0.1)
        if self.seed % 4 == 2:  # quotas and weights are changed
            self.faults = replace(self.faults, quota=0.01)
        self.priorities = (-3, 0, 0, 7) if self.random.random() < 0.5 else (0,)
        self.elastic = self.seed % 2 == 1  # the number of active workers is chosen
        self.watch = Watch(self.scheduler, self.policy, len(self.priorities) > 1)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self.alive: dict[str, InvocationState] = {}
        self.held: set[Flow] = set()
        self.devices = SimulatedDevices()
        self.shares_constants = self.seed % 3 == 1
        self.lost_calls: set[int] = set()
        self.running: dict[int, set[int]] = {}
        self.planning: dict[int, set[CallState]] = {}
        self.world = World(self.random, self.crowded, self.device_only, self.handles)
        tenants = 1 if self.crowded else self.random.randint(1, 5)
        self.tenants = [self.world.tenant(i) for i in range(tenants)]
        for tenant in self.tenants:
            self.scheduler.tenant_changed(tenant, self.now_ns)
        self._make_engines()

    def _make_engines(self) -> None:
        formats = [("cpu", self.random.randint(1, 3)), ("net", 1)]
        number = 0
        for name, count in formats:
            for _ in range(count):
                places = 1 if name == "cpu" else self.random.choice([3, 1 << 30])
                engine = EngineState(number, frozenset({name}), (name, str(number)), places)
                if self.cores is not None:
                    engine.side = CoreSide.COMPUTE if name == "cpu" else CoreSide.IO
                    engine.on_demand = name == "cpu" and self.random.random() < 0.3
                self._add(engine)
                number += 1
        elastic = self.elastic
        if self.seed % 4 == 1:
            concurrency = self.scheduler.calls.sending.concurrency
            reserves = POLICIES[self.policy].reserves
            if POLICIES[self.policy].elastic:
                pool = RandomPool(("gpu", "0"), reserves, source=self.random)
                concurrency.pools[pool.device] = pool
        workers = 6 if elastic else self.random.choice([0, 2, 3])
        shared = bool(workers) and self.random.random() < 0.5
        for at in range(workers + 1):
            self._add(
                EngineState(
                    number + at,
                    frozenset({"gpu"}),
                    ("gpu", "0"),
                    worker=at > 0,
                    shared_fault_domain=shared and at > 0,
                    planner=True,
                    elastic=elastic and at > 0,
                )
            )

    def _add(self, engine: EngineState) -> None:
        engine.joins = "net" not in engine.formats and self.random.random() < 0.8
        engine.ahead = self.random.choice([1, 3])
        self.running[engine.id] = set()
        self.planning[engine.id] = set()
        self.scheduler.fleet.added(engine)

    # time

    def later(self, delay_ns: int, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._order, event))

    def event(self, event: Callable[..., None], *arguments: object) -> None:
        """Raise an event of the scheduler, check the invariants, and carry out its actions."""
        event(*arguments)
        self.steps += 1
        self.check(self.scheduler)
        for action in self.scheduler.take():
            self._carry_out(action)

    def run(self, steps: int) -> None:
        """Run this many events, then let everything finish."""
        end = self.steps + steps
        while self.steps < end:
            self._one(arrivals=True)
        self.drain()

    def drain(self) -> None:
        """Run without arrivals and faults until nothing is running."""
        self.faults = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0)
        for _ in range(DRAIN_STEPS):
            if not self.alive:
                break
            self._one(arrivals=False)
        assert not self.alive, f"{len(self.alive)} invocations never end"
        assert sum(self.outcomes.values()) == self.submitted
        for tenant in self.tenants:
            assert tenant.invocations == tenant.arena_bytes == 0
        kept = self.scheduler.calls.residency.node.flows
        assert not [flow.name for flow in kept if flow.removed], "removed and still in memory"

    def _one(self, arrivals: bool) -> None:
        if arrivals and self.random.random() < (0.4 if self.crowded else 0.2):
            self._arrive()
            return
        if self.scheduler.has_turns and self.random.random() < 0.5:
            self.event(self.scheduler.turn, self.now_ns)
            return
        if self.random.random() < self.faults.removal and self.scheduler.calls.flows:
            flow = self.random.choice(list(self.scheduler.calls.flows.values()))
            removed = self.scheduler.calls.removed  # later calls are of a new flow
            self.event(removed, flow.tenant, flow.spec.name, flow.spec.version)
            return
        if self.faults.quota and self.random.random() < self.faults.quota:
            tenant = self.random.choice(self.tenants)
            self.world.change(tenant)
            self.event(self.scheduler.tenant_changed, tenant, self.now_ns)
            return
        tick = self.scheduler.next_tick_ns
        first = self._events[0][0] if self._events else None
        if tick is not None and (first is None or tick <= first):
            self.now_ns = max(self.now_ns, tick)
            self.event(self.scheduler.tick, self.now_ns)
        elif first is not None:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
        elif arrivals:
            self._arrive()
        elif self.scheduler.has_turns:
            self.event(self.scheduler.turn, self.now_ns)
        else:
            raise AssertionError("nothing will ever happen again")

    # callers

    def _arrive(self) -> None:
        plan = self.random.choice(self.world.plans)
        slice_ = self.random.choice([0, 2])
        walk = RememberingWalk(plan, Partitioning("auto", 1, 2), window=4, slice_=slice_)
        count = self.random.choice([1, 1, 1, 9] if self.crowded else [1, 1, 3, 9])
        deadline_ns = self.now_ns + self.random.choice([5, 1000, 100_000]) * MS
        tenant = self.random.choice(self.tenants)
        self.submitted += 1
        invocation = InvocationState(
            str(self.submitted),
            tenant,
            walk,
            sets(count),
            deadline_ns,
            1.0,
            10 * count,
            self.random.choice(self.priorities),
        )
        self.alive[invocation.id] = invocation
        try:
            self.event(self.scheduler.submitted, invocation, self.now_ns)
        except (Overloaded, CapacityError) as error:
            del self.alive[invocation.id]
            self.outcomes[type(error).__name__] += 1
            return
        if self.random.random() < self.faults.leave:
            delay_ns = self.random.randint(0, 50 * MS)
            self.later(delay_ns, partial(self._leave, invocation))

    def _leave(self, invocation: InvocationState) -> None:
        self.event(self.scheduler.cancelled, invocation, Cancelled("its caller left"), self.now_ns)

    # executors

    def _carry_out(self, action: Action) -> None:
        match action:
            case End(invocation):
                del self.alive[invocation.id]
                assert invocation.ended
                error = invocation.error
                assert (error is None) != (invocation.outputs is None)
                assert not isinstance(error, InternalError), error
                self.outcomes["ok" if error is None else type(error).__name__] += 1
            case Fetch(flow):
                assert flow not in self.held
                self.later(self.random.randint(0, 20 * MS), partial(self._fetched, flow))
            case Discard(flow):
                assert not flow.pins or flow.presence is Presence.FETCHING  # once more
                self.held.remove(flow)
                self.devices.discard(flow)
            case Look(call):
                self.later(self.random.randint(0, MS), partial(self._looked, call))
            case Plan(call, engine):
                assert engine.phase is EnginePhase.READY
                self.planning[engine.id].add(call)
                self.later(self.random.randint(0, MS), partial(self._planned, call, engine))
            case Send(call, evict, keep):
                self._run(call)
                assert call.engine is not None
                self.devices.send(call.engine, call.flow, evict, keep)
            case Stop(call):
                delay_ns = self.random.randint(0, 10 * MS)
                self.later(delay_ns, partial(self._ended, call, call.id, None))
            case Start(engine):
                self.later(self.random.randint(1, 300) * MS, partial(self._started, engine))
            case Check(engine):
                self.later(self.random.randint(1, 30) * MS, partial(self._checked, engine))

    def _fetched(self, flow: Flow) -> None:
        if self.random.random() < self.faults.fetch:
            error = _damage()
            self.event(self.scheduler.calls.fetch_failed, flow, error, self.now_ns)
            return
        self.held.add(flow)
        self.event(self.scheduler.calls.fetched, flow, self.now_ns)

    def _looked(self, call: CallState) -> None:
        if self.random.random() < 0.3:
            self.event(self.scheduler.calls.found, call, sets(1), self.now_ns)
        else:
            self.event(self.scheduler.calls.missed, call, self.now_ns)

    def _planned(self, call: CallState, engine: EngineState) -> None:
        if call not in self.planning[engine.id]:
            return  # its engine was lost
        self.planning[engine.id].remove(call)
        if self.random.random() < self.faults.call:
            self.event(self.scheduler.calls.failed, call, Raised("f", "plan", ""), self.now_ns)
            return
        size = self.random.choice([10, 50, 100, 101])
        demand = Demand(self.random.choice([10, 100]), size, self.random.choice([1, 1000]), 256)
        self.event(self.scheduler.calls.planned, call, demand, self.now_ns)

    def _run(self, call: CallState) -> None:
        engine = call.engine
        assert engine is not None
        assert engine.phase is EnginePhase.READY
        assert not (call.alone and engine.shared_fault_domain)
        if call.flow.size_bytes:
            assert call.flow in self.held, "it was sent without its code"
        self.running[engine.id].add(call.id)
        delay_ns = self.random.choice([0, MS // 10, MS, 30 * MS])
        roll = self.random.random()
        if roll < self.faults.engine and "gpu" in engine.formats:
            self.later(delay_ns, partial(self._die, engine))
        error: DandelionError | None = None
        if self.random.random() < self.faults.call:
            fault = Faulted(call.run.function.name, "fault")
            lost = PackagesLost(engine.name, "they are gone")
            error = self.random.choice([fault, Raised("f", "no", ""), lost])
        self.later(delay_ns, partial(self._ended, call, call.id, error))

    def _ended(self, call: CallState, number: int, error: DandelionError | None) -> None:
        engine = call.engine
        if engine is None or number not in self.running[engine.id]:
            return  # its engine was lost, or it has ended
        self.running[engine.id].remove(number)
        if error is not None:
            self.event(self.scheduler.calls.failed, call, error, self.now_ns)
        elif call.members:
            parts = [sets(1) for _ in call.members]
            self.event(self.scheduler.calls.batch_done, call, parts, self.now_ns)
            self.batches += 1
        else:
            self.event(self.scheduler.calls.done, call, sets(1), self.now_ns)

    def _die(self, engine: EngineState) -> None:
        if engine.phase is not EnginePhase.READY:
            return
        calls, self.running[engine.id] = self.running[engine.id], set()
        error = EngineDied(engine.name, "it died")
        begun = {
            c: EngineDied(engine.name, "it died")
            for c in calls
            if self.random.random() > self.faults.innocent
        }
        planning, self.planning[engine.id] = self.planning[engine.id], set()
        self.devices.lost(engine)
        self.event(self.scheduler.fleet.lost, engine, error, begun, self.now_ns)
        for call in sorted(planning, key=lambda call: call.id):
            died = EngineDied(engine.name, "it died")
            innocent = self.random.random() < self.faults.innocent
            self.event(self.scheduler.calls.failed, call, died, self.now_ns, not innocent)

    def _started(self, engine: EngineState) -> None:
        if (engine.name or is_extra(engine)) and self.random.random() < self.faults.start:
            self.event(
                self.scheduler.fleet.failed,
                engine,
                BackendUnavailable("gpu", "a device", ""),
                self.now_ns,
            )
            return
        capacity = Capacity(
            0 if engine.planner is False else 50 if engine.worker else 100,
            8,
            (),
            2048,
            constants_bytes=250,
            constants_unit_bytes=self.random.choice([1, 60]),
            constants_least_bytes=self.random.choice([0, 51]),
        )
        if self.shares_constants and engine.device == ("gpu", "0"):
            capacity = replace(
                capacity, constants_unit_bytes=60, constants_least_bytes=0, constants_shared=True
            )
        self.devices.up(engine, capacity)
        self.event(self.scheduler.fleet.up, engine, f"e{engine.id}", capacity, self.now_ns)

    def _checked(self, engine: EngineState) -> None:
        if self.random.random() < 0.5:
            self._die(engine)


def _damage() -> DandelionError:
    return Raised("f", "damaged", "")


STEPS_OF_ONE = 20_000


def main() -> None:
    """Run many steps of each policy, in nodes of many kinds, and print a table."""
    parser = argparse.ArgumentParser(description="Simulate nodes, and check every step.")
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="default: all")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of each policy")
    parser.add_argument("--seed", type=int, default=0, help="of the first node")
    arguments = parser.parse_args()
    print(f"{'policy':10} {'steps':>9} {'nodes':>6} {'invocations':>12} {'ok':>9} {'seconds':>8}")
    for policy in arguments.policies or sorted(POLICIES):
        begin = time.perf_counter()
        outcomes: Counter[str] = Counter()
        steps = nodes = 0
        while steps < arguments.steps:
            simulation = Simulation(arguments.seed + nodes, policy)
            try:
                simulation.run(min(STEPS_OF_ONE, arguments.steps - steps))
            except Exception as error:
                error.add_note(f"{policy}, seed {simulation.seed}, step {simulation.steps}")
                raise
            steps += simulation.steps
            nodes += 1
            outcomes += simulation.outcomes
        seconds = time.perf_counter() - begin
        total, ok = sum(outcomes.values()), outcomes["ok"]
        print(f"{policy:10} {steps:9} {nodes:6} {total:12} {ok:9} {seconds:8.1f}", flush=True)


if __name__ == "__main__":
    main()
