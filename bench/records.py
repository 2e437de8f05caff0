"""Records of what experiments found: saved as JSON, compared, drawn and reported.

An `ExperimentResult` is one run of one experiment on one machine. Each of its `Panel`s is one table
and one picture: a row of values for each system at each value of x. Beside them are the claims of
papers with what was measured here, and the budgets. Values are compared within one result only,
since machines differ, and one machine differs from day to day.

Times are in microseconds, rates in 1/s and sizes in bytes.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from dandelion.errors import InvalidInput


class Unit(enum.Enum):
    """Unit of an axis or a metric."""

    US = "us"
    PER_SECOND = "1/s"
    BYTES = "B"
    BYTES_PER_SECOND = "B/s"
    RATIO = "x"
    COUNT = ""


class Plot(enum.Enum):
    """How a panel is drawn."""

    LINES = "lines"  # over a numeric x, one line for each system
    BARS = "bars"  # x are words, one bar for each system
    STACKED = "stacked"  # x are words, the metrics are stages that add up
    TABLE = "table"  # no picture


class Axis(msgspec.Struct, frozen=True):
    """Name and unit of x, and whether a picture has it logarithmic."""

    name: str
    unit: Unit = Unit.COUNT
    logarithmic: bool = False


class Metric(msgspec.Struct, frozen=True):
    """One column of a panel.

    Attributes:
        key: of `Row.values`, like "p50".
        name: for people, like "median latency".
        logarithmic: whether a picture has it so.
        drawn: whether a picture has it at all; tables have every metric.
        better: "lower", "higher", or "" where neither is.
    """

    key: str
    name: str
    unit: Unit
    logarithmic: bool = False
    drawn: bool = True
    better: str = "lower"


class Row(msgspec.Struct, frozen=True):
    """Values of one system at one x.

    Attributes:
        system: its name and colour are the same in all results; see `dandelion.bench.systems`.
        x: a number for LINES, a word otherwise.
        values: by the key of a metric; a metric that was not measured is absent. The spread of
            metric ``KEY`` are the values ``KEY_low`` and ``KEY_high``.
        count: number of samples behind the values.
        errors: number of further calls that failed.
        note: what a reader has to know of this row, like "client was the bottleneck".
    """

    system: str
    x: float | str
    values: dict[str, float]
    count: int = 0
    errors: int = 0
    note: str = ""


class Panel(msgspec.Struct, frozen=True):
    """One table and one picture.

    Attributes:
        key: unique in its result; names the files of the picture.
        title: a sentence for people.
        metrics, rows: columns and rows, in order.
        baseline: system that ratios are made to; empty for none.
    """

    key: str
    title: str
    x: Axis
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    look: Plot = Plot.LINES
    baseline: str = ""


class Claim(msgspec.Struct, frozen=True):
    """What a paper says, and what was measured here.

    Attributes:
        source: like "GPU thesis, Fig. 5.1".
        says: the paper's claim with its figures, in our words.
        measured: ours, with its figures, on this machine.
        holds: None where this machine cannot tell, and `measured` says why.
    """

    source: str
    says: str
    measured: str
    holds: bool | None = None


class Budget(msgspec.Struct, frozen=True):
    """A limit that we set ourselves, such as "<= 1.6x", and what was measured, such as "1.64x".

    Attributes:
        path: what it is about.
        why: why it was not met.
    """

    path: str
    limit: str
    measured: str
    passes: bool
    why: str = ""


def at_most(
    path: str, measured: float, limit: float, unit: str, why: str = "", *, digits: str = ".2f",
    of: str = "",
) -> Budget:  # fmt: skip
    """Make a budget with an upper limit, whose text is that of the unit and `of`."""
    passes = measured <= limit
    text = f"<= {limit:g}{unit}{of}"
    return Budget(path, text, f"{measured:{digits}}{unit}", passes, "" if passes else why)


def at_least(path: str, measured: float, limit: float, unit: str, why: str = "") -> Budget:
    """Make a budget with a lower limit."""
    passes = measured >= limit
    text = f">= {limit:g}{unit}"
    return Budget(path, text, f"{measured:.3g}{unit}", passes, "" if passes else why)


class Skip(msgspec.Struct, frozen=True):
    """A system or a part that was not measured, and why: "not installed: pip install ray"."""

    what: str
    reason: str


class Findings(msgspec.Struct, frozen=True):
    """What the function of an experiment returns.

    Attributes:
        panels: at least one, unless everything was skipped.
        scaled: how sizes were reduced for this machine or a quick run; empty if they were not.
        notes: sentences for readers of the report.
    """

    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...] = ()
    budgets: tuple[Budget, ...] = ()
    skips: tuple[Skip, ...] = ()
    scaled: str = ""
    notes: tuple[str, ...] = ()


class ExperimentResult(msgspec.Struct, frozen=True):
    """One run of one experiment; the content of ``bench/results/EXPERIMENT-MACHINE.json``.

    Attributes:
        experiment, group, question, source: of the `Experiment`.
        machine: processor, cores, device, system and versions, for people.
        machine_name: short, for file names, like "h200".
        backend: of the GPU functions, like "cuda"; empty where there are none.
        commit: of the checkout, with a + if it was changed.
        date: ISO 8601, UTC.
        quick: a quick run, whose values are indications only.
    """

    experiment: str
    group: str
    question: str
    source: str
    machine: dict[str, str]
    machine_name: str
    backend: str
    commit: str
    date: str
    duration_s: float
    quick: bool
    found: Findings


def save_result(result: ExperimentResult, folder: Path) -> Path:
    """Write a result; a file of the same experiment and machine is replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.experiment}-{result.machine_name}.json"
    fresh = path.with_suffix(".json.new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    fresh.replace(path)
    return path


def read_results(path: Path) -> list[ExperimentResult]:
    """Read a result from a file, or all results of a folder, ordered by their names.

    JSON of another kind in a folder is ignored.

    Raises:
        InvalidInput: a file, which `where` names, cannot be read or is not a result, or the folder
            has none.
    """
    if not path.is_dir():
        return [_read(path)]
    found = [_read(file) for file in sorted(path.glob("*.json")) if _is_result(file)]
    if not found:
        raise InvalidInput(str(path), "there is no result of an experiment in this folder")
    return found


def _is_result(path: Path) -> bool:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}") from None
    return isinstance(document, dict) and "experiment" in document


def _read(path: Path) -> ExperimentResult:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExperimentResult)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(str(path), f"is not a result of an experiment: {error}") from None
