"""Pictures of panels with matplotlib: an SVG and a PNG each.

matplotlib is loaded when the first picture is drawn, and used through its object interface, so no
global state is changed but a context of settings. The same panel gives the same bytes: there are no
dates, and ids follow from the content. Pictures are on white. Inside a page, the colours of paper,
ink and grid become variables of the page's style (`inline_svg`), for light and dark screens.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dandelion.errors import BackendUnavailable

from ..records import ExperimentResult, Metric, Panel, Plot, Row, Unit
from ..systems.names import SystemStyle, styles_of
from .tables import measured, stages_of, total_of
from .units import bounds, clean, figure, number, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID, PAPER = "#1d2126", "#6a727c", "#dfe3e8", "#fefefe"
"""Each is used for nothing else, so that a page can replace them by its own colours."""

_VARIABLES = {PAPER: "paper", INK: "ink", FAINT: "faint", GRID: "grid"}
_SETTINGS: dict[Any, object] = {  # keys: newer bindings accept literals only, older ones any text
    "svg.hashsalt": "dandelion", "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"], "font.size": 9.0,
    "text.color": INK, "text.parse_math": False, "text.usetex": False,
    "axes.edgecolor": FAINT, "axes.facecolor": PAPER, "axes.labelcolor": INK,
    "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "axes.formatter.use_mathtext": False,
    "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "figure.facecolor": PAPER, "savefig.facecolor": PAPER,
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}  # fmt: skip
_WIDTH_IN, _LINES_IN, _BAR_IN = 7.4, 3.3, 0.24
_NAME_LENGTH = 38
_STAGES = ("#0f73c6", "#e9a13b", "#2f9e66", "#7440f0", "#d2103f", "#3fb5c6", "#8f8a45", "#d98cc6")
_DARK_STAGES = (0, 3, 4)  # text on these is white
_HATCHES = ("", "///", "...", "xxx")  # for variants of a system, which have its colour
_DASHES = ((4, 2), (1, 1.6), (6, 2, 1, 2))  # of a second, third and fourth metric


def draw(result: ExperimentResult, folder: Path) -> list[Path]:
    """Draw every panel of a result that has a picture.

    Returns:
        The files ``EXPERIMENT-MACHINE-PANEL.svg`` and ``.png``, in the order of the panels.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    flags = ("QUICK RUN" if result.quick else "", "SCALED SIZES" if result.found.scaled else "")
    parts = (result.experiment, result.machine_name, result.backend, *flags)
    origin = ", ".join(part for part in parts if part)
    written = []
    for panel in result.found.panels:
        name = _file_name(result.experiment, result.machine_name, panel.key)
        for suffix in ("svg", "png"):
            content = _rendered(panel, suffix, origin)
            if content is not None:
                folder.mkdir(parents=True, exist_ok=True)
                written.append(folder / f"{name}.{suffix}")
                written[-1].write_bytes(content)
    return written


def inline_svg(panel: Panel, name: str, label: str) -> str:
    """Draw a panel as an ``<svg>`` element of an HTML page.

    Args:
        panel: what is drawn.
        name: makes this picture's ids different from those of all others in the page.
        label: describes the picture; HTML-escaped already.

    The page's style defines ``--paper``, ``--ink``, ``--faint`` and ``--grid``.

    Returns:
        The element; empty for a panel that has no picture.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    content = _rendered(panel, "svg")
    if content is None:
        return ""
    svg, name = content.decode(), _file_name(name)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _rendered(panel: Panel, suffix: str, origin: str = "") -> bytes | None:
    with _matplotlib():
        drawn_by: Callable[[Panel], Figure | None] | None = {
            Plot.LINES: _draw_lines, Plot.BARS: _draw_bars, Plot.STACKED: _draw_stacks
        }.get(panel.look)  # fmt: skip
        figure_ = drawn_by(panel) if drawn_by else None
        if figure_ is None:
            return None
        if origin:  # it stands alone, so it says what a page would say around it
            lines = [*textwrap.wrap(shortened(panel.title, 240), 88), shortened(origin, 110)]
            width, height = figure_.get_size_inches()
            figure_.set_size_inches(width, height + 0.17 * len(lines))
            figure_.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9.5)
        content = io.BytesIO()
        # Without a Creator the version of matplotlib is not in the file.
        metadata = {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
        figure_.savefig(content, format=suffix, dpi=160, metadata=metadata)
        return content.getvalue()


@contextmanager
def _matplotlib() -> Iterator[None]:
    try:
        import matplotlib as mpl
    except ImportError:
        missing, remedy = "matplotlib is not installed", "pip install 'dandelion-engine[bench]'"
        raise BackendUnavailable("pictures", missing, remedy) from None
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; its table has it right.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def installed() -> bool:
    """Return whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def _file_name(*parts: str) -> str:
    plain = (re.sub(r"[^A-Za-z0-9_]+", "-", part)[:60].strip("-") for part in parts)
    return "-".join(part for part in plain if part) or "picture"


