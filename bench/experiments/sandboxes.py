"""What does a fresh sandbox for every call cost?

A function that passes one small item on, as native code, as WebAssembly and in Python, called on
engines of this process: no node is between. Beside them the null backend, which is the floor. All
are measured in turns and in the ways in which calls come:

- *in bursts*: four in a row, which is what waits ahead, with rests between, in which sandboxes are
  replaced.
- *back to back*: as fast as one caller can; what may wait until after a call is done between calls,
  untimed, but what other processes do meanwhile takes its share of the cores.
- *steady*: 200 calls a second of one and nothing else, so that sandboxes wait for their calls.
- *paced*: 50 calls a second of each in turns, so that each finds cold caches.
- *two callers*: two engines at once, each back to back.
- *none waiting*: every call finds no sandbox and waits until one is forked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from time import perf_counter_ns

from dandelion.data import item_set
from dandelion.driver import Call, Driver, Engine, load_driver
from dandelion.errors import BackendUnavailable
from dandelion.function import Function
from dandelion.memory import HeapDomain

from ..columns import LATENCIES, P50, P999, row
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..processes import children, own_bytes
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems.echoes import NATIVE, NULL, PYTHON, WASM, echo, loaded
from ..timing import in_turns

BURSTS, STEADY, PACED, BACK_TO_BACK = "in bursts", "steady", "paced", "back to back"
TWO, NONE = "two callers", "none waiting"
BURST, REST_S = 4, 0.03
STEADY_PER_S, PACE_PER_S = 200, 50
BUDGETS_US = {NATIVE: 250.0, WASM: 120.0, PYTHON: 300.0}
POOLED = (NATIVE, PYTHON)
WHYS = {
    BURSTS: "the first of four calls finds cold caches and sleeping cores",
    STEADY: "caches grow cold and cores go to sleep between calls",
    PACED: "what others do between two calls leaves cold caches and sleeping cores",
    BACK_TO_BACK: "a Python sandbox takes 3 to 4 ms of the cores, and each call waits for the next",
}
WORDS = {NATIVE: "native", WASM: "wasm", PYTHON: "Python"}
KEPT = Metric("bytes", "memory of its own", Unit.BYTES)
_ids = itertools.count(1)


class Caller:
    """Calls one function on one engine of its own."""

    def __init__(self, driver: Driver, resource: str, function: Function) -> None:
        engine = driver.factory().engine(resource)
        assert isinstance(engine, Engine)
        self.engine = engine
        self.function = function
        self._domain = HeapDomain(1 << 24)
        self._inputs = (item_set("x", b"hello"),)

    def call(self) -> None:
        """Make one call, without what may wait until after it; that is the engine's `clean_up`."""
        deadline = time.monotonic_ns() + 10**10
        call = Call(next(_ids), self.function, self._inputs, self._domain, deadline)
        (result,) = self.engine.run(call)
        assert result is not None
        assert result.bytes() == b"hello"

    def calls(self, count: int, timed: Histogram) -> None:
        """Make and time calls back to back."""
        for _ in range(count):
            started = perf_counter_ns()
            self.call()
            timed.record_ns(perf_counter_ns() - started)
            self.engine.clean_up()


