"""A program whose functions are captured: each uses its module in another way."""

import collections.abc as cabc
import functools
import io
import math
import os.path
import re
import xml.etree.ElementTree
from dataclasses import dataclass, field
from decimal import Decimal as Money
from enum import Enum
from typing import NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt

import dandelion as dd
from dandelion import Item

from .project import tools
from .project.inner import deep as depth
from .project.tools import answer

try:
    import json as codec
except ImportError:
    codec = None

LIMIT: int = 3
RATIO = LIMIT / 4
WORDS = {"b", "a"}
LETTERS = frozenset(chr(n) for n in range(97, 110))
PATTERN = re.compile("a+", re.IGNORECASE)
KERNEL = np.array([[1, 2], [3, 4]], "int16")
BRAIN = np.array([1.5, 3], ml_dtypes.bfloat16)
BRAIN_TYPE = BRAIN.dtype
PRICE = Money("1.50")
A, B = 1, (2, 3)
INFINITE = float("-inf")
DTYPE = np.float32
Pair = NamedTuple("Pair", [("left", int), ("right", int)])  # noqa: UP014
square = lambda x: x * x  # noqa: E731
stateful = io.TextIOWrapper(io.BytesIO())
counter = {"calls": 0}
if LIMIT > 2:

    def conditional():
        return """a text
  of two lines"""


class Color(Enum):
    RED = 1


@dataclass
class Base:
    tags: list[str] = field(default_factory=list)


@dataclass
class Point(Base):
    x: float = 0.0
    price: "Money" = PRICE

    def scaled(self, by: float) -> "Point":
        return Point(self.tags, self.x * by)


class Record(msgspec.Struct):
    name: str
    points: list[Point] = []


@functools.lru_cache
def cached(n):
    return recursive(n)


def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)


def unused():
    return stateful


@dd.function
def constants(x: str) -> dict:
    counter["calls"] += 1
    return {
        "limit": LIMIT,
        "ratio": RATIO,
        "words": sorted(WORDS),
        "letters": sorted(LETTERS),
        "pattern": PATTERN.findall("xAa"),
        "kernel": [*KERNEL.tolist(), str(KERNEL.dtype)],
        "brain": [*BRAIN.tolist(), str(BRAIN.dtype), BRAIN_TYPE.name],
        "price": str(PRICE),
        "unpacked": [A, list(B)],
        "infinite": math.isinf(INFINITE),
        "dtype": np.dtype(DTYPE).name,
        "pair": Pair(1, 2).right,
        "square": square(4),
        "calls": counter["calls"],
        "conditional": conditional(),
        "x": x,
    }


@dd.function
def classes(x: str) -> dict:
    point = Point(["t"], 2.0).scaled(2)
    record = msgspec.json.decode(b'{"name": "r", "points": [{"x": 5}]}', type=Record)
    return {"x": point.x, "tags": point.tags, "red": Color.RED.name, "record": record.points[0].x}


@dd.function
def imports(x: str) -> list:
    root = xml.etree.ElementTree.fromstring("<a><b/></a>")
    is_sequence = isinstance([], cabc.Sequence)
    return [len(root), os.path.basename("/a/b"), is_sequence, codec.dumps([1]), cached(5)]


@dd.function
def project(x: str) -> list:
    return [answer(), tools.answer(), depth.DEEP, tools.twice.__name__, tools.twice("ab")]


@dd.function
def annotated(x: npt.NDArray[np.int64]) -> int:
    def nested(y: npt.ArrayLike) -> int:
        return y + 1

    return nested(int(x.sum()))


@dd.function
def structures(record: Record, point: Point | None = None) -> Record:
    return Record(record.name.upper(), [*record.points, point or Point(x=-1.0)])


@dd.function
def late(x: str) -> str:
    return defined_below(x)


def defined_below(x):
    return Item("i", 0, x.encode()).text() + "!"


@dd.function
def raises(x: str) -> str:
    middle = x
    return raising(middle)


def raising(x):
    raise KeyError(x)


@dd.function
def raises_elsewhere(x: str) -> str:
    return str(tools.fails())


@dd.function
def uses_state(x: str) -> str:
    return stateful.read()


@dd.function
def uses_nothing(x: str) -> str:
    return not_defined(x)  # noqa: F821


@dd.composition
def composed(x):
    return late(x)


@dd.function
def uses_composition(x: str) -> str:
    return composed(x)


@dd.function
def random_numbers(x: str) -> float:
    return np.random.default_rng(0).random()


def through_globals(x: str):
    return globals()["defined_below"](x)


included = dd.function(through_globals, name="included", include=[defined_below])
left_out = dd.function(through_globals, name="left_out")
