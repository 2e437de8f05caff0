"""Steps 2 to 4 of a layout: the order within layers, heights, and columns.

See `dandelion.dataflow.draw_layout`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from dandelion.dataflow.draw_boxes import Box, Layers, Layout, Route, text_width

SPACE = 22.0  # between boxes of a layer
MARGIN = 28.0
CURVE = 56.0  # least width in which lines change their height
SWEEPS = 8

# --- order ------------------------------------------------------------------------------------


def sort_layers(layout: Layout) -> None:
    """Sort each layer so that few lines cross."""
    layers = layout.layers
    into, out_of = _neighbours(layout, True), _neighbours(layout, False)
    rank = _ranks(layers)
    best, fewest = [list(layer) for layer in layers], _crossings(layout)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for layer in layers[1:] if forward else reversed(layers[:-1]):
            _sort(layer, rank, into if forward else out_of, forward)
        crossings = _crossings(layout)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layout.layers = best


def _sort(
    layer: list[Box], rank: dict[Box, int], lines: dict[Box, list[Route]], forward: bool
) -> None:
    """Sort one layer by the mean position of its neighbours; update its ranks."""

    def place(box: Box) -> float:
        routes = lines.get(box)
        if not routes:
            return rank[box]
        ends = ((r.source if forward else r.target, r.source_port if forward else r.target_port)
                for r in routes)  # fmt: skip
        return sum(rank[there] + port / 64 for there, port in ends) / len(routes)

    layer.sort(key=place)
    rank.update((box, index) for index, box in enumerate(layer))


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


def place_down(layout: Layout) -> None:
    """Set the vertical position of every box, and the height of the picture."""
    for layer in layout.layers:
        _align(layer, [0.0] * len(layer))
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        layers = layout.layers[1:] if forward else layout.layers[-2::-1]
        desired = _neighbours(layout, forward)
        for layer in layers:
            _align(layer, [_desired_height(box, desired.get(box, []), forward) for box in layer])
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


def _desired_height(box: Box, routes: list[Route], forward: bool) -> float:
    """Return the position of a box at which its lines are level, on average."""
    shifts = [route.start - route.end for route in routes]
    mean = sum(shifts) / len(shifts) if shifts else 0.0
    return box.y + (mean if forward else -mean)


def _align(layer: list[Box], desired: list[float]) -> None:
    """Place boxes as near to their desired heights as their order and spacing allow."""
    offset = 0.0
    groups: list[tuple[float, int]] = []  # mean of the desired heights, number of boxes
    offsets = []
    for box, height in zip(layer, desired, strict=True):
        offsets.append(offset)
        groups.append((height - offset, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (upper, many), (lower, few) = groups[-2:]
            groups[-2:] = [((upper * many + lower * few) / (many + few), many + few)]
        offset += box.height + (SPACE if box.kind != "slot" else 0.0)
    levels = [level for level, count in groups for _ in range(count)]
    for box, level, start in zip(layer, levels, offsets, strict=True):
        box.y = level + start


def place_across(layout: Layout) -> None:
    """Set the column of every layer, wide enough for curves, labels and boxes."""
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
