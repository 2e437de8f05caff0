"""Experiments: what they are, what they get, and how they are run.

An experiment answers one question on the machine on which it runs. It is a function in a module of
``bench/experiments/`` with a decorator::

    @experiment("chain", group="dispatcher", question="what does one application cost?")
    def chain(bench: Bench) -> Findings:
        ...

It measures all systems that it compares in one run, in turns, with the sizes that `Bench.pick`
gives. It takes minutes at most and leaves nothing behind. A missing device, library or peer is a
`Skip`, not an error.
"""

from __future__ import annotations

import datetime
import difflib
import gc
import importlib
import pkgutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from dandelion.errors import BackendUnavailable, InvalidInput, Unknown

from . import experiments
from .machine import BenchDevices, commit, machine, machine_name
from .records import ExperimentResult, Findings, Skip, read_results, save_result

T = TypeVar("T")

GROUPS = {
    "harness": "is the harness right?",  # saved results only; tests/bench has it now
    "dispatcher": "what does the engine add to a function?",
    "data": "what do data, memory and cold starts cost?",
    "sandbox": "what does untrusted code cost?",
    "thesis": "the figures of the GPU thesis for Dandelion",
    "plover": "the tables of PyPlover",
    "kaas": "the figures of KaaS, with synthetic graphs of the same shape",
    "kaas_load": "the figures of KaaS with many tenants at once",
    "knix": "the experiments of KNIX on a shared GPU",
    "sharing": "how do tenants share a device?",
    "cluster": "what does a call on another node cost, and what do more nodes bring?",
    "models": "how are exported models served?",
    "gpu": "what do the GPU engines cost over bare loops?",
}
"""Groups of experiments, and what each asks."""

NO_DEVICE = "no backend for GPU functions works here: pip install dandelion-engine[opencl]"
CHECKOUT_RESULTS = Path(__file__).resolve().parent / "results"
LOOSE_RESULTS = Path("bench-results")


@dataclass(slots=True)
class Bench:
    """What an experiment gets.

    Attributes:
        quick: everything in seconds; the values are indications.
        backend: which runs GPU functions here: "cuda", "hip", "opencl", or "" for none.
        say: shows progress in a few words, like "25 rps, 2 workers"; called often.
        seed: for everything random.
    """

    quick: bool = False
    backend: str = ""
    say: Callable[[str], None] = field(default=lambda _: None)
    seed: int = 1

    @property
    def gpu(self) -> bool:
        """Whether there is a real GPU; OpenCL on processors is none."""
        return self.backend in ("cuda", "hip")

    @property
    def judges(self) -> bool:
        """Whether values are held against budgets: those of a full run on a real GPU."""
        return self.gpu and not self.quick

    def pick(self, quick: T, small: T, full: T) -> T:
        """Choose a size: of a quick run, of a machine without a GPU, or of one with a GPU."""
        if self.quick:
            return quick
        return full if self.gpu else small


