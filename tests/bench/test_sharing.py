"""The experiments on sharing: device time from answers, budgets, and quick runs on a processor."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import sharing, sharing_batching, sharing_concurrency
from dandelion.bench.records import Row
from dandelion.bench.samples import Samples
from dandelion.bench.systems import names
from dandelion.bench.systems.spinning import (
    SpinNode,
    SpunCall,
    deviation,
    spin_nodes,
    used_s,
    windows,
)

from dandelion.settings import TenantSettings

QUICK = Bench(quick=True, backend="opencl")
GPU = Bench(backend="cuda")
NAMES = [name for name, one in all_experiments().items() if one.group == "sharing"]


def call(tenant: str, length_s: float, end_s: float) -> SpunCall:
    return SpunCall(tenant, length_s, 0.0, end_s)


def test_a_call_has_the_device_for_its_length_until_its_end() -> None:
    calls = [call("a", 0.4, 0.3), call("a", 0.2, 1.1), call("b", 0.5, 0.8), call("b", 1.0, 3.0)]
    assert used_s(calls, 0.0, 1.0) == pytest.approx({"a": 0.3 + 0.1, "b": 0.5})


def test_windows_are_whole() -> None:
    assert windows(0.5, 1.75, 0.5) == [(0.5, 1.0), (1.0, 1.5)]
    assert windows(0.0, 0.3, 0.3) == [(0.0, 0.3)]


def test_a_deviation_is_a_part_of_the_window() -> None:
    weights = {"a": 1.0, "b": 3.0}
    assert deviation({"a": 2.0, "b": 6.0}, weights) == pytest.approx(0.0)
    assert deviation({"b": 6.0}, weights) == pytest.approx(0.25)


@pytest.mark.parametrize(("since_s", "expected_s"), [(1.0, 0.0), (1.1, 0.1), (9.0, 1.0)])
def test_a_share_is_back_when_its_tenant_has_it(since_s: float, expected_s: float) -> None:
    calls = [call("b" if i / 1000 > since_s else "a", 0.001, i / 1000) for i in range(1, 2000)]
    found = sharing.back_s(calls, "b", 1.0, 2.0, 0.9)
    assert found == pytest.approx(expected_s, abs=0.0101)


def test_a_light_tenant_may_wait_for_a_running_call() -> None:
    found = {("fair", x): Samples.of_us([us]) for x, us in (
        (sharing.ALONE, 300.0), (sharing.SHORT_CALLS, 4500.0), (sharing.LONG_CALLS, 90_000.0),
    )}  # fmt: skip
    lines = sharing.light_budgets(GPU, found)
    assert [line.passes for line in lines] == [True, False]
    assert not sharing.light_budgets(QUICK, found)


def test_batches_are_judged_by_throughput_and_by_their_wait() -> None:
    def row(work: str, system: str, rate: float, p99: float) -> Row:
        x = sharing_batching.at(work, sharing_batching.CALLERS)
        return Row(system, x, {"achieved_per_s": rate, "p99": p99})

    rows = (
        row("matmul", names.DANDELION, 100.0, 1000.0),
        row("matmul", sharing_batching.BATCHED, 410.0, 2900.0),
        row("network", names.DANDELION, 100.0, 1000.0),
        row("network", sharing_batching.BATCHED, 700.0, 3100.0),
    )
    lines = sharing_batching.budgets(GPU, rows)
    assert [line.passes for line in lines] == [True, True, False, False]
    assert not sharing_batching.budgets(QUICK, rows)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_device_everything_is_skipped(name: str) -> None:
    found = all_experiments()[name].measure(Bench(quick=True, backend=""))
    assert found.panels == ()
    assert found.skips[0].reason


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, SpinNode]]:
    """Nodes of both policies, for all experiments that compare them."""
    pytest.importorskip("pyopencl")
    tenants = dict.fromkeys((*sharing.WEIGHTS, sharing.LIGHT, sharing.GREEDY), 1.0)
    with spin_nodes(QUICK, tenants, ("fair", "fifo")) as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_measures_or_says_why_not(
    name: str, nodes: dict[str, SpinNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def with_weights(
        _: Bench, weights: Mapping[str, float], policies: Sequence[str], __: int | None = None
    ) -> Iterator[dict[str, SpinNode]]:
        for policy in policies:
            for tenant, weight in weights.items():
                nodes[policy].node.set_tenant(tenant, TenantSettings(weight=weight))
        yield {policy: nodes[policy] for policy in policies}

    monkeypatch.setattr(sharing, "spin_nodes", with_weights)
    found = all_experiments()[name].measure(QUICK)
    assert not found.budgets, "processors keep no budget of a GPU"
    if name == "sharing_devices":
        assert found.skips[0].reason
        return
    (panel,) = found.panels
    keys = {metric.key for metric in panel.metrics}
    for row in panel.rows:
        assert keys <= row.values.keys()
        assert all(math.isfinite(row.values[key]) for key in keys)
        assert row.count


def measured(name: str, rate: float, at_once: int) -> sharing_concurrency.Measured:
    return sharing_concurrency.Measured(name, {1: rate, 4: rate}, {1: 9, 4: 9}, {1: 1, 4: at_once})


@pytest.mark.parametrize(("rate", "passes"), [(120.0, True), (90.0, False)])
def test_chosen_workers_are_held_against_the_best_other_system(rate: float, passes: bool) -> None:
    rows = sharing_concurrency.rows_of([
        measured(names.DANDELION, rate, 6),
        measured(names.MPS, 100.0, 4),
        measured(names.TIME_SLICED, 20.0, 4),
    ])  # fmt: skip
    ratios = {(row.system, row.x): row.values["ratio"] for row in rows}
    assert ratios[names.DANDELION, 4] == pytest.approx(rate / 100.0)
    (line,) = sharing_concurrency.budgets_of(GPU, "resnet50", rows)
    assert line.passes is passes
    assert not sharing_concurrency.budgets_of(QUICK, "resnet50", rows)
