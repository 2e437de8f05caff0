"""Where the boxes and lines of a picture lie: a layered layout, from left to right.

1. Layers are the topological generations of the graph; inputs stand in the first layer, outputs in
   the last. A set that is read beyond the next layer passes through **slots**, places of a line's
   height between the boxes, so no line crosses a box.
2. Within a layer, boxes and slots are ordered by the mean place of their neighbours, back and
   forth, and the order with the fewest crossings is kept.
3. Heights: each wants to lie level with its neighbours and none may overlap. That is a problem of
   least squares with an exact answer, isotonic regression: neighbours that conflict are merged.
4. Between two layers there is room for the curves and, right before the next layer, for the
   labels. Labels stand over the straight end of their line, and no two lines end at one height;
   therefore labels overlap neither each other nor a line.

Everything is in pixels and determined by the composition alone.

Source: Sugiyama, Tagawa, Toda, Methods for visual understanding of hierarchical system structures,
1981; the pool-adjacent-violators algorithm for step 3.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import networkx as nx

from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    CompositionGraph,
    application_ids,
    to_networkx,
)
from dandelion.dataflow.rules import check_composition
from dandelion.errors import InvalidComposition

HEADER = 30.0  # height of the title of an application
ROW = 24.0  # height of a line: a port of an application, a slot
PILL = 30.0  # height of an input or output
SPACE = 22.0  # between boxes of a layer
MARGIN = 28.0
CURVE = 56.0  # least width in which lines change their height
SWEEPS = 8
SLOT_LIMIT = 4000  # slots of a picture; beyond that, long lines run straight
LETTERS = 34  # of a name that are shown

Layers: TypeAlias = "list[list[Box]]"


@dataclass(slots=True, eq=False)
class Box:
    """An input, output or application, or a slot that a line passes through.

    `x` and `y` are the upper left corner; ports are counted from above.
    """

    id: str
    kind: str  # input, output, application, slot
    title: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    footer: str = ""
    layer: int = 0
    width: float = 0.0
    height: float = ROW
    x: float = 0.0
    y: float = 0.0

    def port(self, index: int) -> float:
        """Height of the middle of a port, below `y`."""
        return HEADER + (index + 0.5) * ROW if self.kind == "application" else self.height / 2


@dataclass(slots=True, eq=False)
class Route:
    """A line between two neighbouring layers; the last of its edge has the binding, if any."""

    source: Box
    source_port: int
    target: Box
    target_port: int
    set_name: str
    binding: Binding | None = None
    label: str = ""

    @property
    def start(self) -> float:
        """Height at which it begins."""
        return self.source.y + self.source.port(self.source_port)

    @property
    def end(self) -> float:
        """Height at which it ends."""
        return self.target.y + self.target.port(self.target_port)


@dataclass(slots=True, eq=False)
class Layout:
    """A picture: layers of boxes, lines between them, and the size of it all.

    Lines leave layer i level as far as `leaves[i]`, where its widest box ends, and come into it level
    from `bends[i]` on, with their labels; what lies between is a curve.
    """

    layers: Layers
    routes: list[Route] = field(default_factory=list)
    bends: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


def graph_of(composition: Composition) -> CompositionGraph:
    """Give the graph of a composition that can be drawn.

    Raises:
        InvalidComposition: applications wait for each other, so there are no layers.
    """
    graph = to_networkx(composition)
    if not nx.is_directed_acyclic_graph(graph):
        problems = check_composition(composition, lambda _: None)
        raise InvalidComposition(tuple(p for p in problems if p.code == "cycle"))
    return graph


def arrange(composition: Composition, label: dict[str, str], footer: dict[str, str]) -> Layout:
    """Lay a composition out.

    Args:
        composition: a composition without loops.
        label: what to write at the end of lines, by ``APPLICATION.PARAMETER``; its width is needed.
        footer: what to write below the ports of applications, by id.

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
    _order(layout)
    _place_down(layout)
    _place_across(layout)
    return layout


