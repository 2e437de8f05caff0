"""Running experiments, the machine they run on, and ``dandelion bench``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dandelion.bench import experiment as experiments
from dandelion.bench import machine as machines
from dandelion.bench.experiment import Bench, Experiment
from dandelion.bench.machine import BenchDevices, device_name, processor_name
from dandelion.bench.records import Axis, ExperimentResult, Findings, Metric, Panel, Row, Unit

from dandelion.cli.main import main

PANEL = Panel(
    "p",
    "how long",
    Axis("size"),
    (Metric("p50", "median", Unit.US),),
    (Row("dandelion null", 1.0, {"p50": 3.5}), Row("raw ASGI", 1.0, {"p50": 7.0})),
)
GPU = BenchDevices("cuda", ("NVIDIA H200", "NVIDIA H200"), 141 << 30, {"driver": "580"})
Command = Callable[..., tuple[int, str, str]]


class Recorder:
    """A watcher that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def begin(self, experiment: Experiment, place: int, count: int) -> None:
        self.calls.append(("begin", experiment.name, place, count))

    def say(self, words: str) -> None:
        self.calls.append(("say", words))

    def done(self, result: ExperimentResult, saved: Path) -> None:
        self.calls.append(("done", result.experiment, saved.name))

    def failed(self, experiment: Experiment, error: Exception) -> None:
        self.calls.append(("failed", experiment.name, str(error)))


def good(bench: Bench) -> Findings:
    bench.say("half way")
    return Findings((PANEL,), scaled="small" if not bench.gpu else "")


def bad(bench: Bench) -> Findings:
    raise ZeroDivisionError("by nothing")


