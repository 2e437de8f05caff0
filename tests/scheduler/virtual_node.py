"""Engines with a virtual clock, and callers of known behaviour: what a policy does under load."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from dandelion.controllers.cores import CoreDivision
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import CompositionPlan
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.function import CodeObject, FunctionSpec
from dandelion.policies import policy_of
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import End, Send
from dandelion.scheduler.cores import CoreSide
from dandelion.scheduler.engine import UNKNOWN_CAPACITY
from dandelion.testing.scheduler_invariants import check_invariants
from tests.scheduler.remembering_walk import RememberingWalk

MS = 1_000_000
INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)
CHECK_EVERY = 7
"""Invariants are checked after one event of so many; a prime, since events alternate."""


@dataclass(eq=False)
class Caller:
    """Invokes one function again and again.

    Attributes:
        durations: of its calls, in nanoseconds.
        pause_ns: between the end of a call and the next one.
        deadline_ns: from the submission.
        again: it submits a call after each that ended.
    """

    tenant: Tenant
    function: str
    durations: Iterator[int]
    pause_ns: int = 0
    priority: int = 0
    deadline_ns: int = 1 << 62
    again: bool = True


@dataclass(frozen=True)
class Sent:
    """A call on an engine, from `began_ns` to `ended_ns`."""

    caller: Caller
    engine: int
    waited_ns: int
    began_ns: int
    ended_ns: int

    @property
    def tenant(self) -> str:
        return self.caller.tenant.name


@dataclass
class VirtualNode:
    """Engines of the formats named, and the calls that they got, in order.

    Attributes:
        capacity: of each engine.
        cores: how they are divided; engines for "net" are I/O engines then.
        constants_bytes: of each function.
    """

    policy: str
    formats: tuple[str, ...] = ("cpu",)
    places: int = 1
    check: Callable[[Scheduler], None] = check_invariants
    capacity: Capacity = UNKNOWN_CAPACITY
    constants_bytes: int = 0
    cores: CoreDivision | None = None
    now_ns: int = 0
    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            policy_of(self.policy),
            1 << 30,
            lambda flow: (0, self.constants_bytes),
            cores=self.cores,
        )
        self._plans: dict[tuple[str, str], CompositionPlan] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._callers: dict[str, Caller] = {}
        self._free_ns = Counter[int]()
        self._count = self._acts = 0
        for number, format_name in enumerate(self.formats):
            device = (format_name, str(number))
            engine = EngineState(number, frozenset({format_name}), device, self.places)
            if self.cores is not None:
                engine.side = CoreSide.IO if format_name == "net" else CoreSide.COMPUTE
            self.scheduler.fleet.added(engine)
            self.scheduler.fleet.up(engine, str(number), self.capacity, 0)
        self.scheduler.take()

    def tenant(self, name: str, weight: float = 1.0) -> Tenant:
        tenant = Tenant(name, weight=weight)
        self.scheduler.tenant_changed(tenant, self.now_ns)
        return tenant

    def caller(self, caller: Caller, at_ns: int = 0, format_name: str = "cpu") -> None:
        """Have a caller submit its first call at a time."""
        code = (CodeObject(format_name),)
        spec = FunctionSpec(caller.function, (SetSpec("x"),), (SetSpec("y"),), code=code)
        self._plans.setdefault((caller.tenant.name, caller.function), direct_plan(spec))
        self._later(at_ns, partial(self._submit, caller))

    def _later(self, at_ns: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_ns, self._count, event))

    def _submit(self, caller: Caller) -> None:
        self._count += 1
        plan = self._plans[caller.tenant.name, caller.function]
        invocation = InvocationState(
            str(self._count),
            caller.tenant,
            RememberingWalk(plan, Partitioning("auto", 1, 2)),
            INPUTS,
            self.now_ns + caller.deadline_ns,
            1.0,
            INPUTS[0].size_bytes,
            priority=caller.priority,
        )
        self._callers[invocation.id] = caller
        self.scheduler.submitted(invocation, self.now_ns)
        self._act()

    def _act(self) -> None:
        self._acts += 1
        if self._acts % CHECK_EVERY == 0:
            self.check(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                self._run(action.call)
            elif isinstance(action, End):
                caller = self._callers.pop(action.invocation.id)
                if caller.again:
                    self._later(self.now_ns + caller.pause_ns, partial(self._submit, caller))

    def _run(self, call: CallState) -> None:
        assert call.engine is not None
        number = call.engine.id
        caller = self._callers[call.invocation.id]
        at_once = call.engine.side is CoreSide.IO
        began_ns = self.now_ns if at_once else max(self.now_ns, self._free_ns[number])
        ended_ns = self._free_ns[number] = began_ns + next(caller.durations)
        call.started_ns = began_ns
        self.sent.append(Sent(caller, number, began_ns - call.queued_ns, began_ns, ended_ns))
        self._later(ended_ns, partial(self._done, call))

    def _done(self, call: CallState) -> None:
        self.scheduler.calls.done(call, INPUTS, self.now_ns)
        self._act()

    def run(self, until_ns: int) -> None:
        """Run until a time, or until nothing is left."""
        while self._events and self._events[0][0] < until_ns:
            tick_ns = self.scheduler.next_tick_ns if self.cores is not None else None
            if tick_ns is not None and tick_ns <= self._events[0][0]:
                self.now_ns = max(self.now_ns, tick_ns)
                self.scheduler.tick(self.now_ns)
                self._act()
                continue
            self.now_ns, _, event = heapq.heappop(self._events)
            event()

    def used_ns(self, begin_ns: int = 0, end_ns: int = 1 << 62) -> Counter[str]:
        """Return the engine time of each tenant in an interval."""
        used: Counter[str] = Counter()
        for one in self.sent:
            used[one.tenant] += max(0, min(one.ended_ns, end_ns) - max(one.began_ns, begin_ns))
        return used

    def waits_ns(self, tenant: str) -> list[int]:
        """Return how long each call of a tenant waited for its engine."""
        return [one.waited_ns for one in self.sent if one.tenant == tenant]
