"""The SVG picture of a composition; `dandelion.dataflow.draw_layout` computes the layout.

No program has to be installed. Inputs are on the left, outputs on the right; an edge is labelled
with the name of its set and a sign for its sharding, explained in a legend below. A repeated
application has an arrow around its foot, from its outputs back to its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from dandelion.dataflow.draw_boxes import (
    HEADER,
    LOOP,
    ROW,
    Box,
    Layout,
    Route,
    shorten,
    text_width,
)
from dandelion.dataflow.draw_layout import arrange
from dandelion.dataflow.draw_place import MARGIN
from dandelion.dataflow.graph import Application, Binding, Composition, Sharding, application_ids
from dandelion.dataflow.printer import print_attempts, print_binding, print_join

SIGNS = {
    Sharding.ALL: "●",
    Sharding.EACH: "⋮",
    Sharding.KEYED: "#",
    Sharding.ANY_EACH: "⋮~",
    Sharding.ANY_KEYED: "#~",
}
MEANINGS = {
    Sharding.ALL: "whole set",
    Sharding.EACH: "an instance for each item",
    Sharding.KEYED: "an instance for each key",
    Sharding.ANY_EACH: "items in groups",
    Sharding.ANY_KEYED: "keys in groups",
}
STYLE = """
.dd-bg{fill:#fff}.dd-box{fill:#f8fafc;stroke:#94a3b8;stroke-width:1.2}
.dd-head{fill:#e2e8f0}.dd-text{fill:#0f172a}.dd-dim{fill:#64748b}
.dd-in{fill:#dcfce7;stroke:#4ade80}.dd-out{fill:#ffedd5;stroke:#fb923c}
.dd-line{fill:none;stroke-width:1.6}.dd-halo{fill:none;stroke:#fff;stroke-width:5}
.dd-all{stroke:#64748b}.dd-each{stroke:#2563eb}.dd-keyed{stroke:#9333ea}
.dd-t-all{fill:#64748b}.dd-t-each{fill:#2563eb}.dd-t-keyed{fill:#9333ea}
.dd-loop{stroke:#d97706}.dd-t-loop{fill:#d97706}
@media(prefers-color-scheme:dark){
.dd-bg{fill:#0f172a}.dd-box{fill:#1e293b;stroke:#475569}.dd-head{fill:#334155}
.dd-text{fill:#f1f5f9}.dd-dim{fill:#94a3b8}.dd-in{fill:#14532d;stroke:#22c55e}
.dd-out{fill:#7c2d12;stroke:#fb923c}.dd-halo{stroke:#0f172a}
.dd-all{stroke:#94a3b8}.dd-each{stroke:#60a5fa}.dd-keyed{stroke:#c084fc}
.dd-t-all{fill:#94a3b8}.dd-t-each{fill:#60a5fa}.dd-t-keyed{fill:#c084fc}
.dd-loop{stroke:#fbbf24}.dd-t-loop{fill:#fbbf24}}
"""
LOOPS = "↻"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
LEGEND = 30.0  # height


def to_svg(composition: Composition) -> str:
    """Draw the graph.

    Returns:
        A self-contained SVG document; it follows the reader's light or dark scheme.

    Raises:
        InvalidComposition: the composition has a cycle.
    """
    labels: dict[str, str] = {}
    footers: dict[str, tuple[str, ...]] = {}
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        for binding in application.bindings:
            text = f"{shorten(binding.source)} {SIGNS[binding.sharding]}"
            labels[f"{app_id}.{binding.parameter}"] = text
        footers[app_id] = tuple(_footer(application))
    layout = arrange(composition, labels, footers)
    parts = [_path(route, layout) for route in layout.routes]
    parts += [_label(route) for route in layout.routes if route.label]
    parts += [_draw(box) for layer in layout.layers for box in layer if box.kind != "slot"]
    legend, legend_width = _legend(composition, layout.height)
    width = max(layout.width, legend_width)
    height = layout.height + (LEGEND if legend else 0)
    return _document(composition.name, width, height, [*parts, legend])


def _footer(application: Application) -> Iterator[str]:
    """Yield the lines below the ports of an application: its join, its loop, its attempts."""
    if application.join is not None:
        yield f"by {print_join(application.join)}"
    if application.repeat is not None:
        until = application.repeat.until
        yield f"{LOOPS} {application.repeat.times}" + (f" until no {until}" if until else "")
        yield ", ".join(f"{f.parameter} ← {f.output}" for f in application.repeat.feedback)
    if application.attempts is not None:
        yield print_attempts(application.attempts)
    if application.catch is not None and application.catch.kinds:
        yield f"catches {', '.join(application.catch.kinds)}"


def _document(name: str, width: float, height: float, parts: list[str]) -> str:
    title = escape(name)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="composition {title}" '
        f'font-family="{FONT}" font-size="11">'
    )
    background = '<rect class="dd-bg" width="100%" height="100%" rx="12"/>'
    body = "\n".join(part for part in parts if part)
    return f"{head}\n<title>{title}</title><style>{STYLE}</style>{background}\n{body}\n</svg>\n"


def _family(binding: Binding | None) -> str:
    word = binding.sharding.value if binding else "all"
    return word.removeprefix("any").lower()


def _path(route: Route, layout: Layout) -> str:
    """Draw one line: a curve, a straight end, and an arrow head at a box."""
    start, end, bend = route.start, route.end, layout.bends[route.target.layer]
    left, leave = route.source.x + route.source.width, layout.leaves[route.source.layer]
    right = route.target.x
    middle = (leave + bend) / 2
    through = right + (route.target.width if route.target.kind == "slot" else 0)
    curve = (
        f"M{left:.1f} {start:.1f}H{leave:.1f}C{middle:.1f} {start:.1f} {middle:.1f} {end:.1f} "
        f"{bend:.1f} {end:.1f}H{through:.1f}"
    )
    family = _family(route.binding)
    dashed = ' stroke-dasharray="5 4"' if route.binding and route.binding.optional else ""
    line = f'<path class="dd-line dd-{family}" d="{curve}"{dashed}/>'
    if route.target.kind == "slot":
        return line
    head = f"M{right:.1f} {end:.1f}l-8 -4v8z"
    return f'{line}<path class="dd-t-{family}" d="{head}"/>'


def _label(route: Route) -> str:
    binding = route.binding
    if binding is None:
        return ""
    x, y = route.target.x - 12, route.end - 5
    title = f"<title>{escape(print_binding(binding))}</title>"
    family = _family(binding)
    text = escape(route.label)
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="end"'
    return f'<text class="dd-t-{family}" {at}>{text}{title}</text>'


def _draw(box: Box) -> str:
    return _draw_application(box) if box.kind == "application" else _draw_pill(box)


def _draw_pill(box: Box) -> str:
    kind = "in" if box.kind == "input" else "out"
    middle = box.x + box.width / 2
    return (
        f"<g><title>{escape(box.title)}</title>"
        f'<rect class="dd-{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{box.height / 2:.1f}"/>'
        f"{_text(shorten(box.title), middle, box.y + 19, 12, 'middle')}</g>"
    )


def _draw_application(box: Box) -> str:
    x, y, width = box.x, box.y, box.width
    bare = box.height == HEADER
    corner = f"M{x:.1f} {y + HEADER:.1f}v-{HEADER - 8:.1f}q0 -8 8 -8h{width - 16:.1f}q8 0 8 8"
    head = f"{corner}v{HEADER - 8:.1f}z"
    frame = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{box.height:.1f}" rx="8"/>'
    parts = [
        f"<title>{escape(box.title)}</title>",
        f'<rect class="{"dd-head" if bare else "dd-box"}" {frame}',
        "" if bare else f'<path class="dd-head" d="{head}"/>',
        f'<rect class="dd-box" fill-opacity="0" {frame}',
        _text(shorten(box.title), x + width / 2, y + 20, 13, "middle", weight=600),
    ]
    for index, name in enumerate(box.inputs):
        parts.append(_text(shorten(name), x + 12, y + box.port(index) + 4, 11, "start", dim=True))
    for index, name in enumerate(box.outputs):
        at = x + width - 12
        parts.append(_text(shorten(name), at, y + box.port(index) + 4, 11, "end", dim=True))
    for number, line in enumerate(reversed(box.footer)):
        below = y + box.height - 11 - number * ROW
        parts.append(_text(shorten(line), x + width / 2, below, 10, "middle"))
    if box.loops:
        parts.append(_loop(box))
    return f'<g data-application="{escape(box.title)}">{"".join(parts)}</g>'


def _loop(box: Box) -> str:
    """Draw the arrow from the right edge of a box around its foot to the left one."""
    right, top, side = box.x + box.width, box.y + box.height - ROW / 2, ROW / 2 + LOOP - 6
    around = (
        f"M{right:.1f} {top:.1f}h2q6 0 6 6v{side - 6:.1f}q0 6 -6 6h-{box.width + 4:.1f}"
        f"q-6 0 -6 -6v-{side - 6:.1f}q0 -6 6 -6"
    )
    head = f"M{box.x:.1f} {top:.1f}l-6 -4v8z"
    return f'<path class="dd-line dd-loop" d="{around}"/><path class="dd-t-loop" d="{head}"/>'


def _text(
    text: str, x: float, y: float, size: int, anchor: str, *, dim: bool = False, weight: int = 400
) -> str:
    tone = "dd-dim" if dim else "dd-text"
    return (
        f'<text class="{tone}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _legend(composition: Composition, top: float) -> tuple[str, float]:
    """Explain the used signs, below the picture; return its width too."""
    used = {b.sharding for a in composition.applications for b in a.bindings}
    words = [
        (SIGNS[s], MEANINGS[s], s.value.removeprefix("any").lower()) for s in SIGNS if s in used
    ]
    x, parts = MARGIN, []
    for sign, meaning, family in words:
        parts.append(f'<text class="dd-t-{family}" x="{x:.1f}" y="{top:.1f}">{sign}</text>')
        x += text_width(sign, 11) + 9
        parts.append(_text(meaning, x, top, 11, "start", dim=True))
        x += text_width(meaning, 11) + 18
    if any(b.optional for a in composition.applications for b in a.bindings):
        parts.append(
            f'<path class="dd-line dd-all" stroke-dasharray="5 4" d="M{x:.1f} {top - 4:.1f}h24"/>'
        )
        parts.append(_text("may be empty", x + 30, top, 11, "start", dim=True))
        x += 30 + text_width("may be empty", 11) + 18
    if any(a.repeat is not None for a in composition.applications):
        parts.append(f'<text class="dd-t-loop" x="{x:.1f}" y="{top:.1f}">{LOOPS}</text>')
        x += text_width(LOOPS, 11) + 9
        meaning = "repeated at most this often, with its own results as inputs"
        parts.append(_text(meaning, x, top, 11, "start", dim=True))
        x += text_width(meaning, 11)
    return f"<g>{''.join(parts)}</g>" if parts else "", x + MARGIN
