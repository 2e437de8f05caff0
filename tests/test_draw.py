"""Pictures: nothing overlaps or is missing, text is escaped, and output is deterministic."""

import itertools
import xml.etree.ElementTree as ET

import msgspec
import pytest

from dandelion.dataflow.draw import to_json, to_mermaid, to_svg
from dandelion.dataflow.draw_boxes import ERRORS, LOOP, ROW, Box, Layout, Route, text_width
from dandelion.dataflow.draw_layout import SLOT_LIMIT, arrange
from dandelion.dataflow.graph import Application, Binding, Composition, Return, Sharding
from dandelion.dataflow.language import parse
from dandelion.errors import InvalidComposition

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def read(text: str) -> Composition:
    return parse(text).compositions[-1]


LOGS = read("""
composition Logs(token, topic) => (html, token) {
    Access(token = all token) => (request = request);
    HTTP(requests = each request) => (page = bodies);
    FanOut(page = all page, topic = optional keyed topic) => (requests = requests);
    HTTP(requests = each requests) => (pages = bodies, headers = headers);
    Render(pages = anyKeyed pages, heads = anyKeyed headers, topic = all topic)
        => (html = html) by pages full heads;
}
""")


LOOPS = read("""
composition Fit(data, start) => (model, log) {
    Split(data = all data) => (parts = parts);
    Train(parts = keyed parts, model = keyed start, log = optional all before)
        => (model = model, log = log)
        by parts left model repeat 100 until change feeding (model = model, log = log);
    Log() => (before = entries, other = rest);
    Foo(a = each other) => (bar = x) repeat 3 feeding (a = x);
    Foo(a = each bar) => (baz = x) repeat 4 feeding (a = x);
    Foo(a = each bar) => ();
    Foo(a = each bar) => () repeat 5 until nothing feeding (a = x);
}
""")


HANDLED = read("""
composition Fetch(urls, other) => (pages, failures, log) {
    HTTP(requests = each urls) => (pages = bodies, heads = headers)
        attempts 3 on (RequestFailed, TimedOut) backoff 0.5 catch failures on (FunctionError);
    Foo(a = each pages) => () repeat 5 until x feeding (a = x) attempts 2 catch foo;
    Log(a = all failures, b = optional all foo, c = all heads) => () catch log;
    Foo() => () catch nothing;
}
""")


def fan(width: int) -> Composition:
    """One application feeds many, and one reads them all."""
    parts = range(width)
    split = Application(
        "Split", (Binding("s", "s"),), tuple(Return(f"p{i}", f"p{i}") for i in parts)
    )
    work = [
        Application(f"W{i % 3}", (Binding("p", f"p{i}", Sharding.EACH), Binding("s", "s")),
                    (Return(f"d{i}", "d"),))
        for i in parts
    ]  # fmt: skip
    gather = Application("G", tuple(Binding(f"x{i}", f"d{i}") for i in parts), (Return("o", "o"),))
    return Composition("Fan", ("s",), ("o", "s"), (split, *work, gather))


def chain(length: int) -> Composition:
    """Each application reads the one before it and the very first set."""
    parts = [
        Application("F", (Binding("a", f"x{i}"), Binding("b", "x0")), (Return(f"x{i + 1}", "r"),))
        for i in range(length)
    ]
    return Composition("Chain", ("x0",), (f"x{length}",), tuple(parts))


def long_names() -> Composition:
    name = "a_name_that_is_far_longer_than_anybody_would_like_to_read_in_a_picture_" * 3
    first = Application(name, (Binding(name, f"{name}a", Sharding.ANY_EACH),), (Return("m", name),))
    second = Application("F", (Binding("p", "m"), Binding("q", f"{name}b")), (Return("o", "r"),))
    alone = Application("Nothing")
    return Composition(name, (f"{name}a", f"{name}b"), ("o",), (first, second, alone))


PICTURES = {
    "logs": LOGS,
    "loops": LOOPS,
    "handled": HANDLED,
    "fan": fan(24),
    "chain": chain(12),
    "long": long_names(),
    "empty": Composition("Empty"),
    "pass": Composition("Pass", ("a", "b"), ("b", "a")),
    "source": read("composition C() => (a) { F() => (a = b); G() => (); }"),
}
each_picture = pytest.mark.parametrize("composition", PICTURES.values(), ids=PICTURES.keys())


