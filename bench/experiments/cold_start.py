"""What does the first call of a function cost, and what is it made of?

For every backend that runs here, functions that pass an item on, each with its own code:

- *first ever*: registered just now; nothing has seen the code. Registration is its own stage.
- *after a restart*: a new node with the same catalogue, its engines ready, and the compiled code
  that the backend saves on disk.
- *another size*: the code is loaded, the size of the input is new, so a device needs a plan.
- *hot*: everything was seen before.

Stages are those that engines report; *rest* is everything else: the dispatcher, the catalogue,
messages between processes. A row shows the call whose total is the median, so its stages add up.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dandelion.documents import FunctionDocument
from dandelion.errors import BackendUnavailable
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..samples import Samples, row
from ..systems.echoes import GPU, NATIVE, NULL, PYTHON, WASM, echo, system_of
from ..systems.nodes import one_item, open_node, stages_us

FIRST, RESTART, SIZE, HOT = "first ever", "after a restart", "another size", "hot"
SIZES = (1024, 4096)
HOT_CALLS = 20
REGISTER, QUEUE, REST = "register", "queue", "rest"
TOTAL = Metric("p50", "total", Unit.US, drawn=False)
READY = Metric("p50", "until ready", Unit.US, logarithmic=True)


@dataclass(frozen=True, slots=True)
class ColdCall:
    """One call: stages in microseconds by name, which add up to `total_us`."""

    total_us: float
    stages: dict[str, float]


def timed_call(
    node: Node, name: str, size: int, register: FunctionDocument | None = None
) -> ColdCall:
    """Call a function once, after registering it if there is a document, and split its time."""
    begun = time.perf_counter_ns()
    if register is not None:
        node.register(register)
    called = time.perf_counter_ns()
    answer = node.invoke_sets(name, one_item("x", b"x" * size))
    total = (time.perf_counter_ns() - begun) / 1e3
    result = answer.sets["y"]
    assert result is not None
    assert result.size_bytes == size
    assert result.bytes()[:1] == b"x"
    stages = {REGISTER: (called - begun) / 1e3} if register is not None else {}
    waits = [s for s in answer.trace.spans if s.track == QUEUE]
    if waits:
        stages[QUEUE] = sum(s.end_ns - s.start_ns for s in waits) / 1e3
    stages |= stages_us(answer.trace.spans, left_out="")
    return ColdCall(total, stages | {REST: total - sum(stages.values())})


def measured(
    settings: dict[str, object], functions: Sequence[FunctionDocument]
) -> tuple[dict[str, list[ColdCall]], list[float]]:
    """Take a backend through all states.

    Args:
        settings: of the node; its catalogue is on disk and empty.
        functions: whose code differs.

    Returns:
        The calls by state, and how long nodes took until they were ready, in microseconds.

    Raises:
        BackendUnavailable: it does not work here.
    """
    found: dict[str, list[ColdCall]] = {}
    ready_us: list[float] = []
    with _started(settings, ready_us) as node:
        found[FIRST] = [timed_call(node, f.name, SIZES[0], f) for f in functions]
    with _started(settings, ready_us) as node:
        found[RESTART] = [timed_call(node, f.name, SIZES[0]) for f in functions]
        found[SIZE] = [timed_call(node, f.name, SIZES[1]) for f in functions]
        hot = [timed_call(node, f.name, SIZES[1]) for _ in range(HOT_CALLS) for f in functions]
        found[HOT] = hot[len(functions) :]  # the first are the second of their kind: graphs
    return found, ready_us


@contextlib.contextmanager
def _started(settings: dict[str, object], ready_us: list[float]) -> Iterator[Node]:
    begun = time.perf_counter_ns()
    with open_node(settings) as node:
        ready_us.append((time.perf_counter_ns() - begun) / 1e3)
        yield node


@contextlib.contextmanager
def fresh(backend: str) -> Iterator[dict[str, object]]:
    """Give settings of a node with nothing on disk yet; what it saves there is removed."""
    gpu = backend in ("cuda", "hip")
    with tempfile.TemporaryDirectory(prefix="dandelion-cold-") as folder:
        code = Path(folder) / "code"
        code.mkdir()
        with _variable("POCL_CACHE_DIR", str(code)):  # inherited by the engine process
            yield {
                "backends": (backend,), "catalog": f"sqlite:{folder}/catalog",
                "options": {backend: {"cache": str(code), "workers": "0"}} if gpu else {},
                "engines": {} if gpu or backend == "opencl" else {backend: 1},
            }  # fmt: skip


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


def panel_of(key: str, system: str, found: dict[str, list[ColdCall]], title: str = "") -> Panel:
    """Show the median call of each state, by its stages."""
    rows = []
    names: dict[str, None] = {}
    for state, calls in found.items():
        middle = sorted(calls, key=lambda call: call.total_us)[len(calls) // 2]
        names |= dict.fromkeys(middle.stages)
        totals = Samples.of_us(call.total_us for call in calls).values()
        rows.append(
            Row(system, state, totals | {"p50": middle.total_us} | middle.stages, len(calls))
        )
    first = [REGISTER] if REGISTER in names else []
    order = [*first, *(n for n in names if n not in (REGISTER, REST)), REST]
    metrics = tuple(Metric(n, n.replace("_", " "), Unit.US) for n in order)
    title = title or f"The first call and later ones, {system}"
    return Panel(key, title, Axis("state"), (*metrics, TOTAL), tuple(rows), Plot.STACKED)


@experiment("cold_start", group="data", question="What does the first call cost, stage by stage?")
def cold_start(bench: Bench) -> Findings:
    """Take every backend that runs here from nothing to hot calls."""
    count = bench.pick(2, 10, 15)
    panels: list[Panel] = []
    ready: list[Row] = []
    skips: list[Skip] = []
    budgets: list[Budget] = []
    kinds = {kind: kind for kind in (NULL, PYTHON, NATIVE, WASM)}
    kinds |= {GPU: bench.backend} if bench.backend else {}
    for kind, backend in kinds.items():
        system = system_of(kind)
        bench.say(system)
        try:
            with fresh(backend) as settings:
                functions = [echo(kind, f"F{i}", _nonce() + i) for i in range(count)]
                found, ready_us = measured(settings, functions)
        except BackendUnavailable as error:
            skips.append(Skip(system, str(error)))
            continue
        whole = panel_of(f"cold_{kind}", system, found)
        loaded = {state: found[state] for state in (SIZE, HOT)}
        title = f"Of these, the calls whose code was loaded, {system}"
        panels += [whole, panel_of(f"loaded_{kind}", system, loaded, title)]
        ready.append(row(system, "node with its engines", Samples.of_us(ready_us)))
        if kind == GPU and bench.gpu:
            budgets.append(budget_of(whole))
    panels.append(Panel("up", "A node of one backend, until its engines are ready",
                        Axis("what starts"), (READY,), tuple(ready), Plot.BARS))  # fmt: skip
    if not bench.backend:
        skips.append(Skip("GPU engines", "no GPU backend: give one with --backend"))
    scaled = "" if bench.gpu else "the device is this processor; no budget is held against it"
    return Findings(tuple(panels), budgets=tuple(budgets), skips=tuple(skips), scaled=scaled)


def _nonce() -> int:
    """Give a number that no earlier run has put into any cache."""
    return int.from_bytes(os.urandom(3), "little") << 6 & 0x7FFF_FFFF


def budget_of(panel: Panel) -> Budget:
    """Judge the median of a call after a restart."""
    values = next(r.values for r in panel.rows if r.x == RESTART)
    stages = {m.key: values.get(m.key, 0.0) for m in panel.metrics if m is not TOTAL}
    largest = max(stages, key=lambda name: stages[name])
    why = f"stage '{largest}' alone takes {stages[largest] / 1e3:.2f} ms"
    path = "cold: registered, code on disk, engine up"
    return at_most(path, values["p50"] / 1e3, 10.0, " ms", why, of=" to the result")
