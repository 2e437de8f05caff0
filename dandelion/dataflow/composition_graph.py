"""A composition as a graph of networkx, for drawings and to name loops.

The modules that use networkx import it in their functions: it takes 0.15 s, and most processes draw
no composition and find no loop, see `dandelion.dataflow.graph_order`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from dandelion.dataflow.graph import Binding, Composition, application_ids

if TYPE_CHECKING:
    import networkx as nx

CompositionGraph: TypeAlias = "nx.DiGraph[str]"


def to_networkx(composition: Composition) -> CompositionGraph:
    """Return the graph: nodes ``in:SET``, ``app:ID``, ``out:SET``; edges have the set's name.

    Node attributes: ``kind`` (input, application, output), ``label``, and for applications
    ``application`` (the record). Edge attributes: ``set``, ``binding`` (the record, or None if it
    leads to an output). Several sets between two nodes are one edge with a list in ``bindings``.
    Unknown sources and duplicate producers are not errors here; see `dandelion.dataflow.validate`.
    """
    import networkx as nx

    graph: CompositionGraph = nx.DiGraph(name=composition.name)
    producer: dict[str, str] = {}
    for name in composition.inputs:
        graph.add_node(f"in:{name}", kind="input", label=name)
        producer[name] = f"in:{name}"
    ids = application_ids(composition)
    for app_id, application in zip(ids, composition.applications, strict=True):
        graph.add_node(f"app:{app_id}", kind="application", label=app_id, application=application)
        for target, _ in application.targets():
            producer.setdefault(target, f"app:{app_id}")
    for app_id, application in zip(ids, composition.applications, strict=True):
        for binding in application.bindings:
            if binding.source in producer:
                _connect(graph, producer[binding.source], f"app:{app_id}", binding.source, binding)
    for name in composition.outputs:
        graph.add_node(f"out:{name}", kind="output", label=name)
        if name in producer:
            _connect(graph, producer[name], f"out:{name}", name, None)
    return graph


def _connect(
    graph: CompositionGraph, source: str, target: str, set_name: str, binding: Binding | None
) -> None:
    if not graph.has_edge(source, target):
        graph.add_edge(source, target, bindings=[])
    graph.edges[source, target]["bindings"].append((set_name, binding))