def rings(layout: Layout) -> list[tuple[Box, Rectangle]]:
    """The arrows around applications that are repeated: where they may draw."""
    found = [box for layer in layout.layers for box in layer if box.loops]
    return [
        (b, (b.x - LOOP - 1, b.y + b.height - ROW / 2 - 4, b.x + b.width + LOOP + 1,
             b.y + b.height + LOOP + 1))
        for b in found
    ]  # fmt: skip


def lay_out(composition: Composition) -> Layout:
    labels = {}
    for index, application in enumerate(composition.applications):
        for binding in application.bindings:
            names = [a.function for a in composition.applications[: index + 1]]
            count = names.count(application.function)
            name = application.function if count == 1 else f"{application.function}#{count}"
            labels[f"{name}.{binding.parameter}"] = f"{binding.source[:34]} ●"
    footers = {"Train": ("by parts left model", "↻ 100", "model ← model, log ← log")}
    return arrange(composition, labels, footers)


def rectangle(box: Box) -> Rectangle:
    return (box.x, box.y, box.x + box.width, box.y + box.height)


def label_of(route: Route) -> Rectangle:
    right = route.target.x - 12
    return (right - text_width(route.label, 11), route.end - 14, right, route.end - 3)


def overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@each_picture
def test_boxes_and_labels_do_not_overlap(composition: Composition) -> None:
    layout = lay_out(composition)
    boxes = [rectangle(box) for layer in layout.layers for box in layer]
    labels = [label_of(route) for route in layout.routes if route.label]
    for first, second in itertools.combinations([*boxes, *labels], 2):
        assert not overlap(first, second)
    for left, top, right, bottom in [*boxes, *labels]:
        assert left >= 0
        assert top >= 0
        assert right <= layout.width
        assert bottom <= layout.height


@each_picture
def test_lines_cross_neither_boxes_nor_labels(composition: Composition) -> None:
    layout = lay_out(composition)
    for route in layout.routes:
        assert route.target.layer == route.source.layer + 1
        leave, bend = layout.leaves[route.source.layer], layout.bends[route.target.layer]
        assert route.source.x + route.source.width <= leave < bend <= route.target.x
        for box in layout.layers[route.target.layer]:
            assert box.x >= bend
        for other in layout.routes:
            if other.target.layer == route.target.layer and other.label:
                left, top, _, bottom = label_of(other)
                assert left >= bend
                assert not top < route.end < bottom


@each_picture
def test_lines_lead_from_producers_to_readers(composition: Composition) -> None:
    layout = lay_out(composition)
    arrives = {(r.target.id, r.target_port): r for r in layout.routes if r.target.kind != "slot"}
    before = {r.target: r for r in layout.routes if r.target.kind == "slot"}
    ends = 0
    for box in (box for layer in layout.layers for box in layer if box.kind != "slot"):
        for port in range(len(box.inputs) if box.kind == "application" else box.kind == "output"):
            ends += 1
            route = arrives[box.id, port]
            wanted = route.binding.source if route.binding else box.title
            while route.source.kind == "slot":
                route = before[route.source]
            made = route.source
            if made.kind == "input":
                assert made.title == wanted
            else:
                returns = {
                    r.target: (a.function, r.output)
                    for a in composition.applications
                    for r in a.returns
                } | {
                    a.catch.target: (a.function, ERRORS)
                    for a in composition.applications
                    if a.catch is not None
                }
                function, output = returns[wanted]
                assert made.title.split("#")[0] == function
                assert made.outputs[route.source_port] == output
    assert ends == len(arrives)


@each_picture
def test_svg_is_well_formed_and_complete(composition: Composition) -> None:
    root = ET.fromstring(to_svg(composition))
    words = {text for text in root.itertext() if text}
    assert composition.name in words
    for application in composition.applications:
        assert any(word.split("#")[0] == application.function for word in words)
    for name in (*composition.inputs, *composition.outputs):
        assert name in words
    assert float(root.attrib["width"]) > 0
    assert root.attrib["role"] == "img"


