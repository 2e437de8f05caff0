"""A graph for the route with Inductor: operations that a library or one kernel of ours does best.

What is left of the graph goes to Inductor. Differences to the portable route:

- attention is one operation, for the element types that a device multiplies fast;
- images lie channels last, and more convolutions are products of matrices;
- rows are multiplied as they lie in memory;
- operators that only copy are left out, as no value is ever changed.
"""

from __future__ import annotations

import re

from dandelion.blueprint import Computation
from dandelion.errors import InvalidFunction, Problem
from dandelion.export.batch_norm import folded
from dandelion.export.convolutions import Convolutions
from dandelion.export.peak_attention import with_attention
from dandelion.export.peak_images import ChannelsLast
from dandelion.export.peak_records import PeakProduct
from dandelion.export.product_rows import rows_in_order
from dandelion.export.products import with_products
from dandelion.export.torch_graph import Graph

_RANDOM = re.compile(
    r"aten\.(rand|bernoulli|normal|uniform|native_dropout|multinomial|exponential)"
)


def for_peak(graph: Graph, precision: Computation) -> tuple[Graph, dict[str, PeakProduct]]:
    """Rewrite a graph.

    Args:
        graph: of a model.
        precision: how products of float32 are computed.

    Returns:
        The graph, and the operation of each node with an operator of ours by the node's name.
    """
    _refuse_random(graph)
    graph = rows_in_order(Convolutions(folded(graph)).rewritten())
    graph, attention = with_attention(graph, precision)
    graph = rows_in_order(graph)
    graph, products = with_products(graph, precision, least=1, least_channels=2)
    graph, changed = ChannelsLast(graph, products).rewritten()
    return graph, {**attention, **changed}


def _refuse_random(graph: Graph) -> None:
    problems = [
        Problem("unsupported-operator", f"operator {node.operator} is not supported", node.place,
                expected="random numbers as an input")
        for node in graph.nodes if _RANDOM.match(node.operator)
    ]  # fmt: skip
    if problems:
        raise InvalidFunction(tuple(problems))
