"""Experiments of edges, first calls and memory."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from dandelion.bench.experiment import Bench
from dandelion.bench.experiments import (
    cold_start,
    data_path,
    memory,
    sandboxes,
    zeroing,
)
from dandelion.bench.processes import run_program
from dandelion.bench.records import Findings, Skip
from dandelion.bench.samples import row
from dandelion.bench.systems import footprint
from dandelion.bench.systems import zeroing as zeroing_program
from dandelion.bench.systems.echoes import NATIVE, NULL, PYTHON, WASM, echo

from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.node import Node, Settings
from tests.bench.brief_runs import MODULES, briefly, samples
from tests.fake_driver import build

ROOT = Path(__file__).resolve().parents[2]


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
