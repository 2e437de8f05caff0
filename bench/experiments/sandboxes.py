"""What does a fresh sandbox for every call cost?

A function that passes one small item on, as native code, as WebAssembly and in Python, called on
engines of this process, without a node. Beside them the null backend as the lower bound. All are
measured in turns, in the ways in which calls come:

- *in bursts*: four in a row, which is the number of waiting sandboxes, with pauses, in which
  sandboxes are replaced.
- *back to back*: as fast as one caller can; work that may wait until after a call is done between
  calls, untimed, but what other processes do meanwhile uses the cores.
- *steady*: 200 calls per second of one and nothing else, so that sandboxes wait for their calls.
- *paced*: 50 calls per second of each in turns, so that each finds cold caches.
- *two callers*: two engines at once, each back to back.
- *none waiting*: every call finds no sandbox and waits until one is forked.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable

from ..experiment import Bench, experiment
from ..process_facts import children, own_bytes
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..samples import LATENCIES, P50, P999, Samples, row
from ..systems.echoes import NATIVE, NULL, PYTHON, WASM, echo, system_of
from ..systems.engines import PreparedCall, local_call
from ..timing import in_turns

BURSTS, STEADY, PACED, BACK_TO_BACK = "in bursts", "steady", "paced", "back to back"
TWO, NONE = "two callers", "none waiting"
BURST, REST_S = 4, 0.03
STEADY_PER_S, PACE_PER_S = 200, 50
LIMITS_US = {NATIVE: 250.0, WASM: 120.0, PYTHON: 300.0}
POOLED = (NATIVE, PYTHON)
WHYS = {
    BURSTS: "the first of four calls finds cold caches and sleeping cores",
    STEADY: "caches grow cold and cores go to sleep between calls",
    PACED: "what others do between two calls leaves cold caches and sleeping cores",
    BACK_TO_BACK: "a Python sandbox takes 2 to 3 ms of the cores, and each call waits for the next",
}
WORDS = {NATIVE: "native", WASM: "wasm", PYTHON: "Python"}
SIZE = Metric("bytes", "memory of its own", Unit.BYTES)

Pair = tuple[PreparedCall, PreparedCall]


@contextlib.contextmanager
def two_callers(backend: str) -> Iterator[Pair]:
    """Prepare a call on two engines of a backend, on different cores where there are more."""
    driver = load_driver(backend)
    resources = [r.name for r in driver.factory().probe()] * 2
    with contextlib.ExitStack() as stack:
        found = []
        for at in range(2):
            prepared = local_call(driver, resources[at], echo(backend, "Echo"), {"x": b"hello"})
            stack.callback(prepared.engine.close)
            found.append(prepared)
        yield found[0], found[1]


def _checked(prepared: PreparedCall) -> Callable[[], None]:
    def call() -> None:
        prepared.call()
        result = prepared.outputs[0]
        assert result is not None
        assert result.bytes() == b"hello"

    return call


def _back_to_back(prepared: PreparedCall, count: int) -> Samples:
    timed = in_turns(
        {"": _checked(prepared)}, count=count, warm_up=0, after={"": prepared.engine.clean_up}
    )
    return timed[""]


def starts(bench: Bench, pairs: Mapping[str, Pair]) -> list[Row]:
    """Time calls in all ways in which they come; the first may wait until the engine is ready."""
    rows = [row(system_of(b), "the first", _back_to_back(pair[0], 1)) for b, pair in pairs.items()]
    count = bench.pick(60, 1000, 3000)
    actions = {name: _checked(pair[0]) for name, pair in pairs.items()}
    clean_up = {name: pair[0].engine.clean_up for name, pair in pairs.items()}
    bench.say(BURSTS)
    bursts = bench.pick(4, 50, 100) * BURST
    rows += _rows(BURSTS, in_turns(actions, count=bursts, warm_up=BURST, after=clean_up,
                                   block=BURST, rest_s=REST_S))  # fmt: skip
    bench.say(BACK_TO_BACK)
    rows += _rows(
        BACK_TO_BACK, in_turns(actions, count=count, warm_up=20, after=clean_up, block=20)
    )
    for name, action in actions.items():
        bench.say(f"{STEADY}, {system_of(name)}")
        after = {name: _paused(clean_up[name], 1 / STEADY_PER_S)}
        timed = in_turns({name: action}, count=bench.pick(20, 300, 600), after=after)
        rows += _rows(STEADY, timed)
    bench.say(PACED)
    paced = {name: _paused(clean_up[name], 1 / PACE_PER_S / len(pairs)) for name in pairs}
    rows += _rows(PACED, in_turns(actions, count=bench.pick(20, 150, 300), after=paced, warm_up=2))
    bench.say(TWO)
    both = {name: Samples() for name in pairs}
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            for name, pair in pairs.items():
                for found in pool.map(lambda p: _back_to_back(p, count // 10), pair):
                    both[name].ns += found.ns
    return rows + _rows(TWO, both)


def _paused(clean_up: Callable[[], object], pause_s: float) -> Callable[[], object]:
    def after() -> None:
        clean_up()
        time.sleep(pause_s)

    return after


def _rows(x: str, timed: Mapping[str, Samples]) -> list[Row]:
    return [row(system_of(name), x, samples) for name, samples in timed.items()]


def none_waiting(bench: Bench, backends: list[str]) -> list[Row]:
    """Time calls of engines with one waiting sandbox and no time to replace it.

    The sandbox of a call is replaced when the next begins, since nothing calls `clean_up`.
    """
    with contextlib.ExitStack() as stack:
        actions = {}
        for backend in backends:
            driver = load_driver(backend)
            driver.configure({"ahead": "1"})
            resource = driver.factory().probe()[0].name
            prepared = local_call(driver, resource, echo(backend, "Echo"), {"x": b"hello"})
            stack.callback(prepared.engine.close)
            actions[backend] = _checked(prepared)
            prepared.call()
        return _rows(NONE, in_turns(actions, count=bench.pick(30, 300, 500), warm_up=2))


def memory(backend: str) -> list[Row]:
    """Measure the private memory of zygotes and waiting sandboxes.

    Raises:
        BackendUnavailable: it does not work here.
    """
    others = set(children(os.getpid()))
    rows = []
    with two_callers(backend) as pair:
        for prepared in pair:
            prepared.call()
            prepared.engine.clean_up()
        zygotes = set(children(os.getpid())) - others
        sandboxes = [s for z in zygotes for c in children(z) if (s := own_bytes(c))]
        sizes = {"zygote": [own_bytes(z) for z in zygotes], "waiting sandbox": sandboxes}
    for name, found in sizes.items():
        if found:
            middle = float(sorted(found)[len(found) // 2])
            rows.append(Row(system_of(backend), name, {"bytes": middle}, len(found)))
    return rows


@experiment(
    "sandbox", group="sandbox", question="What does a fresh sandbox for every call cost?"
)  # fmt: skip
def sandbox(bench: Bench) -> Findings:
    """Measure every backend that runs on processors."""
    skips: list[Skip] = []
    sizes: list[Row] = []
    pooled = []
    for backend in POOLED:  # one at a time, since its processes are counted
        bench.say(f"memory, {backend}")
        try:
            sizes += memory(backend)
            pooled.append(backend)
        except BackendUnavailable:
            continue  # it is skipped below
    with contextlib.ExitStack() as stack:
        pairs: dict[str, Pair] = {}
        for backend in (NULL, NATIVE, WASM, PYTHON):
            try:
                pairs[backend] = stack.enter_context(two_callers(backend))
            except BackendUnavailable as error:
                skips.append(Skip(system_of(backend), str(error)))
        rows = starts(bench, pairs)
    bench.say(NONE)
    rows += none_waiting(bench, pooled)
    panels = (
        Panel("start", "A call in a sandbox of its own, by how calls come",
              Axis("how calls come"), (*LATENCIES, P999), tuple(rows), Plot.BARS, system_of(NULL)),
        Panel("memory", "Memory that sandboxes and zygotes do not share with others",
              Axis("process"), (SIZE,), tuple(sizes), Plot.BARS),
    )  # fmt: skip
    return Findings(panels, budgets=budgets(rows), skips=tuple(skips))


def budgets(rows: list[Row]) -> tuple[Budget, ...]:
    """Judge medians, where sandboxes wait and where they may be used up."""
    p50 = {(r.system, r.x): r.values[P50.key] for r in rows}
    found = []
    for backend, limit in LIMITS_US.items():
        for x in (BURSTS, STEADY, PACED, BACK_TO_BACK):
            if (measured := p50.get((system_of(backend), x))) is not None:
                why = f"{WHYS[x]}; a null call costs {p50[system_of(NULL), x]:.0f} us"
                path = f"{WORDS[backend]} sandbox, fresh per call, {x}"
                found.append(at_most(path, measured, limit, " us", why, digits=".0f"))
    return tuple(found)
