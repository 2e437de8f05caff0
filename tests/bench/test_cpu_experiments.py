"""Experiments on processors: they find what is there, and judge by what they find."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import (
    cores,
    dispatcher,
    http_calls,
    http_stress,
    kserve,
    language,
)
from dandelion.bench.load import LoadResult
from dandelion.bench.records import Skip
from dandelion.bench.samples import row
from dandelion.bench.systems import footprint, steps
from dandelion.bench.systems.echoes import FORMATS, GPU, NATIVE, NULL, PYTHON, WASM, echo

from dandelion.errors import DandelionError
from dandelion.node import Node, Settings
from tests.bench.brief_runs import MODULES, briefly, p50, samples

KINDS = (NULL, PYTHON, NATIVE, WASM, GPU)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Bench:
    for module in MODULES:
        if hasattr(module, "in_turns"):
            monkeypatch.setattr(module, "in_turns", briefly)
    return Bench(quick=True, backend="opencl")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    backends = (NULL, PYTHON, NATIVE, WASM, "opencl")
    with Node(Settings(backends=backends, engines={PYTHON: 1, NATIVE: 1, WASM: 1})) as node:
        node.wait_ready()
        yield node


@pytest.mark.parametrize("kind", KINDS)
def test_an_echo_gives_its_first_byte_and_its_size(node: Node, kind: str) -> None:
    for nonce in (0, 77):
        node.register(echo(kind, f"Echo_{kind}", nonce))
        result = node.invoke(f"Echo_{kind}", x=b"a" * 100).y.bytes()
        assert result == (b"a" + bytes(99) if kind == GPU else b"a" * 100)


@pytest.mark.parametrize("kind", KINDS)
def test_an_echo_that_fails_fails_by_its_own_fault(node: Node, kind: str) -> None:
    node.register(footprint.failing(kind, f"Bad_{kind}"))
    with pytest.raises(DandelionError) as caught:
        node.invoke(f"Bad_{kind}", x=b"a")
    assert caught.value.status < 500


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in (NULL, GPU)])
def test_another_number_is_other_code(kind: str) -> None:
    assert FORMATS[kind] == echo(kind, "A").code[0].format
    assert echo(kind, "A", 1).code != echo(kind, "A", 2).code


def test_experiments_are_known() -> None:
    known = all_experiments()
    groups = {name: known[name].group for name in known}
    assert groups["applications"] == groups["http_noop"] == groups["language"] == "dispatcher"
    assert groups["data_path"] == groups["cold_start"] == groups["memory"] == "data"
    assert groups["sandbox"] == "sandbox"


def test_loads_that_change_are_timed_with_moved_cores(
    brief: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "DIVISIONS", (cores.CONTROLLED,))
    monkeypatch.setattr(cores, "DELAY_S", 0.02)
    found = cores.cores(brief)
    assert [panel.key for panel in found.panels] == [
        "steady-compute", "early-compute", "steady-io", "early-io"
    ]  # fmt: skip
    for panel in found.panels:
        assert [row.x for row in panel.rows] == list(cores.PHASES)
        assert panel.key.startswith("early") or any(row.count for row in panel.rows)
    assert not found.budgets
    assert "at the ends of the phases: " in found.notes[0]


def test_an_application_costs_more_than_a_bare_call(brief: Bench) -> None:
    found = dispatcher.applications(brief)
    shape, chain, fan = found.panels
    for panel in found.panels:
        assert {r.system for r in panel.rows} >= {dispatcher.OURS, dispatcher.BARE}
    for x in {r.x for r in shape.rows if r.system == dispatcher.BARE}:
        assert p50(shape, dispatcher.OURS, x) > p50(shape, dispatcher.BARE, x)
    assert {r.x for r in chain.rows} == {1.0, 10.0, 100.0}
    assert {r.x for r in fan.rows} == {1.0, 100.0, 1000.0}
    (budget,) = found.budgets
    assert budget.passes == (p50(shape, dispatcher.OURS, "one application") <= 25)


def test_rows_of_many_applications_are_about_one() -> None:
    made = row("a", "b", samples(50.0, 50.0), per=100)
    assert made.values["p50"] == pytest.approx(0.5, rel=1e-3)
    assert made.count == 2


def test_peers_that_are_missing_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_installed", lambda name: name == "ray")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib, "import_module", partial(_missing, importlib.import_module))
    skips: list[Skip] = []
    with steps.step_runners(False, skips) as found:
        assert found == []
    assert [s.what for s in skips] == ["Dask", "Ray", "Triton"]
    assert "pip install dask" in skips[0].reason
    assert "does not start" in skips[1].reason


def _missing(load: Callable[[str], object], name: str) -> object:
    if name == "ray":
        raise ImportError(name)
    return load(name)


def test_a_no_op_is_held_against_raw_asgi(brief: Bench) -> None:
    found = http_calls.http_noop(brief)
    rows = {r.system: r for r in found.panels[0].rows}
    assert rows["raw ASGI"].values["ratio"] == pytest.approx(1.0)
    ratio = rows["dandelion null"].values["ratio"]
    assert found.budgets[0].passes == (ratio <= 1.6)
    assert found.budgets[0].measured == f"{ratio:.2f}x"


def test_kserve_is_held_against_the_raw_route(
    brief: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # there is no Triton
    monkeypatch.delenv("DANDELION_TRITON", raising=False)
    monkeypatch.setattr(kserve, "SIZES", {"64 B": 64, "1 MiB": 1024})
    found = kserve.kserve(brief)
    assert [skip.what for skip in found.skips] == ["Triton"]
    rows = {(r.system, r.x): r for r in found.panels[0].rows}
    assert rows[kserve.RAW, "1 MiB"].values["ratio"] == pytest.approx(1.0)
    (budget,) = found.budgets
    assert budget.passes == (rows[kserve.KSERVE, "1 MiB"].values["ratio"] <= kserve.BAR)
    assert all(row.count and not row.errors for row in found.panels[1].rows)


def test_an_overload_is_judged_by_its_share_of_the_peak(
    brief: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overload(
        port: int, request: object, *, callers: int, seconds: float, warm_up_s: float
    ) -> LoadResult:
        assert callers in (1, 16, 160)
        latency = samples(1000.0)
        achieved = {1: 500.0, 16: 1000.0, 160: 850.0}[callers]
        errors = {"status 429": 60} if callers == 160 else {}
        return LoadResult(achieved, achieved, latency, latency, errors, 0.0, seconds, False)

    monkeypatch.setattr(http_stress, "closed_loop", overload)
    found = http_stress.http_overload(brief)
    rows = {r.x: r.values for r in found.panels[0].rows if r.system == "dandelion null"}
    assert {x: values["share"] for x, values in rows.items()} == {1: 0.5, 16: 1.0, 160: 0.85}
    assert rows[160]["refused"] == 60 / 0.6
    assert all(values["bytes"] > 0 for values in rows.values())
    assert [b.passes for b in found.budgets] == [False, False]


def test_the_language_is_timed_by_statement(brief: Bench) -> None:
    found = language.language(brief)
    assert {r.system for r in found.panels[0].rows} == set(language.TEXT_LIMITS_US)
    limits = {b.path.split()[0]: b.passes for b in found.budgets}
    for name, limit in language.TEXT_LIMITS_US.items():
        assert limits[name] == (p50(found.panels[0], name, 100.0) <= limit)


def test_walks_are_driven_to_their_end_and_their_memory_is_taken(brief: Bench) -> None:
    found = language.walks(brief)
    assert len(found.panels[0].rows) == 10
    peaks = [r.values["ratio"] for r in found.panels[1].rows]
    assert all(1.0 < peak < 4.0 for peak in peaks)
