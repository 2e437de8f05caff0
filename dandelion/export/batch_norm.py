"""Batch normalisation of a graph in evaluation mode as a product and a sum.

Its statistics are constants, so it multiplies each channel by a constant and adds one. Behind a
convolution with constant weights that nothing else uses, both go into the convolution's weights and
bias. They are computed in double precision.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from dandelion.arrays import Array, declared_dtype
from dandelion.export.torch_graph import (
    FLOATS,
    GETITEM,
    Constant,
    Graph,
    Node,
    Reference,
    TensorType,
)

_NORM = "aten._native_batch_norm_legit_no_training.default"
_CONVOLUTION = "aten.convolution.default"


def folded(graph: Graph) -> Graph:
    """Replace batch normalisations whose parameters are constants."""
    uses = Counter(name for node in graph.nodes for name in node.inputs())
    uses.update(graph.outputs.values())
    nodes = {node.name: node for node in graph.nodes}
    constants = dict(graph.constants)
    made: dict[str, Node] = {}
    norms: set[str] = set()
    for node in graph.nodes:
        origin = node.arguments[0] if node.operator == GETITEM else None
        if isinstance(origin, Reference) and origin.name in norms and node.arguments[1] == 0:
            made[node.name] = _alias(node, made[origin.name])
            continue
        scaled = _factors(node, constants) if node.operator == _NORM else None
        if scaled is None:
            made[node.name] = node
            continue
        norms.add(node.name)
        source = node.arguments[0]
        assert isinstance(source, Reference)
        before = nodes.get(source.name)
        if before is not None and uses[before.name] == 1 and _is_foldable(before, constants):
            made[before.name] = _into_convolution(before, scaled, constants)
            made[node.name] = _renamed(node, before)
        else:
            made[f"{node.name}_scaled"], made[node.name] = _affine(node, source, scaled, constants)
    return dataclasses.replace(graph, constants=constants, nodes=list(made.values()))


def _factors(node: Node, constants: Mapping[str, Constant]) -> tuple[Array, Array] | None:
    """Factor and summand of each channel; None if they are only known in a call."""
    given = node.arguments[1:5]
    if any(a is not None and not _is_constant(a, constants) for a in given):
        return None
    weight, bias, mean, variance = (
        _wide(constants[a.name]) if isinstance(a, Reference) else None for a in given
    )
    epsilon = node.arguments[6]
    assert isinstance(epsilon, float | int)
    assert mean is not None
    assert variance is not None
    factor = 1 / np.sqrt(variance + epsilon)
    factor = factor if weight is None else factor * weight
    summand = -mean * factor
    return factor, summand if bias is None else summand + bias


def _is_constant(argument: object, constants: Mapping[str, Constant]) -> bool:
    if not isinstance(argument, Reference) or argument.name not in constants:
        return False
    return constants[argument.name].type.dtype in FLOATS


def _is_foldable(node: Node, constants: Mapping[str, Constant]) -> bool:
    if node.operator != _CONVOLUTION or node.arguments[6]:
        return False
    bias = node.arguments[2]
    return _is_constant(node.arguments[1], constants) and (
        bias is None or _is_constant(bias, constants)
    )


def _into_convolution(
    node: Node, scaled: tuple[Array, Array], constants: dict[str, Constant]
) -> Node:
    factor, summand = scaled
    x, weight, bias, *rest = node.arguments
    assert isinstance(weight, Reference)
    kind = constants[weight.name].type.dtype
    old = _wide(constants[weight.name])
    shape = (-1, *(1 for _ in old.shape[1:]))
    if isinstance(bias, Reference):
        summand = summand + _wide(constants[bias.name]) * factor
    new = (
        _add(f"{node.name}_weight", old * factor.reshape(shape), kind, constants),
        _add(f"{node.name}_bias", summand, kind, constants),
    )
    return dataclasses.replace(node, arguments=(x, *new, *rest))


def _affine(
    node: Node, source: Reference, scaled: tuple[Array, Array], constants: dict[str, Constant]
) -> tuple[Node, Node]:
    result = node.type
    shape = (1, -1, *(1 for _ in result.shape[2:]))
    factor, summand = (
        _add(f"{node.name}_{kind}", data.reshape(shape), result.dtype, constants)
        for kind, data in zip(("factor", "summand"), scaled, strict=True)
    )
    common = dataclasses.replace(node, keywords={}, results=(result,), single=True)
    first = dataclasses.replace(
        common, name=f"{node.name}_scaled", operator="aten.mul.Tensor", arguments=(source, factor)
    )
    second = dataclasses.replace(
        common, operator="aten.add.Tensor", arguments=(Reference(first.name), summand)
    )
    return first, second


def _renamed(node: Node, before: Node) -> Node:
    """The value of another node under the name of this one."""
    return dataclasses.replace(
        node, operator="aten.alias.default", arguments=(Reference(before.name),),
        results=(node.type,), single=True,
    )  # fmt: skip


def _alias(node: Node, origin: Node) -> Node:
    return dataclasses.replace(
        node, operator="aten.alias.default", arguments=(Reference(origin.name),)
    )


def _add(name: str, data: Array, dtype: str, constants: dict[str, Constant]) -> Reference:
    while name in constants:
        name += "_"
    narrow = np.ascontiguousarray(data, declared_dtype(dtype))
    constants[name] = Constant(TensorType(tuple(narrow.shape), dtype), narrow)
    return Reference(name)


def _wide(constant: Constant) -> Array:
    return constant.data.astype(np.float64)