def test_shardings_are_told_apart_and_explained() -> None:
    texts = [t.text or "" for t in ET.fromstring(to_svg(LOGS)).iter(f"{SVG}text")]
    for label in ("token ●", "request ⋮", "topic #", "pages #~", "by pages full heads"):
        assert label in texts
    for meaning in ("whole set", "an instance for each item", "keys in groups", "may be empty"):
        assert meaning in texts
    assert "items in groups" not in texts
    dashed = [p for p in ET.fromstring(to_svg(LOGS)).iter() if "stroke-dasharray" in p.attrib]
    assert len(dashed) == 2  # the optional set, and its line in the legend


def test_a_long_line_looks_the_same_all_along() -> None:
    text = (
        "F(a = all x) => (b = r); F(a = all b) => (c = r); G(a = optional each x, b = all c) => ();"
    )
    root = ET.fromstring(to_svg(read(f"composition C(y, x) => () {{ {text} }}")))
    assert not [p for p in root.iter(f"{SVG}path") if "dd-each" in p.attrib["class"]
                and "stroke-dasharray" not in p.attrib]  # fmt: skip
    lone = text.replace("F(a = all x)", "F(a = all y)")
    root = ET.fromstring(to_svg(read(f"composition C(y, x) => () {{ {lone} }}")))
    dashed = [p for p in root.iter(f"{SVG}path") if "stroke-dasharray" in p.attrib]
    assert ["dd-each" in p.attrib["class"] for p in dashed] == [True, True, True, False]


def test_loops_are_drawn_and_explained() -> None:
    root = ET.fromstring(to_svg(LOOPS))
    texts = [t.text or "" for t in root.iter(f"{SVG}text")]
    for line in ("↻ 100 until no change", "model ← model, log ← log", "↻ 3", "by parts left model"):
        assert line in texts
    assert texts.count("a ← x") == 3
    assert texts[-1].startswith("repeated")
    arrows = [p for p in root.iter(f"{SVG}path") if "dd-loop" in p.attrib["class"]]
    assert len(arrows) == 4
    assert not any("dd-loop" in p.get("class", "") for p in ET.fromstring(to_svg(LOGS)).iter())
    mermaid = to_mermaid(LOOPS)
    assert mermaid.count('-- "repeat ') == 4
    assert '"repeat 5 until nothing feeding (a = x)"' in mermaid
    nodes = msgspec.json.decode(to_json(LOOPS))["nodes"]
    repeats = {node["id"]: node["repeat"] for node in nodes if "repeat" in node}
    assert repeats["app:Foo#2"] == {"times": 4, "until": None, "feedback": {"a": "x"}}
    assert list(repeats) == ["app:Train", "app:Foo", "app:Foo#2", "app:Foo#4"]


def test_arrows_of_loops_meet_nothing_else() -> None:
    layout = lay_out(LOOPS)
    boxes = [box for layer in layout.layers for box in layer]
    found = rings(layout)
    assert len(found) == 4
    for box, ring in found:
        for other in boxes:
            around = rectangle(other) if other.kind != "slot" else middle_of(other)
            assert other is box or not overlap(ring, around)
        assert not any(overlap(ring, label_of(r)) for r in layout.routes if r.label)
        assert not any(overlap(ring, other) for b, other in found if b is not box)


def middle_of(slot: Box) -> Rectangle:
    """Where the line through a slot lies."""
    middle = slot.y + slot.height / 2
    return (slot.x, middle - 1, slot.x + slot.width, middle + 1)


def test_attempts_and_errors_sets_are_drawn() -> None:
    words = set(ET.fromstring(to_svg(HANDLED)).itertext())
    assert {"attempts 2", "catches FunctionError", ERRORS} <= words
    assert any(word.startswith("attempts 3 on") for word in words)
    mermaid = to_mermaid(HANDLED)
    assert '"attempts 3 on (RequestFailed, TimedOut) backoff 0.5"' in mermaid
    nodes = {n["id"]: n for n in msgspec.json.decode(to_json(HANDLED))["nodes"]}
    assert nodes["app:HTTP"]["attempts"] == {
        "times": 3,
        "kinds": ["RequestFailed", "TimedOut"],
        "backoff_s": 0.5,
    }
    assert nodes["app:HTTP"]["catch"] == {"target": "failures", "kinds": ["FunctionError"]}
    edges = msgspec.json.decode(to_json(HANDLED))["edges"]
    ends = {(e["source"], e["target"]) for e in edges if e["set"] == "failures"}
    assert ends == {("app:HTTP", "app:Log"), ("app:HTTP", "out:failures")}


