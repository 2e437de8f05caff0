"""New nodes of a graph, in the place of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dandelion.export.torch_graph import Argument, Graph, Node, Reference, TensorType


class Names:
    """Gives new nodes names of their own."""

    def __init__(self, graph: Graph) -> None:
        self.taken = {n.name for n in graph.nodes} | {*graph.inputs, *graph.constants}

    def new(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def node_like(
    like: Node, name: str, operator: str, arguments: Sequence[Argument], kind: TensorType
) -> Node:
    return dataclasses.replace(
        like, name=name, operator=f"aten.{operator}", arguments=tuple(arguments), keywords={},
        results=(kind,), single=True, operand=kind.dtype,
    )  # fmt: skip


class Chain:
    """Nodes that follow each other, in the place of one node; the last has its name."""

    def __init__(self, node: Node, names: Names, first: Reference) -> None:
        self.node, self.names, self.at = node, names, first
        self.made: list[Node] = []

    def add(self, operator: str, shape: Sequence[int], *arguments: Argument) -> None:
        kind = TensorType(tuple(shape), self.node.type.dtype)
        name = self.names.new(f"{self.node.name}_{operator.partition('.')[0]}")
        self.made.append(node_like(self.node, name, operator, (self.at, *arguments), kind))
        self.at = Reference(name)

    def ended(self) -> list[Node]:
        last = dataclasses.replace(self.made[-1], name=self.node.name)
        return [*self.made[:-1], last]


def pair_of(given: Argument) -> tuple[int, int]:
    assert isinstance(given, tuple)
    numbers = [one for one in given if isinstance(one, int)]
    return (numbers[0], numbers[-1])
