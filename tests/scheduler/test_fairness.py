"""Shares of engine time under the policies, with a virtual clock."""

import heapq
from collections import Counter
from dataclasses import dataclass, field

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.function import CodeObject, FunctionSpec
from dandelion.scheduler import EngineState, InvocationState, Scheduler, Tenant, policy_of
from dandelion.scheduler.actions import End, Send
from dandelion.scheduler.invariants import check_invariants
from dandelion.scheduler.policy import STICKY_NS

MS = 1_000_000
INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)


@dataclass
class Node:
    """Engines of one kind, and tenants that always have calls waiting."""

    policy: str
    engines: int = 1
    now_ns: int = 0
    used_ns: Counter[str] = field(default_factory=Counter)
    waited_ns: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of(self.policy), 1 << 30, lambda spec: (0, 0))
        self.durations: dict[str, int] = {}
        self.plans = {}
        self.ends: list[tuple[int, int, Send]] = []
        self.count = 0
        for number in range(self.engines):
            engine = EngineState(number, frozenset({"cpu"}), places=1)
            self.scheduler.fleet.added(engine)
            self.scheduler.fleet.up(engine, str(number), Capacity(), 0)
        self.scheduler.take()

    def tenant(self, name: str, duration_ns: int, callers: int, weight: float = 1.0) -> None:
        tenant = Tenant(name, weight=weight)
        self.scheduler.tenant_changed(tenant, self.now_ns)
        spec = FunctionSpec(name, (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("cpu"),))
        self.durations[name] = duration_ns
        self.plans[name] = direct_plan(spec)
        self.waited_ns[name] = []
        for _ in range(callers):
            self.submit(tenant)

    def submit(self, tenant: Tenant) -> None:
        self.count += 1
        walk = Walk(self.plans[tenant.name], Partitioning("auto", 1, 2))
        invocation = InvocationState(str(self.count), tenant, walk, INPUTS, 1 << 62, 1.0, 4)
        self.scheduler.submitted(invocation, self.now_ns)
        self.act()

    def act(self) -> None:
        check_invariants(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                call = action.call
                name = call.flow.tenant.name
                self.waited_ns[name].append(self.now_ns - call.queued_ns)
                self.count += 1
                end_ns = self.now_ns + self.durations[name]
                heapq.heappush(self.ends, (end_ns, self.count, action))
            elif isinstance(action, End):
                self.submit(action.invocation.tenant)

    def run(self, until_ns: int) -> None:
        while self.now_ns < until_ns:
            self.now_ns, _, send = heapq.heappop(self.ends)
            name = send.call.flow.tenant.name
            self.used_ns[name] += self.durations[name]
            self.scheduler.calls.done(send.call, INPUTS, self.now_ns)
            self.act()


@pytest.mark.parametrize("engines", [1, 3])
def test_fair_shares_follow_weights(engines: int) -> None:
    node = Node("fair", engines)
    node.tenant("light", MS // 3, 8)
    node.tenant("heavy", 4 * MS, 8)
    node.tenant("double", 2 * MS, 8, weight=2.0)
    node.run(2000 * MS)
    bound_ns = 2 * (STICKY_NS + engines * 4 * MS)
    assert abs(node.used_ns["light"] - node.used_ns["heavy"]) <= bound_ns
    assert abs(node.used_ns["double"] / 2 - node.used_ns["heavy"]) <= bound_ns


def test_a_light_tenant_waits_shortly_beside_a_heavy_one() -> None:
    node = Node("fair")
    node.tenant("heavy", 4 * MS, 32)
    node.tenant("light", MS // 3, 1)
    node.run(2000 * MS)
    waits = sorted(node.waited_ns["light"][3:])
    assert waits[-1] <= STICKY_NS + 2 * 4 * MS
    first_in = Node("fifo")
    first_in.tenant("heavy", 4 * MS, 32)
    first_in.tenant("light", MS // 3, 1)
    first_in.run(2000 * MS)
    assert sorted(first_in.waited_ns["light"])[len(first_in.waited_ns["light"]) // 2] > 100 * MS


@pytest.mark.parametrize("others", [1, 2, 3])
def test_a_lent_share_is_back_within_100_ms(others: int) -> None:
    """Each other flow has at most one more turn before a tenant that was idle."""
    call_ns = 4 * MS
    turn_ns = STICKY_NS + call_ns
    node = Node("fair")
    for number in range(others):
        node.tenant(f"other{number}", call_ns, 32)
    node.run(1000 * MS)
    returned_ns = node.now_ns
    assert sum(node.used_ns.values()) == returned_ns, "its share was lent"
    node.tenant("back", MS, 8)
    while not node.used_ns["back"]:
        node.run(node.now_ns + 1)
    assert node.waited_ns["back"][0] <= others * turn_ns < 100 * MS
    for _ in range(10):
        node.run(node.now_ns + 100 * MS)
        due_ns = (node.now_ns - returned_ns) / (others + 1)
        assert abs(node.used_ns["back"] - due_ns) <= 2 * turn_ns


def test_idleness_earns_no_credit() -> None:
    node = Node("fair")
    node.tenant("early", MS, 4)
    node.run(1000 * MS)
    node.tenant("late", MS, 4)
    before = node.used_ns["early"]
    node.run(1400 * MS)
    assert abs(node.used_ns["late"] - (node.used_ns["early"] - before)) <= 2 * (STICKY_NS + MS)
