"""Attention of a graph as one operation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from dandelion.blueprint import Computation
from dandelion.export.graph_chains import Chain, Names, node_like
from dandelion.export.peak_records import AttentionProduct
from dandelion.export.strided_views import StridedView, ViewTracer, row_major
from dandelion.export.torch_graph import Argument, Graph, Node, Reference, TensorType, shapes_of

ATTENTION = "dandelion.attention"
"""The operator of nodes that are an `AttentionProduct`."""

_ATTENTION = "aten.scaled_dot_product_attention.default"
_LARGEST_WIDTH = 256


def with_attention(
    graph: Graph, precision: Computation
) -> tuple[Graph, dict[str, AttentionProduct]]:
    """Replace attention by operations; what has no fast products stays."""
    names, types = Names(graph), shapes_of(graph)
    tracer = ViewTracer(
        {node.name: node for node in graph.nodes},
        {n: kind.shape for n, kind in types.items() if n in {*graph.inputs, *graph.constants}},
    )
    nodes: list[Node] = []
    found: dict[str, AttentionProduct] = {}
    for node in graph.nodes:
        product = None
        if node.operator == _ATTENTION:
            product = _attention(node, tracer, types, precision)
        if product is None:
            nodes.append(node)
            continue
        batch, heads, rows, width = product.q.shape
        name = names.new(f"{node.name}_rows")
        found[name] = product
        kind = TensorType((batch, rows, heads, width), node.type.dtype)
        reads = tuple(Reference(view.base) for view in product.places)
        nodes.append(
            dataclasses.replace(node_like(node, name, "", reads, kind), operator=ATTENTION)
        )
        order = TensorType((batch, heads, rows, width), node.type.dtype)
        chain = Chain(node, names, Reference(name))
        chain.add("permute.default", order.shape, (0, 2, 1, 3))
        if node.type.shape != order.shape:
            chain.add("view.default", node.type.shape, node.type.shape)
        nodes += chain.ended()
    return dataclasses.replace(graph, nodes=nodes), found


def _attention(
    node: Node, tracer: ViewTracer, types: Mapping[str, TensorType], precision: Computation
) -> AttentionProduct | None:
    q, k, v, *rest = node.arguments
    names = ("attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, rest, strict=False)) | dict(node.keywords)
    if given.get("dropout_p"):
        return None
    dtype = node.type.dtype
    exact = precision is Computation.F32
    if dtype not in ("float16", "bfloat16") and (dtype != "float32" or exact):
        return None
    views = [_rows(argument, tracer, types) for argument in (q, k, v)]
    query, key, value = views
    if query is None or key is None or value is None:
        return None
    if dtype == "float32" and query.shape[2] == 1:
        return None  # one block for each head would do it; Inductor's sums are faster
    width = query.shape[-1]
    shared = bool(given.get("enable_gqa")) and query.shape[1] % key.shape[1] == 0
    if query.shape[0] != key.shape[0] or (query.shape[1] != key.shape[1] and not shared):
        return None
    if value.shape != key.shape or width > _LARGEST_WIDTH:
        return None
    mask, mask_dtype = given.get("attn_mask"), ""
    seen = None
    if isinstance(mask, Reference):
        seen = _broadcast(tracer.view(mask.name), (*query.shape[:3], key.shape[2]))
        mask_dtype = types[mask.name].dtype
        if seen is None or (mask_dtype != "bool" and not mask_dtype.startswith(("f", "bf"))):
            return None
    scale = given.get("scale")
    factor = float(scale) if isinstance(scale, int | float) else 1 / math.sqrt(width)
    return AttentionProduct(
        query, key, value, seen, dtype, mask_dtype, bool(given.get("is_causal")), factor
    )


def _rows(
    argument: Argument, tracer: ViewTracer, types: Mapping[str, TensorType]
) -> StridedView | None:
    """Where the rows of each head lie."""
    if not isinstance(argument, Reference):
        return None
    view = tracer.view(argument.name)
    if view.strides[-1] != 1:
        shape = types[argument.name].shape
        view = StridedView(argument.name, shape, row_major(shape))
    if len(view.shape) not in (3, 4):
        return None
    if len(view.shape) == 4:
        return view
    shape, strides = view.shape, view.strides
    return StridedView(view.base, (shape[0], 1, *shape[1:]), (strides[0], 0, *strides[1:]),
                       view.offset)  # fmt: skip


def _broadcast(view: StridedView, shape: tuple[int, ...]) -> StridedView | None:
    """Repeat a view along dimensions of one element, and along those that it does not have."""
    missing = len(shape) - len(view.shape)
    if missing < 0:
        return None
    sizes, strides = (*(1,) * missing, *view.shape), (*(0,) * missing, *view.strides)
    if any(have not in (1, want) for have, want in zip(sizes, shape, strict=True)):
        return None
    wide = tuple(
        stride if have == want and have != 1 else 0
        for have, want, stride in zip(sizes, shape, strides, strict=True)
    )
    return StridedView(view.base, shape, wide, view.offset)
