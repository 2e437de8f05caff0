"""What notebooks show of values, traces, functions, plans and nodes: safe and bounded."""

from __future__ import annotations

import html.parser
import linecache
import re
import zlib
from code import InteractiveInterpreter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from dandelion.backends.gpu.plan import plan

import dandelion as dd
from dandelion.asynchronous.records import KeptState, KeptView, Progress
from dandelion.capacity import (
    Admission,
    ArenaCapacity,
    EngineCapacity,
    NodeCapacity,
    TenantCapacity,
)
from dandelion.catalog import CompositionRecord
from dandelion.data import Item, ItemSet, Sets, SetSpec
from dandelion.errors import ErrorRecord
from dandelion.function import CodeObject, FunctionSpec
from dandelion.node.traced_result import TracedResult
from dandelion.settings import TenantSettings
from dandelion.timeline import BARS_LIMIT
from dandelion.traces import CallRecord, Trace, TraceDocument

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;</svg></div>\u202e\0\ud800"
SHOWN = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;</svg></div>"
TAGS = {"div", "span", "b", "code", "table", "thead", "tbody", "tr", "th", "td", "img", "br",
        "svg", "g", "rect", "line", "text", "title", "progress"}  # fmt: skip
ATTRIBUTES = re.compile(
    "style|colspan|src|alt|max|value|viewbox|width|height|x[12]?|y[12]?|rx|fill|fill-opacity|stroke|"
    "stroke-opacity|text-anchor|role|aria-label|xmlns"
)


