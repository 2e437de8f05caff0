"""What does moving data cost on each kind of edge, and how often is it copied?

One item of growing size goes along every kind of edge: each call is an echo, so it goes in and
comes back. The echo on a device copies all of its input in and as much out, and its kernel touches
one byte. The node itself counts copies into the arena, and they are compared with the table in
ARCHITECTURE.md; copies of a sandbox or a device to their own memory are not among them. A small
result of a sandbox stays on the heap, so it is copied when a device needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from dandelion.backends.process.outcome import HEAP_BYTES

from dandelion.data import Bytes
from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable
from dandelion.memory import HeapDomain
from dandelion.node import Node, Settings

from ..experiment import Bench, experiment
from ..http_client import BlockingConnection, fetch, request_head
from ..load import HttpRequest
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import P50, P99, Samples, row
from ..systems.echoes import GPU, MIB, NATIVE, NULL, PYTHON, WASM, echo
from ..systems.nodes import node_server, one_item
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
_COUNTED = re.compile(rb"^dandelion_copied_items_total (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edge:
    """A way that data takes.

    Attributes:
        call: echoes data that is where this edge begins.
        whole: whether all bytes come back; else the first, and as many zeros.
        copies: into the arena that ARCHITECTURE.md permits.
        copied: gives how many copies the node at the edge has made so far.
    """

    name: str
    call: Callable[[], Bytes | bytearray]
    whole: bool
    copies: int
    copied: Callable[[], int]


class EdgeNodes:
    """A node in this process, and a server in another, with all echoes that work here.

    The server has no device, since this process uses it.
    """

    def __init__(self, bench: Bench, stack: ExitStack, skips: list[Skip]) -> None:
        backends = [NULL, PYTHON, NATIVE, WASM]
        documents = []
        for backend in backends:
            try:
                documents.append(echo(backend, FUNCTIONS[backend]))
            except BackendUnavailable as error:
                skips.append(Skip(f"dandelion {backend}", str(error)))
        compositions: tuple[str, ...] = ()
        if bench.backend:
            backends.append(bench.backend)
            documents.append(echo(GPU, FUNCTIONS[GPU]))
            compositions = (COMPOSITIONS,) if "Python" in {f.name for f in documents} else ()
        else:
            skips.append(Skip("engine processes", "no GPU backend: give one with --backend"))
        self.device = bench.backend
        options = {bench.backend: {"workers": "0"}} if bench.gpu else {}
        settings = Settings(
            backends=tuple(backends), engines={PYTHON: 1, NATIVE: 1, WASM: 1}, options=options,
            arena_bytes=1024 * MIB,
        )  # fmt: skip
        self.node = stack.enter_context(Node(settings))
        self.node.register(
            RegistrationDocument(functions=tuple(documents), compositions=compositions)
        )
        self.node.wait_ready()
        engines = self.node.engines()
        self.working = {e.backend for e in engines if e.state in ("ready", "dormant")}
        lost = [e for e in engines if e.state == "unavailable" and e.backend not in self.working]
        skips += [Skip(e.backend, e.reason) for e in lost]
        document = RegistrationDocument(functions=(echo(NULL, FUNCTIONS[NULL]),))
        served = {"backends": [NULL], "arena_bytes": 1024 * MIB}
        self.server = stack.enter_context(node_server(served, [document]))
        self.connection = stack.enter_context(BlockingConnection(self.server.port))

    def _copied_here(self) -> int:
        return self._count(self.node.metrics())

    def _copied_there(self) -> int:
        return self._count(fetch(self.server.port, HttpRequest("/metrics", method="GET")))

    def _count(self, metrics: bytes) -> int:
        found = _COUNTED.search(metrics)
        assert found is not None, "the node has no counter of copies"
        return int(float(found[1]))

    def edges(self, data: bytes) -> Iterator[Edge]:
        """Give the ways that work here, for an item of this content."""
        here = self._copied_here
        yield Edge("caller to null", partial(self._call, "Null", data), True, 0, here)
        requested = partial(self.connection.ask, request_head("/v1/invoke/Null", len(data)), data)
        yield Edge("HTTP body to null", requested, True, 0, self._copied_there)
        for backend, name in ((PYTHON, "Python"), (NATIVE, "native"), (WASM, "wasm")):
            if backend in self.working:
                call = partial(self._call, FUNCTIONS[backend], data)
                yield Edge(f"heap to {name} sandbox", call, True, 0, here)
        if self.device and self.device in self.working:
            placed = self.node.acquire(len(data)).write(0, data)
            for edge, function, given, copies in (
                ("heap to engine process", "Gpu", data, 1),
                ("arena to engine process", "Gpu", placed, 0),
                ("arena to engine process to the next", "Twice", placed, 0),
                ("heap to Python sandbox to engine process", "Mixed", data,
                 int(len(data) <= HEAP_BYTES)),
            ):  # fmt: skip
                if function != "Mixed" or PYTHON in self.working:
                    yield Edge(edge, partial(self._call, function, given), False, copies, here)

    def _call(self, name: str, data: Bytes) -> Bytes:
        result = self.node.invoke_sets(name, one_item("x", data)).sets["y"]
        assert result is not None
        return result.items[0].data


def check(edge: Edge, data: bytes) -> int:
    """Make one call, check its result, and give the copies that it took."""
    before = edge.copied()
    result = edge.call()
    copies = edge.copied() - before
    assert len(result) == len(data), f"{edge.name}: {len(result)} of {len(data)} bytes"
    expected = data if edge.whole else data[:1] + bytes(len(data) - 1)
    assert bytes(result) == expected, f"{edge.name}: other bytes came back"
    return copies


@experiment("data_path", group="data", question="What does each kind of edge cost, by size?")
def data_path(bench: Bench) -> Findings:
    """Send items of growing size along every edge."""
    full = [1024, 64 * 1024, MIB, 16 * MIB, 64 * MIB]
    skips: list[Skip] = []
    rows: list[Row] = []
    wrong: list[str] = []
    counted: set[str] = set()
    with ExitStack() as stack:
        nodes = EdgeNodes(bench, stack, skips)
        for size in bench.pick([1024, MIB], full, full):
            bench.say(f"{size // 1024} KiB")
            data = bytes([size % 251 + 1]) * size
            edges = {edge.name: edge for edge in nodes.edges(data)}
            copies = {name: check(edge, data) for name, edge in edges.items()}
            counted |= set(copies)
            wrong += [
                f"{name}, {size} bytes: {copies[name]} copies"
                for name, edge in edges.items()
                if copies[name] != edge.copies
            ]
            context = HeapDomain(2 * size + 2**16).acquire(size)
            actions: dict[str, Callable[[], object]] = {BASELINE: partial(context.write, 0, data)}
            actions |= {name: edge.call for name, edge in edges.items()}
            timed = in_turns(actions, count=max(10, min(300, 64 * MIB // size)), warm_up=2,
                             seconds=1.0 if bench.quick else 5.0)  # fmt: skip
            rows += [_row(name, size, timed[name], copies.get(name)) for name in actions]
    panel = Panel(
        "edges", "An item there and back, by its size",
        Axis("size", Unit.BYTES, logarithmic=True), (P50, P99, RATE, COPIES), tuple(rows),
        Plot.LINES, BASELINE,
    )  # fmt: skip
    budget = Budget(
        "copies into the arena, on each edge", "as ARCHITECTURE.md says",
        "; ".join(wrong) or f"so on {len(counted)} edges", not wrong,
        "" if not wrong else "an edge copies more or less than it should",
    )  # fmt: skip
    scaled = "" if bench.gpu else "the device is this processor: its copies are memory copies"
    return Findings((panel,), budgets=(budget,), skips=tuple(skips), scaled=scaled)


def _row(name: str, size: int, timed: Samples, copies: int | None) -> Row:
    made = row(name, float(size), timed)
    made.values["rate"] = size / (made.values["p50"] / 1e6)
    if copies is not None:
        made.values["copies"] = float(copies)
    return made
