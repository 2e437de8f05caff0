"""Tenants of one node: what each may use at once, their shares, their metrics; a thousand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dandelion.data import ItemSet, Sets
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Call, Capacity, Engine, Hosting, InstanceSets
from dandelion.errors import (
    ApplicationFailed,
    ContextFull,
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    Raised,
)
from dandelion.function import CodeObject, FunctionSpec
from dandelion.node import Node, Settings
from dandelion.node.invocation import Invocation
from dandelion.scheduler import EngineState, InvocationState, Quota, Scheduler, Tenant, policy_of
from dandelion.scheduler.actions import Send
from dandelion.scheduler.records import Presence
from dandelion.settings import TenantSettings
from dandelion.testing import Gate, Script, ScriptedDriver, wait_until
from dandelion.testing.scheduler_invariants import check_invariants
from dandelion.testing.scripted import echo

ENGINES = {"0": Capacity(), "1": Capacity()}
TENANTS = 1000


def document(name: str = "F", main: bytes = b"") -> FunctionDocument:
    code = CodeDocument("played", Content(data=main)) if main else CodeDocument("played")
    return FunctionDocument(name, ("a",), ("b",), code=(code,))


@contextmanager
def tenants(
    driver: ScriptedDriver, policy: str = "fifo", **given: TenantSettings
) -> Iterator[Node]:
    """Give a node with these tenants, each with a function; nothing may be left in the end."""
    settings = Settings(backends=(), arena_bytes=16 << 20, tenants=given, policy=policy)
    with Node(settings, [driver]) as node:
        assert node.wait_ready()
        for name in given:
            node.register(document(), tenant=name)
        yield node
        wait_until(lambda: not any(engine.busy for engine in node.engines()))
        assert (node.info().running, node.info().waiting) == (0, 0)
        scheduler = node._runtime.scheduler
        check_invariants(scheduler)
        for tenant in scheduler.tenants.values():
            assert (tenant.invocations, tenant.calls, tenant.arena_bytes) == (0, 0, 0)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def driver(gate: Gate) -> ScriptedDriver:
    return ScriptedDriver("played", gate.script, Hosting.THREAD, ENGINES)


def begun(pool: ThreadPoolExecutor, node: Node, tenant: str, data: bytes = b"1") -> Future[Sets]:
    """Begin an invocation; it is admitted, or has ended, when this returns."""
    count = node.info().running
    call = pool.submit(node.invoke, "F", a=data, tenant=tenant)
    wait_until(lambda: call.done() or node.info().running > count)
    return call


# --- quotas ---------------------------------------------------------------------------------------


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
        with pytest.raises(ContextFull):
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
        assert isinstance(caught.value.__cause__, ContextFull)
        assert node.invoke("C", x=bytes(10), tenant="a").y.items[0].size_bytes == 640
        assert node.invoke("C", x=bytes(100), tenant="b").y.items[0].size_bytes == 6400


def test_code_beyond_a_tenants_memory_is_not_loaded() -> None:
    driver = ScriptedDriver("played")
    with tenants(driver, a=TenantSettings(arena_bytes=8192), b=TenantSettings()) as node:
        for name in ("a", "b"):
            node.register(document("Large", bytes(10_000)), tenant=name)
            node.register(
                *[document(f"Small{n}", bytes([n]) * 4096) for n in (1, 2, 3)], tenant=name
            )
        with pytest.raises(ContextFull):
            node.invoke("Large", a=b"1", tenant="a")
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


# --- shares ---------------------------------------------------------------------------------------


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


# --- metrics --------------------------------------------------------------------------------------


def samples(node: Node) -> dict[tuple[str, ...], float]:
    """Give the samples of metrics by name and the values of their labels."""
    families = text_string_to_metric_families(node.metrics().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_tell_tenants_apart() -> None:
    driver = ScriptedDriver("played")
    with tenants(driver, a=TenantSettings(), b=TenantSettings()) as node:
        node.register(document("Coded", b"code"), tenant="b")
        for name, count in (("a", 3), ("b", 5)):
            for _ in range(count):
                node.invoke("F", a=b"12", tenant=name)
        driver.script.run = lambda engine, call: (_ for _ in ()).throw(Raised("F", "E", "no"))
        with pytest.raises(Raised):
            node.invoke("F", a=b"12", tenant="a")
        driver.script.run = echo
        node.invoke("Coded", a=b"12", tenant="b")
        found = samples(node)
    assert found["dandelion_invocations_total", "ok", "a"] == 3
    assert found["dandelion_invocations_total", "Raised", "a"] == 1
    assert found["dandelion_invocations_total", "ok", "b"] == 6
    assert found["dandelion_invocation_duration_seconds_count", "a"] == 4
    assert found["dandelion_calls_total", "F", "a"] == 4
    assert found["dandelion_call_failures_total", "F", "a"] == 1
    assert found["dandelion_call_failures_total", "F", "b"] == 0
    assert found["dandelion_call_output_bytes_total", "F", "b"] == 10
    assert found["dandelion_functions_bytes", "b"] == 4096
    assert ("dandelion_functions_bytes", "a") not in found


def test_metrics_of_a_function_count_all_of_its_versions() -> None:
    with tenants(ScriptedDriver("played"), a=TenantSettings()) as node:
        node.invoke("F", a=b"1", tenant="a")
        node.register(document(main=b"newer"), tenant="a")
        for version in (2, 1, 2):
            node.invoke("F", a=b"1", tenant="a", version=version)
        assert samples(node)["dandelion_calls_total", "F", "a"] == 4


def test_metrics_have_the_calls_that_wait_by_tenant(gate: Gate, driver: ScriptedDriver) -> None:
    with (
        tenants(driver, a=TenantSettings(), b=TenantSettings(calls=1)) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        calls = [begun(pool, node, name) for name in ("b", "b", "b", "a", "a")]
        found = samples(node)
        assert found["dandelion_calls_queued", "F", "b"] == 2
        assert found["dandelion_calls_queued", "F", "a"] == 1
        assert found["dandelion_calls_waiting",] == 3
        gate.open(5)
        for call in calls:
            call.result(20)


# --- many -----------------------------------------------------------------------------------------


def test_a_thousand_tenants_have_their_own_functions_quotas_and_metrics() -> None:
    names = [f"tenant-{number}" for number in range(TENANTS)]
    driver = ScriptedDriver("played", hosting=Hosting.INLINE)
    settings = {name: TenantSettings(invocations=1, calls=1) for name in names}
    with tenants(driver, "fair", **settings) as node:
        for _ in range(2):
            for number, name in enumerate(names):
                answer = node.invoke("F", a=b"%d" % number, tenant=name)
                assert answer.b.bytes() == b"%d" % number
        found = samples(node)
        assert all(found["dandelion_calls_total", "F", name] == 2 for name in names)
        assert [len(node.records(name)) for name in names[::100]] == [1] * 10


def test_a_thousand_tenants_wait_for_one_engine_and_each_has_its_turn() -> None:
    names = [f"tenant-{number}" for number in range(TENANTS)]
    gate = Gate()
    driver = ScriptedDriver("played", gate.script)
    settings = {name: TenantSettings(calls=1) for name in names}
    with tenants(driver, "fair", **settings) as node:
        ended: list[str] = []

        def submit(node: Node = node) -> None:
            for name in [*names, *names]:
                node.begin("F", {"a": None}, tenant=name, ended=note)

        def note(invocation: Invocation) -> None:
            ended.append(invocation.tenant.name)

        node._parts.loop.call(submit)
        assert node.info().waiting == 2 * TENANTS - 1
        check_invariants(node._runtime.scheduler)
        gate.open(2 * TENANTS)
        wait_until(lambda: len(ended) == 2 * TENANTS, 60)
    assert Counter(ended) == dict.fromkeys(names, 2)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a\n", "x" * 64])
def test_such_a_name_is_given_no_quota(name: str) -> None:
    with pytest.raises(InvalidInput):
        Node(Settings(backends=(), tenants={name: TenantSettings()}))
    with Node(Settings(backends=(), arena_bytes=1 << 20)) as node, pytest.raises(InvalidInput):
        node.set_tenant(name, TenantSettings())


def test_refusals_are_counted() -> None:
    quota = TenantSettings(arena_bytes=1)
    with Node(Settings(backends=("null",), tenants={"small": quota})) as node:
        document = FunctionDocument("F", ("a",), ("b",), code=(CodeDocument("null"),))
        node.register(document, tenant="small")
        with pytest.raises(ContextFull):
            node.invoke("F", tenant="small", a=b"too much")
        counted = node.info().invocations["small"].by_outcome
        assert counted == {"ContextFull": 1}