# --- lines ----------------------------------------------------------------------------------------


def _draw_lines(panel: Panel) -> Figure | None:
    """Draw a line for each system and metric over x; metrics of another unit have their own axes.

    The first metric of a unit has a thick line with markers, which are hollow where a row has a
    note or errors; further metrics are thinner.
    """
    from matplotlib.figure import Figure

    words = any(isinstance(row.x, str) for row in panel.rows)
    xs = list(dict.fromkeys(row.x for row in panel.rows))
    places = {x: float(xs.index(x) if words else x) for x in xs}
    log_x = panel.x.logarithmic and not words
    rows = [row for row in panel.rows if _drawable(places[row.x], log_x)]
    groups = [g for g in _by_unit(panel) if any(_values(row, g) for row in rows)]
    if not groups:
        return None
    size = (_WIDTH_IN, _LINES_IN * len(groups) + 0.25)
    figure_ = Figure(figsize=size, layout="constrained")
    styles = styles_of(row.system for row in panel.rows)
    for i, metrics in enumerate(groups):
        axes = figure_.add_subplot(len(groups), 1, i + 1)
        _plot_lines(axes, rows, metrics, styles, places)
        log_y = any(m.logarithmic for m in metrics)
        axes.set_title(_axis_title(_common_name(metrics), log_y))
        axes.set_xlabel(_axis_title(panel.x.name, log_x))
        ys = [y for row in rows for y in _values(row, metrics)]
        _set_scale(axes, "y", ys, metrics[0].unit, log_y)
        if not log_y and min(ys) >= 0:
            axes.set_ylim(bottom=0, top=max(ys) * 1.08 or 1)
        if words:
            labels = [_short(number(x, panel.x.unit)) for x in places]
            axes.set_xticks(list(places.values()), labels)
        else:
            drawn = [places[row.x] for row in rows if _values(row, metrics)]
            _set_scale(axes, "x", drawn, panel.x.unit, log_x, exact=True)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, handlelength=2.6)
    return figure_


def _plot_lines(
    axes: Axes,
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    styles: dict[str, SystemStyle],
    places: dict[float | str, float],
) -> None:
    log = any(m.logarithmic for m in metrics)
    marks = []
    for rank, metric in enumerate(metrics):
        for system, style in styles.items():
            here = [r for r in rows if r.system == system]
            points = sorted(
                (places[r.x], y) for r in here
                if (y := r.values.get(metric.key)) is not None and _drawable(y, log)
            )  # fmt: skip
            if not points:
                continue
            thick: dict[str, Any] = {
                "label": _short(system),
                "dashes": style.dashes or (None, None),
            }
            thin = {"dashes": _DASHES[(rank - 1) % 3], "linewidth": 1.1, "alpha": 0.8}
            axes.plot(
                *zip(*points, strict=True), color=style.colour, marker=style.marker,
                markeredgewidth=0, markersize=2.5 if rank else 5.5, **(thin if rank else thick),
            )  # fmt: skip
            ends = [(places[r.x], b) for r in here if (b := bounds(r.values, metric.key))]
            ends = sorted((x, b) for x, b in ends if all(_drawable(end, log) for end in b))
            if ends:
                low, high = zip(*(b for _, b in ends), strict=True)
                band = [x for x, _ in ends]
                axes.fill_between(band, low, high, color=style.colour, alpha=0.15, linewidth=0)
            if not rank:
                noted = {places[r.x] for r in here if r.note or r.errors}
                marks += [(point, style) for point in points if point[0] in noted]
        if rank:
            dashes = _DASHES[(rank - 1) % 3]
            axes.plot([], [], color=FAINT, linewidth=1.1, dashes=dashes, label=clean(metric.name))
    hollow = {"linestyle": "none", "markerfacecolor": PAPER, "markeredgewidth": 1.4}
    for (x, y), style in marks:
        axes.plot([x], [y], marker=style.marker, markeredgecolor=style.colour, zorder=3, **hollow)  # type: ignore[arg-type]  # of a dict with several kinds of values
    if marks:
        label = "with a note, see the table"
        axes.plot([], [], marker="o", markeredgecolor=FAINT, label=label, **hollow)  # type: ignore[arg-type]  # as above


# --- bars -----------------------------------------------------------------------------------------


