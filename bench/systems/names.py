"""Names of the systems that are compared, and how each of them looks in every picture.

A name means the same system in all outcomes, so it has one colour, one marker and one line style
everywhere. Colour alone never tells two systems apart: some readers see fewer colours, and some
print in grey. All colours are of middling lightness, so that they can be read on white paper and on
a dark page alike (contrast at least 3 to 1 with both; the tests compute it), and those of systems
that are often drawn together stay apart for readers who confuse red and green.

A variant, such as ``"dedicated, graph, cold"``, has the colour of the longest known name that it
begins with, and a line of its own. A name that is not known here has a style that follows from its
letters alone.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

DANDELION = "dandelion"
SEQUENTIAL = "dandelion sequential"
CONCURRENT = "dandelion concurrent"
PROCESS = "dandelion process"
NATIVE = "dandelion native"
WASM = "dandelion wasm"
NULL = "dandelion null"
DEDICATED = "dedicated"
DEDICATED_GRAPH = "dedicated, graph"
BARE = "bare loop"
RAW_ASGI = "raw ASGI"
RAY_ACTORS = "Ray actors"
RAY_GRAPH = "Ray compiled graph"
DASK = "Dask"
LITSERVE = "LitServe"
FASTAPI_TORCH = "FastAPI + torch"
ASGI_TORCH = "ASGI + torch"
TRITON = "Triton"
EXCLUSIVE = "exclusive processes"
TIME_SLICED = "time-sliced processes"
MPS = "MPS partitions"


def concurrent(workers: int) -> str:
    """Name the concurrent engine with so many workers."""
    return f"{CONCURRENT}, {workers} workers" if workers != 1 else f"{CONCURRENT}, 1 worker"


@dataclass(frozen=True, slots=True)
class Style:
    """How a system is drawn.

    Attributes:
        colour: ``#rrggbb``.
        marker: of matplotlib, for points of a line.
        dashes: on and off lengths in line widths; empty for a solid line.
    """

    colour: str
    marker: str
    dashes: tuple[float, ...] = ()


_BLUE, _ORANGE, _GREEN, _VIOLET = "#0f73c6", "#dd6100", "#35a068", "#7440f0"
_RED, _GREY, _TEAL, _OLIVE = "#d2103f", "#717b86", "#0092a8", "#8f8a45"
_PINK, _BROWN, _PLUM = "#cd74b5", "#8a5a2c", "#9c4a86"

_KNOWN = {
    DANDELION: Style(_BLUE, "h"),
    SEQUENTIAL: Style(_BLUE, "o"),
    CONCURRENT: Style(_ORANGE, "s"),
    PROCESS: Style(_GREEN, "D"),
    NATIVE: Style(_TEAL, "^"),
    WASM: Style(_VIOLET, "v"),
    NULL: Style(_BLUE, "P"),
    DEDICATED: Style(_VIOLET, "^"),
    DEDICATED_GRAPH: Style(_PINK, "v", (5, 1.5)),
    BARE: Style(_GREY, "X", (1.5, 1.5)),
    RAW_ASGI: Style(_GREY, "d", (4, 1.5)),
    RAY_ACTORS: Style(_GREEN, "<", (4, 1.5)),
    RAY_GRAPH: Style(_VIOLET, ">", (4, 1.5)),
    DASK: Style(_RED, "*", (4, 1.5)),
    LITSERVE: Style(_VIOLET, "p", (4, 1.5)),
    FASTAPI_TORCH: Style(_RED, "h", (4, 1.5)),
    ASGI_TORCH: Style(_RED, "8", (1.5, 1.5)),
    TRITON: Style(_PINK, "H", (4, 1.5)),
    EXCLUSIVE: Style(_RED, "v", (4, 1.5)),
    TIME_SLICED: Style(_VIOLET, "^", (4, 1.5)),
    MPS: Style(_GREEN, "D", (4, 1.5)),
}
_WORKERS = {
    1: Style(_TEAL, ">"),
    2: _KNOWN[CONCURRENT],
    4: Style(_VIOLET, "D"),
    8: Style(_RED, "v"),
}
_OTHER_COLOURS = (_TEAL, _RED, _VIOLET, _GREEN, _BROWN, _PINK, _OLIVE, _PLUM)
_OTHER_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p")
_OTHER_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1.5, 1.5), (6, 1.5, 1.5, 1.5))


def known_names() -> tuple[str, ...]:
    """Give all names that have a style of their own."""
    return tuple(_KNOWN)


def style_of(name: str) -> Style:
    """Give the style of a system; the same for the same name, always."""
    if name in _KNOWN:
        return _KNOWN[name]
    if found := re.fullmatch(rf"{CONCURRENT}, (\d{{1,4}}) workers?", name):
        return _of_workers(int(found.group(1)))
    digest = zlib.crc32(name.encode(errors="replace"))
    colour = _OTHER_COLOURS[digest % len(_OTHER_COLOURS)]
    marker = _OTHER_MARKERS[digest // 16 % len(_OTHER_MARKERS)]
    dashes = _OTHER_DASHES[digest // 256 % len(_OTHER_DASHES)]
    family = _family(name)
    if not family:
        return Style(colour, marker, dashes)
    others = [d for d in _OTHER_DASHES if d != _KNOWN[family].dashes]
    return Style(_KNOWN[family].colour, marker, others[digest // 256 % len(others)])


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """Give the styles of systems that are drawn together, no two alike.

    Each has the style that `style_of` gives, except names unknown to this module whose colour is
    taken already: they move on to the next free colour, in the order of `names`, known ones first.

    Args:
        names: of a panel's systems, in its order; may repeat.
    """
    ordered = list(dict.fromkeys(names))
    styles: dict[str, Style] = {}
    for name in sorted(ordered, key=lambda n: not _is_known(n)):
        style = style_of(name)
        if not _is_known(name):
            style = _apart(style, list(styles.values()), may_recolour=not _family(name))
        styles[name] = style
    return {name: styles[name] for name in ordered}


def _apart(style: Style, taken: list[Style], *, may_recolour: bool) -> Style:
    colours = [s.colour for s in taken]
    if may_recolour and style.colour in colours:
        start = _OTHER_COLOURS.index(style.colour)
        circle = _OTHER_COLOURS[start:] + _OTHER_COLOURS[:start] + (_BLUE, _ORANGE, _GREY)
        style = replace(style, colour=min(circle, key=colours.count))
    looks = [replace(style, dashes=d, marker=m) for d in _OTHER_DASHES for m in _OTHER_MARKERS]
    return next((look for look in [style, *looks] if look not in taken), style)


def _is_known(name: str) -> bool:
    return name in _KNOWN or re.fullmatch(rf"{CONCURRENT}, \d{{1,4}} workers?", name) is not None


def _family(name: str) -> str:
    begins = [k for k in _KNOWN if name.startswith((f"{k},", f"{k} ", f"{k}:"))]
    return max(begins, key=len, default="")


def _of_workers(workers: int) -> Style:
    if workers in _WORKERS:
        return _WORKERS[workers]
    marker = _OTHER_MARKERS[workers % len(_OTHER_MARKERS)]
    return Style(_OTHER_COLOURS[workers % len(_OTHER_COLOURS)], marker, (6, 1.5, 1.5, 1.5))
