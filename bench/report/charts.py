"""The three kinds of charts of a panel, straight with matplotlib.

*Lines*: a line for each system and metric over x. The first metric of a unit is thick and has
markers, which are hollow where a row has a note or errors; further metrics are thinner. *Bars*: a
horizontal bar for each row, grouped by x. The first metric of a unit is the bar; further ones are
ticks on a line to its right, such as the tail of a median. *Stacks*: a bar made of stages. Metrics
of another unit have their own axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ..records import Metric, Panel, Plot, Row, Unit
from ..systems.names import SystemStyle, styles_of
from .tables import measured, stages_of, total_of
from .units import bounds, clean, figure, number, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID, PAPER = "#1d2126", "#6a727c", "#dfe3e8", "#fefefe"
"""Each is used for nothing else, so that a page can replace them by its own colours."""

_WIDTH_IN, _LINES_IN, _BAR_IN = 7.4, 3.3, 0.24
_STAGES = ("#0f73c6", "#e9a13b", "#2f9e66", "#7440f0", "#d2103f", "#3fb5c6", "#8f8a45", "#d98cc6")
_DARK_STAGES = (0, 3, 4)  # text on these is white
_HATCHES = ("", "///", "...", "xxx")  # for variants of a system, which have its colour
_DASHES = ((None, None), (4, 2), (1, 1.6), (6, 2, 1, 2))  # of a first to fourth metric


def draw_chart(panel: Panel) -> Figure | None:
    """Draw a panel; None if it is a table, or if it has no values that can be drawn."""
    from matplotlib.figure import Figure

    places, headings = _bar_places(panel)
    bars_in = (max(places.values(), default=0) + 1.2) * _BAR_IN + 0.75
    if panel.look is Plot.STACKED:
        stages = stages_of(panel)
        most = max((_drawn(total_of(row, stages)) or 0.0 for row in panel.rows), default=0.0)
        if most <= 0:
            return None
        height = bars_in * 1.1 + 0.2 * math.ceil(len(stages) / 6)
        chart = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
        axes = chart.add_subplot()
        _stacks(axes, panel, stages, places, most)
        _name_bars(axes, panel, places, headings)
        return chart
    units: dict[Unit, list[Metric]] = {}
    for metric in panel.metrics:
        if metric.drawn:
            units.setdefault(metric.unit, []).append(metric)
    groups = [g for g in units.values() if any(_values(row, g) for row in panel.rows)]
    if not groups or panel.look is Plot.TABLE:
        return None
    height = _LINES_IN if panel.look is Plot.LINES else bars_in
    chart = Figure(figsize=(_WIDTH_IN, height * len(groups) + 0.25), layout="constrained")
    for i, metrics in enumerate(groups):
        axes = chart.add_subplot(len(groups), 1, i + 1)
        if panel.look is Plot.LINES:
            _lines(axes, panel, metrics)
        else:
            _bars(axes, panel, metrics, places)
            _name_bars(axes, panel, places, headings)
    return chart


def _lines(axes: Axes, panel: Panel, metrics: Sequence[Metric]) -> None:
    words = any(isinstance(row.x, str) for row in panel.rows)
    xs = list(dict.fromkeys(row.x for row in panel.rows))
    place = {x: float(xs.index(x) if words else x) for x in xs}
    log_x, log_y = panel.x.logarithmic and not words, any(m.logarithmic for m in metrics)
    styles = styles_of(row.system for row in panel.rows)
    drawn: list[tuple[float, float]] = []
    noted = False
    for rank, metric in enumerate(metrics):
        for system, style in styles.items():
            points = sorted(
                (place[row.x], y, bool(row.note or row.errors), row.values)
                for row in panel.rows
                if row.system == system and _drawn(place[row.x], log_x) is not None
                and (y := _drawn(row.values.get(metric.key), log_y)) is not None
            )  # fmt: skip
            drawn += [point[:2] for point in points]
            noted |= _line(axes, points, metric, style, rank, log_y, system)
        if rank:
            dashes, name = _DASHES[rank % 4], clean(metric.name)
            axes.plot([], [], color=FAINT, linewidth=1.1, dashes=dashes, label=name)
    if noted:
        axes.scatter([], [], facecolor=PAPER, edgecolor=FAINT, label="with a note, see the table")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, handlelength=2.6)
    axes.set_title(_axis_title(_common_name(metrics), log_y))
    axes.set_xlabel(_axis_title(panel.x.name, log_x))
    if not drawn:
        return
    ys = [y for _, y in drawn]
    _set_scale(axes, "y", ys, metrics[0].unit, log_y)
    if not log_y and min(ys) >= 0:
        axes.set_ylim(bottom=0, top=max(ys) * 1.08 or 1)
    if words:
        labels = [_short(number(x, panel.x.unit)) for x in xs]
        axes.set_xticks([place[x] for x in xs], labels)
    else:
        _set_scale(axes, "x", [x for x, _ in drawn], panel.x.unit, log_x, at_values=True)


def _line(
    axes: Axes, points: Sequence[tuple[float, float, bool, dict[str, float]]], metric: Metric,
    style: SystemStyle, rank: int, log: bool, system: str,
) -> bool:  # fmt: skip
    """Draw one line, and return whether points of it have notes."""
    if not points:
        return False
    further = {"dashes": _DASHES[rank % 4], "linewidth": 1.1, "alpha": 0.8, "markersize": 2.5}
    first: dict[str, Any] = {"label": _short(system), "dashes": style.dashes or (None, None)}
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    marked: dict[str, Any] = {"color": style.colour, "marker": style.marker, "markeredgewidth": 0}
    axes.plot(xs, ys, **marked, **(further if rank else first))
    bands = [(x, b) for x, _, _, values in points if (b := bounds(values, metric.key))]
    bands = [(x, b) for x, b in bands if all(_drawn(end, log) is not None for end in b)]
    low, high = [b[0] for _, b in bands], [b[1] for _, b in bands]
    axes.fill_between([x for x, _ in bands], low, high, color=style.colour, alpha=0.15, lw=0)
    hollow = [] if rank else [(x, y) for x, y, noted, _ in points if noted]
    axes.scatter(
        [x for x, _ in hollow], [y for _, y in hollow], marker=style.marker, facecolor=PAPER,
        edgecolor=style.colour, linewidth=1.4, zorder=3,
    )  # fmt: skip
    return bool(hollow)


def _bars(axes: Axes, panel: Panel, metrics: Sequence[Metric], places: dict[int, float]) -> None:
    unit, name = metrics[0].unit, _common_name(metrics)
    values = [v for row in panel.rows for v in _values(row, metrics)]
    most, least = max(values), min(values)
    log = any(m.logarithmic for m in metrics) and most / least > 20
    start = 10.0 ** math.floor(math.log10(least) - 0.3) if log else 0.0
    styles = styles_of(row.system for row in panel.rows)
    colours = [style.colour for style in styles.values()]
    for at, row in enumerate(panel.rows):
        y, found = places[at], _values(row, metrics)
        if not found:
            continue
        colour = styles[row.system].colour
        rank = list(styles).index(row.system)
        hatch = _HATCHES[colours[:rank].count(colour) % len(_HATCHES)]
        axes.barh(y, found[0] - start, 0.78, start, color=colour, edgecolor=PAPER, hatch=hatch)
        axes.plot([min(found), max(found)], [y, y], color=colour, linewidth=1.2, zorder=1)
        for value in found[1:]:
            axes.plot([value], [y], color=colour, marker="|", markersize=8, markeredgewidth=1.8)
        ends = bounds(row.values, metrics[0].key)
        if ends and all(_drawn(end, metrics[0].logarithmic) is not None for end in ends):
            axes.plot(ends, [y, y], color=INK, linewidth=1.1, marker="|", markersize=4)
        _annotate(axes, max(found), y, " · ".join(figure(v, unit) for v in found))
    _set_scale(axes, "x", values, unit, log)
    share = 0.07 + 0.10 * len(metrics)  # of the width, for the text beside the bars
    if log:
        axes.set_xlim(start, most * (most / start) ** (share / (1 - share)))
    else:
        least = min(0.0, least)
        axes.set_xlim(least * 1.1, max(most, 0.0) / (1 - share) - 0.2 * least or 1)
    if len(metrics) > 1:
        own = [clean(m.name).removesuffix(name).strip() or clean(m.name) for m in metrics]
        name += ": " + ", then ".join(own)
    axes.set_xlabel(_axis_title(name, log))


def _stacks(
    axes: Axes, panel: Panel, stages: Sequence[Metric], places: dict[int, float], most: float
) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=_STAGES[i % 8], edgecolor=PAPER, hatch="///" if i >= 8 else None,
              label=_short(stage.name))
        for i, stage in enumerate(stages)
    ]  # fmt: skip
    for at, row in enumerate(panel.rows):
        y, start = places[at], 0.0
        if _drawn(total_of(row, stages)) is None:
            continue
        for i, stage in enumerate(stages):
            value = max(measured(row, stage.key) or 0.0, 0.0)
            if value:
                colour, hatch = _STAGES[i % 8], patches[i].get_hatch()
                axes.barh(y, value, 0.8, start, color=colour, edgecolor=PAPER, hatch=hatch)
            if value > 0.11 * most:
                colour = "#ffffff" if i % 8 in _DARK_STAGES else "#0b0d10"
                text, middle = figure(value, stage.unit), start + value / 2
                axes.text(middle, y, text, ha="center", va="center", fontsize=8, color=colour)
            start += value
        _annotate(axes, start, y, figure(start, stages[0].unit))
    axes.set_xlim(0, most * 1.14)
    _set_scale(axes, "x", [0.0, most], stages[0].unit, False)
    columns = min(len(stages), 6)
    axes.figure.legend(handles=patches, loc="outside lower left", ncols=columns, handlelength=1.1)


def _bar_places(panel: Panel) -> tuple[dict[int, float], dict[float, str]]:
    """Place a bar for each row, by its index, and a heading above each group of several bars."""
    groups: dict[str, list[int]] = {}
    for at, row in enumerate(panel.rows):
        groups.setdefault(number(row.x, panel.x.unit), []).append(at)
    headed = any(len(rows) > 1 for rows in groups.values()) and list(groups) != [""]
    places: dict[int, float] = {}
    headings, y = {}, 0.0
    for x, rows in groups.items():
        if headed:
            headings[y] = x
            y += 0.9
        places |= {at: y + i for i, at in enumerate(rows)}
        y += len(rows) + (0.4 if headed else 0)
    return places, headings


def _name_bars(
    axes: Axes, panel: Panel, places: dict[int, float], headings: dict[float, str]
) -> None:
    """Write systems beside their bars, and the headings of groups."""
    one_system = len({row.system for row in panel.rows}) == 1
    names = []
    for row in panel.rows:
        x = "" if headings else number(row.x, panel.x.unit)
        system = "" if one_system and x else clean(row.system)
        names.append(_short(", ".join(part for part in (x, system) if part)))
    ys = [places[at] for at in range(len(panel.rows))]
    axes.set_yticks([*ys, *headings], [*names, *map(_short, headings.values())])
    for label in axes.get_yticklabels()[len(ys) :]:
        label.set_fontweight("bold")
    if one_system:
        axes.set_title(_short(panel.rows[0].system), color=FAINT, fontweight="normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(max(ys) + 0.6, min([*ys, *headings]) - 0.6)


def _annotate(axes: Axes, x: float, y: float, text: str) -> None:
    offset: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points"}
    axes.annotate(text, (x, y), **offset, va="center", fontsize=8, color=INK)


def _values(row: Row, metrics: Sequence[Metric]) -> list[float]:
    log = any(m.logarithmic for m in metrics)
    found = (_drawn(row.values.get(m.key), log) for m in metrics)
    return [value for value in found if value is not None]


def _drawn(value: float | None, logarithmic: bool = False) -> float | None:
    """Return a value that has a place on an axis; otherwise None."""
    if value is None or not math.isfinite(value) or abs(value) > 1e30:
        return None
    return value if value > 1e-30 or not logarithmic else None


def _short(name: str) -> str:
    return shortened(name, 38)


def _axis_title(name: str, logarithmic: bool) -> str:
    return f"{shortened(name, 60)}, log scale" if logarithmic else shortened(name, 70)


def _common_name(metrics: Sequence[Metric]) -> str:
    """Name an axis by the last words that its metrics have in common, or by the first's name."""
    words = [clean(m.name).split()[::-1] for m in metrics]
    shared = [w[0] for w in takewhile(lambda w: len(set(w)) == 1, zip(*words, strict=False))]
    if shared:
        return " ".join(shared[::-1])
    return "latency" if metrics[0].unit is Unit.US else clean(metrics[0].name)


def _set_scale(
    axes: Axes, which: str, values: Sequence[float], unit: Unit, logarithmic: bool, *,
    at_values: bool = False,
) -> None:  # fmt: skip
    """Set scale and ticks of the x or y axis; `at_values` puts ticks at values, if they are few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, MultipleLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    ticks = sorted(set(values))
    span = max(ticks[-1], 0.0) - min(ticks[0], 0.0)
    if logarithmic:
        axes.set(**{f"{which}scale": "log"})
    if at_values and len(ticks) <= 8 and (logarithmic or len(ticks) == 1):
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)
    elif logarithmic:
        base = 2.0 if unit is Unit.BYTES else 10.0
        subs = (1.0, 2.0, 5.0) if ticks[-1] / ticks[0] < 300 and base > 2 else (1.0,)
        axis.set_major_locator(LogLocator(base=base, subs=subs, numticks=8 if base == 2 else 12))
    elif unit is Unit.BYTES and span > 1024:
        axis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(span / 6))))
    else:
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: figure(value, unit))
    axis.set_minor_formatter(NullFormatter())
