"""The experiments of KNIX: claims with figures beside ours, quick runs, and shares."""

from __future__ import annotations

import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import knix
from dandelion.bench.systems.spinning import Callers, SpunCall

NAMES = [name for name, one in all_experiments().items() if one.group == "knix"]


def test_every_question_has_an_experiment() -> None:
    questions = ("overhead", "partitioning", "fairness", "elasticity", "sharing")
    assert sorted(NAMES) == sorted(f"knix_{question}" for question in questions)


def test_a_job_lasts_from_its_begin_to_its_last_answer() -> None:
    groups = [Callers("a", 1, (0.1,)), Callers("b", 1, (0.1,), begin_s=0.5)]
    calls = [SpunCall("a", 0.1, 0.0, 0.3), SpunCall("b", 0.1, 0.6, 1.5), SpunCall("a", 0.1, 0, 0.2)]
    assert knix.job_times(calls, groups) == pytest.approx({"a": 0.3, "b": 1.0})


def test_equal_shares_do_not_swing() -> None:
    steady = [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}]
    assert knix.evenness(steady, ["a", "b"]) == pytest.approx(
        {"mean": 0.5, "apart": 0.0, "swing": 0.0}
    )
    swinging = [{"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 3.0}]
    assert knix.evenness(swinging, ["a", "b"]) == pytest.approx(
        {"mean": 0.5, "apart": 0.0, "swing": 0.5}
    )
    assert knix.evenness([{"a": 1.0}], ["a", "b"])["apart"] == pytest.approx(0.5)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_device_everything_is_skipped(name: str) -> None:
    found = all_experiments()[name].measure(Bench(quick=True, backend=""))
    assert found.panels == ()
    assert found.skips[0].reason


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_stands_beside_the_claim(name: str) -> None:
    pytest.importorskip("pyopencl")
    found = all_experiments()[name].measure(Bench(quick=True, backend="opencl"))
    (panel,) = found.panels
    keys = {metric.key for metric in panel.metrics}
    assert all(keys <= row.values.keys() and row.count for row in panel.rows)
    (claim,) = found.claims
    assert claim.source.startswith("KNIX")
    assert any(digit.isdigit() for digit in claim.says)
    assert any(digit.isdigit() for digit in claim.measured)
    assert claim.holds is None, "a processor is no shared GPU"
