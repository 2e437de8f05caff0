"""A graph of records as a graph of torch's again, on a device that need not be there.

Operations of ours become calls of one operator that torch does not look into; it reads whole values
that lie row-major, and so writes its result. All others are those that torch's exporter gave.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dandelion.export.aten import ATTENTION_WEIGHTS, CONVOLUTION, GEMM
from dandelion.export.convolutions import is_depthwise
from dandelion.export.peak_attention import ATTENTION
from dandelion.export.torch_graph import (
    GETITEM,
    Argument,
    DType,
    Graph,
    Node,
    Reference,
    shapes_of,
)

OURS = frozenset({GEMM, CONVOLUTION, ATTENTION})
_LIBRARY = "dandelion_export"
_SCHEMA = "product(Tensor[] reads, str name, SymInt[] shape) -> Tensor"
_CIRCULAR = {"aten.sin.default": 0, "aten.cos.default": 1}
_SHORT = ("torch.float32", "torch.float16", "torch.bfloat16")
_COPIES = frozenset({"aten.clone.default", "aten.alias.default", "aten.detach.default"})
_VIEWS = frozenset({"aten.view.default", "aten._unsafe_view.default"})


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A graph for Inductor.

    Attributes:
        module: with torch's graph.
        examples: tensors without content, for each value that it is given.
        given: names of these values: inputs and constants.
    """

    module: Any
    examples: Sequence[Any]
    given: Sequence[str]


def product_operator(torch: Any) -> Any:
    """The operator that stands for operations of ours; it is defined when it is first needed."""
    found = getattr(torch.ops, _LIBRARY)
    if not hasattr(found, "product"):
        library = torch.library.Library(_LIBRARY, "DEF")
        library.define(_SCHEMA, tags=(torch._C.Tag.needs_contiguous_strides,))
        library.impl("product", _result, "Meta")
        _KEPT.append(library)
    return found.product.default


_KEPT: list[Any] = []


def _result(reads: Sequence[Any], name: str, shape: Sequence[int]) -> Any:
    return reads[0].new_empty(tuple(shape))


def traced(torch: Any, graph: Graph, device: Any) -> TracedGraph:
    """Write a graph for Inductor.

    Args:
        torch: the module.
        graph: see `dandelion.export.peak_graph`.
        device: on which it is to run; it need not exist.
    """
    tracing = torch.fx.experimental.proxy_tensor
    table = torch._inductor.decomposition.select_decomp_table()
    used = {name for node in graph.nodes for name in node.inputs()} | {*graph.outputs.values()}
    given = [*graph.inputs, *(name for name in graph.constants if name in used)]
    evaluation = Evaluation(torch, graph, given, device)
    with torch._subclasses.FakeTensorMode():
        examples = [evaluation.example(name) for name in given]
        with torch.fx.traceback.preserve_node_meta(), torch.no_grad():
            module = tracing.make_fx(evaluation.run, decomposition_table=table)(*examples)
    return TracedGraph(module, examples, given)


