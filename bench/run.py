"""Running experiments: one after the other, each with its outcome kept before the next begins.

Nothing else runs in this process meanwhile: the progress is shown only when an experiment says
something, since a thread that refreshes it would be part of what is measured.
"""

from __future__ import annotations

import datetime
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from .experiment import Bench, Experiment
from .machine import Devices, commit, machine, machine_name
from .records import Found, Outcome, Skip

CHECKOUT_RESULTS = Path(__file__).resolve().parent / "results"
LOOSE_RESULTS = Path("bench-results")


class Watcher(Protocol):
    """Who hears how a run proceeds."""

    def begin(self, experiment: Experiment, place: int, count: int) -> None:
        """Hear that experiment `place` of `count`, counted from 1, begins."""

    def say(self, words: str) -> None:
        """Hear what the experiment is at."""

    def done(self, outcome: Outcome, kept: Path) -> None:
        """Hear what it found, and where that is kept."""

    def failed(self, experiment: Experiment, error: Exception) -> None:
        """Hear that it raised."""


def run_all(
    experiments: Sequence[Experiment],
    *,
    found: Devices,
    quick: bool,
    folder: Path,
    watcher: Watcher,
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Run experiments and keep their outcomes.

    One that raises is a defect of that experiment: the watcher hears of it, and the others go on.

    Args:
        experiments: in the order in which they run.
        found: the devices of the backend for GPU functions.
        quick: everything in seconds.
        folder: where ``EXPERIMENT-MACHINE.json`` is kept; made if it is not there.
        watcher: who hears.
        clock: of durations, in seconds.

    Returns:
        Outcomes of those that did not raise.
    """
    outcomes = []
    bench = Bench(quick=quick, backend=found.backend, say=watcher.say)
    for place, experiment in enumerate(experiments, 1):
        watcher.begin(experiment, place, len(experiments))
        gc.collect()  # what the last one left is not to be collected in the midst of this one
        begin = clock()
        try:
            answer = _answer(experiment, bench)
        except Exception as error:  # whatever it is, the next experiment can still be run
            watcher.failed(experiment, error)
            continue
        outcome = _outcome(experiment, bench, answer, found, clock() - begin)
        outcomes.append(outcome)
        watcher.done(outcome, keep(outcome, folder))
    return outcomes


def _answer(experiment: Experiment, bench: Bench) -> Found:
    if experiment.needs_gpu and not bench.gpu:
        here = f"here is {bench.backend}" if bench.backend else "there is none here"
        return Found((), skips=(Skip(experiment.name, f"it needs a GPU with CUDA or HIP; {here}"),))
    answer: Found = experiment.run(bench)
    return answer


def _outcome(
    experiment: Experiment, bench: Bench, answer: Found, found: Devices, duration_s: float
) -> Outcome:
    return Outcome(
        experiment=experiment.name,
        group=experiment.group,
        question=experiment.question,
        source=experiment.source,
        machine=machine(found),
        machine_name=machine_name(found),
        backend=bench.backend,
        commit=commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        duration_s=round(duration_s, 3),
        quick=bench.quick,
        found=answer,
    )


def keep(outcome: Outcome, folder: Path) -> Path:
    """Write an outcome; a file of the same experiment and machine is replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.experiment}-{outcome.machine_name}.json"
    fresh = path.with_suffix(".json.new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n")
    fresh.replace(path)
    return path


def default_folder(*, quick: bool) -> Path:
    """Give the folder where outcomes are kept if none is named.

    A checkout keeps full runs under ``bench/results``. Quick runs, whose figures are only
    indications, never replace those.
    """
    if not quick and (CHECKOUT_RESULTS.parent.parent / "pyproject.toml").exists():
        return CHECKOUT_RESULTS
    return LOOSE_RESULTS
