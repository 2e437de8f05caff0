"""Which values of a graph are written to memory; all others are computed inside of a kernel.

The code generator computes a value again in every kernel that uses it, unless it is stored. So

- what a heavy operator reads is stored, since it reads each element more than once,
- a value is stored if two kernels would compute it,
- results of the graph are stored.

A value belongs to the kernel of its users if all of them are in one kernel: of a chain of pointwise
operators, or one that branches and joins again, only the end is stored. Views are seen through.
"""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.export.aten import CONVOLUTION, GEMM, RULES, Kind
from dandelion.export.torch_graph import GETITEM, Graph, Node

_BRANCH_LIMIT = 24
"""Most pointwise operators of one kernel: longer chains would need too many registers."""


def kind_of(node: Node, constant: frozenset[str]) -> Kind:
    """Kind of a node; one without operands that vary is a source."""
    if node.operator == GETITEM:
        return Kind.VIEW
    if node.operator in (GEMM, CONVOLUTION):
        return Kind.HEAVY
    kind = RULES[node.operator].kind
    if kind is Kind.POINTWISE and all(name in constant for name in node.inputs()):
        return Kind.SOURCE
    return kind


def stored(graph: Graph) -> frozenset[str]:
    """Names of the nodes whose values are written to memory.

    Args:
        graph: all of whose operators are in the table.
    """
    kinds = _kinds(graph)
    users: dict[str, list[Node]] = {node.name: [] for node in graph.nodes}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs()):
            if name in users:
                users[name].append(node)
    results = frozenset(graph.outputs.values())
    chosen: set[str] = set()
    kernels: dict[str, frozenset[str]] = {}  # the stored values that a value is needed for
    lengths: dict[str, int] = {}  # pointwise operators between a value and the stored one
    for node in reversed(graph.nodes):
        needed: set[str] = set()
        length = 0
        keep = node.name in results
        for user in users[node.name]:
            kind = kinds[user.name]
            keep = keep or kind is Kind.HEAVY
            needed |= kernels[user.name]
            length = max(length, lengths[user.name] + (kind is Kind.POINTWISE))
        if kinds[node.name] in (Kind.VIEW, Kind.SOURCE):
            # A view is needed where its users are; a heavy user stores what is below the view.
            needed |= {f"{user.name} reads" for user in users[node.name] if _is_heavy(kinds, user)}
            kernels[node.name] = frozenset(
                needed | ({node.name} if node.name in results else set())
            )
            lengths[node.name] = length
            continue
        crossing = len(needed) > 1 or any(name.endswith(" reads") for name in needed)
        if keep or crossing or length >= _BRANCH_LIMIT:
            chosen.add(node.name)
            needed, length = {node.name}, 0
        kernels[node.name] = frozenset(needed)
        lengths[node.name] = length
    return frozenset(chosen)


def _is_heavy(kinds: Mapping[str, Kind], node: Node) -> bool:
    return kinds[node.name] is Kind.HEAVY


def _kinds(graph: Graph) -> dict[str, Kind]:
    constant: set[str] = set()
    kinds: dict[str, Kind] = {}
    for node in graph.nodes:
        kind = kind_of(node, frozenset(n for n in node.inputs() if n in constant))
        kinds[node.name] = kind
        inputs = list(node.inputs())
        if kind is Kind.SOURCE or (kind is Kind.VIEW and all(n in constant for n in inputs)):
            constant.add(node.name)
    return kinds
