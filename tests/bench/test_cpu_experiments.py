"""Experiments on processors: they find what is there, and judge by what they find."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import (
    cold_start,
    cores,
    data_path,
    dispatcher,
    http_calls,
    http_stress,
    kserve,
    language,
    memory,
    sandboxes,
    zeroing,
)
from dandelion.bench.load import LoadResult
from dandelion.bench.processes import run_program
from dandelion.bench.records import Findings, Panel, Skip
from dandelion.bench.samples import Samples, row
from dandelion.bench.systems import footprint, steps
from dandelion.bench.systems import zeroing as zeroing_program
from dandelion.bench.systems.echoes import FORMATS, GPU, NATIVE, NULL, PYTHON, WASM, echo
from dandelion.bench.timing import in_turns

from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.node import Node, Settings
from tests.fake_driver import build

ROOT = Path(__file__).resolve().parents[2]
MODULES = (data_path, dispatcher, http_calls, language, sandboxes, zeroing)
KINDS = (NULL, PYTHON, NATIVE, WASM, GPU)


def briefly(actions: Any, *, count: int, **others: Any) -> dict[str, Samples]:
    """Time so little that a test takes no time."""
    others |= {"warm_up": 1, "block": 1, "seconds": None}
    found: dict[str, Samples] = in_turns(actions, count=min(count, 3), **others)
    return found


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Bench:
    for module in MODULES:
        if hasattr(module, "in_turns"):
            monkeypatch.setattr(module, "in_turns", briefly)
    return Bench(quick=True, backend="opencl")


def samples(*values_us: float) -> Samples:
    return Samples.of_us(values_us)


def p50(panel: Panel, system: str, x: float | str) -> float:
    return next(r.values["p50"] for r in panel.rows if (r.system, r.x) == (system, x))


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
    steady = {row.x: row.values["achieved_per_s"] for row in found.panels[2].rows}
    assert steady["I/O"] > steady["compute"]
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


def test_every_edge_brings_back_what_it_should(brief: Bench) -> None:
    found = data_path.data_path(brief)
    edges = {r.system for r in found.panels[0].rows}
    assert len(edges) == 10
    assert found.budgets[0].passes, found.budgets[0]
    assert found.skips == ()


def test_an_edge_that_brings_other_bytes_is_no_edge() -> None:
    good = data_path.Edge("good", lambda: b"abc", True, 0, lambda: 0)
    assert data_path.check(good, b"abc") == 0
    with pytest.raises(AssertionError, match="other bytes"):
        data_path.check(data_path.Edge("bad", lambda: b"abd", True, 0, lambda: 0), b"abc")
    count = iter((3, 5))
    twice = data_path.Edge("twice", lambda: b"abc", True, 0, lambda: next(count))
    assert data_path.check(twice, b"abc") == 2


def test_without_a_device_its_edges_are_skipped() -> None:
    skips: list[Skip] = []
    with ExitStack() as stack:
        nodes = data_path.EdgeNodes(Bench(quick=True), stack, skips)
        names = [e.name for e in nodes.edges(b"x")]
    assert not any("engine process" in name for name in names)
    assert any("--backend" in s.reason for s in skips)


def test_the_stages_of_a_first_call_add_up() -> None:
    with cold_start.fresh(NATIVE) as settings:
        functions = [echo(NATIVE, f"F{i}", i) for i in range(3)]
        found, started = cold_start.measured(settings, functions)
    assert len(started) == 2
    assert {state: len(calls) for state, calls in found.items()} == {
        cold_start.FIRST: 3, cold_start.RESTART: 3, cold_start.SIZE: 3, cold_start.HOT: 57,
    }  # fmt: skip
    for state, calls in found.items():
        for call in calls:
            assert sum(call.stages.values()) == pytest.approx(call.total_us)
            assert ("register" in call.stages) == (state == cold_start.FIRST)
            assert call.stages["run"] > 0


def test_a_panel_of_first_calls_shows_the_median_one() -> None:
    calls = [cold_start.ColdCall(t, {"run": t - 1, "rest": 1.0}) for t in (5.0, 90.0, 7.0)]
    panel = cold_start.panel_of("key", "system", {"hot": calls})
    (shown,) = panel.rows
    assert (shown.values["p50"], shown.values["run"], shown.values["rest"]) == (7.0, 6.0, 1.0)
    assert [m.key for m in panel.metrics] == ["run", "rest", "p50"]


def test_a_cold_call_is_judged_by_its_median() -> None:
    for total_ms, passes in ((9.9, True), (10.1, False)):
        call = cold_start.ColdCall(total_ms * 1e3, {"plan": total_ms * 1e3})
        panel = cold_start.panel_of("key", "system", {cold_start.RESTART: [call]})
        judged = cold_start.budget_of(panel)
        assert judged.passes == passes
        assert ("plan" in judged.why) != passes


def test_rates_are_held_against_memset() -> None:
    timed = {zeroing.BARE: samples(10.0), zeroing.ARENA: samples(12.5)}
    rows = zeroing.rate_rows(1 << 20, timed, zeroing.BARE)
    assert rows[1].values["ratio"] == pytest.approx(0.8, rel=1e-3)
    assert rows[1].values["rate"] == pytest.approx((1 << 20) / 12.5e-6, rel=1e-3)
    assert not zeroing.rate_budget("it", zeroing.ARENA, rows).passes
    timed[zeroing.ARENA] = samples(10.5)
    assert zeroing.rate_budget(
        "it", zeroing.ARENA, zeroing.rate_rows(8, timed, zeroing.BARE)
    ).passes


def test_owners_that_pay_for_zeroing_are_noticed() -> None:
    small = row(zeroing.BACKGROUND, 1.0, samples(2.0))
    assert zeroing.owner_budget([small, row(zeroing.BACKGROUND, 2.0, samples(3.0))]).passes
    assert not zeroing.owner_budget([small, row(zeroing.BACKGROUND, 2.0, samples(9.0))]).passes


def test_memory_of_contexts_and_devices_is_zeroed(brief: Bench) -> None:
    found = zeroing.zeroing(brief)
    assert [p.key for p in found.panels] == ["arena", "owner", "device", "after"]
    assert all(r.values["p50"] > 0 for p in found.panels for r in p.rows)


ON_THE_FAKE = """
import sys
from pathlib import Path
from tests.fake_driver import build
from tests.fake_driver.fake import Fake
fake = Fake("cuda", build.load("cuda", Path(sys.argv[1])), Path(sys.argv[1]))
import cuda.bindings.driver as cu
cu.cuMemsetD32Async = lambda p, v, n, s: cu.cuMemsetD8Async(p, v, 4 * n, s)
from dandelion.bench.systems.zeroing import ZeroOrder, measure
seen = measure(ZeroOrder("cuda", (4096, 65536), (4096,), 3, 1.0))
assert sorted(seen.sizes) == [4096, 65536] and list(seen.calls) == [4096]
assert fake.live() == {}, fake.live()
print("ok")
"""


def _no_fake() -> str:
    found = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    return build.missing() if found else "cuda-bindings"


@pytest.mark.skipif(bool(_no_fake()), reason=f"without {_no_fake()}")
def test_memory_of_cuda_is_zeroed_over_a_fake_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-W", "error", "-c", ON_THE_FAKE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


def test_a_device_that_is_missing_is_skipped() -> None:
    order = zeroing_program.ZeroOrder("hip", (4096,), (4096,), 1, 0.1)
    with pytest.raises(DandelionError):
        zeroing_program.ask(order)


def test_a_program_that_ends_without_an_answer_says_why() -> None:
    order = zeroing_program.ZeroOrder("opencl", (), (), 1, 0.1)
    with pytest.raises(BackendUnavailable, match="no_such_program"):
        run_program("dandelion.no_such_program", order, zeroing_program.ZeroReport, 60.0)


def test_sandboxes_are_called_in_all_ways(brief: Bench) -> None:
    found = sandboxes.sandbox(brief)
    ways = {r.x for r in found.panels[0].rows if r.system == "dandelion native"}
    assert {"the first", "in bursts", "steady", "back to back", "paced"} <= ways
    assert {"two callers", "none waiting"} <= ways
    memories = {(r.system, r.x) for r in found.panels[1].rows}
    assert {
        ("dandelion native", "waiting sandbox"),
        ("dandelion process", "zygote"),
    } <= memories
    assert len(found.budgets) == 12


def test_sandboxes_are_judged_by_their_medians() -> None:
    slow, fast = samples(251.0), samples(249.0)
    rows = [row("dandelion native", sandboxes.PACED, slow)]
    rows += [row("dandelion native", sandboxes.BACK_TO_BACK, fast)]
    rows += [row("dandelion null", x, fast) for x in (sandboxes.PACED, sandboxes.BACK_TO_BACK)]
    judged = {b.path: b.passes for b in sandboxes.budgets(rows)}
    assert judged == {
        "native sandbox, fresh per call, paced": False,
        "native sandbox, fresh per call, back to back": True,
    }


def test_rounds_give_back_what_they_took() -> None:
    found = footprint.ask(footprint.FootprintOrder(NULL, NULL, 20, 4, 4))
    assert found.failures == 3 + 4 + 4
    assert found.before is not None
    assert found.after is not None
    assert memory.leaks(found.before, found.after) == []
    assert found.after.contexts == found.after.arena_bytes == 0
    rows = memory.idle_rows(NULL, 20, found)
    assert [r.x for r in rows] == ["node", "idle function"]


def state(**changes: int) -> footprint.NodeState:
    usual = {"node_bytes": 1 << 20, "children_bytes": 0, "arena_bytes": 0, "contexts": 0,
             "files": 9, "threads": 3, "children": 0, "device_bytes": 1 << 20}  # fmt: skip
    return footprint.NodeState(**(usual | changes))


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, True),
        ({"node_bytes": 1 << 19}, True),
        ({"node_bytes": 3 << 20}, False),
        ({"children_bytes": 2 << 20}, False),
        ({"files": 10}, False),
        ({"contexts": 1}, False),
        ({"device_bytes": 1 << 20}, True),
        ({"device_bytes": 3 << 20}, False),
    ],
)
def test_what_grows_is_noticed(changes: dict[str, int], passes: bool) -> None:
    found = footprint.Footprint(before=state(), after=state(**changes))
    made = memory.growth_row(NULL, 10, found)
    judged = memory.budget_of([made])
    assert judged.passes == passes
    assert bool(judged.why) != passes


def test_what_is_found_can_be_saved() -> None:
    panel = cold_start.panel_of("key", "s", {"hot": [cold_start.ColdCall(1.0, {"rest": 1.0})]})
    found = Findings((panel,))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Findings) == found
