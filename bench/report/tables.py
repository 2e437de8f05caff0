"""The table of a panel as text, and everything that an experiment found in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ..records import ExperimentResult, Findings, Metric, Panel, Plot, Row, Unit
from .units import NOTHING, bounds, clean, figure, number, spread, with_ends

VERDICTS = {True: "holds", False: "does not hold", None: "cannot tell"}
"""Of a claim, for people."""

_COLOURS = {True: "green", False: "red", None: "yellow"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are aligned to the right, words to the left."""

    title: str
    figures: bool = False


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table as text; every row has a cell for each column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


_Part = tuple[Column, Callable[[Row], str]]


def table_of(panel: Panel) -> TextTable:
    """Write a panel as a table.

    Columns without content are left out: metrics that no row has, counts and errors that are all
    zero, an x that is always empty.
    """
    parts = _labels(panel) + _metrics(panel) + _further(panel)
    columns = tuple(column for column, _ in parts)
    return TextTable(columns, tuple(tuple(cell(row) for _, cell in parts) for row in panel.rows))


def measured(row: Row, key: str) -> float | None:
    """Give a row's finite value of a metric, or None."""
    value = row.values.get(key)
    return value if value is not None and math.isfinite(value) else None


def ratio_to_baseline(panel: Panel, row: Row) -> float | None:
    """Divide a row's value of the first metric that is no ratio by the baseline's at the same x.

    A baseline that was measured at one x only is the baseline of all. None for the baseline itself,
    and where either was not measured.
    """
    own = [m for m in panel.metrics if m.unit is not Unit.RATIO]
    if not panel.baseline or not own or row.system == panel.baseline:
        return None
    bars = [r for r in panel.rows if r.system == panel.baseline]
    same = [r for r in bars if r.x == row.x] or (bars if len(bars) == 1 else [])
    over, under = measured(row, own[0].key), measured(same[0], own[0].key) if same else None
    return over / under if over is not None and under else None


def stages_of(panel: Panel) -> tuple[Metric, ...]:
    """Give the metrics of a stacked panel that add up: drawn ones, of the first one's unit."""
    drawn = [m for m in panel.metrics if m.drawn]
    if panel.look is not Plot.STACKED or not drawn:
        return ()
    return tuple(m for m in drawn if m.unit is drawn[0].unit)


def total_of(row: Row, stages: Sequence[Metric]) -> float | None:
    """Add up the stages of a row; None where none was measured."""
    values = [v for v in (measured(row, s.key) for s in stages) if v is not None]
    return sum(values) if values else None


def _labels(panel: Panel) -> list[_Part]:
    system: _Part = (Column("system"), lambda r: clean(r.system) or NOTHING)
    if all(r.x == "" for r in panel.rows):
        return [system]
    numeric = all(not isinstance(r.x, str) for r in panel.rows)
    title = clean(panel.x.name) or "x"
    x: _Part = (Column(title, numeric), lambda r: number(r.x, panel.x.unit) or NOTHING)
    return [x, system] if panel.look in (Plot.BARS, Plot.STACKED) else [system, x]


def _metrics(panel: Panel) -> list[_Part]:
    known = [m for m in panel.metrics if any(m.key in r.values for r in panel.rows)]
    parts: list[_Part] = [
        (Column(clean(m.name) or clean(m.key), True), partial(spread, metric=m)) for m in known
    ]
    stages = stages_of(panel)
    if len(stages) > 1:
        unit = stages[0].unit
        parts.append((Column("total", True), lambda r: figure(total_of(r, stages), unit)))
    own = any(m.key == "ratio" for m in panel.metrics)
    if not own and any(ratio_to_baseline(panel, r) is not None for r in panel.rows):
        title = f"against {clean(panel.baseline)}"
        parts.append((Column(title, True), partial(_against, panel)))
    return parts


def _against(panel: Panel, row: Row) -> str:
    return with_ends(ratio_to_baseline(panel, row), bounds(row.values, "ratio"), Unit.RATIO)


def _further(panel: Panel) -> list[_Part]:
    parts: list[_Part] = []
    if any(r.count for r in panel.rows):
        parts.append((Column("samples", True), lambda r: figure(r.count, Unit.COUNT)))
    if any(r.errors for r in panel.rows):
        parts.append((Column("errors", True), lambda r: figure(r.errors, Unit.COUNT)))
    if any(r.note for r in panel.rows):
        parts.append((Column("note"), lambda r: clean(r.note)))
    return parts


def print_result(result: ExperimentResult, console: Console) -> None:
    """Print everything that one run of an experiment found, none of it as markup."""
    console.print()
    console.print(Text(f"{clean(result.experiment)}: {clean(result.question)}", style="bold"))
    parts = [result.source, result.machine_name, result.backend, result.commit, result.date]
    origin = ", ".join(p for p in (*parts, f"took {result.duration_s:.1f} s") if p)
    console.print(Text(clean(origin), style="dim"))
    for warning in warnings_of(result):
        console.print(Text(warning, style="bold yellow"))
    for panel in result.found.panels:
        console.print()
        console.print(Text(clean(panel.title), style="underline"))
        if panel.rows:
            table = table_of(panel)
            print_table(console, table.columns, table.rows)
        else:
            console.print(Text("  nothing was measured", style="dim"))
    _print_verdicts(result.found, console)


def warnings_of(result: ExperimentResult) -> list[str]:
    """Say in sentences why the values of a result are not the full ones."""
    warnings = ["QUICK RUN: the figures are only indications."] if result.quick else []
    if result.found.scaled:
        warnings.append(f"SCALED: {clean(result.found.scaled)}")
    return warnings


def print_table(
    console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]
) -> None:
    """Print a table of cells."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        side: Literal["left", "right"] = "right" if column.figures else "left"
        table.add_column(Text(column.title), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_verdicts(found: Findings, console: Console) -> None:
    """Print claims, budgets, skips and notes."""
    claims = [
        (clean(c.source), clean(c.says), clean(c.measured),
         Text(VERDICTS[c.holds], style=_COLOURS[c.holds]))
        for c in found.claims
    ]  # fmt: skip
    budgets = [
        (clean(b.path), clean(b.limit), clean(b.measured),
         Text("pass" if b.passes else "FAIL", style=_COLOURS[b.passes]), clean(b.why))
        for b in found.budgets
    ]  # fmt: skip
    if claims:
        console.print(Text("\nClaims of the papers", style="underline"))
        titles = ("source", "says", "measured here", "verdict")
        print_table(console, [Column(t) for t in titles], claims)
    if budgets:
        console.print(Text("\nBudget", style="underline"))
        columns = [Column("path"), Column("limit", True), Column("measured", True)]
        print_table(console, [*columns, Column(""), Column("why")], budgets)
    if found.skips or found.notes:
        console.print()
    for skip in found.skips:
        text = Text(f"skipped {clean(skip.what)}: ", style="yellow")
        console.print(text.append(clean(skip.reason), style="default"))
    for note in found.notes:
        console.print(Text(f"note: {clean(note)}", style="dim"))