class Evaluation:
    """Calls the operators of a graph one after the other."""

    def __init__(self, torch: Any, graph: Graph, given: Sequence[str], device: Any) -> None:
        self.torch, self.graph, self.given, self.device = torch, graph, given, device
        self.types = shapes_of(graph)
        self.product = product_operator(torch)
        self.ours = {node.name for node in graph.nodes if node.operator in OURS}
        self.values: dict[str, Any] = {}

    def example(self, name: str) -> Any:
        kind = self.types[name]
        dtype = getattr(self.torch, kind.dtype)
        return self.torch.empty(kind.shape, dtype=dtype, device=self.device)

    def run(self, *values: Any) -> list[Any]:
        """Compute the outputs."""
        self.values.update(zip(self.given, values, strict=True))
        for node in self.graph.nodes:
            part = f"{node.operator} in {node.part}" if node.part else node.operator
            self.torch.fx.traceback.set_stack_trace([f"{node.place}\n{part}"])
            self.values[node.name] = self.node(node)
        return [self.result(name) for name in self.graph.outputs.values()]

    def result(self, name: str) -> Any:
        """An output, in memory of its own."""
        value = self.values[name]
        if name in self.ours and list(self.graph.outputs.values()).count(name) == 1:
            return value
        return value.clone(memory_format=self.torch.contiguous_format)

    def argument(self, given: Argument) -> Any:
        match given:
            case Reference(name):
                return self.values[name]
            case DType(name):
                return getattr(self.torch, name)
            case tuple():
                return [self.argument(one) for one in given]
        return given

    def node(self, node: Node) -> Any:
        aten = self.torch.ops.aten
        arguments: list[Any] = [self.argument(one) for one in node.arguments]
        if node.operator in OURS:
            return self.product(arguments, node.name, list(node.type.shape))
        if node.operator == GETITEM:
            return arguments[0][arguments[1]]
        if node.operator == ATTENTION_WEIGHTS:
            return _weights(*arguments)
        if node.operator in _COPIES:
            return arguments[0]
        if node.operator in _VIEWS:
            return arguments[0].reshape(arguments[1])
        if is_depthwise(node, self.types):
            return self.depthwise(*arguments)
        if node.operator in _CIRCULAR and str(arguments[0].dtype) in _SHORT:
            return circular(self.torch, arguments[0], _CIRCULAR[node.operator])
        arguments = self.inside(node, arguments)
        name, _, overload = node.operator.removeprefix("aten.").partition(".")
        target = getattr(getattr(aten, name), overload)
        keywords = {key: self.argument(one) for key, one in node.keywords.items()}
        if any(argument.name == "device" for argument in target._schema.arguments):
            keywords["device"] = self.device
        return target(*arguments, **keywords)

    def inside(self, node: Node, arguments: list[Any]) -> list[Any]:
        """Arguments with indices that do not leave the value: the first or last element instead."""
        if node.operator == "aten.embedding.default":
            table, index, *rest = arguments
            return [table, index.clamp(0, table.shape[0] - 1), *rest]
        if node.operator in ("aten.gather.default", "aten.index_select.default"):
            value, dimension, index, *rest = arguments
            return [value, dimension, index.clamp(0, value.shape[dimension] - 1), *rest]
        if node.operator == "aten.index.Tensor":
            value, indices = arguments
            held = [
                one if one is None or one.dtype == self.torch.bool else one.clamp(-size, size - 1)
                for one, size in zip(indices, value.shape, strict=False)
            ]
            return [value, held]
        return arguments

    def depthwise(
        self, x: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], *_: Any,
    ) -> Any:  # fmt: skip
        """A convolution with a kernel for each channel, as a sum of shifted images."""
        steps, (above, left), (down, right) = (
            (one[0], one[-1]) for one in (stride, padding, dilation)
        )
        rows, columns = weight.shape[2:]
        spans = (down * (rows - 1) + 1, right * (columns - 1) + 1)
        sizes = (x.shape[2] + 2 * above, x.shape[3] + 2 * left)
        extents = [(sizes[d] - spans[d]) // steps[d] + 1 for d in (0, 1)]
        wide = self.torch.constant_pad_nd(x.float(), [left, left, above, above], 0.0)
        terms = [] if bias is None else [bias.float().reshape(1, -1, 1, 1)]
        for i in range(rows):
            for j in range(columns):
                part = wide
                for d, start in enumerate((i * down, j * right)):
                    end = start + (extents[d] - 1) * steps[d] + 1
                    part = self.torch.ops.aten.slice.Tensor(part, 2 + d, start, end, steps[d])
                terms.append(part * weight[:, 0, i, j].float().reshape(1, -1, 1, 1))
        return functools.reduce(operator.add, terms).to(x.dtype)


def circular(torch: Any, x: Any, quarter: int) -> Any:
    """The sine of float32 and shorter types, or the cosine with a quarter of a turn more.

    NVIDIA's library has a table for large numbers, and a module with a table is loaded afresh for
    each call. Here the turns are taken away in double precision instead.
    """
    wide = x.double()
    turns = torch.round(wide * (2 / math.pi))
    rest = (wide - turns * (math.pi / 2)).float()
    square = rest * rest
    sine = cosine = torch.zeros_like(rest)
    for power in (9, 7, 5, 3, 1):
        sine = sine * square + (-1) ** (power // 2) / math.factorial(power)
    for power in (10, 8, 6, 4, 2, 0):
        cosine = cosine * square + (-1) ** (power // 2) / math.factorial(power)
    place = turns.long() + quarter
    found = torch.where(place % 2 == 0, sine * rest, cosine)
    return torch.where(place % 4 < 2, found, -found).to(x.dtype)


def _weights(scores: Any, mask: Any = None, causal: bool = False) -> Any:
    """Softmax of the products of queries and keys, some of which are masked."""
    wide = scores.float() if scores.element_size() == 2 else scores
    if causal:
        rows, columns = scores.shape[-2:]
        seen = wide.new_ones((rows, columns)).tril() > 0
        wide = wide.masked_fill(~seen, -float("inf"))
    if mask is not None:
        is_bool = "bool" in str(mask.dtype)
        wide = wide.masked_fill(~mask, -float("inf")) if is_bool else wide + mask
    return wide.softmax(-1).to(scores.dtype)
