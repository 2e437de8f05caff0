"""What the division of cores between compute and I/O engines does to loads that change.

Callers that wait for their results invoke a Python function that computes, and the HTTP function
against a server that answers after a while: first much computing, then much I/O, then both. Each
division runs the three phases one after the other on a node of its own. The first part of a phase,
in which cores may move, is measured by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import uvloop

from dandelion.data import Item, ItemSet
from dandelion.documents import python_function
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Panel, Plot, Row, at_least
from ..samples import P50, P99, RATE, Samples, spread
from ..systems.nodes import MIB, open_node
from ..systems.slow_server import slow_server

CORES = 4
DIVISIONS = ("3:1", "2:2", "1:3", f"controlled:{CORES}", "shared")
CONTROLLED = DIVISIONS[3]
DELAY_S = 0.1
ROUNDS = 60_000
"""Of the computing function, some 5 ms."""
PHASES: Mapping[str, Mapping[str, int]] = {
    "compute": {"compute": 16, "I/O": 4},
    "I/O": {"compute": 1, "I/O": 120},
    "both": {"compute": 8, "I/O": 60},
}
"""Callers of each kind, by phase."""
MOVING_S = 1.0
LEAST_OF_BEST = 0.8
SOURCE = f"""
def work(x):
    value = 1
    for _ in range({ROUNDS}):
        value = value * 1664525 % 4294967296
    return {{"y": str(value)}}
"""


@dataclass(slots=True)
class _Phase:
    """What was measured in one phase: latencies by kind of call, and moved cores."""

    early: dict[str, Samples] = field(default_factory=dict)
    steady: dict[str, Samples] = field(default_factory=dict)
    cores: str = ""


def _settings(division: str) -> dict[str, object]:
    return {
        "backends": ("process", "http"),
        "options": {"http": {"allow": "127.0.0.1", "concurrency": "1024"}},
        "engines": {"process": CORES - 1 if division == "shared" else CORES},
        "arena_bytes": 256 * MIB,
        "cores": division,
    }


async def _phase(
    node: Node, callers: Mapping[str, int], port: int, early_s: float, seconds: float
) -> _Phase:
    """Have callers call for some time."""
    found = _Phase({k: Samples([]) for k in callers}, {k: Samples([]) for k in callers})
    begun = time.perf_counter_ns()
    steady, end = begun + round(early_s * 1e9), begun + round((early_s + seconds) * 1e9)
    text = f"GET http://127.0.0.1:{port}/ HTTP/1.1\n\n".encode()
    sets = {
        "compute": ("work", {"x": ItemSet("x", (Item("x", 0, b"1"),))}),
        "I/O": ("HTTP", {"requests": ItemSet("requests", (Item("r", 0, text),))}),
    }

    async def caller(kind: str) -> None:
        name, inputs = sets[kind]
        while (start := time.perf_counter_ns()) < end:
            await node.invoke_sets_async(name, inputs)
            now = time.perf_counter_ns()
            if now < end:
                (found.steady if now >= steady else found.early)[kind].ns.append(now - start)

    await asyncio.gather(*(caller(kind) for kind, count in callers.items() for _ in range(count)))
    return found


@experiment(
    "cores", group="dispatcher",
    question="What do cores that move between compute and I/O by load gain over fixed divisions?",
)  # fmt: skip
def cores(bench: Bench) -> Findings:
    """Run three phases with each division, in turns."""
    rounds, seconds = bench.pick(1, 3, 3), bench.pick(0.3, 3.0, 3.0)
    early_s = bench.pick(0.1, MOVING_S, MOVING_S)
    found: dict[tuple[str, str], list[_Phase]] = {}
    with slow_server(DELAY_S) as port:
        for number in range(rounds):
            for division in DIVISIONS:
                bench.say(f"round {number + 1} of {rounds}, cores = {division}")
                settings = _settings(division)
                with open_node(settings, 1) as node:
                    node.register(python_function(SOURCE, name="work", inputs=["x"], outputs=["y"]))
                    for phase, callers in PHASES.items():
                        run = _phase(node, callers, port, early_s, seconds)
                        measured = uvloop.run(run)
                        divided = node.capacity().cores
                        if divided is not None:
                            measured.cores = f"{divided.compute}:{divided.io}"
                        found.setdefault((division, phase), []).append(measured)
    panels = tuple(_panels(found, early_s, seconds))
    rows = {
        (panel.key, str(row.x), row.system): row.values for panel in panels for row in panel.rows
    }
    ended = {d: [found[d, phase][-1].cores for phase in PHASES] for d in (CONTROLLED,)}
    notes = [f"{d} at the ends of the phases: {', '.join(of)}" for d, of in ended.items()]
    notes.append(f"I/O waits {DELAY_S * 1e3:g} ms; callers wait for results; {CORES} cores divided")
    return Findings(panels, budgets=_budgets(bench, rows), notes=tuple(notes))


def _panels(
    found: Mapping[tuple[str, str], list[_Phase]], early_s: float, seconds: float
) -> list[Panel]:
    made = []
    for kind in ("compute", "I/O"):
        for key, title, span in (
            ("steady", f"{kind}: calls after the first {early_s:g} s of a phase", seconds),
            ("early", f"{kind}: calls in the first {early_s:g} s of a phase", early_s),
        ):
            rows = []
            for phase in PHASES:
                for division in DIVISIONS:
                    turns = [getattr(one, key)[kind] for one in found[division, phase]]
                    rows.append(_row(division, phase, turns, span))
            name = f"{key}-{'io' if kind == 'I/O' else kind}"
            made.append(Panel(name, title, Axis("phase"), (RATE, P50, P99), tuple(rows), Plot.BARS))
    return made


def _row(division: str, phase: str, turns: list[Samples], seconds: float) -> Row:
    rates = spread("achieved_per_s", [turn.count / seconds for turn in turns])
    every = Samples([ns for turn in turns for ns in turn.ns])
    values = every.values() if every.ns else {}
    return Row(division, phase, values | rates, every.count)


def _budgets(
    bench: Bench, rows: Mapping[tuple[str, str, str], Mapping[str, float]]
) -> tuple[Budget, ...]:
    """Compare the phases of one kind with the best fixed division."""
    if bench.quick:
        return ()
    lines = []
    for phase, key in (("compute", "steady-compute"), ("I/O", "steady-io")):
        rates = {d: rows[key, phase, d]["achieved_per_s"] for d in DIVISIONS}
        best = max(rates[d] for d in DIVISIONS if ":" in d and d != CONTROLLED)
        path = f"cores moved by load over the best fixed division, {phase}"
        lines.append(at_least(path, rates[CONTROLLED] / best, LEAST_OF_BEST, "x"))
    return tuple(lines)
