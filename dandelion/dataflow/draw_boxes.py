"""The parts of a picture: boxes, lines and their sizes, in pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.dataflow.graph import Binding

HEADER = 30.0  # height of the title of an application
ROW = 24.0  # height of a line: a port of an application, a slot
PILL = 30.0  # height of an input or output
LOOP = 8.0  # distance of the arrow around an application that is repeated
LETTERS = 34  # of a name that are shown
ERRORS = "⚠ errors"  # the port of an errors set

Layers: TypeAlias = "list[list[Box]]"


@dataclass(slots=True, eq=False)
class Box:
    """An input, output or application, or a slot that a line passes through.

    `x` and `y` are the upper left corner; ports are counted from the top, `footer` are the lines
    below them. An arrow leads around the foot of an application that `loops`, `LOOP` away from it.
    """

    id: str
    kind: str  # input, output, application, slot
    title: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()
    loops: bool = False
    layer: int = 0
    width: float = 0.0
    height: float = ROW
    x: float = 0.0
    y: float = 0.0

    def port(self, index: int) -> float:
        """Height of the middle of a port, below `y`."""
        return HEADER + (index + 0.5) * ROW if self.kind == "application" else self.height / 2


@dataclass(slots=True, eq=False)
class Route:
    """A line between two neighbouring layers, with the binding at its end, if any.

    The last line of an edge has the label.
    """

    source: Box
    source_port: int
    target: Box
    target_port: int
    set_name: str
    binding: Binding | None = None
    label: str = ""

    @property
    def start(self) -> float:
        """Height at which it begins."""
        return self.source.y + self.source.port(self.source_port)

    @property
    def end(self) -> float:
        """Height at which it ends."""
        return self.target.y + self.target.port(self.target_port)


@dataclass(slots=True, eq=False)
class Layout:
    """A picture: layers of boxes, lines between them, and its size.

    Lines leave layer i horizontally up to `leaves[i]`, where its widest box ends, and enter it
    horizontally from `bends[i]` on, with their labels. The part between is a curve.
    """

    layers: Layers
    routes: list[Route] = field(default_factory=list)
    bends: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in pixels, an upper bound for usual sans-serif fonts."""
    return sum(_letter_width(c) for c in text) * size


def _letter_width(letter: str) -> float:
    if letter in "fijlrtI1.,:;|()[]' ":
        return 0.42
    if letter in "mwMW@%" or ord(letter) > 0x2FF:
        return 1.0
    return 0.74 if letter.isupper() or letter == "_" else 0.64


def shorten(name: str) -> str:
    """Omit the middle of a long name."""
    half = (LETTERS - 1) // 2
    return name if len(name) <= LETTERS else f"{name[:half]}…{name[-half:]}"
