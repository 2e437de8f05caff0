"""Compositions as pictures: SVG, Mermaid, and JSON for other programs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dandelion.dataflow.draw_layout import graph_of, layers_of
from dandelion.dataflow.draw_svg import to_svg
from dandelion.dataflow.graph import Application, Binding, Composition
from dandelion.dataflow.printer import print_attempts, print_repeat

__all__ = ["to_json", "to_mermaid", "to_svg"]


def to_json(composition: Composition) -> str:
    """Write the graph for other programs: ``name``, ``nodes`` with layers, ``edges``.

    Raises:
        InvalidComposition: the composition has a cycle.
    """
    graph = graph_of(composition)
    layer = layers_of(graph)
    nodes = [
        {
            "id": node,
            "kind": data["kind"],
            "label": data["label"],
            "layer": layer[node],
            **_repeat_fields(data.get("application")),
            **_failure_fields(data.get("application")),
        }
        for node, data in graph.nodes(data=True)
    ]
    edges = [
        {"source": source, "target": target, "set": name, **_binding_fields(binding)}
        for source, target, data in graph.edges(data=True)
        for name, binding in data["bindings"]
    ]
    view = {"name": composition.name, "nodes": nodes, "edges": edges}
    return msgspec.json.format(msgspec.json.encode(view), indent=2).decode()


def _binding_fields(binding: Binding | None) -> dict[str, str | bool]:
    if binding is None:
        return {}
    return {
        "parameter": binding.parameter,
        "sharding": binding.sharding.value,
        "optional": binding.optional,
    }


def _repeat_fields(application: Application | None) -> dict[str, object]:
    """Return the fields of the `repeat` clause, if there is one."""
    if application is None or application.repeat is None:
        return {}
    repeat = application.repeat
    fed = {feed.parameter: feed.output for feed in repeat.feedback}
    return {"repeat": {"times": repeat.times, "until": repeat.until, "feedback": fed}}


def _failure_fields(application: Application | None) -> dict[str, object]:
    """Return the fields of the clauses `attempts` and `catch`, if there are any."""
    fields: dict[str, object] = {}
    if application is None:
        return fields
    if application.attempts is not None:
        attempts = application.attempts
        fields["attempts"] = {
            "times": attempts.times,
            "kinds": attempts.kinds,
            "backoff_s": attempts.backoff_s,
        }
    if application.catch is not None:
        fields["catch"] = {"target": application.catch.target, "kinds": application.catch.kinds}
    return fields


def to_mermaid(composition: Composition) -> str:
    """Write the graph in the language of Mermaid.

    Raises:
        InvalidComposition: the composition has a cycle.
    """
    graph = graph_of(composition)
    ids = {node: f"n{index}" for index, node in enumerate(graph)}
    shapes = {"input": ("([", "])"), "application": ("[", "]"), "output": ("([", "])")}
    lines = ["flowchart LR"]
    for node, data in graph.nodes(data=True):
        left, right = shapes[data["kind"]]
        lines.append(f'    {ids[node]}{left}"{_mermaid(data["label"])}"{right}')
    for source, target, data in graph.edges(data=True):
        for name, binding in data["bindings"]:
            lines.append(f"    {ids[source]} {_arrow(name, binding)} {ids[target]}")
    for node, data in graph.nodes(data=True):
        application = data.get("application")
        texts = [_mermaid(text) for text in _own_arrows(application)]
        lines += [f'    {ids[node]} -- "{text}" --> {ids[node]}' for text in texts]
    return "\n".join(lines) + "\n"


def _own_arrows(application: Application | None) -> Iterator[str]:
    """Yield the texts of the arrows from an application to itself."""
    if application is not None and application.repeat is not None:
        yield print_repeat(application.repeat)
    if application is not None and application.attempts is not None:
        yield print_attempts(application.attempts)


def _arrow(name: str, binding: Binding | None) -> str:
    if binding is None:
        return "-->"
    text = f'"{_mermaid(name)} {binding.sharding.value}"'
    return f"-. {text} .->" if binding.optional else f"-- {text} -->"


def _mermaid(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;")
