"""Tenants of one node: what each may use at once, their shares, their metrics; a thousand."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from dandelion.data import Item, ItemSet
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Call, Capacity, Engine, Hosting, InstanceSets
from dandelion.errors import (
    ApplicationFailed,
    ContextFull,
    DeadlineExceeded,
    Overloaded,
    QuotaExceeded,
)
from dandelion.frontend.problem_response import problem_response
from dandelion.function import CodeObject, FunctionSpec
from dandelion.node.spaces import quota_of
from dandelion.policies import policy_of
from dandelion.scheduler import EngineState, InvocationState, Quota, Scheduler, Tenant
from dandelion.scheduler.actions import Send
from dandelion.scheduler.records import Presence
from dandelion.settings import TenantSettings
from dandelion.testing import Gate, Script, ScriptedDriver, wait_until
from dandelion.testing.scheduler_invariants import check_invariants
from dandelion.testing.scripted import echo
from tests.node.tenant_nodes import ENGINES, begun, document, tenants


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def driver(gate: Gate) -> ScriptedDriver:
    return ScriptedDriver("played", gate.script, Hosting.THREAD, ENGINES)


def test_more_invocations_than_a_tenant_may_have_are_refused(
    gate: Gate, driver: ScriptedDriver
) -> None:
    with (
        tenants(driver, a=TenantSettings(invocations=2), b=TenantSettings()) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        calls = [begun(pool, node, "a") for _ in range(2)]
        with pytest.raises(Overloaded) as caught:
            node.invoke("F", a=b"1", tenant="a")
        assert caught.value.limit == 2
        calls += [begun(pool, node, "b") for _ in range(3)]
        gate.open(5)
        for call in calls:
            call.result(20)
        gate.open()
        node.invoke("F", a=b"1", tenant="a")


def test_only_the_node_limits_the_invocations_of_a_tenant_without_a_quota() -> None:
    scheduler = Scheduler(policy_of("fifo"), 1 << 30, lambda flow: (0, 0), invocations=10_000)
    tenant = Tenant("a", quota_of(TenantSettings()), invocations=9_999)
    assert scheduler.refusal(tenant) is None


def test_more_calls_than_a_tenant_may_have_wait_while_others_go_on(
    gate: Gate, driver: ScriptedDriver
) -> None:
    with (
        tenants(driver, a=TenantSettings(calls=1), b=TenantSettings()) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        ours = [begun(pool, node, "a") for _ in range(3)]
        assert gate.entered()
        assert not gate.entered(0.05)  # an engine is free, and not for them
        assert node.info().waiting == 2
        theirs = begun(pool, node, "b")
        assert gate.entered()
        gate.open(4)
        for call in [*ours, theirs]:
            call.result(20)


def test_a_larger_quota_takes_effect_at_once(gate: Gate, driver: ScriptedDriver) -> None:
    with (
        tenants(driver, a=TenantSettings(calls=1, invocations=2)) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        calls = [begun(pool, node, "a") for _ in range(2)]
        assert gate.entered()
        assert not gate.entered(0.05)
        node.set_tenant("a", TenantSettings(calls=2, invocations=3))
        assert gate.entered()
        calls.append(begun(pool, node, "a"))
        gate.open(3)
        for call in calls:
            call.result(20)


def test_a_call_that_waits_for_its_quota_may_leave(gate: Gate, driver: ScriptedDriver) -> None:
    with (
        tenants(driver, a=TenantSettings(calls=1)) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        first = begun(pool, node, "a")
        with pytest.raises(DeadlineExceeded):
            node.invoke("F", a=b"1", tenant="a", deadline_s=0.05)
        last = begun(pool, node, "a")
        gate.open(2)
        first.result(20)
        last.result(20)


def test_inputs_beyond_a_tenants_memory_are_refused(gate: Gate, driver: ScriptedDriver) -> None:
    with (
        tenants(driver, a=TenantSettings(arena_bytes=1000), b=TenantSettings()) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        with pytest.raises(QuotaExceeded, match="1001 bytes of memory for inputs"):
            node.invoke("F", a=bytes(1001), tenant="a")
        calls = [begun(pool, node, "a", bytes(600))]
        with pytest.raises(ContextFull):
            node.invoke("F", a=bytes(401), tenant="a")
        calls += [begun(pool, node, "b", bytes(5000))]
        gate.open(2)
        for call in calls:
            call.result(20)


def test_results_beyond_a_tenants_memory_end_their_invocation() -> None:
    def grow(engine: Engine, call: Call) -> InstanceSets:
        [given] = call.inputs
        assert given is not None
        items = tuple(type(i)(i.name, i.key, bytes(4 * i.size_bytes)) for i in given.items)
        return (ItemSet("b", items),)

    driver = ScriptedDriver("played", Script(run=grow))
    text = "function F(a) => (b); composition C(x) => (y) {"
    text += "F(a = all x) => (m = b); F(a = all m) => (n = b); F(a = all n) => (y = b); }"
    with tenants(driver, a=TenantSettings(arena_bytes=1000), b=TenantSettings()) as node:
        for name in ("a", "b"):
            node.register(text, tenant=name)
        with pytest.raises(ApplicationFailed) as caught:
            node.invoke("C", x=bytes(100), tenant="a")
        assert isinstance(caught.value.__cause__, QuotaExceeded)
        assert node.invoke("C", x=bytes(10), tenant="a").y.items[0].size_bytes == 640
        assert node.invoke("C", x=bytes(100), tenant="b").y.items[0].size_bytes == 6400


def test_a_result_beyond_a_tenants_memory_is_refused() -> None:
    def grow(engine: Engine, call: Call) -> InstanceSets:
        [given] = call.inputs
        assert given is not None
        size = int(given.items[0].bytes())
        return (ItemSet("b", (Item("item", 0, bytes(size)),)),)

    driver = ScriptedDriver("played", Script(run=grow))
    with tenants(driver, a=TenantSettings(arena_bytes=1000), b=TenantSettings()) as node:
        for _ in range(3):
            with pytest.raises(QuotaExceeded, match="limit is 1000"):
                node.invoke("F", a=b"5000", tenant="a")
            assert node.invoke("F", a=b"900", tenant="a").b.items[0].size_bytes == 900
            assert node.invoke("F", a=b"5000", tenant="b").b.items[0].size_bytes == 5000
        shown = node.capacity("a").tenants[0]
        assert shown.arena_bytes == 0


def test_code_beyond_a_tenants_memory_is_not_loaded() -> None:
    driver = ScriptedDriver("played")
    with tenants(driver, a=TenantSettings(arena_bytes=8192), b=TenantSettings()) as node:
        for name in ("a", "b"):
            node.register(document("Large", bytes(10_000)), tenant=name)
            node.register(
                *[document(f"Small{n}", bytes([n]) * 4096) for n in (1, 2, 3)], tenant=name
            )
        for _ in range(2):  # before a call, and after one has failed
            admission = node.capacity("a", "Large").admission
            assert admission is not None
            assert (admission.state, "8192" in admission.reason) == ("refused", True)
            with pytest.raises(QuotaExceeded) as caught:
                node.invoke("Large", a=b"1", tenant="a")
            error = caught.value
            assert (error.owner, error.quota_bytes) == ("tenant 'a'", 8192)
            assert error.needed_bytes >= 10_000
            assert "'Large'" in error.what
            assert "'arena_bytes'" in str(error)
            assert b"retry-after" not in dict(problem_response(error).headers)
        node.invoke("Large", a=b"1", tenant="b")
        for _ in range(2):
            for number in (1, 2, 3):  # one is evicted for the other
                node.invoke(f"Small{number}", a=b"1", tenant="a")
                assert node.info().functions_bytes["a"] <= 8192
        assert node.info().functions_bytes["b"] == 12288


def test_constants_beyond_a_tenants_part_of_a_device_are_copied_with_each_call() -> None:
    """By the scheduler alone, so that a device is not needed."""
    scheduler = Scheduler(policy_of("fifo"), 1 << 30, lambda flow: (100, 100))
    engine = EngineState(1, frozenset({"x"}), places=1)
    scheduler.fleet.added(engine)
    scheduler.fleet.up(engine, "x:0", Capacity(constants_bytes=250), 0)
    kept: list[tuple[str, bool, list[str]]] = []
    small = Tenant("small", Quota(device_bytes=99))
    one = Tenant("one", Quota(device_bytes=100))
    free = Tenant("free")
    for tenant, name in [
        (small, "f"),
        (one, "f"),
        (one, "g"),
        (one, "g"),
        (free, "f"),
        (free, "g"),
        (free, "h"),
    ]:
        spec = FunctionSpec(name, code=(CodeObject("x"),))
        walk = Walk(direct_plan(spec), Partitioning("auto", 1, 1))
        scheduler.tenant_changed(tenant, 0)
        scheduler.submitted(InvocationState(f"{len(kept)}", tenant, walk, (), 1 << 62, 1.0), 0)
        flow = scheduler.calls.flows[tenant.name, name, 0]
        if flow.presence is Presence.FETCHING:
            scheduler.calls.fetched(flow, 0)
        [send] = [action for action in scheduler.take() if isinstance(action, Send)]
        evicted = [other.name for other in send.evict]
        kept.append((flow.name, send.keep, evicted))
        scheduler.calls.done(send.call, (), 1)
        check_invariants(scheduler)
        place = scheduler.calls.residency.devices[engine]
        assert place.by_tenant.get(small, 0) == 0
        assert place.by_tenant.get(one, 0) <= 100
    assert kept[:5] == [
        ("small/f", False, []),
        ("one/f", True, []),
        ("one/g", True, ["one/f"]),
        ("one/g", True, []),
        ("free/f", True, []),
    ]
    assert [len(evicted) for _, _, evicted in kept[5:]] == [1, 1]  # the device is full


def test_engine_time_is_shared_by_weight() -> None:
    """They take turns of many calls. While this machine is busy, some calls take much longer."""
    assert any(1.8 <= share_of_heavy() <= 5 for _ in range(5))


def share_of_heavy() -> float:
    """How many calls a tenant of weight 3 had for each of a tenant of weight 1."""
    gate = Gate()

    def work(engine: Engine, call: Call) -> InstanceSets:
        time.sleep(0.004)
        return echo(engine, call)

    driver = ScriptedDriver("played", gate.script)
    shares = {"light": TenantSettings(), "heavy": TenantSettings(weight=3.0)}
    with tenants(driver, "fair", **shares) as node, ThreadPoolExecutor(128) as pool:
        for name in shares:
            node.register(document(name), tenant=name)
        first = begun(pool, node, "light")
        assert gate.entered()
        driver.seen.ran.clear()
        driver.script.run = work
        calls = [pool.submit(node.invoke, n, a=b"1", tenant=n) for n in shares for _ in range(60)]
        wait_until(lambda: node.info().waiting == 120)
        gate.open()
        for call in (first, *calls):
            call.result(30)
    half = Counter(name for _, name in driver.seen.ran[:60])
    return half["heavy"] / max(half["light"], 1)
