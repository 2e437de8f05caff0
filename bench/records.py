"""What an experiment found: records that are kept as JSON, compared, drawn and reported.

An `Outcome` is one run of one experiment on one machine. It holds `Panel`s, each of which is one
table and one picture: rows of measured values, one for each system at each value of x. Beside them
stand the claims of the papers, with what was measured here, and the lines of the budget, passed or
failed. Values are compared within one outcome only, since machines differ and one machine differs
from day to day.

Units are part of a metric, never of a name: times in microseconds, rates in 1/s, sizes in bytes.
"""

from __future__ import annotations

import enum

import msgspec


class Unit(enum.Enum):
    """Of an axis or a metric."""

    US = "us"
    PER_SECOND = "1/s"
    BYTES = "B"
    BYTES_PER_SECOND = "B/s"
    RATIO = "x"
    COUNT = ""


class Look(enum.Enum):
    """How a panel is drawn."""

    LINES = "lines"  # over a numeric x, one line for each system
    BARS = "bars"  # x are words, one bar for each system
    STACKED = "stacked"  # x are words, the metrics are stages that add up
    TABLE = "table"  # no picture


class Axis(msgspec.Struct, frozen=True):
    """What x is.

    Attributes:
        name: for people, like "offered load".
        unit: of its values.
        logarithmic: whether a picture should draw it so.
    """

    name: str
    unit: Unit = Unit.COUNT
    logarithmic: bool = False


class Metric(msgspec.Struct, frozen=True):
    """One column of a panel.

    Attributes:
        key: of `Row.values`, like "p50".
        name: for people, like "median latency".
        unit: of its values.
        logarithmic: whether a picture should draw it so.
        drawn: whether a picture shows it; tables show all.
        better: "lower", "higher", or "" where neither is.
    """

    key: str
    name: str
    unit: Unit
    logarithmic: bool = False
    drawn: bool = True
    better: str = "lower"


class Row(msgspec.Struct, frozen=True):
    """What one system did at one x.

    Attributes:
        system: like "dandelion concurrent, 2 workers". The same name means the same system, and the
            same colour, in all outcomes; see `dandelion.bench.systems`.
        x: a number for LINES, a word otherwise.
        values: by the key of a metric; a metric that was not measured is absent.
        count: how many samples stand behind the values.
        errors: how many further calls failed.
        note: what a reader must know of this row, like "client was the bottleneck".
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
        key: unique in its outcome; names the files of the picture.
        title: a sentence for people.
        x: what x is.
        metrics: columns, in order.
        rows: in the order of a table.
        look: how it is drawn.
        baseline: system that ratios are made to; empty for none.
    """

    key: str
    title: str
    x: Axis
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    look: Look = Look.LINES
    baseline: str = ""


class Claim(msgspec.Struct, frozen=True):
    """What a paper says, and what was measured here.

    Attributes:
        source: like "GPU thesis, Fig. 5.1".
        says: the paper's claim with its figures, in our words.
        measured: ours, with its figures, on this machine.
        holds: whether it holds here too; None where this machine cannot tell, and `measured` says
            why.
    """

    source: str
    says: str
    measured: str
    holds: bool | None = None


class Budget(msgspec.Struct, frozen=True):
    """A line of the budget.

    Attributes:
        path: what it is about, as ARCHITECTURE.md words it.
        limit: the bar, like "<= 1.6x".
        measured: like "1.64x".
        passes: whether it was kept.
        why: what the profile says, where it was not kept.
    """

    path: str
    limit: str
    measured: str
    passes: bool
    why: str = ""


class Skip(msgspec.Struct, frozen=True):
    """A system or a part that was not measured, and why: "not installed: pip install ray"."""

    what: str
    reason: str


class Found(msgspec.Struct, frozen=True):
    """What an experiment's function gives; the runner adds the rest.

    Attributes:
        panels: at least one, unless everything was skipped.
        scaled: how sizes were reduced for this machine or for a quick run; empty if they were not.
        notes: sentences for readers of the report.
    """

    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...] = ()
    budgets: tuple[Budget, ...] = ()
    skips: tuple[Skip, ...] = ()
    scaled: str = ""
    notes: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """One run of one experiment; the content of ``bench/results/EXPERIMENT-MACHINE.json``.

    Attributes:
        experiment, group, question, source: of the `Experiment`.
        machine: processor, cores, device, system and versions, for people.
        machine_name: short, for file names, like "h200".
        backend: of the GPU functions, like "cuda"; empty where there are none.
        commit: of the checkout, with a + if it was changed.
        date: ISO 8601, UTC.
        duration_s: of the whole experiment.
        quick: whether it was a quick run, whose figures are only indications.
        found: everything measured.
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
    found: Found
