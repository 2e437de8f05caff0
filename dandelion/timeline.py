"""The timeline of an invocation as a picture: a row for each engine, a bar for each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dandelion.markup import Element, clipped, element

BARS_LIMIT = 500
LANES_LIMIT = 12
_WIDTH, _NAMES, _ROW, _GAP = 760.0, 150.0, 18.0, 4.0
_TICKS = 5
_LABEL_CHARACTER = 6.2
_COLOURS = ("#4c8bf5", "#2aa876", "#b57edc", "#d9822b", "#14a3b8", "#c95d8c")
_FAILED, _WAITING = "#d64545", "#8a8f98"


class Bar(NamedTuple):
    """Something with a beginning and an end.

    Attributes:
        name: of the application.
        track: where it happened; ``queue`` is waiting.
        start_ms, duration_ms: since the beginning of the invocation.
        number: which instance of the application.
        error: class of its error, or empty.
    """

    name: str
    track: str
    start_ms: float
    duration_ms: float
    number: int = 0
    error: str = ""


def timeline(bars: Sequence[Bar], whole_ms: float) -> Element:
    """Draw bars in the order of their beginning; at most `BARS_LIMIT`.

    Bars of one track that overlap are put below each other.
    """
    shown = sorted(bars, key=lambda bar: bar.start_ms)[:BARS_LIMIT]
    whole_ms = max([whole_ms, 1e-6, *(bar.start_ms + bar.duration_ms for bar in shown)])
    scale = (_WIDTH - _NAMES) / whole_ms
    colours = _colours(shown)
    content: list[Element] = []
    top = 0.0
    for track in dict.fromkeys(bar.track for bar in shown):
        lanes = _lanes([bar for bar in shown if bar.track == track])
        label = element("text", clipped(track, 22), element("title", track), x=0, y=top + 13)
        content.append(label)
        for lane in lanes:
            content += [_drawn(bar, top, scale, colours[bar.name]) for bar in lane]
            top += _ROW + _GAP
    height = top + _ROW
    content += _axis(whole_ms, scale, top)
    return element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=f"timeline of {len(shown)} calls in {whole_ms:.2f} ms",
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        width="100%",
        style=f"max-width:{_WIDTH:g}px;fill:currentColor;font:11px system-ui,sans-serif",
    )


def _colours(bars: Sequence[Bar]) -> dict[str, str]:
    names = dict.fromkeys(bar.name for bar in bars)
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}


def _lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Put bars into as few rows as they need not to overlap; the last of `LANES_LIMIT` may."""
    lanes: list[list[Bar]] = []
    ends: list[float] = []
    for bar in bars:
        free = (i for i, end in enumerate(ends) if end <= bar.start_ms + 1e-9)
        at = next(free, min(len(lanes), LANES_LIMIT - 1))
        if at == len(lanes):
            lanes.append([])
            ends.append(0.0)
        lanes[at].append(bar)
        ends[at] = max(ends[at], bar.start_ms + bar.duration_ms)
    return lanes


def _drawn(bar: Bar, top: float, scale: float, colour: str) -> Element:
    waits = bar.track == "queue"
    colour = _FAILED if bar.error else _WAITING if waits else colour
    left, width = _NAMES + bar.start_ms * scale, max(1.0, bar.duration_ms * scale)
    label = f"{bar.name}[{bar.number}]"
    ended = f", {bar.error}" if bar.error else ""
    parts = [
        element("title", f"{label}: {bar.duration_ms:.3f} ms from {bar.start_ms:.3f} ms{ended}"),
        element("rect", x=f"{left:.2f}", y=f"{top:.2f}", width=f"{width:.2f}", height=_ROW, rx=2,
                fill=colour, fill_opacity=0.35 if waits else 0.75),
    ]  # fmt: skip
    if len(label) * _LABEL_CHARACTER < width:
        parts.append(element("text", label, x=f"{left + 4:.2f}", y=f"{top + 13:.2f}"))
    return element("g", *parts)


def _axis(whole_ms: float, scale: float, top: float) -> list[Element]:
    parts = []
    for at in range(_TICKS + 1):
        time_ms = whole_ms * at / _TICKS
        x = _NAMES + time_ms * scale
        line = element("line", x1=f"{x:.2f}", x2=f"{x:.2f}", y1=0, y2=f"{top:.2f}",
                       stroke="currentColor", stroke_opacity=0.2)  # fmt: skip
        anchor = "start" if at == 0 else "end" if at == _TICKS else "middle"
        text = element("text", f"{time_ms:.3g} ms", x=f"{x:.2f}", y=f"{top + 13:.2f}",
                       text_anchor=anchor, fill_opacity=0.65)  # fmt: skip
        parts += [line, text]
    return parts
