"""Pictures of panels: an SVG and a PNG each, drawn with matplotlib.

matplotlib is needed here only and is loaded when the first picture is drawn, through its object
interface; nothing depends on or changes its global state but a context of settings. The same
outcome gives the same bytes: no dates, and ids that follow from the content.

Colours, markers and dashes are those of `dandelion.bench.systems.names`. Pictures are on white.
Inside a page, the colours of paper, ink and grid are replaced by variables of the page's style
(`inline_svg`), so that one drawing is readable on paper and on a dark screen.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dandelion.errors import BackendUnavailable

from ..records import Look, Outcome, Panel
from ..units import shortened
from .bars import draw_bars, draw_stacks
from .lines import draw_lines
from .theme import FAINT, GRID, INK, PAPER, SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN_BY = {Look.LINES: draw_lines, Look.BARS: draw_bars, Look.STACKED: draw_stacks}
_OF_A_PAGE = {
    PAPER: "var(--paper)", INK: "var(--ink)", FAINT: "var(--faint)", GRID: "var(--grid)",
}  # fmt: skip
_PNG_DOTS_PER_INCH = 160


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw every panel of an outcome that has a picture.

    Args:
        outcome: whose panels are drawn; a panel of look TABLE, or without values, has no picture.
        folder: made if it is not there. Files are named ``EXPERIMENT-MACHINE-PANEL.svg`` and
            ``.png``.

    Returns:
        The files, in the order of the panels.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    written = []
    for panel in outcome.found.panels:
        name = _file_name(outcome.experiment, outcome.machine_name, panel.key)
        for suffix in ("svg", "png"):
            content = _rendered(panel, suffix, _origin(outcome))
            if content is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.{suffix}"
            path.write_bytes(content)
            written.append(path)
    return written


def inline_svg(panel: Panel, name: str, label: str) -> str:
    """Draw a panel as an ``<svg>`` element to stand in an HTML page.

    Args:
        panel: what is drawn.
        name: distinguishes this picture's ids from those of all others in the page.
        label: what the picture shows, for people who do not see it; HTML-escaped already.

    The page's style defines ``--paper``, ``--ink``, ``--faint`` and ``--grid``.

    Returns:
        The element; empty for a panel that has no picture.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    content = _rendered(panel, "svg")
    if content is None:
        return ""
    text = content.decode()
    text = text[text.index("<svg") :]
    text = _with_own_ids(text, _file_name(name))
    for colour, variable in _OF_A_PAGE.items():
        text = text.replace(colour, variable)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _rendered(panel: Panel, suffix: str, origin: str = "") -> bytes | None:
    with _matplotlib():
        figure = _figure(panel)
        if figure is None:
            return None
        if origin:
            _entitle(figure, panel.title, origin)
        content = io.BytesIO()
        # Date is matplotlib's word; an absent Creator keeps its version out of the file.
        metadata = {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
        figure.savefig(content, format=suffix, dpi=_PNG_DOTS_PER_INCH, metadata=metadata)
        return content.getvalue()


def _figure(panel: Panel) -> Figure | None:
    drawn_by = _DRAWN_BY.get(panel.look)
    return drawn_by(panel) if drawn_by else None


def _entitle(figure: Figure, title: str, origin: str) -> None:
    """Write above a picture that stands alone what a page would say around it."""
    width, height = figure.get_size_inches()
    lines = [*textwrap.wrap(shortened(title, 240), 88), shortened(origin, 110)]
    figure.set_size_inches(width, height + 0.17 * len(lines))
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9.5)


def _origin(outcome: Outcome) -> str:
    quick = "QUICK RUN" if outcome.quick else ""
    scaled = "SCALED SIZES" if outcome.found.scaled else ""
    parts = (outcome.experiment, outcome.machine_name, outcome.backend, quick, scaled)
    return ", ".join(part for part in parts if part)


@contextmanager
def _matplotlib() -> Iterator[None]:
    try:
        import matplotlib as mpl
    except ImportError:
        missing, remedy = "matplotlib is not installed", "pip install 'dandelion-engine[bench]'"
        raise BackendUnavailable("pictures", missing, remedy) from None
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; its table has it right.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _file_name(*parts: str) -> str:
    plain = (re.sub(r"[^A-Za-z0-9_]+", "-", part)[:60].strip("-") for part in parts)
    return "-".join(part for part in plain if part) or "picture"


def _with_own_ids(svg: str, name: str) -> str:
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
