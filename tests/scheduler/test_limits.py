"""Limits of tenants and functions: what waits, what is refused, and what is charged."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.language import parse
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import CompositionPlan, Walk, compile_composition
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity, Demand
from dandelion.errors import ContextFull, DandelionError, EngineDied, Overloaded, QuotaExceeded
from dandelion.function import CodeObject, FunctionSpec, Limits
from dandelion.policies import policy_of
from dandelion.policies.fair import STICKY_NS
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Quota,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import Plan, Send
from dandelion.scheduler.records import Presence
from dandelion.testing.scheduler_invariants import check_invariants


def a_set(size_bytes: int = 4) -> tuple[ItemSet]:
    return (ItemSet("x", (Item("a", 0, bytes(size_bytes)),)),)


def function(name: str = "f", concurrency: int = 100, queue_length: int = 100) -> FunctionSpec:
    limits = Limits(concurrency=concurrency, queue_length=queue_length)
    sets = (SetSpec("x"),), (SetSpec("y"),)
    return FunctionSpec(name, *sets, code=(CodeObject("cpu"),), limits=limits)


@dataclass
class Node:
    """Engines that run one call each, and what was sent to them."""

    engines: int = 1
    policy: str = "fifo"
    planner: bool = False
    tenant: Tenant = field(default_factory=lambda: Tenant("t"))
    sent: list[CallState] = field(default_factory=list)
    plans: list[CallState] = field(default_factory=list)
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of(self.policy), 1 << 30, lambda flow: (0, 0))
        self.added = [
            EngineState(number, frozenset({"cpu"}), places=1, planner=self.planner)
            for number in range(self.engines)
        ]
        for engine in self.added:
            self.scheduler.fleet.added(engine)
            self.scheduler.fleet.up(engine, f"e{engine.id}", Capacity(), 0)
        self.limit(self.tenant)

    def limit(self, tenant: Tenant, quota: Quota | None = None) -> None:
        tenant.quota = quota or tenant.quota
        self.scheduler.tenant_changed(tenant, self.now_ns)
        self.act()

    def submit(
        self,
        what: FunctionSpec | CompositionPlan,
        tenant: Tenant | None = None,
        size_bytes: int = 4,
    ) -> InvocationState:
        plan = direct_plan(what) if isinstance(what, FunctionSpec) else what
        self.now_ns += 1
        invocation = InvocationState(
            str(self.now_ns),
            tenant or self.tenant,
            Walk(plan, Partitioning("auto", 1, 1)),
            a_set(size_bytes),
            1 << 62,
            1.0,
            size_bytes,
        )
        self.scheduler.submitted(invocation, self.now_ns)
        self.act()
        return invocation

    def act(self) -> None:
        check_invariants(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                self.sent.append(action.call)
            elif isinstance(action, Plan):
                self.plans.append(action.call)

    def done(self, size_bytes: int = 4, after_ns: int = 1) -> CallState:
        """End the first call that was sent; return it."""
        call = self.sent.pop(0)
        self.now_ns += after_ns
        self.scheduler.calls.done(call, a_set(size_bytes), self.now_ns)
        self.act()
        return call

    def running(self) -> list[str]:
        return [call.run.function.name for call in self.sent]


def error_of(invocation: InvocationState) -> DandelionError:
    assert invocation.error is not None
    return invocation.error


# --- calls on engines -----------------------------------------------------------------------------


def test_more_calls_of_a_function_than_its_concurrency_wait_while_others_go_on() -> None:
    node = Node(engines=3)
    one = function("one", concurrency=1)
    first, second = node.submit(one), node.submit(one)
    node.submit(function("other"))
    assert node.running() == ["one", "other"]
    node.done()
    assert first.ended
    assert not second.ended
    assert node.running() == ["other", "one"]


def test_limits_of_tenant_and_function_hold_together() -> None:
    node = Node(engines=4)
    node.limit(node.tenant, Quota(calls=2))
    one, two = function("one", concurrency=1), function("two", concurrency=2)
    for what in (one, one, two, two):
        node.submit(what)
    assert node.running() == ["one", "two"]
    node.done()
    assert node.running() == ["two", "one"]
    node.limit(node.tenant, Quota(calls=3))
    assert node.running() == ["two", "one", "two"]
    for _ in range(3):
        node.done()
    assert not node.scheduler.invocations


def test_concurrency_is_that_of_one_tenants_function() -> None:
    node = Node(engines=2)
    node.limit(Tenant("other"))
    other = node.scheduler.tenants["other"]
    node.submit(function(concurrency=1))
    node.submit(function(concurrency=1), other)
    assert len(node.sent) == 2


def test_an_engine_does_not_stay_with_a_flow_over_its_quota() -> None:
    """Its queue may wait for the engine and not be parked, since it is not the next one."""
    node = Node(engines=2, policy="fair")
    one, other = function("one", concurrency=1), function("other")
    for what in (one, other, one, other, other):
        node.submit(what)
    assert node.running() == ["one", "other"]
    last = node.added[1].last
    assert last is not None
    node.added[1].last = node.sent[0].flow
    node.sent.reverse()
    node.done(after_ns=int(STICKY_NS))  # of `other`, on the engine that would stay with `one`
    assert node.running() == ["one", "other"]


# --- queues ---------------------------------------------------------------------------------------


def test_more_waiting_calls_than_a_functions_queue_holds_are_refused() -> None:
    node = Node()
    short = function("short", queue_length=2)
    kept = [node.submit(short) for _ in range(3)]
    refused = error_of(node.submit(short))
    assert isinstance(refused, Overloaded)
    assert (refused.status, refused.limit, refused.owner) == (429, 2, "function 't/short'")
    assert "wait for an engine" in str(refused)
    assert not node.submit(function("long")).ended, "other functions have their own queue"
    node.done()
    assert not node.submit(short).ended
    while node.sent:
        node.done()
    assert all(invocation.error is None for invocation in kept)


def test_more_waiting_calls_than_a_tenants_queue_holds_are_refused() -> None:
    node = Node()
    node.limit(node.tenant, Quota(queue_length=1))
    node.limit(other := Tenant("other"))
    node.submit(function("one"))
    node.submit(function("two"))
    refused = error_of(node.submit(function("three")))
    assert isinstance(refused, Overloaded)
    assert (refused.limit, refused.owner) == (1, "tenant 't'")
    assert not node.submit(function("one"), other).ended
    node.limit(node.tenant, Quota(queue_length=2))
    assert not node.submit(function("three")).ended


def test_a_call_that_is_sent_at_once_does_not_count_as_waiting() -> None:
    node = Node(engines=2)
    node.limit(node.tenant, Quota(queue_length=1))
    one = function("one", concurrency=1)
    node.submit(one)
    node.submit(one)  # waits, and an engine is free
    assert not node.submit(function("two")).ended
    assert node.running() == ["one", "two"]


def test_a_full_queue_does_not_refuse_calls_of_a_lost_engine() -> None:
    node = Node()
    short = function("short", queue_length=1)
    invocations = [node.submit(short) for _ in range(2)]
    died = EngineDied("e0", "it died")
    node.scheduler.fleet.lost(node.added[0], died, {}, node.now_ns)
    node.act()
    assert node.tenant.waiting == 2
    assert isinstance(error_of(node.submit(short)), Overloaded)
    node.sent.clear()
    node.scheduler.fleet.up(node.added[0], "e0", Capacity(), node.now_ns)
    node.act()
    for _ in invocations:
        node.done()
    assert [invocation.error for invocation in invocations] == [None, None]


# --- device memory --------------------------------------------------------------------------------


def test_a_call_that_needs_more_device_memory_than_its_tenant_may_use_is_refused() -> None:
    node = Node(planner=True)
    node.limit(node.tenant, Quota(call_device_bytes=100))
    errors = []
    for size in (100, 101):
        invocation = node.submit(function())
        node.scheduler.calls.planned(node.plans.pop(), Demand(0, size, 1, 1), node.now_ns)
        node.act()
        errors.append(invocation.error)
    assert errors[0] is None
    refused = errors[1]
    assert isinstance(refused, QuotaExceeded)
    assert (refused.needed_bytes, refused.quota_bytes, refused.status) == (101, 100, 413)


# --- memory of invocations ------------------------------------------------------------------------

LOOP = """
function f(x) => (y);
composition Inner(x) => (y) { f(x = all x) => (m = y); f(x = all m) => (y = y); }
composition Loop(x) => (y) { Inner(x = all x) => (y = y) repeat 50 feeding (x = y); }
"""


def looping() -> CompositionPlan:
    spec = function()
    made: dict[str, CompositionPlan] = {}
    for composition in parse(LOOP, "test").compositions:
        made[composition.name] = compile_composition(composition, lambda name: made.get(name, spec))
    return made["Loop"]


def test_a_loop_is_charged_for_what_is_alive() -> None:
    node = Node()
    node.limit(node.tenant, Quota(arena_bytes=500))
    invocation = node.submit(looping(), size_bytes=100)
    for _ in range(100):
        node.done(100)
        assert node.tenant.arena_bytes <= 500 + 100
    assert invocation.error is None
    assert node.tenant.arena_bytes == 0


def test_a_loop_that_needs_more_than_the_quota_ends() -> None:
    node = Node()
    node.limit(node.tenant, Quota(arena_bytes=250))
    invocation = node.submit(looping(), size_bytes=100)
    while not invocation.ended:
        node.done(150)
    assert isinstance(invocation.error.__cause__, DandelionError) if invocation.error else False
    cause: BaseException | None = invocation.error
    while cause is not None and not isinstance(cause, QuotaExceeded):
        cause = cause.__cause__
    assert isinstance(cause, QuotaExceeded)
    assert cause.needed_bytes > cause.quota_bytes == 250


def test_results_that_were_dropped_make_room_for_inputs() -> None:
    node = Node(engines=2)
    node.limit(node.tenant, Quota(arena_bytes=1000))
    node.submit(looping(), size_bytes=100)
    for _ in range(8):
        node.done(100)
    assert node.tenant.arena_bytes == 900
    assert not node.submit(function(), size_bytes=500).ended
    with pytest.raises(ContextFull):
        node.submit(function(), size_bytes=500)


def test_counting_what_is_alive_is_bounded_by_the_number_of_results() -> None:
    node = Node()
    node.limit(node.tenant, Quota(arena_bytes=1000))
    node.submit(looping(), size_bytes=100)
    node.done(100)
    node.tenant.counted = 3000  # as if so many items had been visited
    node.scheduler.recount(node.tenant)
    assert node.tenant.arena_bytes == 200
    for _ in range(2):
        node.done(100)
    node.scheduler.recount(node.tenant)
    assert node.tenant.arena_bytes < 400


def test_a_function_that_waits_for_memory_is_fetched_when_the_quota_grows() -> None:
    node = Node(engines=2, tenant=Tenant("t", Quota(arena_bytes=100)))
    calls = node.scheduler.calls
    calls.sizes = lambda flow: (60, 0)
    node.submit(function("one"))
    calls.fetched(calls.flows["t", "one", 0], node.now_ns)
    node.submit(function("other"))
    assert node.running() == ["one"]
    node.limit(node.tenant, Quota(arena_bytes=200))
    assert calls.flows["t", "other", 0].presence is Presence.FETCHING