def test_text_is_escaped() -> None:
    name = "<script>\"&'x"
    application = Application(name, (Binding(name, name),), (Return("o", name),))
    composition = Composition(name, (name,), ("o",), (application,))
    svg = to_svg(composition)
    assert "<script" not in svg
    assert name in set(ET.fromstring(svg).itertext())
    mermaid = to_mermaid(composition)
    assert "<script" not in mermaid
    assert mermaid.count('"') == 2 * 4  # only those around labels
    assert msgspec.json.decode(to_json(composition))["name"] == name


def test_pictures_are_the_same_each_time() -> None:
    for composition in PICTURES.values():
        again = msgspec.convert(msgspec.to_builtins(composition), Composition)
        for draw in (to_svg, to_mermaid, to_json):
            assert draw(composition) == draw(again)


def test_lines_that_need_not_cross_do_not() -> None:
    text = "F(p = all a) => (d = r); F(p = all b) => (e = r); F(p = all c) => (f = r);"
    text += "G(p = all f) => (z = r); G(p = all d) => (x = r); G(p = all e) => (y = r);"
    layout = lay_out(read(f"composition C(c, a, b) => (y, z, x) {{ {text} }}"))
    assert max(route.target.layer for route in layout.routes) == 3
    for one, other in itertools.combinations(layout.routes, 2):
        if one.target.layer == other.target.layer:
            assert (one.start - other.start) * (one.end - other.end) > 0


def test_straight_chains_are_drawn_straight() -> None:
    layout = lay_out(
        read("composition C(a) => (c) { F(x = all a) => (b = y); G(x = all b) => (c = y); }")
    )
    assert {round(route.end - route.start, 3) for route in layout.routes} == {0.0}


def test_large_compositions_are_drawn_soon() -> None:
    assert len(to_svg(fan(150))) > 10_000
    far = chain(95)
    many = [Application("R", tuple(Binding(f"s{i}", f"x{i}") for i in range(95)))]
    far = Composition("Far", far.inputs, far.outputs, (*far.applications, *many))
    layout = arrange(far, {}, {})
    slots = sum(box.kind == "slot" for layer in layout.layers for box in layer)
    assert sum(range(95)) > SLOT_LIMIT
    assert slots == 0
    ET.fromstring(to_svg(far))


def test_mermaid() -> None:
    text = to_mermaid(read("composition C(a) => (o) { F(p = optional each a) => (b = r);"
                           " F(p = keyed b) => (o = r); }"))  # fmt: skip
    assert (
        text
        == """\
flowchart LR
    n0(["a"])
    n1["F"]
    n2["F#35;2"]
    n3(["o"])
    n0 -. "a each" .-> n1
    n1 -- "b keyed" --> n2
    n2 --> n3
"""
    )


def test_json_has_layers_and_bindings() -> None:
    view = msgspec.json.decode(to_json(LOGS))
    layers = {node["id"]: node["layer"] for node in view["nodes"]}
    assert layers["in:token"] == layers["in:topic"] == 0
    assert layers["app:Access"] == 1
    assert layers["app:HTTP#2"] == 4
    assert layers["out:token"] == layers["out:html"] == 6
    for edge in view["edges"]:
        assert layers[edge["source"]] < layers[edge["target"]]
    bound = [edge for edge in view["edges"] if edge.get("parameter") == "heads"]
    assert bound == [
        {
            "source": "app:HTTP#2",
            "target": "app:Render",
            "set": "headers",
            "parameter": "heads",
            "sharding": "anyKeyed",
            "optional": False,
        }
    ]


def test_cycles_have_no_picture() -> None:
    loop = read("composition C() => () { F(a = all x) => (x = r); }")
    for draw in (to_svg, to_mermaid, to_json):
        with pytest.raises(InvalidComposition) as caught:
            draw(loop)
        assert [p.code for p in caught.value.problems] == ["cycle"]
