"""Attention of a graph as products, so that they can be library operations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from dandelion.export.aten import ATTENTION_WEIGHTS, GEMM
from dandelion.export.product_records import TYPES
from dandelion.export.torch_graph import Graph, Node, Reference, TensorType

_ATTENTION = "aten.scaled_dot_product_attention.default"


def without_attention(graph: Graph, least: int) -> list[Node]:
    """Write attention as two products with masks and softmax between them.

    Args:
        graph: of a model.
        least: multiplications of a product that is worth it.
    """
    made: list[Node] = []
    taken = {node.name for node in graph.nodes} | {*graph.inputs, *graph.constants}

    def new(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    types: Mapping[str, TensorType] = {
        **graph.inputs,
        **{name: constant.type for name, constant in graph.constants.items()},
        **{node.name: node.type for node in graph.nodes if node.single},
        **{node.name: node.type for node in graph.nodes if node.operator == "getitem"},
    }
    for node in graph.nodes:
        parts = _attention(node, types, new, least) if node.operator == _ATTENTION else None
        made += parts or [node]
    return made


def _attention(
    node: Node, types: Mapping[str, TensorType], new: Callable[[str], str], least: int
) -> list[Node] | None:
    q, k, v, *rest = node.arguments
    names = ("attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, rest, strict=False)) | dict(node.keywords)
    if given.get("enable_gqa") or given.get("dropout_p"):
        return None
    if not all(isinstance(a, Reference) and a.name in types for a in (q, k, v)):
        return None
    assert isinstance(q, Reference)
    assert isinstance(k, Reference)
    query, key = types[q.name], types[k.name]
    if query.dtype not in TYPES or query.shape[:-2] != key.shape[:-2] or len(query.shape) < 3:
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    if math.prod(shape) * query.shape[-1] < least:
        return None
    scale = given.get("scale")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    kind = TensorType(shape, query.dtype)
    scores, weights = new(f"{node.name}_scores"), new(f"{node.name}_weights")
    common = dataclasses.replace(node, results=(kind,), operand=query.dtype, keywords={})
    mask = given.get("attn_mask")
    causal = bool(given.get("is_causal"))
    return [
        dataclasses.replace(
            common, name=scores, operator=GEMM, arguments=(q, k),
            keywords={"alpha": factor, "swap": True},
        ),
        dataclasses.replace(
            common, name=weights, operator=ATTENTION_WEIGHTS,
            arguments=(Reference(scores), mask, causal),
        ),
        dataclasses.replace(node, operator=GEMM, arguments=(Reference(weights), v), keywords={}),
    ]  # fmt: skip
