"""Products of a matrix whose rows lie in another order than it has them.

A product gives each row by itself. So the rows may be multiplied as they lie in memory, and only
the result is seen in the order of the graph, as a view. Otherwise the matrix would be copied, or be
multiplied in many small parts: torch's layers for sequences exchange rows and batch before and
after each product.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from dandelion.export.strided_views import StridedView, ViewTracer
from dandelion.export.torch_graph import Argument, Graph, Node, Reference, TensorType, shapes_of

_PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default")
_SHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.alias.default")


def rows_in_order(graph: Graph) -> Graph:
    """Rewrite products of constant factors so that rows are multiplied as they lie."""
    return _Rewriter(graph).rewritten()


@dataclasses.dataclass(frozen=True, slots=True)
class _Moved:
    """A value with its rows in the order of memory.

    Attributes:
        name: of that value, ``[*sizes in the order of memory, columns]``.
        order: which of the graph's dimensions of rows comes when.
        sizes: of the rows' dimensions, as the graph has them.
    """

    name: str
    order: tuple[int, ...]
    sizes: tuple[int, ...]


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = shapes_of(graph)
        self.nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
        shapes = {n: k.shape for n, k in self.types.items() if n not in self.nodes}
        self.tracer = ViewTracer(self.nodes, shapes)
        self.moved: dict[str, _Moved] = {}
        self.taken = {*self.types, *self.nodes}
        self.last = Reference("")

    def rewritten(self) -> Graph:
        made: list[Node] = []
        for node in self.graph.nodes:
            parts = list(self.parts(node))
            made += parts or [node]
            for part in parts:
                self.nodes[part.name] = part
                self.types[part.name] = part.type
        return dataclasses.replace(self.graph, nodes=_used(made, set(self.graph.outputs.values())))

    def parts(self, node: Node) -> Iterator[Node]:
        if node.operator in _PRODUCTS:
            yield from self.product(node)
        elif node.operator == "aten.add.Tensor" and node.keywords.get("alpha", 1) == 1:
            yield from self.sum(node)
        elif node.operator in _SHAPES:
            self.see(node)

    def see(self, node: Node) -> None:
        """Remember a value whose columns are those of a moved one."""
        source = node.arguments[0]
        found = self.moved.get(source.name) if isinstance(source, Reference) else None
        if found is None or not isinstance(source, Reference) or not node.type.shape:
            return
        if node.type.shape[-1] == self.types[source.name].shape[-1]:
            self.moved[node.name] = found

    def product(self, node: Node) -> Iterator[Node]:
        *biases, x, y = node.arguments
        if not isinstance(x, Reference) or not isinstance(y, Reference):
            return
        bias = biases[0] if biases else None
        if node.keywords or (isinstance(bias, Reference) and len(self.types[bias.name].shape) > 1):
            return
        layout = self.tracer.layout(x.name)
        *lead, inner = layout.dimensions
        rows = [part for parts in lead for part in parts if part[0] != 1]
        order = tuple(sorted(range(len(rows)), key=lambda at: -rows[at][1]))
        if order == tuple(range(len(rows))) and node.operator != "aten.bmm.default":
            return
        shared = self.tracer.view(y.name)
        if len(shared.shape) == 3 and shared.shape[0] > 1 and shared.strides[0] != 0:
            return
        dense = dataclasses.replace(
            layout, dimensions=(*((rows[at],) for at in order), inner)
        ).reshaped((math.prod(size for size, _ in rows), math.prod(n for n, _ in inner)))
        if dense is None or not _is_matrix(dense.view()) or any(not s for _, s in rows):
            return
        yield from self.multiplied(node, x, y, bias, _Moved("", order, tuple(n for n, _ in rows)))

    def multiplied(
        self, node: Node, x: Reference, y: Reference, bias: Argument, moved: _Moved
    ) -> Iterator[Node]:
        dtype = node.type.dtype
        inner, columns = self.types[x.name].shape[-1], node.type.shape[-1]
        count, rank = math.prod(moved.sizes), len(moved.sizes)
        sorted_sizes = tuple(moved.sizes[at] for at in moved.order)
        self.last = x
        yield self.step(node, "view.default", (*moved.sizes, inner), (*moved.sizes, inner), dtype)
        turned = (*moved.order, rank)
        yield self.step(node, "permute.default", (*sorted_sizes, inner), turned, dtype)
        yield self.step(node, "view.default", (count, inner), (count, inner), dtype)
        left, self.last = self.last, y
        if node.operator == "aten.bmm.default":
            shape = self.types[y.name].shape[1:]
            yield self.step(node, "select.int", shape, 0, dtype, 0)
        factor = self.last
        operator = "mm.default" if bias is None else "addmm.default"
        given = (left, factor) if bias is None else (bias, left, factor)
        kind = TensorType((count, columns), dtype)
        yield self.named(node, operator, given, kind)
        yield self.step(node, "view.default", (*sorted_sizes, columns), (*sorted_sizes, columns),
                        dtype)  # fmt: skip
        yield from self.back(node, moved)

    def back(self, node: Node, moved: _Moved) -> Iterator[Node]:
        """See a value with sorted rows in the order of the graph, under the name of a node."""
        dtype, columns = node.type.dtype, node.type.shape[-1]
        self.moved[node.name] = dataclasses.replace(moved, name=self.last.name)
        rank = len(moved.sizes)
        inverse = (*sorted(range(rank), key=moved.order.__getitem__), rank)
        yield self.step(node, "permute.default", (*moved.sizes, columns), inverse, dtype)
        arguments = (self.last, node.type.shape)
        yield dataclasses.replace(
            node, operator="aten.view.default", arguments=arguments, keywords={}
        )

    def sum(self, node: Node) -> Iterator[Node]:
        """Add the same to all rows."""
        x, y = node.arguments[:2]
        for one, other in ((x, y), (y, x)):
            if not isinstance(one, Reference) or not isinstance(other, Reference):
                continue
            found = self.moved.get(one.name)
            kind = self.types.get(one.name)
            if found is None or kind is None or kind.dtype != node.type.dtype:
                continue
            added = self.types.get(other.name)
            if added is None or len(added.shape) != 1 or node.type.shape != kind.shape:
                continue
            shape = (*(found.sizes[at] for at in found.order), node.type.shape[-1])
            self.last = Reference(found.name)
            yield self.named(node, "add.Tensor", (self.last, other),
                             TensorType(shape, node.type.dtype))  # fmt: skip
            yield from self.back(node, found)
            return

    def step(
        self, node: Node, operator: str, shape: tuple[int, ...], argument: Argument, dtype: str,
        *more: Argument,
    ) -> Node:  # fmt: skip
        """A node that follows the last one."""
        return self.named(node, operator, (self.last, argument, *more), TensorType(shape, dtype))

    def named(
        self, node: Node, operator: str, arguments: tuple[Argument, ...], kind: TensorType
    ) -> Node:
        name = f"{node.name}_rows"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.last = Reference(name)
        return dataclasses.replace(
            node, name=name, operator=f"aten.{operator}", arguments=arguments, keywords={},
            results=(kind,), operand=kind.dtype,
        )  # fmt: skip


def _is_matrix(view: StridedView | None) -> bool:
    return view is not None and view.strides[-1] == 1


def _used(nodes: list[Node], wanted: set[str]) -> list[Node]:
    """The nodes that results depend on."""
    kept = []
    for node in reversed(nodes):
        if node.name in wanted:
            kept.append(node)
            wanted.update(node.inputs())
    return kept[::-1]
