"""The group of the GPU engines: on OpenCL, and on CUDA over a fake driver, as far as that goes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest
from dandelion.bench.experiment import Bench, all_experiments
from dandelion.bench.experiments import (
    gpu_branches,
    gpu_callers,
    gpu_chain,
    gpu_engines,
    gpu_fault,
    gpu_gemm,
    gpu_loops,
    gpu_memory,
    gpu_positions,
    gpu_sharing,
    gpu_triton,
    kernel_hosts,
    polling,
)
from dandelion.bench.records import Findings
from dandelion.bench.samples import Samples
from dandelion.bench.systems import names
from dandelion.bench.systems.spinning import spun

from dandelion.errors import Faulted
from dandelion.node import Node
from tests.fake_driver import build

ROOT = Path(__file__).resolve().parents[2]
QUICK = Bench(quick=True, backend="opencl")
GPU = Bench(backend="cuda")
LOCAL = (
    gpu_engines.launches,
    gpu_engines.deep,
    gpu_memory.constants,
    gpu_engines.cold,
    gpu_branches.side_by_side,
    gpu_positions.changing,
)


@pytest.mark.parametrize("run", LOCAL, ids=lambda run: run.__name__)
def test_engines_are_timed_in_this_process(run: object) -> None:
    assert callable(run)
    found: Findings = run(QUICK)
    (panel,) = found.panels
    assert names.SEQUENTIAL in {row.system for row in panel.rows}
    assert all(row.values["p50"] > 0 and row.count for row in panel.rows)
    assert not found.budgets, "processors keep no budget of a GPU"


def test_products_are_timed_in_each_precision() -> None:
    found = gpu_gemm.gemm(QUICK)
    assert [panel.key for panel in found.panels] == list(gpu_gemm.PRECISIONS)
    for panel in found.panels:
        assert {row.system for row in panel.rows} == {names.SEQUENTIAL}
    assert len(found.skips) == len(gpu_gemm.PRECISIONS), "torch has no CUDA here"
    assert not found.budgets


def test_triton_is_left_out_where_it_cannot_work() -> None:
    found = gpu_triton.launches(QUICK)
    assert not found.panels
    assert [skip.what for skip in found.skips] == [gpu_triton.TRITON]


def test_a_chain_of_functions_is_timed_beside_one_function() -> None:
    found = gpu_chain.chain(QUICK)
    systems = [row.system for row in found.panels[0].rows]
    assert systems == [gpu_chain.ONE, gpu_chain.CHAIN, gpu_chain.APART]
    assert all(row.values["p50"] > 0 for row in found.panels[0].rows)
    assert not found.budgets


def test_a_loop_is_timed_as_one_call_and_as_many() -> None:
    found = gpu_loops.loops(QUICK)
    systems = [row.system for row in found.panels[0].rows]
    assert systems == [gpu_loops.FIXED, gpu_loops.LOOP, gpu_loops.APART]
    assert not found.budgets


def test_kernel_hosts_are_compared_with_the_engine_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {
        kind: kernel_hosts.KINDS[kind] for kind in (kernel_hosts.UNCONFINED, kernel_hosts.ALONE)
    }
    monkeypatch.setattr(kernel_hosts, "KINDS", kinds)
    (panel,) = kernel_hosts.kernel_hosts(QUICK).panels
    assert {(row.system, row.x) for row in panel.rows} == {(k, n) for k in kinds for n in "18"}
    assert not any(row.errors for row in panel.rows)
    assert sum(row.count for row in panel.rows)
    (skip,) = kernel_hosts.kernel_hosts(GPU).skips
    assert "device" in skip.reason


def test_nodes_that_poll_are_compared_with_nodes_that_sleep() -> None:
    (panel,) = polling.polling(QUICK).panels
    ways = (polling.BLOCKING, polling.AWAITED, polling.ONE, polling.MANY, polling.BESIDE)
    kinds = {(way, kind) for way in ways for kind in polling.SPINS}
    assert {(row.x, row.system) for row in panel.rows} == kinds
    assert all(row.count for row in panel.rows)
    done = {row.x for row in panel.rows if row.values.get("done_per_s")}
    assert done == {polling.BESIDE}


def test_callers_wait_in_a_program_and_over_http() -> None:
    found = gpu_callers.callers(QUICK)
    ways = (gpu_callers.AWAITED, *gpu_callers.FRONTENDS)
    (panel,) = found.panels
    assert {(row.system, row.x) for row in panel.rows} == {(w, x) for w in ways for x in (1, 4)}
    assert all(row.count and row.values["achieved_per_s"] > 0 for row in panel.rows)
    assert not found.budgets


def test_a_hot_call_is_timed_bare_here_and_through_nodes() -> None:
    found = gpu_engines.hot_matmul(QUICK)
    assert [(row.system, row.x) for row in found.panels[0].rows] == [
        (names.BARE, "a call"),
        (names.SEQUENTIAL, "a call"),
        (names.SEQUENTIAL, "a call to its process"),
        (names.concurrent(2), "a call to its process"),
        (names.SEQUENTIAL, "a call through a node"),
        (names.concurrent(2), "a call through a node"),
    ]


def test_a_missing_device_is_a_skip() -> None:
    missing = Bench(quick=True, backend="hip")
    found = all_experiments()["gpu_launches"].measure(missing)
    assert not found.panels
    assert found.skips[0].reason


def test_workers_are_compared_and_their_results_are_right() -> None:
    found = gpu_sharing.workers(QUICK)
    systems = {row.system for row in found.panels[0].rows}
    assert systems == {names.SEQUENTIAL, names.concurrent(2)}
    assert all(row.values["achieved_per_s"] > 0 for row in found.panels[0].rows)
    assert all("ratio" in row.values for row in found.panels[0].rows)


class Faulty:
    """A node that says what its callers asked for, by thread."""

    def __init__(self) -> None:
        self.requested: list[tuple[int, str]] = []

    def invoke(self, function: str, **_: object) -> dict[str, object]:
        self.requested.append((threading.get_ident(), function))
        if function == "stray":
            raise Faulted("stray", "a bad address")
        return {}


def test_a_fault_right_after_another_waits_for_a_good_answer_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = gpu_sharing.CheckedCall("good", "good", {}, lambda _: True)
    monkeypatch.setattr(gpu_fault, "good_call", lambda: good)
    for again, wanted in ((False, ["stray"]), (True, ["stray", "good", "stray"])):
        node = Faulty()
        seen = gpu_fault.fault_run(cast(Node, node), 0.0, 0.0, again=again)
        assert [f for thread, f in node.requested if thread == threading.get_ident()] == wanted
        assert len(seen.good) == sum(function == "good" for _, function in node.requested)
        assert (seen.failed, seen.wrong, seen.lost) == (1, 0, 0)


def test_a_fault_costs_one_error_and_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []

    def fault_run(
        node: Node, before_s: float, after_s: float, *, again: bool
    ) -> gpu_fault.FaultRun:
        runs.append(again)
        return real(node, before_s, after_s, again=again)

    real = gpu_fault.fault_run
    monkeypatch.setattr(gpu_fault, "fault_run", fault_run)
    found = gpu_fault.fault(QUICK)
    (panel,) = found.panels
    assert runs == [row.x == gpu_fault.AT_ONCE for row in panel.rows]
    whens = (gpu_fault.PREPARED, gpu_fault.AT_ONCE)
    systems = (names.SEQUENTIAL, names.concurrent(2))
    assert [(row.system, row.x) for row in panel.rows] == [(s, x) for s in systems for x in whens]
    for row in panel.rows:
        assert (row.values["failed"], row.values["wrong"], row.values["lost"]) == (1, 0, 0)
        assert row.values["good"] >= gpu_fault.GOOD_CALLERS
        assert row.values["outage"] > 0
        assert row.values["slowest"] > 0
    assert not found.budgets, "processors keep no budget of a GPU"


@pytest.mark.parametrize(
    ("moments", "gap"),
    [
        ((1.0, 9.0, 11.0, 13.0, 21.0, 30.0), 8.0),  # both ends lie in gaps
        ((1.0, 10.0, 11.0, 20.0, 40.0), 9.0),  # what touches the window does not overlap it
        ((12.0, 13.0), 7.0),  # nothing before, nothing after
        ((1.0, 9.5), 10.5),
        ((21.0,), 11.0),
        ((), 10.0),
        ((13.0, 1.0, 20.5, 9.0, 11.0), 7.5),  # of several callers
    ],
)
def test_the_longest_gap_is_one_that_overlaps_the_window(
    moments: tuple[float, ...], gap: float
) -> None:
    assert gpu_fault.longest_gap(moments, 10.0, 20.0) == gap


def run_of(good: tuple[gpu_fault.TimedCall, ...], *, error: str = "Faulted") -> gpu_fault.FaultRun:
    return gpu_fault.FaultRun(good, gpu_fault.TimedCall(10.0, 10.5, False, error), 1.0)


def test_only_right_results_end_an_outage() -> None:
    steady = tuple(gpu_fault.TimedCall(9 + i / 10, 9.05 + i / 10) for i in range(11))
    late = gpu_fault.TimedCall(10.02, 11.0)
    seen = run_of((*steady, late, gpu_fault.TimedCall(11.0, 12.0)))
    assert seen.outage_s == pytest.approx(12.0 - 11.0)
    assert seen.slowest_s == 1.0
    assert (seen.failed, seen.wrong, seen.lost) == (1, 0, 0)
    flawed = gpu_fault.TimedCall(10.02, 11.0, right=False)
    refused = gpu_fault.TimedCall(10.05, 11.2, right=False, error="EngineDied: it ended")
    seen = run_of((*steady, flawed, refused, gpu_fault.TimedCall(11.0, 12.0)))
    assert seen.outage_s == pytest.approx(12.0 - 10.05)
    assert (seen.failed, seen.wrong, seen.lost) == (1, 1, 1)
    assert "EngineDied" in seen.summary
    assert run_of((), error="").failed == 0


def test_calls_before_the_fault_are_none_of_the_slow_ones() -> None:
    assert run_of((gpu_fault.TimedCall(1.0, 9.0), gpu_fault.TimedCall(9.5, 10.2))).slowest_s == (
        pytest.approx(0.7)
    )


def test_the_budget_of_a_fault_is_judged_on_a_gpu_only() -> None:
    quick = tuple(gpu_fault.TimedCall(9 + i / 10, 9.1 + i / 10) for i in range(30))
    slow = (
        gpu_fault.TimedCall(9.0, 10.0),
        gpu_fault.TimedCall(10.1, 11.0),
        gpu_fault.TimedCall(11.0, 12.0),
    )
    lost = (*quick, gpu_fault.TimedCall(10.0, 10.1, right=False, error="EngineDied"))

    def passes(
        x: str, good: tuple[gpu_fault.TimedCall, ...], error: str = "Faulted", told_s: float = 0.0
    ) -> list[bool]:
        found = {(x, names.SEQUENTIAL): run_of(good, error=error)}
        return [line.passes for line in gpu_fault.budgets(GPU, found, told_s)]

    assert passes(gpu_fault.PREPARED, quick) == [True, True]
    assert passes(gpu_fault.PREPARED, slow) == [True, False]
    assert passes(gpu_fault.AT_ONCE, slow) == [True, True]
    assert passes(gpu_fault.PREPARED, slow, told_s=0.8) == [True, False]
    assert passes(gpu_fault.PREPARED, slow, told_s=0.9) == [True, True]
    never = gpu_fault.TimedCall(10.0, 12.0, right=False, error="TimedOut")
    assert passes(gpu_fault.AT_ONCE, (slow[0], never)) == [False, False]
    assert passes(gpu_fault.PREPARED, lost) == [False, True]
    assert passes(gpu_fault.PREPARED, quick, error="") == [False, True]
    found = {(gpu_fault.PREPARED, names.SEQUENTIAL): run_of(lost)}
    for bench in (QUICK, Bench(backend="opencl"), Bench(quick=True, backend="cuda")):
        assert not gpu_fault.budgets(bench, found, 0.0)


@pytest.mark.parametrize("rounds", [0, 1, 2, 7, 100])
def test_the_powers_of_a_step_are_its_repetition(rounds: int) -> None:
    x = 1
    for _ in range(rounds):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
    assert spun(rounds) == x


def timed(us: float) -> Samples:
    return Samples.of_us([us] * 10)


def test_budgets_of_a_gpu_pass_and_fail_by_what_was_measured() -> None:
    node = gpu_engines.THROUGH_NODE
    figures = {
        ("a call", names.BARE): 100.0,
        ("a call", names.SEQUENTIAL): 114.0,
        (gpu_engines.TO_PROCESS, names.SEQUENTIAL): 150.0,
        (node, names.SEQUENTIAL): 150.0,
        (node, names.concurrent(2)): 170.0,
    }
    lines = gpu_engines.matmul_budgets(GPU, {key: timed(us) for key, us in figures.items()})
    assert [line.passes for line in lines] == [True, False, True, False]
    launches = {gpu_engines.BARE_GRAPH: 100.0, names.SEQUENTIAL: 110.0, names.BARE: 290.0}
    many = {name: timed(us) for name, us in launches.items()}
    lines = gpu_engines.launch_budgets(GPU, 1500, many)
    assert [line.passes for line in lines] == [True, False]
    assert lines[1].why
    rates = {
        ("one block", names.SEQUENTIAL): 100.0,
        ("one block", names.concurrent(2)): 195.0,
        ("one block", names.concurrent(8)): 600.0,
        ("batch", names.SEQUENTIAL): 100.0,
        ("batch", names.concurrent(2)): 99.0,
    }
    assert [line.passes for line in gpu_sharing.budgets(GPU, rates)] == [True, False, True]


ON_THE_FAKE = """
import sys
from pathlib import Path
from tests.fake_driver import build
from tests.fake_driver.fake import Fake
fake = Fake("cuda", build.load("cuda", Path(sys.argv[1])), Path(sys.argv[1]))
fake.library.fake_set_memory(2 << 30)
from dandelion.bench.experiment import Bench
from dandelion.bench.experiments import gpu_branches, gpu_engines, gpu_memory, gpu_positions
from dandelion.bench.systems import engines
engines.GPU_OPTIONS["cuda"] = {"pool_bytes": "64M", "weights": "64M"}
bench = Bench(quick=True, backend="cuda")
LOCAL = (gpu_engines.launches, gpu_engines.deep, gpu_memory.constants, gpu_engines.cold)
for run in (*LOCAL, gpu_branches.side_by_side, gpu_positions.changing):
    found = run(bench)
    assert found.panels and not found.skips, found
    assert all(row.values["p50"] > 0 for row in found.panels[0].rows)
    print(run.__name__, len(found.panels[0].rows), len(found.budgets))
    assert fake.live() == {}, fake.live()