Measure: TypeAlias = Callable[[Bench], Findings]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question and the function that answers it.

    Attributes:
        name: unique; for the command line and file names.
        group: key of `GROUPS`.
        source: figure or table of a paper that it repeats; empty for our own.
        needs_gpu: whether it makes no sense on a processor.
        needs_device: whether it needs a backend for GPU functions, which may use processors.
    """

    name: str
    group: str
    question: str
    run: Measure
    source: str = ""
    needs_gpu: bool = False
    needs_device: bool = False

    def measure(self, bench: Bench) -> Findings:
        """Run it, if the machine has what it needs."""
        if self.needs_gpu and not bench.gpu:
            here = f"here is {bench.backend}" if bench.backend else "there is none here"
            return self._skipped(f"it needs a GPU with CUDA or HIP; {here}")
        if self.needs_device and not bench.backend:
            return self._skipped(NO_DEVICE)
        try:
            return self.run(bench)
        except BackendUnavailable as error:
            return self._skipped(str(error))

    def _skipped(self, reason: str) -> Findings:
        return Findings((), skips=(Skip(self.name, reason),))


_known: dict[str, Experiment] = {}


def experiment(
    name: str, *, group: str, question: str, source: str = "", needs_gpu: bool = False,
    needs_device: bool = False,
) -> Callable[[Measure], Measure]:  # fmt: skip
    """Register a function as an experiment."""
    assert group in GROUPS, group

    def known(run: Measure) -> Measure:
        assert name not in _known, f"two experiments are named {name}"
        _known[name] = Experiment(
            name, group, question, run, source, needs_gpu, needs_device
        )  # fmt: skip
        return run

    return known


def all_experiments() -> dict[str, Experiment]:
    """Load every module of ``bench/experiments``, and list experiments by group and name."""
    for module in pkgutil.iter_modules(experiments.__path__, experiments.__name__ + "."):
        importlib.import_module(module.name)
    order = list(GROUPS)
    ranked = sorted(_known.values(), key=lambda e: (order.index(e.group), e.name))
    return {e.name: e for e in ranked}


def chosen(names: list[str]) -> list[Experiment]:
    """Find experiments by their names or groups; without names, all of them.

    Raises:
        Unknown: there is none of that name.
    """
    known = all_experiments()
    valid = [*known, *dict.fromkeys(e.group for e in known.values())]
    unknown = [n for n in names if n not in valid]
    if unknown:
        near = difflib.get_close_matches(unknown[0], valid, 1)
        raise Unknown("experiment", unknown[0], nearest=near[0] if near else None)
    return [e for e in known.values() if not names or e.name in names or e.group in names]


class Watcher(Protocol):
    """Is told how a run proceeds. Nothing is shown between these calls: it would be measured."""

    def begin(self, experiment: Experiment, place: int, count: int) -> None:
        """Experiment `place` of `count`, counted from 1, begins."""

    def say(self, words: str) -> None:
        """The experiment has reached this part."""

    def done(self, result: ExperimentResult, saved: Path) -> None:
        """It has a result, which is saved there."""

    def failed(self, experiment: Experiment, error: Exception) -> None:
        """It raised."""


def run_all(
    experiments: Sequence[Experiment],
    *,
    devices: BenchDevices,
    quick: bool,
    folder: Path,
    watcher: Watcher,
    clock: Callable[[], float] = time.monotonic,
) -> list[ExperimentResult]:
    """Run experiments in order, and save each result before the next one begins.

    An experiment that raises is a defect: the watcher is told, and the others are run.

    Args:
        experiments: in the order in which they run.
        devices: of the backend for GPU functions.
        quick: everything in seconds.
        folder: for results; made if it is not there.
        watcher: is told of everything.
        clock: of durations, in seconds.
    """
    results = []
    bench = Bench(quick=quick, backend=devices.backend, say=watcher.say)
    for place, one in enumerate(experiments, 1):
        watcher.begin(one, place, len(experiments))
        gc.collect()  # garbage of the last one shall not be collected during this one
        begin = clock()
        try:
            findings = one.measure(bench)
        except Exception as error:  # whatever it is, the next experiment can still be run
            watcher.failed(one, error)
            continue
        result = ExperimentResult(
            one.name, one.group, one.question, one.source, machine(devices), machine_name(devices),
            bench.backend, commit(), datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
            round(clock() - begin, 3), quick, findings,
        )  # fmt: skip
        results.append(result)
        watcher.done(result, save_result(result, folder))
    return results


def default_folder(*, quick: bool) -> Path:
    """Give the folder for results if none is named.

    A checkout has full runs under ``bench/results``; quick runs never replace those.
    """
    if not quick and (CHECKOUT_RESULTS.parent.parent / "pyproject.toml").exists():
        return CHECKOUT_RESULTS
    return LOOSE_RESULTS


def latest_results() -> tuple[list[ExperimentResult], Path, dict[Path, int]]:
    """Read the folder of `default_folder` that has the newest result: that of the last run.

    Returns:
        Its results, its path, and the numbers of results in other default folders.

    Raises:
        InvalidInput: no folder has results, or a file cannot be read.
    """
    folders = dict.fromkeys(default_folder(quick=quick) for quick in (False, True))
    found = {folder: read_results(folder) for folder in folders if any(folder.glob("*.json"))}
    if not found:
        message = "there are no results of experiments"
        raise InvalidInput(
            " or ".join(map(str, folders)), message, "begin with 'dandelion bench run --quick'"
        )
    latest = max(found, key=lambda folder: max(result.date for result in found[folder]))
    others = {folder: len(results) for folder, results in found.items() if folder != latest}
    return found[latest], latest, others
