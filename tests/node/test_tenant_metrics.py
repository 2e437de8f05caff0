"""Metrics of tenants, and a thousand tenants."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Hosting
from dandelion.errors import (
    InvalidInput,
    QuotaExceeded,
    Raised,
)
from dandelion.node import Node, Settings
from dandelion.node.invocation import Invocation
from dandelion.settings import TenantSettings
from dandelion.testing import Gate, ScriptedDriver, wait_until
from dandelion.testing.scheduler_invariants import check_invariants
from dandelion.testing.scripted import echo
from tests.node.tenant_nodes import ENGINES, begun, document, tenants

TENANTS = 1000


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def driver(gate: Gate) -> ScriptedDriver:
    return ScriptedDriver("played", gate.script, Hosting.THREAD, ENGINES)


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
        with pytest.raises(QuotaExceeded):
            node.invoke("F", tenant="small", a=b"too much")
        counted = node.info().invocations["small"].by_outcome
        assert counted == {"QuotaExceeded": 1}
