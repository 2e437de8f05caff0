"""Tables of the demonstration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dandelion.frontend.records import EngineEntry

from .bundle import HeldOut, Report, index_of
from .trace import Trace, engines_of, rows

SHADES = " ░▒▓█"


def confusion(report: Report, labels: npt.NDArray[np.uint8]) -> Table:
    """Count how often each label was classified as each digit."""
    counts = np.zeros((10, 10), int)
    for prediction in report.predictions:
        counts[labels[index_of(prediction.name)], prediction.digit] += 1
    table = Table(title="predictions against labels", title_justify="left")
    table.add_column("label", justify="right")
    for digit in range(10):
        table.add_column(str(digit), justify="right")
    table.add_column("right", justify="right")
    for label, row in enumerate(counts):
        cells = [_cell(int(n), label == digit) for digit, n in enumerate(row)]
        table.add_row(str(label), *cells, f"{row[label]}/{row.sum()}")
    return table


def _cell(count: int, is_right: bool) -> Text:
    if not count:
        return Text("·", style="dim")
    return Text(str(count), style="green" if is_right else "bold red")


def mistakes(report: Report, held_out: HeldOut) -> RenderableType:
    """Show the misclassified images with the network's answers."""
    pictures = []
    for prediction in report.predictions:
        index = index_of(prediction.name)
        label = int(held_out.labels[index])
        if label != prediction.digit:
            read = f"{label} read as {prediction.digit} ({prediction.confidence:.0%})"
            pictures.append(Text(f"{prediction.name}: {read}\n{picture(held_out.pixels[index])}"))
    return Group(*pictures) if pictures else Text("nothing was misread")


def picture(pixels: npt.NDArray[np.uint8]) -> str:
    """Draw grey values [height, width] with two characters a pixel."""
    level = pixels.astype(int) * len(SHADES) // 256
    return "\n".join("".join(SHADES[v] * 2 for v in row).rstrip() for row in level)


def stages(trace: Trace, seconds: float) -> Table:
    """Show applications and the stages of their engines, in milliseconds."""
    table = Table(title=f"all at once: {seconds * 1e3:.0f} ms", title_justify="left")
    table.add_column("what")
    table.add_column("where")
    for name in ("count", "mean ms", "longest ms", "from ms", "to ms"):
        table.add_column(name, justify="right")
    for row in rows(trace):
        figures = (row.mean_s, row.longest_s, row.from_s, row.to_s)
        cells = (f"{s * 1e3:.2f}" for s in figures)
        table.add_row(row.name, row.track, str(row.count), *cells)
    return table


def summary(
    url: str, device: str, right: int, alone_s: npt.NDArray[np.float64], together_s: float
) -> Table:
    """Show the main figures, one a line.

    Args:
        url: of the node.
        device: the device that ran the GPU function.
        right: how many digits were classified correctly.
        alone_s: how long each digit took alone.
        together_s: how long all took together.
    """
    count = len(alone_s)
    p50, p99 = np.percentile(alone_s, (50, 99)) * 1e3
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("node", url)
    table.add_row("device", device)
    table.add_row("accuracy", f"{right} of {count} right, {right / count:.1%}")
    table.add_row("one at a time", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {count} calls over HTTP")
    table.add_row("all at once", f"{together_s:.2f} s, {count / together_s:.0f} digits a second")
    return table


def device(trace: Trace, engines: Iterable[EngineEntry]) -> str:
    """Name and describe the engines that ran the GPU function."""
    used = engines_of(trace, "classify")
    described = [f"{e.name}, {e.description}" for e in engines if e.name in used]
    return "; ".join(described) or "none"