class Team:
    """Two callers of one backend, on different cores where there are more."""

    def __init__(self, backend: str) -> None:
        self.function = loaded(echo(backend, "Echo"))
        self.driver = load_driver(backend)
        resources = [r.name for r in self.driver.factory().probe()]
        self.driver.checker().check([self.function])
        self.callers: list[Caller] = []
        try:
            for at in range(2):
                self.callers.append(
                    Caller(self.driver, (resources * 2)[at], self.function)
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def at_once(self, count: int) -> Histogram:
        """Let both call at the same time, so often each."""
        found = [Histogram(), Histogram()]
        threads = [
            threading.Thread(target=caller.calls, args=(count, timed))
            for caller, timed in zip(self.callers, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found[0].merge(found[1])
        return found[0]

    def close(self) -> None:
        """Close the engines."""
        for caller in self.callers:
            caller.engine.close()


def first_calls(teams: Mapping[str, Team]) -> list[Row]:
    """Time the first call of each, which may wait until anything is up."""
    rows = []
    for name, team in teams.items():
        timed = Histogram()
        team.callers[0].calls(1, timed)
        rows.append(row(_system(name), "the first", timed))
    return rows


def starts(bench: Bench, teams: Mapping[str, Team]) -> list[Row]:
    """Time calls in all ways in which they come."""
    count = bench.pick(60, 1000, 3000)
    actions = {name: team.callers[0].call for name, team in teams.items()}
    settle = {name: team.callers[0].engine.clean_up for name, team in teams.items()}
    bench.say(BURSTS)
    bursts = bench.pick(4, 50, 100) * BURST
    rows = _rows(BURSTS, in_turns(actions, count=bursts, warm_up=BURST, after=settle, block=BURST,
                                  rest_s=REST_S))  # fmt: skip
    bench.say(BACK_TO_BACK)
    rows += _rows(BACK_TO_BACK, in_turns(actions, count=count, warm_up=20, after=settle, block=20))
    for name, action in actions.items():
        bench.say(f"{STEADY}, {_system(name)}")
        after = {name: _paced(settle[name], 1 / STEADY_PER_S)}
        timed = in_turns({name: action}, count=bench.pick(20, 300, 600), after=after)
        rows += _rows(STEADY, timed)
    bench.say(PACED)
    paced = {name: _paced(settle[name], 1 / PACE_PER_S / len(teams)) for name in teams}
    rows += _rows(PACED, in_turns(actions, count=bench.pick(20, 150, 300), after=paced, warm_up=2))
    bench.say(TWO)
    both: dict[str, Histogram] = {name: Histogram() for name in teams}
    for _ in range(5):
        for name, team in teams.items():
            both[name].merge(team.at_once(count // 10))
    return rows + _rows(TWO, both)


def _paced(settle: Callable[[], object], pause_s: float) -> Callable[[], object]:
    def after() -> None:
        settle()
        time.sleep(pause_s)

    return after


def _rows(x: str, timed: Mapping[str, Histogram]) -> list[Row]:
    return [row(_system(name), x, histogram) for name, histogram in timed.items()]


def _system(backend: str) -> str:
    return f"dandelion {backend}"


def none_waiting(bench: Bench, backends: list[str]) -> list[Row]:
    """Time calls of engines that keep one sandbox ahead and are never given time to replace it.

    The sandbox of a call is replaced when the next begins, since nothing settles the engine.
    """
    with contextlib.ExitStack() as stack:
        actions = {}
        for backend in backends:
            driver = load_driver(backend)
            driver.configure({"ahead": "1"})
            caller = Caller(driver, driver.factory().probe()[0].name, loaded(echo(backend, "Echo")))
            stack.callback(caller.engine.close)
            caller.call()
            actions[backend] = caller.call
        return _rows(NONE, in_turns(actions, count=bench.pick(30, 300, 500), warm_up=2))


def memory(backend: str) -> list[Row]:
    """Measure the memory of their own that zygotes and waiting sandboxes have.

    Raises:
        BackendUnavailable: it does not work here.
    """
    others = set(children(os.getpid()))
    with contextlib.closing(Team(backend)) as team:
        return _memory(backend, team, others)


def _memory(backend: str, team: Team, others: set[int]) -> list[Row]:
    for caller in team.callers:
        caller.call()
        caller.engine.clean_up()
    rows = []
    found: dict[str, list[int]] = {"zygote": [], "waiting sandbox": []}
    for zygote in set(children(os.getpid())) - others:
        found["zygote"].append(own_bytes(zygote))
        found["waiting sandbox"] += [s for c in children(zygote) if (s := own_bytes(c))]
    for name, sizes in found.items():
        if sizes:
            middle = sorted(sizes)[len(sizes) // 2]
            rows.append(Row(_system(backend), name, {"bytes": float(middle)}, len(sizes)))
    return rows


@experiment(
    "sandbox", group="sandbox", question="What does a fresh sandbox for every call cost?"
)  # fmt: skip
def sandbox(bench: Bench) -> Found:
    """Measure every backend that runs on processors."""
    skips: list[Skip] = []
    kept: list[Row] = []
    pooled = []
    for backend in POOLED:  # one at a time, since its processes are counted
        bench.say(f"memory, {backend}")
        try:
            kept += memory(backend)
            pooled.append(backend)
        except BackendUnavailable:
            continue  # it is said below
    with contextlib.ExitStack() as stack:
        teams: dict[str, Team] = {}
        for backend in (NULL, NATIVE, WASM, PYTHON):
            try:
                teams[backend] = stack.enter_context(contextlib.closing(Team(backend)))
            except BackendUnavailable as error:
                skips.append(Skip(_system(backend), str(error)))
        rows = first_calls(teams) + starts(bench, teams)
    bench.say(NONE)
    rows += none_waiting(bench, pooled)
    panels = (
        Panel("start", "A call in a sandbox of its own, by how calls come",
              Axis("how calls come"), (*LATENCIES, P999), tuple(rows), Look.BARS, _system(NULL)),
        Panel("memory", "Memory that sandboxes and zygotes do not share with others",
              Axis("process"), (KEPT,), tuple(kept), Look.BARS),
    )  # fmt: skip
    return Found(panels, budgets=budgets(rows), skips=tuple(skips))


def budgets(rows: list[Row]) -> tuple[Budget, ...]:
    """Hold medians against the budget, where sandboxes wait and where they may be used up."""
    p50 = {(r.system, r.x): r.values[P50.key] for r in rows}
    found = []
    for backend, limit in BUDGETS_US.items():
        for x in (BURSTS, STEADY, PACED, BACK_TO_BACK):
            measured = p50.get((_system(backend), x))
            if measured is None:
                continue
            passes = measured <= limit
            why = f"{WHYS[x]}; a null call costs {p50[_system(NULL), x]:.0f} us"
            path = f"{WORDS[backend]} sandbox, fresh per call, {x}"
            limit_text = f"<= {limit:.0f} us"
            found.append(
                Budget(path, limit_text, f"{measured:.0f} us", passes, "" if passes else why)
            )
    return tuple(found)
