"""What do the lines of functions, and a page that is open, cost a node?

A server with four callers, each of which waits for its answer before it asks again. Blocks of calls
take turns: with and without the line, or with and without the page. What decides is the processor
time of the node, its engines and its sandboxes for a call: unlike the rate it hardly depends on
what else a machine does.

The page is read as a browser does: as server-sent events, over a connection of its own. What the
browser itself needs to show it is not counted, since it usually runs on another machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from dandelion.documents import (
    CodeDocument,
    Content,
    FunctionDocument,
    RegistrationDocument,
    python_function,
)
from dandelion.errors import BackendUnavailable

from ..experiment import Bench, experiment
from ..http_client import BlockingConnection, request_head
from ..process_facts import processor_s
from ..processes import Closeable
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..systems.echoes import NULL, PYTHON, WASM, echo, system_of, wasm_code
from ..systems.nodes import node_server

CALLERS = 4
LINE = "a line of about forty characters, or so"
OFF, PRINT, LOGGING, FROM_WASM = "silent", "print", "logging", "standard output"
CLOSED, OPEN = "page closed", "page open"
LOG_LIMIT, PAGE_LIMIT = 1.03, 1.02

RATE = Metric("rate", "calls", Unit.PER_SECOND, better="higher")
TIME = Metric("cpu", "processor time of a call", Unit.US)
RATE_RATIO = Metric("rate_ratio", "rate over without", Unit.RATIO, drawn=False, better="higher")
TIME_RATIO = Metric("cpu_ratio", "processor time over without", Unit.RATIO, drawn=False)


@dataclass(slots=True)
class _Blocks:
    """Rates and processor times, one of each for every block."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