def layers_of(graph: CompositionGraph) -> dict[str, int]:
    """Number the layers: inputs 0, every application after all it waits for, outputs last."""
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


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in pixels, on the wide side for usual sans-serif fonts."""
    return sum(_letter_width(c) for c in text) * size


def _letter_width(letter: str) -> float:
    if letter in "fijlrtI1.,:;|()[]' ":
        return 0.42
    if letter in "mwMW@%" or ord(letter) > 0x2FF:
        return 1.0
    return 0.74 if letter.isupper() or letter == "_" else 0.64


def shorten(name: str) -> str:
    """Leave the middle of a long name out."""
    half = (LETTERS - 1) // 2
    return name if len(name) <= LETTERS else f"{name[:half]}…{name[-half:]}"


# --- boxes and lines --------------------------------------------------------------------------


def _boxes(composition: Composition, footer: dict[str, str]) -> dict[str, Box]:
    boxes = [_pill(f"in:{name}", "input", name) for name in dict.fromkeys(composition.inputs)]
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        boxes.append(_application(app_id, application, footer.get(app_id, "")))
    boxes += [_pill(f"out:{name}", "output", name) for name in dict.fromkeys(composition.outputs)]
    return {box.id: box for box in boxes}


def _pill(box_id: str, kind: str, name: str) -> Box:
    width = text_width(shorten(name), 12) + 32
    return Box(box_id, kind, name, width=width, height=PILL)


def _application(app_id: str, application: Application, footer: str) -> Box:
    inputs = tuple(b.parameter for b in application.bindings)
    outputs = tuple(r.output for r in application.returns)
    rows = max(len(inputs), len(outputs))
    left = max((text_width(shorten(n), 11) for n in inputs), default=0.0)
    right = max((text_width(shorten(n), 11) for n in outputs), default=0.0)
    words = (text_width(shorten(app_id), 13), left + right + 24, text_width(shorten(footer), 10))
    height = HEADER + rows * ROW + (ROW if footer else 0) + (6 if rows or footer else 0)
    box = Box(f"app:{app_id}", "application", app_id, inputs, outputs, footer)
    box.width, box.height = max(110.0, max(words) + 32), height
    return box


def _route(
    layout: Layout, composition: Composition, boxes: dict[str, Box], label: dict[str, str]
) -> None:
    """Draw lines from each producer to all that read its set, through slots where they are long."""
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
            if any(end.target.layer > number for end in ends):
                slot = Box(f"slot:{name}:{number}", "slot", layer=number)
                layout.layers[number].append(slot)
                layout.routes.append(Route(at, port, slot, 0, name))
                at, port = slot, 0


def _producers(composition: Composition, boxes: dict[str, Box]) -> dict[str, tuple[Box, int]]:
    """Find box and port of every set."""
    found = {name: (boxes[f"in:{name}"], 0) for name in composition.inputs}
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        for port, returned in enumerate(application.returns):
            found.setdefault(returned.target, (boxes[f"app:{app_id}"], port))
    return found


def _ends(
    composition: Composition, boxes: dict[str, Box], label: dict[str, str]
) -> dict[str, list[Route]]:
    """Give the last lines of all edges by set; where they begin is found by `_route`."""
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


# --- order ------------------------------------------------------------------------------------


def _order(layout: Layout) -> None:
    """Sort each layer so that few lines cross."""
    layers = layout.layers
    best, fewest = [list(layer) for layer in layers], _crossings(layout)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for layer in layers[1:] if forward else reversed(layers[:-1]):
            _sort(layout, layer, forward)
        crossings = _crossings(layout)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layout.layers = best


def _sort(layout: Layout, layer: list[Box], forward: bool) -> None:
    rank = _ranks(layout.layers)
    places: dict[Box, list[float]] = {}
    for route in layout.routes:
        here, there = (route.target, route.source) if forward else (route.source, route.target)
        port = route.source_port if forward else route.target_port
        places.setdefault(here, []).append(rank[there] + port / 64)
    own = {box: float(index) for index, box in enumerate(layer)}
    layer.sort(key=lambda b: sum(places[b]) / len(places[b]) if b in places else own[b])


def _ranks(layers: Layers) -> dict[Box, int]:
    return {box: index for layer in layers for index, box in enumerate(layer)}


def _crossings(layout: Layout) -> int:
    rank = _ranks(layout.layers)
    between: dict[int, list[tuple[tuple[int, int], tuple[int, int]]]] = {}
    for r in layout.routes:
        ends = ((rank[r.source], r.source_port), (rank[r.target], r.target_port))
        between.setdefault(r.target.layer, []).append(ends)
    return sum(_inversions(end for _, end in sorted(lines)) for lines in between.values())


def _inversions(values: Iterable[tuple[int, int]]) -> int:
    seen: list[tuple[int, int]] = []
    count = 0
    for value in values:
        at = bisect.bisect_right(seen, value)
        count += len(seen) - at
        seen.insert(at, value)
    return count


# --- places -----------------------------------------------------------------------------------


def _place_down(layout: Layout) -> None:
    for layer in layout.layers:
        _settle(layer, [0.0] * len(layer))
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        layers = layout.layers[1:] if forward else layout.layers[-2::-1]
        wishes = _neighbours(layout, forward)
        for layer in layers:
            _settle(layer, [_wish(box, wishes.get(box, []), forward) for box in layer])
    top = min((box.y for layer in layout.layers for box in layer), default=0.0)
    for layer in layout.layers:
        for box in layer:
            box.y += MARGIN - top
    bottom = max((b.y + b.height for layer in layout.layers for b in layer), default=0.0)
    layout.height = bottom + MARGIN


def _neighbours(layout: Layout, forward: bool) -> dict[Box, list[Route]]:
    found: dict[Box, list[Route]] = {}
    for route in layout.routes:
        found.setdefault(route.target if forward else route.source, []).append(route)
    return found


def _wish(box: Box, routes: list[Route], forward: bool) -> float:
    """Where a box would lie so that its lines are level, on average."""
    shifts = [route.start - route.end for route in routes]
    mean = sum(shifts) / len(shifts) if shifts else 0.0
    return box.y + (mean if forward else -mean)


def _settle(layer: list[Box], wishes: list[float]) -> None:
    """Place boxes as near to their wishes as their order and the space between them allow."""
    offset = 0.0
    groups: list[tuple[float, int]] = []  # mean of what is wished, number of boxes
    offsets = []
    for box, wish in zip(layer, wishes, strict=True):
        offsets.append(offset)
        groups.append((wish - offset, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (upper, many), (lower, few) = groups[-2:]
            groups[-2:] = [((upper * many + lower * few) / (many + few), many + few)]
        offset += box.height + (SPACE if box.kind != "slot" else 0.0)
    levels = [level for level, count in groups for _ in range(count)]
    for box, level, start in zip(layer, levels, offsets, strict=True):
        box.y = level + start


def _place_across(layout: Layout) -> None:
    x = MARGIN
    into: dict[int, list[Route]] = {}
    for route in layout.routes:
        into.setdefault(route.target.layer, []).append(route)
    for number, layer in enumerate(layout.layers):
        routes = into.get(number, [])
        drop = max((abs(route.end - route.start) for route in routes), default=0.0)
        labels = max((text_width(route.label, 11) for route in routes), default=0.0)
        if number:
            x += CURVE + min(drop / 6, 120.0)
        layout.bends.append(x)
        x += labels + 20 if number else 0.0
        width = max((box.width for box in layer), default=0.0)
        for box in layer:
            box.x = x + (width - box.width if box.kind == "input" else 0.0)
            if box.kind == "slot":
                box.width = width
        x += width
        layout.leaves.append(x)
    layout.width = x + MARGIN
