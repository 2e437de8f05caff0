"""Convolutions of a graph with channels last, as the tensor cores of devices need them.

Each convolution that will be a library operation reads and gives ``[batch, height, width,
channels]``. What follows it element by element is computed in the same order, so a value between
two convolutions is moved nowhere. The names of the graph keep their meaning: each is a view of the
value with channels last, and what is not known here reads that view.

An image with few channels gets some of zeros where it is moved anyway, so that the library can read
several channels at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from dandelion.export.aten import CONVOLUTION_LAST, RULES, STORED_LAST, Kind, Rule, Step, Tensor
from dandelion.export.torch_graph import (
    ITEM_BYTES,
    Argument,
    Constant,
    Graph,
    Node,
    Reference,
    TensorType,
)

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_VECTOR_BYTES = 16
"""What a library reads at a time."""
_FEW_CHANNELS = 4
_PERMUTE = "aten.permute.default"
_EACH = frozenset(
    f"aten.{name}"
    for name in (
        *("alias.default", "relu.default", "hardtanh.default", "hardswish.default"),
        *("hardsigmoid.default", "silu.default", "sigmoid.default", "tanh.default"),
        *("gelu.default", "leaky_relu.default", "elu.default", "clamp.default", "neg.default"),
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default"),
        *("minimum.default", "add.Scalar", "mul.Scalar", "_to_copy.default"),
    )
)
"""Operators whose result has the order of their operands."""
_CAT = "aten.cat.default"


def _stored_last(step: Step, x: Tensor) -> Tensor:
    missing = step.shape[-1] - x.shape[-1]
    return x.pad((None, None, None, (0, missing))) if missing else x


RULES[STORED_LAST] = Rule(Kind.POINTWISE, _stored_last, promote=False)


def channels_last(graph: Graph, becomes_operation: Callable[[Node], bool]) -> Graph:
    """Put the channels of convolutions last.

    Args:
        graph: whose operators are in the table.
        becomes_operation: returns whether a convolution becomes library operations.
    """
    return _Rewriter(graph, becomes_operation).rewritten()


class _Rewriter:
    def __init__(self, graph: Graph, becomes_operation: Callable[[Node], bool]) -> None:
        self.graph = graph
        self.becomes_operation = becomes_operation
        self.constants = dict(graph.constants)
        types = {**graph.inputs, **{name: c.type for name, c in graph.constants.items()}}
        self.types: dict[str, TensorType] = types
        self.last: dict[str, str] = {}  # the value with channels last, by the name of its view
        self.nodes: list[Node] = []

    def rewritten(self) -> Graph:
        for node in self.graph.nodes:
            if self.becomes_operation(node):
                self.convolution(node)
            elif node.operator in _EACH and self.follows(node):
                arguments = tuple(map(self.moved, node.arguments))
                self.add_last(node, dataclasses.replace(node, arguments=arguments))
            elif node.operator == _CAT and self.joins(node):
                self.join(node)
            else:
                self.add(node)
        nodes = _used(self.nodes, self.graph.outputs)
        return dataclasses.replace(self.graph, nodes=nodes, constants=self.constants)

    def add(self, node: Node) -> str:
        self.nodes.append(node)
        if node.results:
            self.types[node.name] = node.type
        return node.name

    def add_last(self, node: Node, made: Node) -> None:
        """Add a node that gives a result with channels last, and the view with its old name."""
        kind = _permuted(node.type, _TO_LAST)
        name = self.add(dataclasses.replace(made, name=f"{node.name}_last", results=(kind,)))
        self.add(self.view(node, node.name, name, _TO_FIRST))
        self.last[node.name] = name

    def view(self, near: Node, name: str, of: str, order: tuple[int, ...]) -> Node:
        kind = _permuted(self.types[of], order)
        return dataclasses.replace(
            near, name=name, operator=_PERMUTE, arguments=(Reference(of), order), keywords={},
            results=(kind,), single=True, operand=kind.dtype,
        )  # fmt: skip

    # convolutions

    def convolution(self, node: Node) -> None:
        x, weight, *rest = node.arguments
        assert isinstance(x, Reference)
        assert isinstance(weight, Reference)
        channels = self.types[x.name].shape[1]
        width = channels
        if weight.name in self.constants and channels <= _FEW_CHANNELS:
            width = _VECTOR_BYTES // ITEM_BYTES[node.type.dtype]
        image = self.image(node, x.name, max(width, channels))
        filters = self.weight(node, weight.name, max(width, channels) - channels)
        arguments = (Reference(image), Reference(filters), *rest)
        made = dataclasses.replace(node, operator=CONVOLUTION_LAST, arguments=arguments)
        self.add_last(node, made)

    def image(self, node: Node, name: str, channels: int) -> str:
        """The name of an image with channels last, so many of them."""
        found = self.last.get(name)
        shape = self.types[name].shape
        if found is not None and channels == shape[1]:
            return found
        view = self.add(self.view(node, f"{node.name}_moved", name, _TO_LAST))
        kind = TensorType((shape[0], shape[2], shape[3], channels), node.type.dtype)
        stored = dataclasses.replace(
            node, name=f"{node.name}_image", operator=STORED_LAST, arguments=(Reference(view),),
            keywords={}, results=(kind,), single=True, operand=kind.dtype,
        )  # fmt: skip
        if channels == shape[1]:
            self.last[name] = stored.name
        return self.add(stored)

    def weight(self, node: Node, name: str, missing: int) -> str:
        """The name of weights with channels last, and so many of zeros."""
        made = f"{node.name}_weight_last"
        constant = self.constants.get(name)
        if constant is None:
            return self.add(self.view(node, made, name, _TO_LAST))
        data = np.pad(constant.data.transpose(_TO_LAST), ((0, 0), (0, 0), (0, 0), (0, missing)))
        kind = TensorType(tuple(data.shape), constant.type.dtype)
        self.constants[made] = Constant(kind, np.ascontiguousarray(data))
        self.types[made] = kind
        return made

    # what follows

    def follows(self, node: Node) -> bool:
        """Tell whether operands have channels last, and others can be read so too."""
        if len(node.results) != 1 or len(node.type.shape) != 4:
            return False
        if any(True for one in node.keywords.values() if isinstance(one, Reference)):
            return False
        names = [a.name for a in node.arguments if isinstance(a, Reference)]
        fits = all(len(self.types[name].shape) in (0, 4) for name in names)
        wide = [name for name in names if name in self.last]
        return fits and any(self.types[name].shape == node.type.shape for name in wide)

    def joins(self, node: Node) -> bool:
        parts = node.arguments[0]
        return (
            isinstance(parts, tuple)
            and len(node.type.shape) == 4
            and all(isinstance(one, Reference) and one.name in self.last for one in parts)
        )

    def join(self, node: Node) -> None:
        parts, *rest = node.arguments
        assert isinstance(parts, tuple)
        given = rest[0] if rest else node.keywords.get("dim", 0)
        assert isinstance(given, int)
        arguments = (tuple(map(self.moved, parts)), _TO_LAST.index(given % 4))
        self.add_last(node, dataclasses.replace(node, arguments=arguments, keywords={}))

    def moved(self, argument: Argument) -> Argument:
        """An operand with channels last."""
        if not isinstance(argument, Reference) or not self.types[argument.name].shape:
            return argument
        found = self.last.get(argument.name)
        if found is None:
            name = f"{argument.name}_last_view"
            if name not in self.types:
                near = self.graph.nodes[0]
                self.add(self.view(near, name, argument.name, _TO_LAST))
            found = name
        return Reference(found)


def _permuted(kind: TensorType, order: tuple[int, ...]) -> TensorType:
    return TensorType(tuple(kind.shape[d] for d in order), kind.dtype)


def _used(nodes: list[Node], outputs: Mapping[str, str]) -> list[Node]:
    """The nodes that results depend on."""
    wanted = set(outputs.values())
    kept = []
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs())
    return kept[::-1]
