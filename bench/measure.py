"""Measuring: samples, medians, ratios, and a record of the machine they hold for.

A benchmark is a module of this folder that answers one question and prints one table. Its result is
kept as JSON under ``bench/results/NAME-MACHINE.json``: what was measured, how often, the spread, on
which machine, at which commit. Figures are compared within one run only.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
_LIBRARIES = ("msgspec", "networkx", "numpy", "uvicorn", "uvloop")


class Sample(msgspec.Struct, frozen=True):
    """Repeated timings of one thing, in microseconds.

    Attributes:
        name: what was timed.
        count: how many timings.
        p50, p99, lowest: of the timings.
        per: each timing covered so many operations, and was divided by it.
        ratio: p50 over that of `baseline`, if there is one.
    """

    name: str
    count: int
    p50: float
    p99: float
    lowest: float
    per: int = 1
    baseline: str = ""
    ratio: float = 0.0
    budget: str = ""


class Report(msgspec.Struct, frozen=True):
    """What a benchmark found, with everything that it holds for."""

    benchmark: str
    question: str
    machine: dict[str, str]
    commit: str
    samples: tuple[Sample, ...]


def timed(
    name: str,
    action: Callable[[], object],
    *,
    count: int,
    per: int = 1,
    warm_up: int = 3,
    budget: str = "",
) -> Sample:
    """Time an action again and again.

    Args:
        name: what it is.
        action: is called `warm_up` + `count` times.
        count: how many timings count.
        per: operations in one call; timings are divided by it.
        warm_up: calls that do not count.
        budget: what it should keep, in words, for the table.
    """
    for _ in range(warm_up):
        action()
    timings_us = []
    for _ in range(count):
        start = time.perf_counter_ns()
        action()
        timings_us.append((time.perf_counter_ns() - start) / 1e3 / per)
    return summed_up(name, timings_us, per=per, budget=budget)


def summed_up(name: str, timings_us: Sequence[float], *, per: int = 1, budget: str = "") -> Sample:
    """Make a sample of timings that were taken elsewhere."""
    ordered = sorted(timings_us)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return Sample(
        name, len(ordered), statistics.median(ordered), p99, ordered[0], per, budget=budget
    )


def against(sample: Sample, baseline: Sample) -> Sample:
    """Give the sample with its ratio to a baseline of the same run."""
    return msgspec.structs.replace(sample, baseline=baseline.name, ratio=sample.p50 / baseline.p50)


def machine() -> dict[str, str]:
    """Describe the machine: processor, cores, system, versions."""
    cpu = platform.processor() or "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.+)", info.read_text())):
        cpu = found.group(1)
    return {
        "cpu": cpu,
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _LIBRARIES},
    }


def commit() -> str:
    """Name the commit of this checkout, with a + if it was changed; empty outside of git."""
    root = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=root, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def report(benchmark: str, question: str, samples: Sequence[Sample], keep: str = "") -> None:
    """Print the table; with `keep`, also store the JSON under that machine name."""
    found = Report(benchmark, question, machine(), commit(), tuple(samples))
    table = Table(title=f"{benchmark}: {question}", title_justify="left", caption_justify="left")
    table.add_column("what")
    for column in ("p50 us", "p99 us", "lowest us", "n", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("budget")
    for s in found.samples:
        ratio = f"{s.ratio:.2f}x {s.baseline}" if s.baseline else ""
        figures = (f"{s.p50:.1f}", f"{s.p99:.1f}", f"{s.lowest:.1f}", str(s.count))
        table.add_row(s.name, *figures, ratio, s.budget)
    table.caption = f"{found.machine['cpu']}, {found.machine['cores']} cores, {found.commit}"
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if keep:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{benchmark}-{keep}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        print(f"kept in {path.relative_to(RESULTS.parent.parent)}")


def keep_name(arguments: Sequence[str] = tuple(sys.argv[1:])) -> str:
    """Read ``--keep MACHINE`` from the command line."""
    return arguments[1] if len(arguments) == 2 and arguments[0] == "--keep" else ""
