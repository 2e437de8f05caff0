"""A layered layout of the boxes and lines of a picture, from left to right.

1. Layers are the topological generations of the graph; inputs are in the first layer, outputs in
   the last. A set that is read beyond the next layer passes through **slots** between the boxes,
   with the height of a line, so no line crosses a box.
2. Within a layer, boxes and slots are ordered by the mean position of their neighbours, in several
   sweeps in both directions; the order with the fewest crossings is used.
3. Heights: each box should be level with its neighbours, and boxes must not overlap. This is a
   least-squares problem with an exact solution, isotonic regression: conflicting neighbours are
   merged.
4. Between two layers there is room for the curves and, right before the next layer, for the
   labels. Labels are above the straight end of their line, and no two lines end at the same height,
   so labels overlap neither each other nor a line.

All sizes are in pixels and depend on the composition alone.

Source: Sugiyama, Tagawa, Toda, Methods for visual understanding of hierarchical system structures,
1981; the pool-adjacent-violators algorithm for step 3.
"""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.dataflow.composition_graph import CompositionGraph, to_networkx
from dandelion.dataflow.draw_boxes import (
    ERRORS,
    HEADER,
    PILL,
    ROW,
    Box,
    Layout,
    Route,
    shorten,
    text_width,
)
from dandelion.dataflow.draw_place import place_across, place_down, sort_layers
from dandelion.dataflow.graph import (
    Application,
    Composition,
    application_ids,
)
from dandelion.dataflow.rules import check_composition
from dandelion.errors import InvalidComposition

SLOT_LIMIT = 4000  # slots of a picture; beyond that, long lines run straight


def graph_of(composition: Composition) -> CompositionGraph:
    """Return the graph of a composition that can be drawn.

    Raises:
        InvalidComposition: applications wait for each other, so there are no layers.
    """
    import networkx as nx

    graph = to_networkx(composition)
    if not nx.is_directed_acyclic_graph(graph):
        problems = check_composition(composition, lambda _: None)
        raise InvalidComposition(tuple(p for p in problems if p.code == "cycle"))
    return graph


def arrange(
    composition: Composition, label: dict[str, str], footer: Mapping[str, tuple[str, ...]]
) -> Layout:
    """Lay a composition out.

    Args:
        composition: a composition without cycles.
        label: text at the end of lines, by ``APPLICATION.PARAMETER``, to compute its width.
        footer: text lines below the ports of applications, by id.

    Raises:
        InvalidComposition: see `graph_of`.
    """
    graph = graph_of(composition)
    boxes = _boxes(composition, footer)
    layer = layers_of(graph)
    for box_id, box in boxes.items():
        box.layer = layer[box_id]
    layout = Layout([[] for _ in range(max(layer.values(), default=0) + 1)])
    for box in boxes.values():
        layout.layers[box.layer].append(box)
    _route(layout, composition, boxes, label)
    sort_layers(layout)
    place_down(layout)
    place_across(layout)
    return layout


def layers_of(graph: CompositionGraph) -> dict[str, int]:
    """Number the layers: inputs 0, every application after all that it waits for, outputs last."""
    import networkx as nx

    kinds = nx.get_node_attributes(graph, "kind")
    rooted = nx.DiGraph(graph)
    rooted.add_edges_from(("", node) for node, kind in kinds.items() if kind == "application")
    layer = {
        node: number
        for number, nodes in enumerate(nx.topological_generations(rooted))
        for node in nodes
    }
    last = 1 + max((layer[n] for n, kind in kinds.items() if kind != "output"), default=0)
    fixed = {"input": 0, "output": last}
    return {node: fixed.get(kind, layer[node]) for node, kind in kinds.items()}


def _boxes(composition: Composition, footer: Mapping[str, tuple[str, ...]]) -> dict[str, Box]:
    boxes = [_pill(f"in:{name}", "input", name) for name in dict.fromkeys(composition.inputs)]
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        boxes.append(_application(app_id, application, footer.get(app_id, ())))
    boxes += [_pill(f"out:{name}", "output", name) for name in dict.fromkeys(composition.outputs)]
    return {box.id: box for box in boxes}


def _pill(box_id: str, kind: str, name: str) -> Box:
    width = text_width(shorten(name), 12) + 32
    return Box(box_id, kind, name, width=width, height=PILL)


def _application(app_id: str, application: Application, footer: tuple[str, ...]) -> Box:
    inputs = tuple(b.parameter for b in application.bindings)
    outputs = tuple(r.output for r in application.returns)
    if application.catch is not None:
        outputs += (ERRORS,)
    rows = max(len(inputs), len(outputs))
    left = max((text_width(shorten(n), 11) for n in inputs), default=0.0)
    right = max((text_width(shorten(n), 11) for n in outputs), default=0.0)
    below = max((text_width(shorten(line), 10) for line in footer), default=0.0)
    words = (text_width(shorten(app_id), 13), left + right + 24, below)
    height = HEADER + (rows + len(footer)) * ROW + (6 if rows or footer else 0)
    box = Box(f"app:{app_id}", "application", app_id, inputs, outputs, footer)
    box.loops = application.repeat is not None
    box.width, box.height = max(110.0, max(words) + 32), height
    return box


def _route(
    layout: Layout, composition: Composition, boxes: dict[str, Box], label: dict[str, str]
) -> None:
    """Add lines from each producer to all readers of its set, through slots where they are long."""
    wanted = _ends(composition, boxes, label)
    sources = _producers(composition, boxes)
    spans = (max(e.target.layer for e in ends) - sources[n][0].layer for n, ends in wanted.items())
    straight = sum(spans) > SLOT_LIMIT
    for name, ends in wanted.items():
        at, port = sources[name]
        for number in range(at.layer + 1, max(end.target.layer for end in ends) + 1):
            for end in ends:
                if end.target.layer == number or (straight and end.target.layer > number):
                    layout.routes.append(end)
                    end.source, end.source_port = at, port
            if straight:
                break
            beyond = [end for end in ends if end.target.layer > number]
            if beyond:
                slot = Box(f"slot:{name}:{number}", "slot", layer=number)
                layout.layers[number].append(slot)
                only = beyond[0].binding if len(beyond) == 1 else None
                layout.routes.append(Route(at, port, slot, 0, name, only))
                at, port = slot, 0


def _producers(composition: Composition, boxes: dict[str, Box]) -> dict[str, tuple[Box, int]]:
    """Find box and port of every set."""
    found = {name: (boxes[f"in:{name}"], 0) for name in composition.inputs}
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        for port, (target, _) in enumerate(application.targets()):
            found.setdefault(target, (boxes[f"app:{app_id}"], port))
    return found


def _ends(
    composition: Composition, boxes: dict[str, Box], label: dict[str, str]
) -> dict[str, list[Route]]:
    """Return the last lines of all edges by set; `_route` sets where they begin."""
    known = _producers(composition, boxes)
    ends: dict[str, list[Route]] = {}
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        box = boxes[f"app:{app_id}"]
        for port, binding in enumerate(application.bindings):
            text = label.get(f"{app_id}.{binding.parameter}", "")
            end = Route(box, 0, box, port, binding.source, binding, text)
            ends.setdefault(binding.source, []).append(end)
    for name in dict.fromkeys(composition.outputs):
        box = boxes[f"out:{name}"]
        ends.setdefault(name, []).append(Route(box, 0, box, 0, name))
    return {name: found for name, found in ends.items() if name in known}
