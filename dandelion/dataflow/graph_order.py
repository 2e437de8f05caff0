"""Whether a graph has a loop, and the order of its nodes if it has none.

By the standard library, since most graphs have none. networkx finds which nodes are in a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter


def order_of(graph: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Order the nodes of a graph, so that each comes after all that it needs.

    Args:
        graph: by node, what it needs.

    Returns:
        All nodes, also those that are needed only; None if there is a loop.
    """
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError:
        return None
