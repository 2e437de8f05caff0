"""Bars for words: one for each system at each x, or stages that add up.

Bars lie, so that names have room and are read without turning the head. A first metric is the bar,
further metrics of its unit are ticks on a thin line to its right (a median and its tail), each with
its value written beside it. Metrics of another unit have axes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records import Metric, Panel, Row
from ..sheets import measured, stages_of, total_of
from ..systems.names import Style, styles_of
from ..units import bounds, clean, figure, number
from .theme import (
    FAINT,
    INK,
    PAPER,
    WIDTH_IN,
    axis_title,
    by_unit,
    common_name,
    drawable,
    set_scale,
    short_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_IN = 0.24
_GAP = 0.4  # between groups, in bars
_LEGEND_COLUMNS = 6
_STAGES = ("#0f73c6", "#e9a13b", "#2f9e66", "#7440f0", "#d2103f", "#3fb5c6", "#8f8a45", "#d98cc6")
_HATCHES = ("", "///", "...", "xxx")  # tell variants of a system apart, which share its colour
_WHITE, _BLACK = "#ffffff", "#0b0d10"
_ON_STAGES = (_WHITE, _BLACK, _BLACK, _WHITE, _WHITE, _BLACK, _BLACK, _BLACK)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the bar of a row lies, in bars from the top."""

    row: Row
    y: float


def draw_bars(panel: Panel) -> Figure | None:
    """Draw a panel as lying bars; None where nothing can be drawn."""
    from matplotlib.figure import Figure

    places, headings = _layout(panel)
    groups = [g for g in by_unit(panel.metrics) if any(_values(p.row, g) for p in places)]
    if not groups:
        return None
    size = (WIDTH_IN, _height_in(places) * len(groups))
    figure_ = Figure(figsize=size, layout="constrained")
    for i, metrics in enumerate(groups):
        axes = figure_.add_subplot(len(groups), 1, i + 1)
        _draw_group(axes, panel, metrics, places)
        _write_names(axes, panel, places, headings)
    return figure_


def draw_stacks(panel: Panel) -> Figure | None:
    """Draw a panel as lying bars made of stages; None where nothing can be drawn."""
    from matplotlib.figure import Figure

    stages = stages_of(panel)
    places, headings = _layout(panel)
    totals = [total_of(p.row, stages) for p in places]
    known = [t for t in totals if drawable(t, logarithmic=False) and t is not None]
    if not known or max(known) <= 0:
        return None
    size = (WIDTH_IN, _height_in(places) * 1.1 + 0.2 * math.ceil(len(stages) / _LEGEND_COLUMNS))
    figure_ = Figure(figsize=size, layout="constrained")
    axes = figure_.add_subplot()
    for place, total in zip(places, totals, strict=True):
        if drawable(total, logarithmic=False):
            _draw_stack(axes, place, stages, max(known))
    axes.set_xlim(0, max(known) * 1.14)
    set_scale(axes, "x", known, stages[0].unit, logarithmic=False, exact=False)
    _write_names(axes, panel, places, headings)
    _stage_legend(axes, stages)
    return figure_


def _draw_group(
    axes: Axes, panel: Panel, metrics: Sequence[Metric], places: Sequence[_Place]
) -> None:
    values = [v for place in places for v in _values(place.row, metrics)]
    logarithmic = any(m.logarithmic for m in metrics) and max(values) / min(values) > 20
    start = 10.0 ** math.floor(math.log10(min(values)) - 0.3) if logarithmic else 0.0
    styles = styles_of(row.system for row in panel.rows)
    for place in places:
        found = _values(place.row, metrics)
        if found:
            style = styles[place.row.system]
            hatch = _HATCHES[_rank_of_colour(styles, place.row.system) % len(_HATCHES)]
            _draw_bar(axes, place.y, found, start, style.colour, hatch)
            _draw_spread(axes, place, metrics[0])
            texts = [figure(v, metrics[0].unit) for v in found]
            _annotate(axes, place.y, max(found), " · ".join(texts))
    _set_value_axis(axes, metrics, values, start, logarithmic=logarithmic)


def _rank_of_colour(styles: dict[str, Style], system: str) -> int:
    """Count the systems of a picture that had the colour of this one before it."""
    before = list(styles)[: list(styles).index(system)]
    return sum(styles[name].colour == styles[system].colour for name in before)


def _draw_bar(
    axes: Axes, y: float, found: Sequence[float], start: float, colour: str, hatch: str
) -> None:
    axes.barh(
        y, found[0] - start, left=start, height=0.78, color=colour, edgecolor=PAPER, hatch=hatch
    )
    if len(found) < 2:
        return
    axes.plot([min(found), max(found)], [y, y], color=colour, linewidth=1.2, zorder=1)
    for value in found[1:]:
        axes.plot([value], [y], color=colour, marker="|", markersize=8, markeredgewidth=1.8)


