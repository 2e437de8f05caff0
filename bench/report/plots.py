"""Pictures of panels with matplotlib: an SVG and a PNG each.

matplotlib is loaded when the first picture is drawn, and used through its object interface, so no
global state is changed but a context of settings. The same panel gives the same bytes: there are no
dates, and ids follow from the content. Pictures are on white. Inside a page, the colours of paper,
ink and grid become variables of the page's style (`inline_svg`), for light and dark screens.
"""

from __future__ import annotations

import importlib.util
import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dandelion.errors import BackendUnavailable

from ..records import ExperimentResult, Panel
from .charts import FAINT, GRID, INK, PAPER, draw_chart
from .units import shortened

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
        figure_ = draw_chart(panel)
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