def known(name: str, run: Callable[[Bench], Findings] = good, **more: Any) -> Experiment:
    return Experiment(name, "data", "why?", run, **more)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs ``dandelion bench`` with experiments of this file; gives exit code and both outputs."""
    table = {e.name: e for e in (known("good"), known("bad", bad), known("gpu", needs_gpu=True))}
    monkeypatch.setattr(experiments, "all_experiments", lambda: table)
    monkeypatch.setattr(
        machines, "devices", lambda backends: BenchDevices(missing={"cuda": "no GPU"})
    )

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["bench", *(str(a) for a in arguments)])
        return (code, *capfd.readouterr())

    return run


# --- running ------------------------------------------------------------------------------------


def test_an_experiment_that_raises_does_not_stop_the_others(tmp_path: Path) -> None:
    recorder = Recorder()
    ticks = iter(range(100))
    results = experiments.run_all(
        [known("a"), known("b", bad), known("c")],
        devices=BenchDevices(), quick=True, folder=tmp_path / "new", watcher=recorder,
        clock=lambda: float(next(ticks)),
    )  # fmt: skip
    name = machines.machine_name()
    assert recorder.calls == [
        ("begin", "a", 1, 3), ("say", "half way"), ("done", "a", f"a-{name}.json"),
        ("begin", "b", 2, 3), ("failed", "b", "by nothing"),
        ("begin", "c", 3, 3), ("say", "half way"), ("done", "c", f"c-{name}.json"),
    ]  # fmt: skip
    assert [o.experiment for o in results] == ["a", "c"]
    assert results[0].duration_s == 1
    assert results[0].quick
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        f"a-{name}.json", f"c-{name}.json",
    ]  # fmt: skip


def test_a_result_is_saved_as_it_is(tmp_path: Path) -> None:
    result, *_ = experiments.run_all(
        [known("a", source="Fig. 1")], devices=GPU, quick=False, folder=tmp_path, watcher=Recorder()
    )
    saved = tmp_path / "a-h200-x2.json"
    assert msgspec.json.decode(saved.read_bytes(), type=ExperimentResult) == result
    assert result.backend == "cuda"
    assert result.found.scaled == ""
    assert result.machine["device"] == "2 x NVIDIA H200"
    assert result.machine["device memory"] == "141 GiB"
    assert result.source == "Fig. 1"


def test_what_needs_a_gpu_is_skipped_without_one(tmp_path: Path) -> None:
    def run(found: BenchDevices) -> ExperimentResult:
        result, *_ = experiments.run_all(
            [known("g", needs_gpu=True)],
            devices=found, quick=True, folder=tmp_path, watcher=Recorder(),
        )  # fmt: skip
        return result

    for without in (BenchDevices(), BenchDevices("opencl", ("cpu",))):
        assert run(without).found.panels == ()
        assert [s.what for s in run(without).found.skips] == ["g"]
    assert run(GPU).found.panels == (PANEL,)


def test_quick_figures_never_replace_those_of_a_checkout() -> None:
    assert experiments.default_folder(quick=False) == experiments.CHECKOUT_RESULTS
    assert experiments.default_folder(quick=True) == experiments.LOOSE_RESULTS


# --- the machine --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200, 141 GB", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("AMD Instinct MI300X", "mi300x"),
        ("something", "something"),
        ("", "device"),
    ],
)
def test_names_of_devices(description: str, name: str) -> None:
    assert device_name(description) == name


def test_names_of_processors() -> None:
    assert processor_name("AMD EPYC 9654 96-Core Processor") == "epyc"
    assert processor_name("Intel(R) Xeon(R) Platinum 8480+") == "xeon"
    assert processor_name("Intel(R) Core(TM) i7-1185G7") == "core"
    assert processor_name("a new one")


def test_devices_are_found_by_another_process() -> None:
    found = machines.devices(("no_such_backend", "opencl"))
    assert "no_such_backend" in found.missing
    assert found.backend in ("", "opencl")
    assert bool(found.names) == (found.backend == "opencl")


@pytest.mark.parametrize("program", [["false"], ["echo", "nonsense"], ["sleep", "60"]])
def test_a_driver_that_fails_is_a_missing_backend(
    program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "module", lambda *_: program)
    monkeypatch.setattr(machines, "_PROBE_S", 0.05)
    found = machines.devices(("cuda",))
    assert found.backend == ""
    assert found.missing.keys() == {"cuda"}


def test_the_machine_is_described() -> None:
    facts = machines.machine(BenchDevices())
    assert {"cpu", "cores", "memory", "system", "python", "numpy"} <= facts.keys()
    assert "device" not in facts


# --- the command line ---------------------------------------------------------------------------


def test_list(command: Command) -> None:
    code, out, _ = command("list")
    assert code == 0
    assert "good" in out
    assert "GPU" in out
    code, out, _ = command("list", "gpu", "--json")
    assert json.loads(out) == [
        {"name": "gpu", "group": "data", "question": "why?", "source": "", "needs_gpu": True}
    ]


def test_run_prints_keeps_and_says_what_failed(command: Command, tmp_path: Path) -> None:
    code, out, error = command("run", "--quick", "--out", tmp_path)
    assert code == 1
    assert "by nothing" in error
    assert "[1/3] good" in error
    assert "3.5" in out
    assert str(tmp_path) in out.replace("\n", "")
    assert len(list(tmp_path.iterdir())) == 2


def test_run_as_json(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("run", "good", "--json", "--out", tmp_path)
    assert code == 0
    told = json.loads(out)
    assert told["failed"] == {}
    (result,) = told["outcomes"]
    assert msgspec.convert(result, ExperimentResult).found.panels == (PANEL,)
    code, out, _ = command("run", "bad", "--json", "--out", tmp_path)
    assert code == 1
    assert json.loads(out)["failed"] == {"bad": "ZeroDivisionError: by nothing"}


def test_wrong_names(command: Command) -> None:
    code, _, error = command("run", "goof")
    assert code == 1
    assert "did you mean 'good'" in error
    code, _, error = command("run", "good", "--backend", "cuda")
    assert code == 1
    assert "no GPU" in error
    assert command("run", "--backend", "abacus")[0] == 2
    assert command()[0] == 2


def test_saved_results_are_drawn_reported_and_compared(command: Command, tmp_path: Path) -> None:
    for run in ("old", "new"):
        assert command("run", "good", "--out", tmp_path / run)[0] == 0
    code, out, _ = command("plot", tmp_path / "old", "--out", tmp_path / "pictures", "--json")
    assert code == 0
    assert json.loads(out)
    assert all(Path(path).stat().st_size for path in json.loads(out))
    page = tmp_path / "page.html"
    assert command("report", tmp_path / "old", "--out", page)[0] == 0
    assert "how long" in page.read_text()
    assert command("report", tmp_path / "old", "--out", tmp_path)[0] == 2
    code, out, _ = command("compare", tmp_path / "old", tmp_path / "new", "--json")
    assert code == 0
    assert [c["experiment"] for c in json.loads(out)["comparisons"]] == ["good"]
    assert "good" in command("compare", tmp_path / "old", tmp_path / "new")[1]


def test_without_a_path_the_last_run_is_reported(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "checkout" / "results"
    monkeypatch.setattr(experiments, "CHECKOUT_RESULTS", stored)
    monkeypatch.setattr(experiments, "LOOSE_RESULTS", tmp_path / "bench-results")
    (tmp_path / "pyproject.toml").touch()
    page = tmp_path / "page.html"
    code, _, error = command("report", "--out", page)
    assert code == 1
    assert "dandelion bench run" in error

    assert command("run", "good")[0] == 0
    (saved,) = stored.glob("*.json")
    old = json.loads(saved.read_bytes()) | {"date": "2020-01-01T00:00:00+00:00"}
    saved.write_text(json.dumps(old))
    assert command("run", "good", "--quick")[0] == 0
    code, _, error = command("report", "--out", page)
    assert code == 0
    assert "1 result in" in error
    assert f"{tmp_path / 'bench-results'}; {stored} has 1" in error
    assert "2020-01-01" not in page.read_text()

    assert command("run", "good")[0] == 0
    saved.write_text(json.dumps(json.loads(saved.read_bytes()) | {"date": "9999-01-01T00:00:00"}))
    assert command("report", "--out", page)[0] == 0
    assert "9999-01-01" in page.read_text()
    assert command("report", tmp_path / "bench-results", "--out", page)[0] == 0
    assert "9999-01-01" not in page.read_text()


def test_without_the_extra_pictures_are_missing_and_the_remedy_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("run", "good", "--out", tmp_path / "saved")[0] == 0
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "page.html"
    code, _, error = command("report", tmp_path / "saved", "--out", page)
    assert code == 0
    assert "how long" in page.read_text()
    assert "pip install 'dandelion-engine[bench]'" in error
    code, _, error = command("plot", tmp_path / "saved", "--out", tmp_path / "pictures")
    assert code == 1
    assert "pip install 'dandelion-engine[bench]'" in error
