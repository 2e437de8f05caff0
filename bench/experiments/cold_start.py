"""What does the first call of a function cost, and what is it made of?

For every backend that runs here, functions that pass an item on, each with code of its own:

- *first ever*: registered just now; nothing has seen the code. Registration is a stage of its own.
- *after a restart*: a new node with the same catalogue, its engines up; what a backend keeps on
  disk of compiled code is there.
- *another size*: the code is loaded, the size of the input is new, so a device needs a plan.
- *hot*: all of it was seen before.

Stages are those that engines report; *rest* is all else: the dispatcher, the catalogue, messages
between processes. A row shows the call whose total is the median, so its stages add up.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dandelion.data import Item, ItemSet
from dandelion.documents import FunctionDocument
from dandelion.errors import BackendUnavailable
from dandelion.node import Node, Settings

from ..columns import row
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems.echoes import GPU, NATIVE, NULL, PYTHON, WASM, echo

FIRST, RESTART, SIZE, HOT = "first ever", "after a restart", "another size", "hot"
SIZES = (1024, 4096)
HOT_CALLS = 20
COLD_LIMIT_MS = 10.0
REGISTER, QUEUE, REST = "register", "queue", "rest"
TOTAL = Metric("p50", "total", Unit.US, drawn=False)
UP = Metric("p50", "until ready", Unit.US, logarithmic=True)


@dataclass(frozen=True, slots=True)
class Timed:
    """One call: stages in microseconds by name, which add up to `total_us`."""

    total_us: float
    stages: dict[str, float]


def timed_call(node: Node, name: str, size: int, register: FunctionDocument | None = None) -> Timed:
    """Call a function once, registering it before if there is a document, and take it apart."""
    data = b"x" * size
    begun = time.perf_counter_ns()
    if register is not None:
        node.register(register)
    called = time.perf_counter_ns()
    outcome = node.invoke_sets(name, {"x": ItemSet("x", (Item("", 0, data),))})
    ended = time.perf_counter_ns()
    result = outcome.sets["y"]
    assert result is not None
    assert result.size_bytes == size
    assert result.bytes()[:1] == b"x"
    stages = {REGISTER: (called - begun) / 1e3} if register is not None else {}
    for span in outcome.trace.spans:
        if span.track == QUEUE or span.track.endswith(" stages"):
            stage = QUEUE if span.track == QUEUE else span.name
            stages[stage] = stages.get(stage, 0.0) + (span.end_ns - span.start_ns) / 1e3
    total = (ended - begun) / 1e3
    stages[REST] = total - sum(stages.values())
    return Timed(total, stages)


def measured(
    settings: Settings, functions: Sequence[FunctionDocument]
) -> tuple[dict[str, list[Timed]], list[float]]:
    """Take a backend through all states.

    Args:
        settings: of the node; its catalogue is on disk and empty.
        functions: whose code differs.

    Returns:
        The calls by state, and how long nodes took until they were ready, in microseconds.

    Raises:
        BackendUnavailable: it does not work here.
    """
    found: dict[str, list[Timed]] = {FIRST: [], RESTART: [], SIZE: [], HOT: []}
    started: list[float] = []
    with _ready(settings, started) as node:
        found[FIRST] = [timed_call(node, f.name, SIZES[0], f) for f in functions]
    with _ready(settings, started) as node:
        found[RESTART] = [timed_call(node, f.name, SIZES[0]) for f in functions]
        found[SIZE] = [timed_call(node, f.name, SIZES[1]) for f in functions]
        found[HOT] = [
            timed_call(node, f.name, SIZES[1]) for _ in range(HOT_CALLS) for f in functions
        ][len(functions) :]  # the first of these is the second of its kind, where graphs are made
    return found, started


@contextlib.contextmanager
def _ready(settings: Settings, started: list[float]) -> Iterator[Node]:
    """Start a node and wait until its engines are up; tell how long that took."""
    begun = time.perf_counter_ns()
    with Node(settings) as node:
        node.wait_ready()
        started.append((time.perf_counter_ns() - begun) / 1e3)
        backend = settings.backends[0]
        states = {e.state: e.reason for e in node.engines() if e.backend == backend}
        if "ready" not in states:
            raise BackendUnavailable(backend, next(iter(states.values()), "no engine"))
        yield node


@contextlib.contextmanager
def fresh(backend: str) -> Iterator[Settings]:
    """Give settings of a node with nothing on disk yet; what it puts there is removed."""
    with tempfile.TemporaryDirectory(prefix="dandelion-cold-") as folder:
        code = Path(folder) / "code"
        cached = backend in ("cuda", "hip")
        options = {backend: {"cache": str(code), "workers": "0"}} if cached else {}
        with _variable("POCL_CACHE_DIR", str(code)):  # inherited by the engine process
            code.mkdir()
            yield Settings(
                backends=(backend,), catalog=f"sqlite:{folder}/catalog", options=options,
                engines={} if backend in ("cuda", "hip", "opencl") else {backend: 1},
            )  # fmt: skip


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def panel_of(key: str, system: str, found: dict[str, list[Timed]], title: str = "") -> Panel:
    """Show the median call of each state, by its stages."""
    rows = []
    names: dict[str, None] = {}
    for state, calls in found.items():
        middle = sorted(calls, key=lambda call: call.total_us)[len(calls) // 2]
        names |= dict.fromkeys(middle.stages)
        totals = Histogram()
        totals.record_all(call.total_us for call in calls)
        values = totals.values() | {"p50": middle.total_us} | middle.stages
        rows.append(Row(system, state, values, len(calls)))
    first = [REGISTER] if REGISTER in names else []
    order = [*first, *(n for n in names if n not in (REGISTER, REST)), REST]
    metrics = tuple(Metric(n, n.replace("_", " "), Unit.US) for n in order)
    title = title or f"The first call and later ones, {system}"
    return Panel(key, title, Axis("state"), (*metrics, TOTAL), tuple(rows), Look.STACKED)


def backends_of(bench: Bench) -> dict[str, tuple[str, str]]:
    """Give what is measured: by the name of the system the echo's backend and the node's."""
    found = {f"dandelion {b}": (b, b) for b in (NULL, PYTHON, NATIVE, WASM)}
    if bench.backend:
        found["dandelion sequential"] = (GPU, bench.backend)
    return found


@experiment("cold_start", group="data", question="What does the first call cost, stage by stage?")
def cold_start(bench: Bench) -> Found:
    """Take every backend that runs here from nothing to hot calls."""
    count = bench.pick(2, 10, 15)
    panels: list[Panel] = []
    up: list[Row] = []
    skips: list[Skip] = []
    budgets: list[Budget] = []
    for system, (kind, backend) in backends_of(bench).items():
        bench.say(system)
        try:
            with fresh(backend) as settings:
                functions = [echo(kind, f"F{i}", _nonce() + i) for i in range(count)]
                found, started = measured(settings, functions)
        except BackendUnavailable as error:
            skips.append(Skip(system, str(error)))
            continue
        whole = panel_of(f"cold_{kind}", system, found)
        loaded = {state: found[state] for state in (SIZE, HOT)}
        title = f"Of these, the calls whose code was loaded, {system}"
        panels += [whole, panel_of(f"loaded_{kind}", system, loaded, title)]
        times = Histogram()
        times.record_all(started)
        up.append(row(system, "node with its engines", times))
        if kind == GPU and bench.gpu:
            budgets.append(_budget(whole))
    panels.append(Panel("up", "A node of one backend, until its engines are ready",
                        Axis("what starts"), (UP,), tuple(up), Look.BARS))  # fmt: skip
    if not bench.backend:
        skips.append(Skip("GPU engines", "no GPU backend: give one with --backend"))
    scaled = "" if bench.gpu else "the device is this processor; no budget is held against it"
    return Found(tuple(panels), budgets=tuple(budgets), skips=tuple(skips), scaled=scaled)


def _nonce() -> int:
    """A number that no earlier run has put into any cache."""
    return int.from_bytes(os.urandom(3), "little") << 6 & 0x7FFF_FFFF


def _budget(panel: Panel) -> Budget:
    values = next(r.values for r in panel.rows if r.x == RESTART)
    measured_ms = values["p50"] / 1e3
    stages = {m.key: values.get(m.key, 0.0) for m in panel.metrics if m is not TOTAL}
    largest = max(stages, key=lambda name: stages[name])
    passes = measured_ms <= COLD_LIMIT_MS
    return Budget(
        "cold: registered, code on disk, engine up", f"<= {COLD_LIMIT_MS:.0f} ms to the result",
        f"{measured_ms:.2f} ms", passes,
        "" if passes else f"stage '{largest}' alone takes {stages[largest] / 1e3:.2f} ms",
    )  # fmt: skip