def _draw_bars(panel: Panel) -> Figure | None:
    """Draw a horizontal bar for each row, grouped by x; each unit has its own axes.

    The first metric of a unit is the bar; further ones are ticks on a line to its right, such as
    the tail of a median. All values are written beside the bar.
    """
    from matplotlib.figure import Figure

    places, headings = _layout(panel)
    groups = [g for g in _by_unit(panel) if any(_values(row, g) for row in panel.rows)]
    if not groups:
        return None
    height = (places[-1][1] + 1.2) * _BAR_IN + 0.75
    figure_ = Figure(figsize=(_WIDTH_IN, height * len(groups)), layout="constrained")
    styles = styles_of(row.system for row in panel.rows)
    for i, metrics in enumerate(groups):
        axes = figure_.add_subplot(len(groups), 1, i + 1)
        values = [v for row, _ in places for v in _values(row, metrics)]
        log = any(m.logarithmic for m in metrics) and max(values) / min(values) > 20
        start = 10.0 ** math.floor(math.log10(min(values)) - 0.3) if log else 0.0
        for row, y in places:
            if found := _values(row, metrics):
                _plot_bar(axes, y, found, start, styles, row.system)
                texts = " · ".join(figure(v, metrics[0].unit) for v in found)
                _annotate(axes, max(found), y, texts)
            ends = bounds(row.values, metrics[0].key)
            if ends and all(_drawable(end, metrics[0].logarithmic) for end in ends):
                axes.plot(ends, [y, y], color=INK, linewidth=1.1, marker="|", markersize=4)
        _set_value_axis(axes, metrics, values, start, log)
        _write_names(axes, panel, places, headings)
    return figure_


def _plot_bar(
    axes: Axes, y: float, found: Sequence[float], start: float, styles: dict[str, SystemStyle],
    system: str,
) -> None:  # fmt: skip
    colour = styles[system].colour
    before = list(styles)[: list(styles).index(system)]
    hatch = _HATCHES[sum(styles[name].colour == colour for name in before) % len(_HATCHES)]
    width = found[0] - start
    axes.barh(y, width, left=start, height=0.78, color=colour, edgecolor=PAPER, hatch=hatch)
    if len(found) > 1:
        axes.plot([min(found), max(found)], [y, y], color=colour, linewidth=1.2, zorder=1)
        for value in found[1:]:
            axes.plot([value], [y], color=colour, marker="|", markersize=8, markeredgewidth=1.8)


def _set_value_axis(
    axes: Axes, metrics: Sequence[Metric], values: Sequence[float], start: float, log: bool
) -> None:
    _set_scale(axes, "x", values, metrics[0].unit, log)
    most, share = max(values), 0.07 + 0.10 * len(metrics)  # for the text beside the bars
    if log:
        axes.set_xlim(start, most * (most / start) ** (share / (1 - share)))
    else:
        least = min(0.0, *values)
        axes.set_xlim(least * 1.1, max(most, 0.0) / (1 - share) - 0.2 * least or 1)
    name = _common_name(metrics)
    if len(metrics) > 1:
        own = [clean(m.name).removesuffix(name).strip() or clean(m.name) for m in metrics]
        name += ": " + ", then ".join(own)
    axes.set_xlabel(_axis_title(name, log))