class Checked(html.parser.HTMLParser):
    """Reads HTML and refuses what could act; `words` is its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words = ""
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        text.encode()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        self.tags.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert ATTRIBUTES.fullmatch(name), name
            assert name != "src" or re.match("data:image/(png|jpeg|gif);base64,", value or "")
            if name == "style":
                assert not re.search("url|expression|import|position", value or "")
            if name in ("aria-label", "alt"):
                self.words += value or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def shown(thing: object) -> Checked:
    text = thing._repr_html_()  # type: ignore[attr-defined]
    assert len(text) < 300_000
    return Checked(text)


def trace_document() -> TraceDocument:
    records = [CallRecord(SHOWN, n, SHOWN, 10, 20, 90, {"copy": 5}, 1, SHOWN) for n in range(3)]
    return Trace(SHOWN, SHOWN, 0, end_ns=100, outcome=SHOWN, calls=records).chrome_json()


def capacity() -> NodeCapacity:
    engine = EngineCapacity(HOSTILE, 1, HOSTILE, HOSTILE, 1 << 30, 0, 0, 1, 2, 0.5)
    tenant = TenantCapacity(HOSTILE, 1.0, 1, 2, 3, 4, 5, 6, TenantSettings())
    admission = Admission(HOSTILE, 1, HOSTILE, 2, HOSTILE)
    arena = ArenaCapacity(1 << 30, 1 << 20, 0)
    return NodeCapacity((engine,), (tenant,), arena, 1, 2, admission)


def view() -> KeptView:
    return KeptView(
        id=HOSTILE, name=HOSTILE, version=1, state=KeptState.RUNNING, attempts=1, created_s=0.0,
        progress=Progress(1, 0, 3, 4), error=ErrorRecord(HOSTILE, HOSTILE),
    )  # fmt: skip


HOSTILE_SET = ItemSet(HOSTILE, (Item(HOSTILE, 1, SHOWN.encode()), Item("b", 2, b"\xff<b>")))
HOSTILE_SPEC = FunctionSpec(
    HOSTILE,
    (SetSpec(HOSTILE),),
    code=(CodeObject(HOSTILE, options={HOSTILE: HOSTILE}, packages=(HOSTILE,)),),
)
MAKERS: dict[str, Callable[[], object]] = {
    "item": lambda: HOSTILE_SET[0],
    "set": lambda: HOSTILE_SET,
    "sets": lambda: Sets({HOSTILE: HOSTILE_SET, "none": None}),
    "result": lambda: TracedResult("1", Sets({HOSTILE: HOSTILE_SET}), Trace("a", SHOWN, 0)),
    "trace": trace_document,
    "capacity": capacity,
    "invocation": view,
    "function": lambda: HOSTILE_SPEC,
}


@pytest.mark.parametrize("name", MAKERS)
def test_hostile_names_are_text(name: str) -> None:
    found = shown(MAKERS[name]())
    assert SHOWN in found.words
    assert "\u202e" not in found.words
    assert "\0" not in found.words


def test_values_show_what_they_are() -> None:
    picture = b"\x89PNG\r\n\x1a\n" + bytes(9)
    array = np.arange(4.0).reshape(2, 2)
    items = (
        Item("picture", 0, picture),
        Item("array", 0, array.tobytes(), "float64", (2, 2)),
        Item("brain", 0, b"\0\x3f", "bfloat16", (1,)),
        Item("wrong", 0, b"123", "float64", (2, 2)),
        Item("json", 0, b'{"a": [1, 2]}'),
        Item("broken", 0, b'{"a": '),
        Item("empty", 0, b""),
        Item("bytes", 0, bytes([255, 254]) * 99),
        Item("cut", 0, ("é" * 5000).encode()),
        Item("svg", 0, b"<svg onload='alert(1)'/>"),
    )
    found = shown(ItemSet("s", items, form="json[]"))
    assert found.tags.count("img") == 1
    arrays = ("float64[2, 2]", "3.", "bfloat16[1]", "0.5", "not float64")
    for text in (*arrays, '"a": [', "empty", "ff fe ff", "éé"):
        assert text in found.words, text
    assert "10 items" in found.words


def test_registered_compositions_show_their_graph() -> None:
    text = "function f(x) => (y); composition Inner(a) => (b) { f(x = all a) => (b = y); }"
    text += " composition Outer(c) => (d) { Inner(a = each c) => (d = b); }"
    with dd.Node(dd.Settings(backends=())) as node:
        node.register(
            text, functions=[dd.python_function("f = 1", name="f", inputs="x", outputs="y")]
        )
        for name, applied in (("Outer", "Inner"), ("Inner", "f")):
            record = node.describe(name)
            assert isinstance(record, CompositionRecord)
            assert f">{applied}</text>" in record._repr_svg_()


def test_large_values_are_cut() -> None:
    items = tuple(Item(f"n{n}", n, b"x" * 10_000) for n in range(3000))
    found = shown(ItemSet("s", items))
    assert "2950 more" in found.words
    array = np.zeros((1000, 1000))
    text = ItemSet("a", (Item("a", 0, memoryview(array), "float64", array.shape),))
    assert "..." in shown(text).words


def test_timelines_are_bounded_and_say_what_is_left_out() -> None:
    calls = [CallRecord("f", n, "engine", 0, n * 10, n * 10 + 500, {}) for n in range(2000)]
    trace = Trace("id", "name", 0, end_ns=30_000, outcome="ok", left_out=7, calls=calls)
    found = shown(trace)
    assert found.tags.count("rect") == BARS_LIMIT
    assert f"{2000 - BARS_LIMIT + 7} more" in found.words
    height = re.search(r'viewBox="0 0 \d+ (\d+)"', trace._repr_html_())
    assert height is not None
    assert int(height[1]) < 400
    assert shown(Trace("id", "it began", 5)).words  # nothing has ended
    failed = Trace(
        "id", "n", 0, end_ns=9, calls=[CallRecord("f", 0, "e", 0, 1, 5, {}, 1, "Raised")]
    )
    assert "Raised" in shown(failed).words


def test_blueprints_and_plans() -> None:
    made = dd.Blueprint(inputs=["A"], modules=["m.cu"])
    made.buffer("C", like="A")
    made.buffer("T", dd.sizeof(made.A) * 2, temporary=True)
    with made.repeat(3):
        made.launch("k", [made.A, made.T, dd.sizeof(made.A)], grid=(4, 2), block=32)
        made.launch("l", [made.T, made.C], grid=(4, 1, 5), block=32)
    made.gemm(made.A, made.A, made.C, m=32, n=16, k=16)
    words = shown(made).words
    for text in (
        "Gemm",
        "C = A, A; 32 × 16 × 16, f32",
        "sizeof(A) * 2",
        "3 times",
        "4 × 2",
        "u64 sizeof(A)",
        "temporary",
        "4 × 1 × 5",
    ):
        assert text in words, text
    planned = shown(plan(made.build(), {"A": 4096}, lambda *given: 0))
    assert "7 launches" in planned.words
    assert "k" in planned.words
    assert "gemm" in planned.words
    assert "\0" not in planned.words
    assert planned.tags.count("svg") == 3


def test_decorated_functions() -> None:
    @dd.function(packages=["a>=1"], static={"limit": 3}, outputs=["x", "y: float32"])
    def f(page: str, limit: int) -> tuple[str, float]:
        """Say <b>what</b> it does."""
        return page, limit / 2

    words = shown(f).words
    for text in ("a>=1", "<b>what</b>", "page", "str", "fixed", "output"):
        assert text in words, text


# --- functions that are defined in a notebook or console ------------------------------------------


class Cells(InteractiveInterpreter):
    """Runs cells as a notebook does: each is a file that exists in `linecache` only."""

    def __init__(self) -> None:
        super().__init__({"__name__": "__main__"})
        self._count = 0

    def run(self, text: str) -> None:
        self._count += 1
        name = f"<ipython-input-{self._count}-{zlib.crc32(text.encode()):x}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), self.locals)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def node() -> Iterator[dd.Node]:
    settings = dd.Settings(backends=("process",), engines={"process": 1}, arena_bytes=32 << 20)
    with dd.Node(settings) as node:
        yield node


def test_functions_of_cells_with_values_of_other_cells(node: dd.Node) -> None:
    cells = Cells()
    cells.run("import re\nimport dandelion as dd\nfrom dataclasses import dataclass")
    cells.run("WORD = re.compile('[a-z]+')\nSTOP = {'the', 'a'}\nfactor = 2")
    cells.run("@dataclass\nclass Page:\n    text: str\n    stars: int = 1")
    cells.run("def words(text):\n    return [w for w in WORD.findall(text) if w not in STOP]")
    cells.run(
        "@dd.function\ndef rate(page: Page) -> int:\n"
        "    return factor * page.stars * len(words(page.text))"
    )
    cells.run("@dd.composition\ndef rated(pages):\n    return {'r': rate(dd.each(pages))}")
    node.register(cells.locals["rated"])  # type: ignore[arg-type]
    pages = [{"text": "the cat", "stars": 3}]
    assert node.invoke("rated", pages=pages).r.json() == 6
    cells.run("factor = 10")  # a cell that is run again counts from the next registration on
    node.register(cells.locals["rated"])  # type: ignore[arg-type]
    assert node.invoke("rated", pages=pages).r.json() == 30
    cells.run("@dd.function\ndef broken() -> int:\n    x = 1\n    return x / zero\nzero = 0")
    node.register(cells.locals["broken"])  # type: ignore[arg-type]
    with pytest.raises(Exception, match="return x / zero"):
        node.invoke("broken")


def test_results_of_a_node_draw_themselves(node: dd.Node) -> None:
    @dd.function
    def double(x: int) -> int:
        return 2 * x

    node.register(double)
    assert "4" in shown(node.invoke("double", x=2)).words
    (one, *_) = node.activity().invocations
    trace = node.trace(one.id)
    assert trace is not None
    assert "double[0]" in shown(trace).words
    assert "process:0" in shown(node.capacity()).words
    assert "double" in shown(node.describe("double")).words