import contextlib, ctypes
import cuda.bindings.driver as cu
from dandelion.errors import BackendUnavailable
cu.cuMemsetD32Async = lambda place, word, n, stream: cu.cuMemsetD8Async(place, word, 4 * n, stream)
host = []
def allocate(size, flags):
    host.append(ctypes.create_string_buffer(size))
    return cu.CUresult(0), ctypes.addressof(host[-1])
cu.cuMemHostAlloc, cu.cuMemFreeHost = allocate, lambda address: (cu.CUresult(0),)
@contextlib.contextmanager
def no_node(bench, workers):  # engine processes would not have the fake
    raise BackendUnavailable("cuda", "a fake")
    yield
gpu_engines.gpu_node = no_node
engines.GPU_OPTIONS["cuda"] = {"pool_bytes": "300M", "weights": "64M"}
for run in (gpu_memory.memory, gpu_engines.hot_matmul):
    found = run(bench)
    print(run.__name__, [row.x for row in found.panels[0].rows], len(found.budgets))
    assert fake.live() == {}, fake.live()
"""


def _missing() -> str:
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        return "cuda-bindings"
    return build.missing()


@pytest.mark.skipif(bool(_missing()), reason=f"without {_missing()}")
def test_cuda_over_a_fake_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-W", "error", "-c", ON_THE_FAKE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "launches 6 2",
        "deep 2 1",
        "constants 3 0",
        "cold 1 1",
        "side_by_side 2 0",
        "changing 4 0",
        "memory ['64 MiB to the device', '64 MiB to the device', 'zeroing', 'zeroing'] 2",
        "hot_matmul ['a call', 'a call', 'a call and its zeroing', 'a call and its zeroing'] 1",
    ], done.stderr
