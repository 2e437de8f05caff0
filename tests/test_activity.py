"""Short records of invocations, and quantiles of durations."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.activity import ActivityQuery
from dandelion.data import SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.errors import Raised
from dandelion.function import CodeObject, FunctionSpec
from dandelion.node.activity import MESSAGE_LIMIT, RUNNING_LIMIT, ActivityLog, activity_of
from dandelion.node.invocation import Invocation
from dandelion.node.traces import Trace
from dandelion.scheduler import Flow, Tenant
from dandelion.scheduler.counts import FlowCounts


def invocation(name: str = "f", tenant: str = "t") -> Invocation:
    spec = FunctionSpec(name, (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("null"),))
    walk = Walk(direct_plan(spec), Partitioning("auto", 1, 1))
    made = Invocation("id", Tenant(tenant), walk, (), 0, 1.0, trace=Trace("id", name, 0, tenant))
    made.started_ns, made.ended_ns = 1_000_000, 3_500_000
    return made


def log_of(*names: str, keep: int = 100, tenant: str = "t") -> ActivityLog:
    log = ActivityLog(keep)
    for name in names:
        log.add(invocation(name, tenant), Raised(name, "x" * 1000) if name == "bad" else None)
    return log


def numbers(log: ActivityLog, tenant: str = "t", **query: object) -> tuple[list[int], bool]:
    found, more = log.find(tenant, ActivityQuery(**query))  # type: ignore[arg-type]  # of a test
    return [one.number for one in found], more


def test_the_newest_come_first() -> None:
    log = log_of("a", "bad", "b", "a", "bad")
    assert numbers(log) == ([5, 4, 3, 2, 1], False)
    assert numbers(log, limit=2) == ([5, 4], True)
    assert numbers(log, limit=2, before=4) == ([3, 2], True)
    assert numbers(log, after=3) == ([5, 4], False)
    assert numbers(log, name="a") == ([4, 1], False)
    assert numbers(log, failed=True) == ([5, 2], False)
    assert numbers(log, "other") == ([], False)
    (last,), _ = log.find("t", ActivityQuery(limit=1))
    assert (last.outcome, last.duration_ms, len(last.message)) == ("Raised", 2.5, MESSAGE_LIMIT)
    assert last.message.endswith("\u2026")


def test_each_tenant_keeps_and_counts_its_own() -> None:
    log = log_of(*("a" * 30), keep=10)
    log.add(invocation("b", "other"), None)
    assert numbers(log)[0] == list(range(30, 20, -1))
    assert (log.cursor("t"), log.cursor("other"), log.cursor("none")) == (30, 1, 0)
    assert numbers(log, "other") == ([1], False)
    assert numbers(log_of("a", keep=0)) == ([], False)


def test_running_invocations_are_bounded_and_of_the_tenant() -> None:
    running = [*(invocation() for _ in range(150)), invocation(tenant="other")]
    flows = [Flow(Tenant(name), FunctionSpec("f")) for name in ("t", "other")]
    flows[0].counts.measured(2_000_000)
    found = activity_of(log_of("a"), "t", ActivityQuery(), running, flows)
    assert (found.running_count, len(found.running)) == (150, RUNNING_LIMIT)
    assert [(one.name, one.calls) for one in found.functions] == [("f", 1)]
    assert found.functions[0].p50_ms == pytest.approx(2, rel=0.125)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantiles_are_right_to_an_eighth(durations: list[int], part: float) -> None:
    counts = FlowCounts()
    for duration in durations:
        counts.measured(duration)
    ordered = sorted(durations)
    exact = ordered[max(0, math.ceil(part * len(ordered)) - 1)]
    near = [d for d in ordered if abs(counts.quantile_ns(part) - d) <= max(1, d / 8)]
    assert near
    assert min(near) <= exact * 1.3 + 2


def test_counts_are_added() -> None:
    one, two = FlowCounts(), FlowCounts()
    rng = random.Random(1)
    for _ in range(100):
        one.measured(rng.randrange(10**6))
        two.measured(rng.randrange(10**9))
    p99 = two.quantile_ns(0.99)
    one.add(two)
    assert one.calls == sum(one.durations.values()) == 200
    assert one.quantile_ns(0.995) == pytest.approx(p99, rel=0.2)
    assert FlowCounts().quantile_ns(0.5) == 0
