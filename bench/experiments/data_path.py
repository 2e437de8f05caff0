"""What does moving data cost on each kind of edge, and how often is it copied?

One item of growing size goes along every kind of edge: each call is an echo, so it goes in and
comes back. The echo on a device copies all of its input in and as much out, and its kernel touches
one byte. Copies into the arena are counted by the node itself and held against the table in
ARCHITECTURE.md; what a sandbox or a device copies to memory of its own is not among them. A small
result of a sandbox stays on the heap, so that it is copied when a device needs it.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dandelion.backends.process.outcome import HEAP_BYTES

from dandelion.data import Bytes, Item, ItemSet
from dandelion.documents import FunctionDocument, RegistrationDocument
from dandelion.errors import BackendUnavailable
from dandelion.memory import HeapDomain
from dandelion.node import Node, Settings

from ..columns import P50, P99, row
from ..connection import Connection, head
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems.echoes import GPU, MIB, NATIVE, NULL, PYTHON, WASM, echo
from ..systems.servers import ServerProcess, node_server
from ..timing import in_turns

RATE = Metric("rate", "bytes passed on", Unit.BYTES_PER_SECOND, logarithmic=True, better="higher")
COPIES = Metric("copies", "items copied into the arena", Unit.COUNT, drawn=False)
BASELINE = "one memory copy"
FUNCTIONS = {NULL: "Null", PYTHON: "Python", NATIVE: "Native", WASM: "Wasm", GPU: "Gpu"}
COMPOSITIONS = """
function Python(x) => (y);
function Gpu(x) => (y);
composition Twice(x) => (y) { Gpu(x = all x) => (m = y); Gpu(x = all m) => (y = y); }
composition Mixed(x) => (y) { Python(x = all x) => (m = y); Gpu(x = all m) => (y = y); }
"""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way that data takes.

    Attributes:
        name: for people.
        call: echoes data that lies where this edge begins.
        whole: whether all bytes come back; else the first, and as many zeros.
        copies: into the arena that ARCHITECTURE.md allows; negative where none are counted.
        copied: how many copies the node at the edge has made so far.
    """

    name: str
    call: Callable[[], Bytes | bytearray]
    whole: bool
    copies: int
    copied: Callable[[], int]