def _draw_stacks(panel: Panel) -> Figure | None:
    """Draw a horizontal bar made of stages for each row."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    stages = stages_of(panel)
    places, headings = _layout(panel)
    totals = [t for row, _ in places if _drawable(t := total_of(row, stages), False) and t]
    most = max(totals, default=0.0)
    if most <= 0:
        return None
    height = ((places[-1][1] + 1.2) * _BAR_IN + 0.75) * 1.1 + 0.2 * math.ceil(len(stages) / 6)
    figure_ = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = figure_.add_subplot()
    looks = [
        {"facecolor": _STAGES[i % 8], "edgecolor": PAPER, "hatch": "///" if i >= 8 else None}
        for i in range(len(stages))
    ]
    for row, y in places:
        if not _drawable(total_of(row, stages), False):
            continue
        start = 0.0
        for i, stage in enumerate(stages):
            value = max(measured(row, stage.key) or 0.0, 0.0)
            if value:
                axes.barh(y, value, left=start, height=0.8, **looks[i])  # type: ignore[arg-type]  # of a dict with several kinds of values
            if value > 0.11 * most:
                colour = "#ffffff" if i % 8 in _DARK_STAGES else "#0b0d10"
                text, middle = figure(value, stage.unit), start + value / 2
                axes.text(middle, y, text, ha="center", va="center", fontsize=8, color=colour)
            start += value
        _annotate(axes, start, y, figure(start, stages[0].unit))
    axes.set_xlim(0, most * 1.14)
    _set_scale(axes, "x", totals, stages[0].unit, False)
    _write_names(axes, panel, places, headings)
    patches = [Patch(label=_short(s.name), **look) for s, look in zip(stages, looks, strict=True)]  # type: ignore[arg-type]  # as above
    columns = min(len(stages), 6)
    figure_.legend(handles=patches, loc="outside lower left", ncols=columns, handlelength=1.1)
    return figure_


def _layout(panel: Panel) -> tuple[list[tuple[Row, float]], dict[float, str]]:
    """Place a bar for each row, grouped by x, and a heading above each group of several bars."""
    groups: dict[str, list[Row]] = {}
    for row in panel.rows:
        groups.setdefault(number(row.x, panel.x.unit), []).append(row)
    headed = any(len(rows) > 1 for rows in groups.values()) and list(groups) != [""]
    places, headings, y = [], {}, 0.0
    for x, rows in groups.items():
        if headed:
            headings[y] = x
            y += 0.9
        places += [(row, y + i) for i, row in enumerate(rows)]
        y += len(rows) + (0.4 if headed else 0)
    return places, headings


def _write_names(
    axes: Axes, panel: Panel, places: list[tuple[Row, float]], headings: dict[float, str]
) -> None:
    """Write systems beside their bars, and the headings of groups."""
    one_system = len({row.system for row, _ in places}) == 1
    names = []
    for row, _ in places:
        x = "" if headings else number(row.x, panel.x.unit)
        system = "" if one_system and x else clean(row.system)
        names.append(_short(", ".join(part for part in (x, system) if part)))
    ys = [y for _, y in places]
    axes.set_yticks([*ys, *headings], [*names, *map(_short, headings.values())])
    for label in axes.get_yticklabels()[len(ys) :]:
        label.set_fontweight("bold")
    if one_system:
        axes.set_title(_short(places[0][0].system), color=FAINT, fontweight="normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(ys[-1] + 0.6, min([*ys, *headings]) - 0.6)


def _annotate(axes: Axes, x: float, y: float, text: str) -> None:
    offset: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points"}
    axes.annotate(text, (x, y), **offset, va="center", fontsize=8, color=INK)


# --- axes -----------------------------------------------------------------------------------------


def _by_unit(panel: Panel) -> list[list[Metric]]:
    """Group drawn metrics that can share an axis, in order."""
    groups: dict[Unit, list[Metric]] = {}
    for metric in panel.metrics:
        if metric.drawn:
            groups.setdefault(metric.unit, []).append(metric)
    return list(groups.values())


def _values(row: Row, metrics: Sequence[Metric]) -> list[float]:
    log = any(m.logarithmic for m in metrics)
    found = [measured(row, m.key) for m in metrics]
    return [v for v in found if v is not None and _drawable(v, log)]


def _drawable(value: float | None, logarithmic: bool) -> bool:
    """Return whether a value has a place on an axis."""
    if value is None or not math.isfinite(value) or abs(value) > 1e30:
        return False
    return value > 1e-30 or not logarithmic


def _short(name: str) -> str:
    return shortened(name, _NAME_LENGTH)


def _axis_title(name: str, logarithmic: bool) -> str:
    return f"{shortened(name, 60)}, log scale" if logarithmic else shortened(name, 70)


def _common_name(metrics: Sequence[Metric]) -> str:
    """Name an axis by the last words that its metrics have in common, or by the first's name."""
    words = [clean(m.name).split()[::-1] for m in metrics]
    levels = itertools.takewhile(lambda w: len(set(w)) == 1, zip(*words, strict=False))
    if shared := " ".join(level[0] for level in list(levels)[::-1]):
        return shared
    return "latency" if metrics[0].unit is Unit.US else clean(metrics[0].name)


def _set_scale(
    axes: Axes,
    which: str,
    values: Sequence[float],
    unit: Unit,
    logarithmic: bool,
    *,
    exact: bool = False,
) -> None:
    """Set scale and ticks of the x or y axis; `exact` puts ticks at the values, if they are few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, MultipleLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    if logarithmic:
        axes.set(**{f"{which}scale": "log"})
    axis.set_major_formatter(lambda value, _: figure(value, unit))
    axis.set_minor_formatter(NullFormatter())
    ticks = sorted(set(values))
    span = max(ticks[-1], 0.0) - min(ticks[0], 0.0)
    if exact and _are_apart([math.log(t) for t in ticks] if logarithmic else ticks):
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)
    elif logarithmic:
        narrow = ticks[-1] / ticks[0] < 300
        base = 2.0 if unit is Unit.BYTES else 10.0
        subs = (1.0, 2.0, 5.0) if narrow and base > 2 else (1.0,)
        axis.set_major_locator(LogLocator(base=base, subs=subs, numticks=8 if base == 2 else 12))
    elif unit is Unit.BYTES and span > 1024:
        axis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(span / 6))))
    else:
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))


def _are_apart(places: Sequence[float]) -> bool:
    if not 1 < len(places) <= 10:
        return len(places) == 1
    gaps = [b - a for a, b in itertools.pairwise(places)]
    return min(gaps) > 0.085 * (places[-1] - places[0])
