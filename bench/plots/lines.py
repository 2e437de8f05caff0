"""Lines over a numeric x: one colour for each system, one line style for each metric.

The first metric is drawn thick and with markers, which are hollow where a row has a note or errors;
further metrics of the same unit are thinner and fainter in the same colour. Metrics of another unit
have axes of their own. The legend stands beside the data, in the order in which the lines end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..records import Metric, Panel, Row
from ..systems.names import Style, styles_of
from ..units import bounds, clean, number
from .theme import (
    FAINT,
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

_HEIGHT_IN = 3.3
_REMARKS = "with a note, see the table"
_FURTHER: tuple[tuple[float, ...], ...] = ((4, 2), (1, 1.6), (6, 2, 1, 2))
_ROOM = 1.08  # between the outermost values and the frame, as a factor on logarithmic axes

Points = list[tuple[float, float]]


def draw_lines(panel: Panel) -> Figure | None:
    """Draw a panel as lines; None where nothing can be drawn."""
    from matplotlib.figure import Figure

    places = _places(panel)
    groups = [g for g in by_unit(panel.metrics) if _systems(panel, g, places)]
    if not groups:
        return None
    height = _HEIGHT_IN * len(groups) + 0.25
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    explained: set[str] = set()
    styles = styles_of(row.system for row in panel.rows)
    for i, metrics in enumerate(groups):
        axes = figure.add_subplot(len(groups), 1, i + 1)
        shown = _draw_group(axes, panel, metrics, styles, places)
        if shown - explained:
            _legend(axes, _systems(panel, metrics, places), metrics)
        explained |= shown
    return figure


def _draw_group(
    axes: Axes,
    panel: Panel,
    metrics: Sequence[Metric],
    styles: dict[str, Style],
    places: dict[float | str, float],
) -> set[str]:
    lines = _systems(panel, metrics, places)
    for rank, metric in enumerate(metrics):
        for system, points_of in lines.items():
            if points := points_of[rank]:
                _draw_line(axes, points, styles[system], short_name(system), rank)
                _draw_spread(axes, _spread_of(panel, system, metric, places), styles[system])
        if rank:
            axes.plot(
                [], [], color=FAINT, linewidth=1.1, dashes=_dashes(rank), label=clean(metric.name)
            )
    _mark_remarks(axes, panel, metrics[0], styles, places)
    logarithmic = any(m.logarithmic for m in metrics)
    points = [p for of_system in lines.values() for of_metric in of_system for p in of_metric]
    _set_x(axes, panel, places, [x for x, _ in points])
    ys = [y for _, y in points]
    set_scale(axes, "y", ys, metrics[0].unit, logarithmic=logarithmic, exact=False)
    if not logarithmic and min(ys) >= 0:
        axes.set_ylim(bottom=0, top=max(ys) * _ROOM or 1)
    axes.set_title(axis_title(common_name(metrics), logarithmic=logarithmic))
    return {*lines, *(m.name for m in metrics[1:])}


def _mark_remarks(
    axes: Axes,
    panel: Panel,
    metric: Metric,
    styles: dict[str, Style],
    places: dict[float | str, float],
) -> None:
    """Hollow the points of rows that have a note or errors, which the table tells."""
    label = _REMARKS
    for row in panel.rows:
        point = _point(panel, row, metric, places)
        if point is None or not (row.note or row.errors):
            continue
        style = styles[row.system]
        axes.plot(
            [point[0]], [point[1]], linestyle="none", marker=style.marker, zorder=3,
            markerfacecolor=PAPER, markeredgecolor=style.colour, markeredgewidth=1.4,
        )  # fmt: skip
        if label:
            axes.plot(
                [], [], linestyle="none", marker="o", markerfacecolor=PAPER, label=label,
                markeredgecolor=FAINT, markeredgewidth=1.4,
            )  # fmt: skip
            label = ""


def _draw_spread(axes: Axes, ends: Sequence[tuple[float, float, float]], style: Style) -> None:
    if ends:
        xs, lows, highs = zip(*ends, strict=True)
        axes.fill_between(xs, lows, highs, color=style.colour, alpha=0.15, linewidth=0)


def _draw_line(axes: Axes, points: Points, style: Style, label: str, rank: int) -> None:
    xs, ys = zip(*points, strict=True)
    if rank == 0:
        axes.plot(
            xs, ys, color=style.colour, marker=style.marker, label=label,
            dashes=style.dashes or (None, None), markeredgewidth=0,
        )  # fmt: skip
        return
    axes.plot(
        xs, ys, color=style.colour, dashes=_dashes(rank), linewidth=1.1, alpha=0.8,
        marker=style.marker, markersize=2.5, markeredgewidth=0,
    )  # fmt: skip


def _dashes(rank: int) -> tuple[float, ...]:
    return _FURTHER[(rank - 1) % len(_FURTHER)]


def _legend(axes: Axes, lines: dict[str, list[Points]], metrics: Sequence[Metric]) -> None:
    handles, labels = axes.get_legend_handles_labels()
    of_systems = sum(bool(of_metric[0]) for of_metric in lines.values())
    ends = [of_metric[0][-1][1] for of_metric in lines.values() if of_metric[0]]
    order = sorted(range(of_systems), key=lambda i: -ends[i])
    order += range(of_systems, len(handles))
    axes.legend(
        [handles[i] for i in order], [labels[i] for i in order],
        loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, handlelength=2.6,
    )  # fmt: skip


def _places(panel: Panel) -> dict[float | str, float]:
    """Give the place of each x: itself, or its rank where some x are words."""
    xs = list(dict.fromkeys(row.x for row in panel.rows))
    if any(isinstance(x, str) for x in xs):
        return {x: float(i) for i, x in enumerate(xs)}
    return {x: float(x) for x in xs}


def _set_x(axes: Axes, panel: Panel, places: dict[float | str, float], xs: list[float]) -> None:
    words = any(isinstance(x, str) for x in places)
    logarithmic = panel.x.logarithmic and not words
    axes.set_xlabel(axis_title(panel.x.name, logarithmic=logarithmic))
    if words:
        labels = [short_name(number(x, panel.x.unit)) for x in places]
        axes.set_xticks(list(places.values()), labels)
        return
    set_scale(axes, "x", xs, panel.x.unit, logarithmic=logarithmic, exact=True)


def _spread_of(
    panel: Panel, system: str, metric: Metric, places: dict[float | str, float]
) -> list[tuple[float, float, float]]:
    rows = [row for row in panel.rows if row.system == system]
    ends = [(places[row.x], bounds(row.values, metric.key)) for row in rows]
    found = [(x, *low_high) for x, low_high in ends if low_high is not None]
    log = metric.logarithmic
    return sorted(f for f in found if all(drawable(end, logarithmic=log) for end in f[1:]))


def _point(
    panel: Panel, row: Row, metric: Metric, places: dict[float | str, float]
) -> tuple[float, float] | None:
    words = any(isinstance(x, str) for x in places)
    x, y = places[row.x], row.values.get(metric.key)
    log_x = panel.x.logarithmic and not words
    fits = drawable(x, logarithmic=log_x) and drawable(y, logarithmic=metric.logarithmic)
    return (x, y) if fits and y is not None else None


def _systems(
    panel: Panel, metrics: Sequence[Metric], places: dict[float | str, float]
) -> dict[str, list[Points]]:
    """Give the points of each system for each metric, ordered by x; systems with none left out."""
    log_y = any(m.logarithmic for m in metrics)
    systems: dict[str, list[Points]] = {}
    for row in panel.rows:
        points_of = systems.setdefault(row.system, [[] for _ in metrics])
        for points, metric in zip(points_of, metrics, strict=True):
            point = _point(panel, row, metric, places)
            if point is not None and drawable(point[1], logarithmic=log_y):
                points.append(point)
    for points_of in systems.values():
        for points in points_of:
            points.sort()
    return {system: points_of for system, points_of in systems.items() if any(points_of)}
