"""Equal constants of several functions: stored once on a device, and charged to each tenant."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.function import CodeObject, FunctionSpec, StaticItem, digest_of
from dandelion.policies import policy_of
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Quota,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import Action, Fetch, Send
from dandelion.scheduler.function_memory import FunctionMemory
from dandelion.scheduler.records import Flow
from dandelion.testing.scheduler_invariants import check_invariants

UNIT = 100
INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)


@dataclass
class Node:
    """Device engines that take one call each and keep the constants of some functions.

    Attributes:
        sent: calls that have not ended.
    """

    room: int = 2
    engines: int = 1
    policy: str = "fifo"
    now_ns: int = 0
    sent: list[Send] = field(default_factory=list)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of(self.policy), 1 << 30, lambda flow: (UNIT, UNIT))
        self.numbers = itertools.count()
        for number in range(self.engines):
            engine = EngineState(number, frozenset({"gpu"}), places=1)
            self.scheduler.fleet.added(engine)
            self.up(engine)

    def up(self, engine: EngineState) -> None:
        capacity = Capacity(constants_bytes=self.room * UNIT, constants_unit_bytes=UNIT)
        self.scheduler.fleet.up(engine, str(engine.id), capacity, self.now_ns)
        self.act()

    @property
    def engine(self) -> EngineState:
        return self.scheduler.calls.engines.all[0]

    @property
    def place(self) -> FunctionMemory:
        return self.scheduler.calls.residency.devices[self.engine]

    def call(self, name: str, tenant: str = "t", content: str = "") -> InvocationState:
        """Submit a call of a function; by default its constants are its own."""
        owner = self.tenants.setdefault(tenant, Tenant(tenant))
        static = {"w": (StaticItem("w", digest_of((content or name).encode())),)}
        code = (CodeObject("gpu"),)
        spec = FunctionSpec(name, (SetSpec("x"),), (SetSpec("y"),), static, code)
        walk = Walk(direct_plan(spec), Partitioning("auto", 1, 2))
        size = INPUTS[0].size_bytes
        number = str(next(self.numbers))
        made = InvocationState(number, owner, walk, INPUTS, 1 << 62, 1.0, size)
        self.scheduler.submitted(made, self.now_ns)
        self.act()
        return made

    def act(self) -> None:
        check_invariants(self.scheduler)
        while actions := self.scheduler.take():
            for action in actions:
                self.carry_out(action)
            check_invariants(self.scheduler)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, Fetch):
            self.scheduler.calls.fetched(action.flow, self.now_ns)
        elif isinstance(action, Send):
            self.sent.append(action)

    def end(self) -> str:
        """End the oldest call on an engine; return its function."""
        call: CallState = self.sent.pop(0).call
        self.scheduler.calls.done(call, INPUTS, self.now_ns)
        self.act()
        return call.flow.spec.name

    def names(self, *flows: Flow) -> list[str]:
        return [flow.spec.name for flow in flows]


def test_equal_constants_are_stored_once_and_charged_to_each_tenant() -> None:
    node = Node(room=2)
    for number in range(24):
        node.call("f", f"t{number}", "model")
        node.end()
    place = node.place
    assert (len(place), len(place.flows), place.used_bytes) == (1, 24, UNIT)
    assert set(place.by_tenant.values()) == {UNIT}
    assert node.scheduler.calls.residency.counts.copies == 1
    node.tenants["apart"] = Tenant("apart", share_constants=False)
    node.call("f", "apart", "model")
    assert (len(place), place.used_bytes) == (2, 2 * UNIT)


def test_versions_of_a_function_are_charged_once_to_their_tenant() -> None:
    node = Node(room=2)
    for name in ("f1", "f2"):
        node.call(name, "t", "model")
        node.end()
    assert list(node.place.by_tenant.values()) == [UNIT]


def test_a_quota_ends_the_hold_of_its_tenant_only() -> None:
    node = Node(room=4)
    node.tenants["one"] = Tenant("one", Quota(device_bytes=UNIT))
    node.call("f", "one", "model")
    node.end()
    node.call("f", "two", "model")
    node.end()
    node.call("g", "one", "other")
    (evicted,) = node.sent[0].evict
    assert (evicted.tenant.name, evicted.spec.name) == ("one", "f")
    assert node.place.used_bytes == 2 * UNIT
    assert {t.name: s for t, s in node.place.by_tenant.items()} == {"one": UNIT, "two": UNIT}


def test_what_many_tenants_use_stays() -> None:
    node = Node(room=2)
    for tenant in ("one", "two", "three"):
        node.call("f", tenant, "model")
        node.end()
    for name in "abc":
        node.call(name)
        node.end()
    assert {"f"} < {flow.spec.name for flow in node.place.flows}


def test_a_shared_entry_goes_with_all_its_flows() -> None:
    node = Node(room=1)
    for tenant in ("one", "two"):
        node.call("f", tenant, "model")
        node.end()
    node.call("g")
    assert sorted(flow.tenant.name for flow in node.sent[0].evict) == ["one", "two"]
    assert node.names(*node.place.flows) == ["g"]
