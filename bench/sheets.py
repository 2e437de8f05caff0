"""What the table of a panel says, before it is printed in a terminal or written into a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .records import Look, Metric, Panel, Row, Unit
from .units import NOTHING, bounds, clean, figure, number, spread, with_ends

_X_FIRST = (Look.BARS, Look.STACKED)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a sheet; figures stand to the right, words to the left."""

    title: str
    figures: bool


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table as text; every row has a cell for each column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def sheet_of(panel: Panel) -> Sheet:
    """Lay a panel out as a table.

    Columns that would say nothing are left out: metrics that no row has, counts and errors that are
    all zero, an x that is always empty.
    """
    parts = _labels(panel) + _metrics(panel) + _further(panel)
    columns = tuple(column for column, _ in parts)
    return Sheet(columns, tuple(tuple(cell(row) for _, cell in parts) for row in panel.rows))


def measured(row: Row, key: str) -> float | None:
    """Give a row's finite value of a metric, or None."""
    value = row.values.get(key)
    return value if value is not None and math.isfinite(value) else None


def compared_metric(panel: Panel) -> Metric | None:
    """Give the metric that ratios to the baseline are made of: the first that is no ratio."""
    own = [m for m in panel.metrics if m.unit is not Unit.RATIO]
    return own[0] if panel.baseline and own else None


def ratio_to_baseline(panel: Panel, row: Row) -> float | None:
    """Divide a row's value by the baseline's at the same x.

    A baseline that was measured at one x only is the baseline of all.

    Returns:
        None for the baseline itself, and where either was not measured.
    """
    metric = compared_metric(panel)
    if metric is None or row.system == panel.baseline:
        return None
    bars = [r for r in panel.rows if r.system == panel.baseline]
    same = [r for r in bars if r.x == row.x] or (bars if len(bars) == 1 else [])
    over, under = measured(row, metric.key), measured(same[0], metric.key) if same else None
    return over / under if over is not None and under else None


def stages_of(panel: Panel) -> tuple[Metric, ...]:
    """Give the metrics of a stacked panel that add up: drawn ones, of the first one's unit."""
    drawn = [m for m in panel.metrics if m.drawn]
    if panel.look is not Look.STACKED or not drawn:
        return ()
    return tuple(m for m in drawn if m.unit is drawn[0].unit)


def total_of(row: Row, stages: Sequence[Metric]) -> float | None:
    """Add up the stages of a row; None where none was measured."""
    values = [v for v in (measured(row, s.key) for s in stages) if v is not None]
    return sum(values) if values else None


_Part = tuple[Column, Callable[[Row], str]]


def _labels(panel: Panel) -> list[_Part]:
    x_name = clean(panel.x.name) or "x"
    system: _Part = (Column("system", False), lambda r: clean(r.system) or NOTHING)
    numeric = all(not isinstance(r.x, str) for r in panel.rows)
    x: _Part = (Column(x_name, numeric), lambda r: number(r.x, panel.x.unit) or NOTHING)
    if not any(r.x != "" for r in panel.rows):
        return [system]
    return [x, system] if panel.look in _X_FIRST else [system, x]


def _metrics(panel: Panel) -> list[_Part]:
    known = [m for m in panel.metrics if any(m.key in r.values for r in panel.rows)]
    parts: list[_Part] = [(Column(_title(m), True), partial(_cell, m)) for m in known]
    stages = stages_of(panel)
    if len(stages) > 1:
        total: _Part = (
            Column("total", True),
            lambda r: figure(total_of(r, stages), stages[0].unit),
        )
        parts.append(total)
    own = any(m.key == "ratio" for m in panel.metrics)
    if not own and any(ratio_to_baseline(panel, r) is not None for r in panel.rows):
        title = f"against {clean(panel.baseline)}"
        parts.append((Column(title, True), lambda r: _against(panel, r)))
    return parts


def _cell(metric: Metric, row: Row) -> str:
    return spread(row, metric)


def _title(metric: Metric) -> str:
    return clean(metric.name) or clean(metric.key)


def _against(panel: Panel, row: Row) -> str:
    ratio = ratio_to_baseline(panel, row)
    ends = bounds(row.values, "ratio")
    if ratio is None:
        return NOTHING
    return with_ends(ratio, ends, Unit.RATIO)


def _further(panel: Panel) -> list[_Part]:
    parts: list[_Part] = []
    if any(r.count for r in panel.rows):
        parts.append((Column("samples", True), lambda r: figure(r.count, Unit.COUNT)))
    if any(r.errors for r in panel.rows):
        parts.append((Column("errors", True), lambda r: figure(r.errors, Unit.COUNT)))
    if any(r.note for r in panel.rows):
        parts.append((Column("note", False), lambda r: clean(r.note)))
    return parts