class Place:
    """A node in this process, and a server in another, with all echoes that work here."""

    def __init__(self, bench: Bench, stack: ExitStack, skips: list[Skip]) -> None:
        backends = [NULL, PYTHON, NATIVE, WASM]
        documents = []
        for backend in backends:
            try:
                documents.append(echo(backend, FUNCTIONS[backend]))
            except BackendUnavailable as error:
                skips.append(Skip(f"dandelion {backend}", str(error)))
        if bench.backend:
            backends.append(bench.backend)
            documents.append(echo(GPU, FUNCTIONS[GPU]))
        else:
            skips.append(Skip("engine processes", "no GPU backend: give one with --backend"))
        self.device = bench.backend
        settings = Settings(
            backends=tuple(backends), engines={PYTHON: 1, NATIVE: 1, WASM: 1},
            options=_options(bench.backend), arena_bytes=1024 * MIB,
        )  # fmt: skip
        self.node = stack.enter_context(Node(settings))
        self.node.register(_document(documents, bool(bench.backend)))
        self.node.wait_ready()
        self.working = {e.backend for e in self.node.engines() if e.state == "ready"}
        skips += [
            Skip(e.backend, e.reason)
            for e in self.node.engines()
            if e.state == "unavailable" and e.backend not in self.working
        ]
        self.server = stack.enter_context(self._served(bench))
        self.connection = stack.enter_context(Connection(self.server.port))

    def _served(self, bench: Bench) -> ServerProcess:
        """Start the server; its device is the same, so it has no engine while there is one here."""
        settings = {"backends": [NULL], "arena_bytes": 1024 * MIB}
        document = RegistrationDocument(functions=(echo(NULL, FUNCTIONS[NULL]),))
        return node_server(settings, [document])

    def copied_here(self) -> int:
        """Items that were copied into the arena of the node in this process."""
        return self.node.info().transfers.copies

    def copied_there(self) -> int:
        """Items that were copied into the arena of the server."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/metrics") as answer:
            text = answer.read().decode()
        found = re.search(r"^dandelion_copied_items_total (\S+)", text, re.MULTILINE)
        assert found is not None, "the node tells how much was copied"
        return int(float(found[1]))

    def edges(self, data: bytes) -> Iterator[Edge]:
        """Give the ways that work here, for an item of this content."""
        here = self.copied_here
        yield Edge("caller to null", lambda: self._call("Null", data), True, 0, here)
        request = head("/v1/invoke/Null", len(data))
        yield Edge("HTTP body to null", lambda: self.connection.ask(request, data), True, 0,
                   self.copied_there)  # fmt: skip
        for backend, name in ((PYTHON, "Python"), (NATIVE, "native"), (WASM, "wasm")):
            if backend in self.working:
                function = FUNCTIONS[backend]
                yield Edge(f"heap to {name} sandbox", _bound(self._call, function, data), True, 0,
                           here)  # fmt: skip
        if self.device and self.device in self.working:
            yield from self._of_the_device(data)

    def _of_the_device(self, data: bytes) -> Iterator[Edge]:
        here = self.copied_here
        context = self.node.acquire(len(data))
        placed = context.write(0, data)
        yield Edge("heap to engine process", lambda: self._call("Gpu", data), False, 1, here)
        yield Edge("arena to engine process", lambda: self._call("Gpu", placed), False, 0, here)
        yield Edge("arena to engine process to the next", lambda: self._call("Twice", placed),
                   False, 0, here)  # fmt: skip
        if PYTHON in self.working:
            small = len(data) <= HEAP_BYTES
            yield Edge("heap to Python sandbox to engine process",
                       lambda: self._call("Mixed", data), False, int(small), here)  # fmt: skip

    def _call(self, name: str, data: Bytes) -> Bytes:
        sets = self.node.invoke_sets(name, {"x": ItemSet("x", (Item("", 0, data),))}).sets
        result = sets["y"]
        assert result is not None
        return result.items[0].data


def _bound(call: Callable[[str, Bytes], Bytes], name: str, data: bytes) -> Callable[[], Bytes]:
    return lambda: call(name, data)


def _options(backend: str) -> dict[str, dict[str, str]]:
    """Give a GPU backend no workers: the edge is asked about, not sharing."""
    return {backend: {"workers": "0"}} if backend in ("cuda", "hip") else {}


def _document(functions: list[FunctionDocument], device: bool) -> RegistrationDocument:
    names = {f.name for f in functions}
    texts = (COMPOSITIONS,) if device and {"Python", "Gpu"} <= names else ()
    return RegistrationDocument(functions=tuple(functions), compositions=texts)


def check(edge: Edge, data: bytes) -> int:
    """Make one call; hold its result against what it should be, and give the copies it took."""
    before = edge.copied()
    result = edge.call()
    copies = edge.copied() - before
    assert len(result) == len(data), f"{edge.name}: {len(result)} of {len(data)} bytes"
    expected = data if edge.whole else data[:1] + bytes(len(data) - 1)
    assert bytes(result) == expected, f"{edge.name}: other bytes came back"
    return copies


@contextmanager
def _memory_copy(data: bytes) -> Iterator[Callable[[], object]]:
    """Give one copy from the heap into a context that was touched before."""
    context = HeapDomain(2 * len(data) + 2**16).acquire(len(data))
    yield lambda: context.write(0, data)


@experiment("data_path", group="data", question="What does each kind of edge cost, by size?")
def data_path(bench: Bench) -> Found:
    """Send items of growing size along every edge."""
    sizes = bench.pick([1024, MIB], [1024, 64 * 1024, MIB, 16 * MIB, 64 * MIB],
                       [1024, 64 * 1024, MIB, 16 * MIB, 64 * MIB])  # fmt: skip
    skips: list[Skip] = []
    rows: list[Row] = []
    wrong: list[str] = []
    counted: set[str] = set()
    with ExitStack() as stack:
        place = Place(bench, stack, skips)
        for size in sizes:
            bench.say(f"{size // 1024} KiB")
            data = bytes([size % 251 + 1]) * size
            edges = {edge.name: edge for edge in place.edges(data)}
            copies = {name: check(edge, data) for name, edge in edges.items()}
            counted |= set(copies)
            wrong += [
                f"{name}, {size} bytes: {copies[name]} copies"
                for name, edge in edges.items()
                if copies[name] != edge.copies
            ]
            with _memory_copy(data) as copy:
                actions = {BASELINE: copy} | {name: edge.call for name, edge in edges.items()}
                timed = in_turns(actions, count=max(10, min(300, 64 * MIB // size)), warm_up=2,
                                 seconds=1.0 if bench.quick else 5.0)  # fmt: skip
            rows += [_row(name, size, timed[name], copies.get(name)) for name in actions]
    panel = Panel(
        "edges", "An item there and back, by its size",
        Axis("size", Unit.BYTES, logarithmic=True), (P50, P99, RATE, COPIES), tuple(rows),
        Look.LINES, BASELINE,
    )  # fmt: skip
    budget = Budget(
        "copies into the arena, on each edge", "as ARCHITECTURE.md says",
        "; ".join(wrong) or f"so on {len(counted)} edges", not wrong,
        "" if not wrong else "an edge copies more or less than it should",
    )  # fmt: skip
    scaled = "" if bench.gpu else "the device is this processor: its copies are memory copies"
    return Found((panel,), budgets=(budget,), skips=tuple(skips), scaled=scaled)


def _row(name: str, size: int, timed: Histogram, copies: int | None) -> Row:
    made = row(name, float(size), timed)
    made.values["rate"] = size / (made.values["p50"] / 1e6)
    if copies is not None:
        made.values["copies"] = float(copies)
    return made
