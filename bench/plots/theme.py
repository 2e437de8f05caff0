"""How all pictures look: colours of paper and ink, sizes, ticks with units for people."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..records import Metric, Unit
from ..units import clean, figure, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis

INK, FAINT, GRID, PAPER = "#1d2126", "#6a727c", "#dfe3e8", "#fefefe"
"""Each is used for nothing else, so that a page may put its own colours in their place."""

SETTINGS: dict[Any, object] = {  # keys: newer bindings take their literals only, older any text
    "svg.hashsalt": "dandelion",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,
    "text.usetex": False,
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}

WIDTH_IN = 7.4
"""Of a picture with one set of axes; a page has room for two of them side by side."""

_LONGEST_NAME = 38
_TICKS = 6


def short_name(name: str) -> str:
    """Cut a name so that it leaves room for data; tables have it in full."""
    return shortened(name, _LONGEST_NAME)


def axis_title(name: str, *, logarithmic: bool) -> str:
    """Give the text beside an axis."""
    return f"{shortened(name, 60)}, log scale" if logarithmic else shortened(name, 70)


def by_unit(metrics: Sequence[Metric]) -> list[list[Metric]]:
    """Group drawn metrics that can share an axis, in order."""
    groups: dict[Unit, list[Metric]] = {}
    for metric in metrics:
        if metric.drawn:
            groups.setdefault(metric.unit, []).append(metric)
    return list(groups.values())


def common_name(metrics: Sequence[Metric]) -> str:
    """Name an axis that metrics share by their last words in common, or by the first's name."""
    words = [clean(m.name).split() for m in metrics]
    shared: list[str] = []
    for level in zip(*(reversed(w) for w in words), strict=False):
        if len(set(level)) > 1:
            break
        shared.insert(0, level[0])
    if shared:
        return " ".join(shared)
    return "latency" if metrics[0].unit is Unit.US else clean(metrics[0].name)


def drawable(value: float | None, *, logarithmic: bool) -> bool:
    """Whether a value has a place on an axis."""
    if value is None or not math.isfinite(value) or abs(value) > 1e30:
        return False
    return value > 1e-30 if logarithmic else True


def set_scale(
    axes: Axes, which: str, values: Sequence[float], unit: Unit, *, logarithmic: bool, exact: bool
) -> None:
    """Set the scale, the ticks and their labels of an axis.

    Args:
        axes: of matplotlib.
        which: "x" or "y".
        values: all that is drawn along it; not empty, and drawable.
        unit: of the values.
        logarithmic: whether the axis is.
        exact: put ticks at the values themselves, where they are few and apart.
    """
    axis: DrawnAxis = axes.xaxis if which == "x" else axes.yaxis
    if logarithmic:
        axes.set(**{f"{which}scale": "log"})
    axis.set_major_formatter(lambda value, _: figure(value, unit))
    ticks = sorted(set(values))
    if exact and _apart(ticks, logarithmic=logarithmic):
        axis.set_ticks(ticks)
        axis.set_ticks([], minor=True)
        return
    if logarithmic:
        _log_ticks(axis, ticks, unit)
    else:
        _even_ticks(axis, ticks, unit)


def _apart(ticks: Sequence[float], *, logarithmic: bool) -> bool:
    if not 1 < len(ticks) <= 10:
        return len(ticks) == 1
    places = [math.log(t) for t in ticks] if logarithmic else ticks
    gaps = [b - a for a, b in itertools.pairwise(places)]
    return min(gaps) > 0.085 * (places[-1] - places[0])


def _log_ticks(axis: DrawnAxis, values: Sequence[float], unit: Unit) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    base = 2.0 if unit is Unit.BYTES else 10.0
    decades = math.log(values[-1] / values[0], base) if values[0] > 0 else 0
    if base == 2.0:
        axis.set_major_locator(LogLocator(base=2.0, numticks=_TICKS + 2))
        axis.set_minor_locator(NullLocator())
        return
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    axis.set_major_locator(LogLocator(base=10.0, subs=subs, numticks=12))
    axis.set_minor_locator(LogLocator(base=10.0, subs=tuple(range(2, 10)), numticks=12))
    axis.set_minor_formatter(NullFormatter())


def _even_ticks(axis: DrawnAxis, values: Sequence[float], unit: Unit) -> None:
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    span = max(values[-1], 0.0) - min(values[0], 0.0)
    if unit is Unit.BYTES and span > 1024:
        axis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(span / _TICKS))))
    else:
        axis.set_major_locator(MaxNLocator(nbins=_TICKS, steps=[1, 2, 2.5, 5, 10]))
