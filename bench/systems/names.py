"""The table of compared systems: their names, and how each looks in every picture.

A name means the same system in all results, so it has one colour, one marker and one line style
everywhere. Colour alone never distinguishes two systems, since some readers see fewer colours and
some print in grey. All colours have a contrast of at least 3 to 1 with white paper and with a dark
page, and those of systems that are often drawn together differ for readers who confuse red and
green; the tests compute both.

A variant, such as ``"dedicated, graph, cold"``, has the colour of the longest known name that it
begins with, and its own line style. The style of an unknown name follows from its letters.
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


def policy(name: str) -> str:
    """Name a node with a policy; the default one has no mark."""
    return DANDELION if name == "fair" else f"{DANDELION}, {name}"


def engines(workers: int) -> str:
    """Name the GPU engines of a node: a sequential one, or workers beside it."""
    return concurrent(workers) if workers else SEQUENTIAL


@dataclass(frozen=True, slots=True)
class SystemStyle:
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
_LONG, _SHORT = (4, 1.5), (1.5, 1.5)

_KNOWN = {
    DANDELION: SystemStyle(_BLUE, "h"),
    SEQUENTIAL: SystemStyle(_BLUE, "o"),
    CONCURRENT: SystemStyle(_ORANGE, "s"),
    PROCESS: SystemStyle(_GREEN, "D"),
    NATIVE: SystemStyle(_TEAL, "^"),
    WASM: SystemStyle(_VIOLET, "v"),
    NULL: SystemStyle(_BLUE, "P"),
    DEDICATED: SystemStyle(_VIOLET, "^"),
    DEDICATED_GRAPH: SystemStyle(_PINK, "v", (5, 1.5)),
    BARE: SystemStyle(_GREY, "X", _SHORT),
    RAW_ASGI: SystemStyle(_GREY, "d", _LONG),
    RAY_ACTORS: SystemStyle(_GREEN, "<", _LONG),
    RAY_GRAPH: SystemStyle(_VIOLET, ">", _LONG),
    DASK: SystemStyle(_RED, "*", _LONG),
    LITSERVE: SystemStyle(_VIOLET, "p", _LONG),
    FASTAPI_TORCH: SystemStyle(_RED, "h", _LONG),
    ASGI_TORCH: SystemStyle(_RED, "8", _SHORT),
    TRITON: SystemStyle(_PINK, "H", _LONG),
    EXCLUSIVE: SystemStyle(_RED, "v", _LONG),
    TIME_SLICED: SystemStyle(_VIOLET, "^", _LONG),
    MPS: SystemStyle(_GREEN, "D", _LONG),
}
_WORKERS = {
    1: SystemStyle(_TEAL, ">"),
    2: _KNOWN[CONCURRENT],
    4: SystemStyle(_VIOLET, "D"),
    8: SystemStyle(_RED, "v"),
}
_OTHER_COLOURS = (_TEAL, _RED, _VIOLET, _GREEN, _BROWN, _PINK, _OLIVE, _PLUM)
_OTHER_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p")
_OTHER_DASHES: tuple[tuple[float, ...], ...] = ((), _LONG, _SHORT, (6, 1.5, 1.5, 1.5))


def known_names() -> tuple[str, ...]:
    """Give all names that have their own style."""
    return tuple(_KNOWN)


def style_of(name: str) -> SystemStyle:
    """Give the style of a system; always the same for the same name."""
    if name in _KNOWN:
        return _KNOWN[name]
    if (workers := _workers(name)) is not None:
        other = workers % len(_OTHER_COLOURS), workers % len(_OTHER_MARKERS)
        style = SystemStyle(_OTHER_COLOURS[other[0]], _OTHER_MARKERS[other[1]], _OTHER_DASHES[3])
        return _WORKERS.get(workers, style)
    digest = zlib.crc32(name.encode(errors="replace"))
    colour = _OTHER_COLOURS[digest % len(_OTHER_COLOURS)]
    marker = _OTHER_MARKERS[digest // 16 % len(_OTHER_MARKERS)]
    dashes = _OTHER_DASHES
    if family := _family(name):
        colour = _KNOWN[family].colour
        dashes = tuple(d for d in dashes if d != _KNOWN[family].dashes)
    return SystemStyle(colour, marker, dashes[digest // 256 % len(dashes)])


def styles_of(names: Iterable[str]) -> dict[str, SystemStyle]:
    """Give the styles of systems that are drawn together, no two alike.

    Each has the style of `style_of`, except unknown names whose colour is used already: they get
    the next free colour, in the order of `names`, after all known ones.
    """
    ordered = list(dict.fromkeys(names))
    styles: dict[str, SystemStyle] = {}
    for name in sorted(ordered, key=lambda n: not _is_known(n)):
        style = style_of(name)
        if not _is_known(name):
            style = _apart(style, list(styles.values()), may_recolour=not _family(name))
        styles[name] = style
    return {name: styles[name] for name in ordered}


def _apart(style: SystemStyle, used: list[SystemStyle], *, may_recolour: bool) -> SystemStyle:
    colours = [s.colour for s in used]
    if may_recolour and style.colour in colours:
        start = _OTHER_COLOURS.index(style.colour)
        circle = _OTHER_COLOURS[start:] + _OTHER_COLOURS[:start] + (_BLUE, _ORANGE, _GREY)
        style = replace(style, colour=min(circle, key=colours.count))
    looks = [replace(style, dashes=d, marker=m) for d in _OTHER_DASHES for m in _OTHER_MARKERS]
    return next((look for look in [style, *looks] if look not in used), style)


def _workers(name: str) -> int | None:
    found = re.fullmatch(rf"{CONCURRENT}, (\d{{1,4}}) workers?", name)
    return int(found[1]) if found else None


def _is_known(name: str) -> bool:
    return name in _KNOWN or _workers(name) is not None


def _family(name: str) -> str:
    begins = [k for k in _KNOWN if name.startswith((f"{k},", f"{k} ", f"{k}:"))]
    return max(begins, key=len, default="")