class Callers(Closeable):
    """Callers of one server, each with a connection."""

    def __init__(self, port: int, pid: int) -> None:
        self._pid = pid
        with ExitStack() as stack:
            self._connections = [
                stack.enter_context(BlockingConnection(port)) for _ in range(CALLERS)
            ]
            self._pool = stack.enter_context(ThreadPoolExecutor(CALLERS))
            self._stack = stack.pop_all()

    def run(self, request: bytes, count: int, found: _Blocks) -> None:
        """Let them make `count` calls, and add what these took."""
        spent, began = processor_s(self._pid), time.perf_counter()
        work = partial(_ask, request, count // CALLERS)
        for _ in self._pool.map(work, self._connections):
            pass
        found.rates.append(count / (time.perf_counter() - began))
        found.cpu_us.append((processor_s(self._pid) - spent) / count * 1e6)

    def close(self) -> None:
        self._stack.close()


def _ask(request: bytes, count: int, connection: BlockingConnection) -> None:
    for _ in range(count):
        connection.ask(request)


def in_turns(blocks: int, ways: Mapping[str, Callable[[_Blocks], None]]) -> dict[str, _Blocks]:
    """Run blocks of each way in turns, the order reversed every time; the first does not count."""
    found = {name: _Blocks() for name in ways}
    for work in ways.values():
        work(_Blocks())
    for at in range(blocks):
        for name in list(ways)[:: 1 if at % 2 else -1]:
            ways[name](found[name])
    return found


def rows_of(system: str, found: Mapping[str, _Blocks], calls: int) -> list[Row]:
    """Make a row of each way; the first is what the others are compared with, block by block."""
    base = next(iter(found.values()))
    rows = []
    for name, one in found.items():
        values = {"rate": median(one.rates), "cpu": median(one.cpu_us)}
        if one is not base:
            values |= _ratio("rate_ratio", one.rates, base.rates)
            values |= _ratio("cpu_ratio", one.cpu_us, base.cpu_us)
        rows.append(Row(system, name, values, calls * len(one.rates)))
    return rows


def _ratio(key: str, ones: list[float], bases: list[float]) -> dict[str, float]:
    """Give the median of the ratios, and the quartiles as its spread."""
    ratios = sorted(one / base for one, base in zip(ones, bases, strict=True))
    quarter = len(ratios) // 4
    return {key: median(ratios), f"{key}_low": ratios[quarter], f"{key}_high": ratios[-1 - quarter]}


def printing(name: str, line: str) -> FunctionDocument:
    """Describe a Python function that passes an item on, after one line of code."""
    return python_function(
        f"import logging\n\ndef f(x):\n    {line}\n    return x\n",
        name=name, entry="f", inputs=["x"], outputs=["y"],
    )  # fmt: skip


def wasm_echo(name: str, set_name: str) -> FunctionDocument:
    """Describe a WebAssembly function that passes an item on; in ``stdio`` it is a line."""
    code = CodeDocument("wasm", Content(data=wasm_code()))
    return FunctionDocument(name, (set_name,), (set_name,), code=(code,))


def _request(name: str, set_name: str) -> bytes:
    item = b'{"sets":{"%b":[{"name":"stdout","text":"%b"}]}}' % (set_name.encode(), LINE.encode())
    return request_head(f"/v1/invoke/{name}", len(item), "application/json") + item


def lines_of(backend: str, ways: Mapping[str, tuple[FunctionDocument, str]], blocks: int,
             calls: int) -> list[Row]:  # fmt: skip
    """Measure functions of one backend, the first of which writes nothing."""
    document = RegistrationDocument(functions=tuple(function for function, _ in ways.values()))
    with (
        node_server({"backends": [backend], "arena_bytes": 64 << 20}, [document]) as node,
        Callers(node.port, node.pid) as callers,
    ):
        works = {
            way: partial(callers.run, _request(function.name, set_name), calls)
            for way, (function, set_name) in ways.items()
        }
        return rows_of(system_of(backend), in_turns(blocks, works), calls)


@experiment("call_logs", group="dispatcher", question="What does a line cost that a call writes?")
def call_logs(bench: Bench) -> Findings:
    """Call functions with and without a line."""
    blocks, rows, skips = bench.pick(2, 12, 12), [], []
    bench.say("Python")
    python = {
        OFF: (printing("silent", "pass"), "x"),
        PRINT: (printing("prints", f"print({LINE!r})"), "x"),
        LOGGING: (printing("logs", f"logging.getLogger('app').warning({LINE!r})"), "x"),
    }
    rows += lines_of(PYTHON, python, blocks, bench.pick(40, 400, 1600))
    bench.say("WebAssembly")
    try:
        wasm = {OFF: (wasm_echo("silent", "x"), "x"),
                FROM_WASM: (wasm_echo("prints", "stdio"), "stdio")}  # fmt: skip
        rows += lines_of(WASM, wasm, blocks, bench.pick(40, 2000, 8000))
    except BackendUnavailable as error:
        skips.append(Skip(system_of(WASM), str(error)))
    panel = _panel("lines", "Calls that write a line, and calls that write nothing", rows)
    why = {LOGGING: "`logging` copies pages at its first use, and every call is a fresh process"}
    budgets = [
        at_most(f"a line by {row.x}, {row.system}, processor time", row.values["cpu_ratio"],
                LOG_LIMIT, "x", why.get(str(row.x), ""), digits=".3f", of=" silent")
        for row in rows if row.x != OFF
    ]  # fmt: skip
    return Findings((panel,), budgets=tuple(budgets), skips=tuple(skips))


def _panel(key: str, title: str, rows: list[Row]) -> Panel:
    metrics = (RATE, TIME, RATE_RATIO, TIME_RATIO)
    return Panel(key, title, Axis("what"), metrics, tuple(rows), Plot.TABLE)


@contextmanager
def open_page(port: int) -> Iterator[None]:
    """Follow what the page shows, in a thread, until the block ends."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(
            b"GET /v1/activity/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Accept: text/event-stream\r\n\r\n"
        )
        head = connection.recv(1 << 16)
        assert b" 200 " in head.partition(b"\r\n")[0], head
        connection.settimeout(None)
        reader = threading.Thread(target=_read, args=(connection,))
        reader.start()
        try:
            yield
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()


def _read(connection: socket.socket) -> None:
    while connection.recv(1 << 18):
        continue


@experiment("open_page", group="dispatcher", question="What does an open page cost a node?")
def page_open(bench: Bench) -> Findings:
    """Call a function that does nothing, and one in Python, with and without a reader."""
    blocks, rows = bench.pick(2, 12, 12), []
    for backend, calls in ((NULL, bench.pick(200, 8000, 30_000)),
                           (PYTHON, bench.pick(40, 600, 2000))):  # fmt: skip
        bench.say(system_of(backend))
        document = RegistrationDocument(functions=(echo(backend, "F"),))
        with (
            node_server({"backends": [backend], "arena_bytes": 64 << 20}, [document]) as node,
            Callers(node.port, node.pid) as callers,
        ):
            plain = partial(callers.run, _request("F", "x"), calls)
            shown = partial(_with_page, node.port, plain)
            found = in_turns(blocks, {CLOSED: plain, OPEN: shown})
            rows += rows_of(system_of(backend), found, calls)
    budgets = [
        at_most(f"page open, {row.system}, processor time", row.values["cpu_ratio"], PAGE_LIMIT,
                "x", "the events are made once a second", digits=".3f", of=" closed")
        for row in rows if row.x == OPEN
    ]  # fmt: skip
    panel = _panel("page", "Calls while a page is open, and while none is", rows)
    return Findings((panel,), budgets=tuple(budgets))


def _with_page(port: int, work: Callable[[_Blocks], None], found: _Blocks) -> None:
    with open_page(port):
        work(found)
