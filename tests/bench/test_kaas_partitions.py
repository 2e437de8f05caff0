"""Processes of tenants: what they answer, who is alive, in which order they are asked."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from pathlib import Path

import pytest
from dandelion.bench.systems import kaas_graphs, names, tenants
from dandelion.bench.systems.kaas_shapes import RESNET50, Scale, TunedShape, tuned
from dandelion.bench.systems.tenant_process import TenantProcess, TenantStart
from dandelion.bench.systems.tenants import Exclusive, FifoLock, TimeSliced

from dandelion.errors import BackendUnavailable, EngineDied, TimedOut
from tests.bench.kaas_oracle import expected
from tests.fake_driver import build

pytest.importorskip("pyopencl")

GIVEN = tuned(Scale(10, 10.0, 4096.0, 64.0).of(RESNET50), 3, 2, threads=16)
BODY = kaas_graphs.body(GIVEN.shape, 1)
ROOT = Path(__file__).resolve().parent.parent.parent


def reply(tenant: int, given: TunedShape = GIVEN) -> bytes:
    return expected(given, tenant, BODY)


def test_a_process_answers_with_its_tenants_constants_and_times_others() -> None:
    with TenantProcess(TenantStart("opencl", GIVEN, 2)) as process:
        assert process.run(BODY) == reply(2)
        ready = process.wait()
        assert set(ready.stages_us) == {"start", "device", "load"}
        assert min(ready.stages_us.values()) > 0
        assert ready.compute_units > 0
        assert len(process.timed(GIVEN, 3)) == 3
        assert process.run(BODY) == reply(2)


def test_a_process_that_ended_is_an_error() -> None:
    with TenantProcess(TenantStart("opencl", GIVEN)) as process:
        process.wait()
        process.close()
        with pytest.raises((EngineDied, ValueError)):
            process.run(BODY)


def test_a_request_that_makes_no_sense_is_an_error() -> None:
    with (
        TenantProcess(TenantStart("opencl")) as process,
        pytest.raises(EngineDied, match="no shape"),
    ):
        process.run(BODY)


def test_a_backend_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    monkeypatch.setenv("OCL_ICD_FILENAMES", "")
    fails = "import sys; sys.modules['pyopencl'] = None; "
    program = ("-c", f"{fails}from dandelion.bench.systems import tenant_process as t; t.main()")
    with (
        TenantProcess(TenantStart("opencl", GIVEN), program=program) as process,
        pytest.raises(BackendUnavailable, match="pyopencl"),
    ):
        process.wait()


def test_exclusive_processes_are_one_at_a_time() -> None:
    with Exclusive("opencl", GIVEN) as system:
        assert [system.call(tenant, BODY) for tenant in (0, 0, 1)] == [reply(0), reply(0), reply(1)]
        assert system.switches == 2
        assert system._alive is not None
        assert system._alive[0] == 1
        system.give_up(True)
        with pytest.raises(TimedOut):
            system.call(0, BODY)
        assert system.switches == 2
        system.give_up(False)
        system.close()
        assert system.call(1, BODY) == reply(1)
        assert system.switches == 3


def test_time_sliced_processes_are_all_alive() -> None:
    with TimeSliced("opencl", GIVEN, 2) as system:
        pids = [process._process.pid for process in system._processes]
        assert [system.call(tenant, BODY) for tenant in (1, 0, 1)] == [reply(1), reply(0), reply(1)]
        assert [process._process.poll() for process in system._processes] == [None, None]
        assert system.name == names.TIME_SLICED
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("count", "percent"), [(1, "100"), (2, "50"), (3, "38"), (4, "25"), (8, "13"), (16, "13")]
)
def test_partitions_have_eighths(monkeypatch: pytest.MonkeyPatch, count: int, percent: str) -> None:
    closed: list[str] = []

    class Daemon:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": "/pipe"}  # noqa: RUF012 - of one test

        def close(self) -> None:
            closed.append("daemon")

    class Process:
        def __init__(self, start: TenantStart, environment: dict[str, str]) -> None:
            assert environment == {
                "CUDA_MPS_PIPE_DIRECTORY": "/pipe",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
            }

        def wait(self) -> None:
            pass

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None:
            closed.append("process")

    monkeypatch.setattr(tenants, "MpsDaemon", Daemon)
    monkeypatch.setattr(tenants, "TenantProcess", Process)
    with tenants.mps_partitions("cuda", GIVEN, count) as system:
        assert system.name == names.MPS
    assert closed == ["process"] * count + ["daemon"]


def test_partitions_need_an_nvidia_device() -> None:
    assert "opencl" in tenants.mps_missing("opencl")


def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    turns = FifoLock()
    order: list[int] = []

    def take(number: int) -> None:
        with turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            end = time.monotonic() + 10
            while len(turns._queue) < number + 2:
                assert time.monotonic() < end
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(8))


_MISSING = build.missing() or ("" if importlib.util.find_spec("cuda.bindings") else "cuda-bindings")


@pytest.mark.skipif(bool(_MISSING), reason=f"without {_MISSING}")
@pytest.mark.parametrize("graph", [False, True], ids=["launches", "graph"])
def test_a_process_on_cuda(tmp_path: Path, graph: bool) -> None:
    text = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from tests.fake_driver import build\n"
        f"build.load('cuda', Path({str(tmp_path)!r}))\n"
        "from dandelion.bench.systems import tenant_process\n"
        "tenant_process.main()\n"
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    start = TenantStart("cuda", GIVEN, 1, graph)
    with TenantProcess(start, environment, ("-c", text)) as process:
        assert process.wait().graphs
        assert [process.run(BODY), process.run(BODY)] == [reply(1)] * 2
        assert len(process.timed(GIVEN, 2)) == 2
