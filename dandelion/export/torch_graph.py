"""A model as a graph of ATen operators: what is left of `torch.export` when torch is gone.

A graph is a list of nodes in the order of execution. Each node applies one operator of ATen to
values of earlier nodes, to constants (weights, buffers) and to numbers. All shapes are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.arrays import Array

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Element types that can be exported, by torch's names, with their sizes."""

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor, as torch names it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Reference:
    """The value of another node, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class DType:
    """An element type as an argument."""

    name: str


Argument: TypeAlias = (
    "Reference | DType | bool | int | float | str | tuple[Argument, ...] | None"  # nested lists
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator.

    Attributes:
        name: unique in the graph.
        operator: ATen's name with its overload: ``aten.add.Tensor``.
        arguments: by position, as ATen's schema has them; missing ones have their defaults.
        keywords: arguments by name.
        results: types of its results; several for operators such as ``aten.split``. None stands
            for one that nothing uses.
        single: it has one result, which is not in a list.
        operand: the element type to which torch converts its operands; empty if it has none.
        place: the line of the model that it comes from.
        part: the submodule that it belongs to.
    """

    name: str
    operator: str
    arguments: tuple[Argument, ...]
    keywords: Mapping[str, Argument]
    results: tuple[TensorType | None, ...]
    single: bool
    operand: str
    place: str
    part: str

    @property
    def type(self) -> TensorType:
        """Type of the only result, or of the first one that is used."""
        return next(found for found in self.results if found is not None)

    def inputs(self) -> Iterator[str]:
        """Names of the nodes, inputs and constants that it uses."""
        return references((*self.arguments, *self.keywords.values()))


@dataclass(frozen=True, slots=True)
class Constant:
    """A weight or another tensor with a fixed value.

    Attributes:
        type: its type.
        data: its elements.
    """

    type: TensorType
    data: Array


@dataclass(frozen=True, slots=True)
class Graph:
    """A model.

    Attributes:
        inputs: types of the tensors that a call gives, by name.
        constants: by name.
        nodes: in the order of execution.
        outputs: names of the values that a call returns, by the name of the output.
    """

    inputs: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    nodes: Sequence[Node]
    outputs: Mapping[str, str]


def shapes_of(graph: Graph) -> dict[str, TensorType]:
    """Types of all inputs, constants and single results of a graph, by name."""
    types = {**graph.inputs, **{name: constant.type for name, constant in graph.constants.items()}}
    return types | {node.name: node.type for node in graph.nodes if node.single}


def references(arguments: Iterable[Argument]) -> Iterator[str]:
    """Names that arguments refer to, in nested lists too."""
    for argument in arguments:
        if isinstance(argument, Reference):
            yield argument.name
        elif isinstance(argument, tuple):
            yield from references(argument)


GETITEM = "getitem"
"""The operator that takes one of several results."""