def _draw_spread(axes: Axes, place: _Place, metric: Metric) -> None:
    ends = bounds(place.row.values, metric.key)
    if ends and all(drawable(end, logarithmic=metric.logarithmic) for end in ends):
        axes.plot(ends, [place.y, place.y], color=INK, linewidth=1.1, marker="|", markersize=4)


def _set_value_axis(
    axes: Axes, metrics: Sequence[Metric], values: Sequence[float], start: float,
    *, logarithmic: bool,
) -> None:  # fmt: skip
    set_scale(axes, "x", values, metrics[0].unit, logarithmic=logarithmic, exact=False)
    most, share = max(values), 0.07 + 0.10 * len(metrics)
    if logarithmic:
        axes.set_xlim(start, most * (most / start) ** (share / (1 - share)))
    else:
        least = min(0.0, *values)
        axes.set_xlim(least * 1.1, max(most, 0.0) / (1 - share) - 0.2 * least or 1)
    name = common_name(metrics)
    if len(metrics) > 1:
        name += ": " + ", then ".join(_short_metric(m, name) for m in metrics)
    axes.set_xlabel(axis_title(name, logarithmic=logarithmic))


def _short_metric(metric: Metric, shared: str) -> str:
    name = clean(metric.name)
    return name.removesuffix(shared).strip() or name


def _annotate(axes: Axes, y: float, x: float, text: str) -> None:
    axes.annotate(
        text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8,
        color=INK,
    )  # fmt: skip


def _draw_stack(axes: Axes, place: _Place, stages: Sequence[Metric], most: float) -> None:
    start = 0.0
    for i, stage in enumerate(stages):
        value = max(measured(place.row, stage.key) or 0.0, 0.0)
        if not value:
            continue
        colour = _STAGES[i % len(_STAGES)]
        hatch = "///" if i >= len(_STAGES) else None
        axes.barh(
            place.y, value, left=start, height=0.8, color=colour, edgecolor=PAPER, hatch=hatch
        )
        if value > 0.11 * most:
            axes.text(
                start + value / 2, place.y, figure(value, stage.unit), ha="center", va="center",
                fontsize=8, color=_ON_STAGES[i % len(_STAGES)],
            )  # fmt: skip
        start += value
    _annotate(axes, place.y, start, figure(start, stages[0].unit))


def _stage_legend(axes: Axes, stages: Sequence[Metric]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(
            facecolor=_STAGES[i % len(_STAGES)], edgecolor=PAPER, label=short_name(stage.name),
            hatch="///" if i >= len(_STAGES) else None,
        )
        for i, stage in enumerate(stages)
    ]  # fmt: skip
    axes.figure.legend(
        handles=patches, loc="outside lower left", ncols=min(len(stages), _LEGEND_COLUMNS),
        columnspacing=1.3, handlelength=1.1,
    )  # fmt: skip


def _layout(panel: Panel) -> tuple[list[_Place], dict[float, str]]:
    """Place a bar for each row, grouped by x.

    Returns:
        The places, and the headings of groups by where they stand. There is none where there is
        one group without a name, or no group of several bars.
    """
    groups: dict[str, list[Row]] = {}
    for row in panel.rows:
        groups.setdefault(number(row.x, panel.x.unit), []).append(row)
    headed = any(len(rows) > 1 for rows in groups.values()) and list(groups) != [""]
    places, headings, y = [], {}, 0.0
    for x, rows in groups.items():
        if headed:
            headings[y] = x
            y += 0.9
        for row in rows:
            places.append(_Place(row, y))
            y += 1
        y += _GAP if headed else 0
    return places, headings


def _write_names(
    axes: Axes, panel: Panel, places: Sequence[_Place], headings: dict[float, str]
) -> None:
    """Write the names of systems at their bars, under the x of their group."""
    one_system = len({p.row.system for p in places}) == 1
    names = [_name(p.row, panel, with_x=not headings, with_system=not one_system) for p in places]
    ys = [p.y for p in places]
    axes.set_yticks([*ys, *headings], [*names, *map(short_name, headings.values())])
    for label in axes.get_yticklabels()[len(ys) :]:
        label.set_fontweight("bold")
    if one_system:
        axes.set_title(short_name(places[0].row.system), color=FAINT, fontweight="normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(places[-1].y + 0.6, min([*ys, *headings]) - 0.6)


def _name(row: Row, panel: Panel, *, with_x: bool, with_system: bool) -> str:
    x = number(row.x, panel.x.unit) if with_x else ""
    system = clean(row.system) if with_system or not x else ""
    return short_name(", ".join(part for part in (x, system) if part))


def _height_in(places: Sequence[_Place]) -> float:
    return (places[-1].y + 1.2) * _BAR_IN + 0.75 if places else 1.0


def _values(row: Row, metrics: Sequence[Metric]) -> list[float]:
    logarithmic = any(m.logarithmic for m in metrics)
    found = [measured(row, m.key) for m in metrics]
    return [v for v in found if v is not None and drawable(v, logarithmic=logarithmic)]
