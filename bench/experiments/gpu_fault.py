"""What a fault of one call costs the others: how long nobody gets a good answer.

Seven callers ask a node for products of matrices, each for the next as soon as it has one, and each
result is checked. In the midst of that an eighth calls a function that touches memory which is not
its own. The device is away from the last good answer before the fault to the first one after it,
whoever got them: that is the longest gap between neighbours among the times of all good answers.
Callers end with an answer, so a gap that has begun is seen to its end.

Much of that is the time that the device itself takes to tell of a fault. That is measured in bare
processes, and what a node adds to it is held against the budget.

A process that waits to take a lost one's place shortens the gap, if it had time to prepare itself.
So there are two storms for each node: one after a pause, and one in which a first fault uses up the
process that waits. As soon as the device has answered after that, the fault that counts is made.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from dandelion.compositions.matmul import bundle as matmul

from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Unit
from ..systems import bare_fault, names
from .gpu_engines import under
from .gpu_sharing import Errand, on_nodes, one_block

GOOD_CALLERS = 7
BARE_FAULTS = 3
PREPARED, AT_ONCE = "a spare waits", "right after another"
NO_ENGINE = "no engine"
LIMITS_MS = {PREPARED: 150.0, AT_ONCE: 1500.0}
"""How long nobody may be answered, once the device has told of the fault."""

METRICS = (
    Metric("outage", "longest without a good answer", Unit.US, logarithmic=True),
    Metric("added", "after the device told", Unit.US, drawn=False),
    Metric("slowest", "slowest good call", Unit.US, logarithmic=True, drawn=False),
    Metric("good", "good calls", Unit.COUNT, drawn=False, better=""),
    Metric("wrong", "of them wrong", Unit.COUNT, drawn=False),
    Metric("lost", "of them failed", Unit.COUNT, drawn=False),
    Metric("failed", "errors of the bad call", Unit.COUNT, drawn=False, better=""),
)


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made.

    Attributes:
        begin_s, end_s: of it, on one clock.
        right: whether its result is what it should be.
        error: why there is no result; empty if there is one.
    """

    begin_s: float
    end_s: float
    right: bool = True
    error: str = ""


@dataclass(frozen=True, slots=True)
class Storm:
    """What came of a bad call among good ones.

    Attributes:
        good: the good calls.
        bad: the bad call.
        after_s: how long after the bad call it went on.
    """

    good: tuple[Made, ...]
    bad: Made
    after_s: float

    @property
    def outage_s(self) -> float:
        """How long nobody had a good answer, from the bad call to the end of all calls."""
        answers = (call.end_s for call in self.good if call.right)
        end_s = max([self.bad.end_s + self.after_s, *(call.end_s for call in self.good)])
        return longest_gap(answers, self.bad.begin_s, end_s)

    @property
    def slowest_s(self) -> float:
        """How long the slowest good call took of those that were not over before the bad one."""
        ends = (c.end_s - c.begin_s for c in self.good if c.end_s >= self.bad.begin_s)
        return max(ends, default=0.0)

    @property
    def wrong(self) -> int:
        """How many good calls had a wrong result."""
        return sum(not call.right and not call.error for call in self.good)

    @property
    def lost(self) -> int:
        """How many good calls failed."""
        return sum(bool(call.error) for call in self.good)

    @property
    def failed(self) -> int:
        """How often the bad call failed, which it should."""
        return int(bool(self.bad.error))

    @property
    def words(self) -> str:
        """What the bad call was told, and the first good one that failed."""
        lost = next((f"; a good call got {call.error}" for call in self.good if call.error), "")
        return f"the bad call got {self.bad.error or 'a result'}{lost}"


def longest_gap(moments: Iterable[float], begin_s: float, end_s: float) -> float:
    """Give the longest time between neighbours, of the times that overlap with a window.

    The window's ends stand for the moments before and after it where there are none.
    """
    ordered = sorted(moments)
    if not ordered or ordered[0] > begin_s:
        ordered.insert(0, begin_s)
    if ordered[-1] < end_s:
        ordered.append(end_s)
    pairs = itertools.pairwise(ordered)
    return max((b - a for a, b in pairs if a < end_s and b > begin_s), default=0.0)


def products() -> Errand:
    """Describe the good call."""
    inputs = matmul.example_inputs(1)
    wanted = matmul.expected(inputs)
    return Errand(
        "a product",
        "matmul",
        inputs,
        lambda found: bool(matmul.agrees(matmul.results(found), wanted)),
    )


def straying() -> Errand:
    """Describe the bad call, which no result would be right for."""
    return Errand("a fault", "stray", {"a": np.ones(1, np.uint64)}, lambda _: False)


def made(node: Node, errand: Errand) -> Made:
    """Make a call; its result is checked when its time is taken already."""
    begin_s = time.monotonic()
    try:
        outputs = node.invoke(errand.function, **errand.inputs)
    except DandelionError as error:
        words = f"{type(error).__name__}: {error}"[:160]
        return Made(begin_s, time.monotonic(), False, words)
    end_s = time.monotonic()
    return Made(begin_s, end_s, errand.right(outputs))


def storm(node: Node, before_s: float, after_s: float, *, again: bool = False) -> Storm:
    """Make a bad call while others make good ones.

    Args:
        node: has `matmul` and `stray`.
        before_s, after_s: how long good calls are made before the bad one and after it.
        again: make another bad call first, and this one as soon as the device answers again.
    """
    good, bad = products(), straying()
    over = threading.Event()

    def calling() -> list[Made]:
        calls = []
        while not over.is_set():
            calls.append(made(node, good))
        return calls

    with ThreadPoolExecutor(GOOD_CALLERS) as pool:
        callers = [pool.submit(calling) for _ in range(GOOD_CALLERS)]
        try:
            over.wait(before_s)
            between = [made(node, errand) for errand in (bad, good) if again]
            fault = made(node, bad)
            over.wait(after_s)
        finally:
            over.set()
        calls = [call for caller in callers for call in caller.result()]
    return Storm((*calls, *between[1:]), fault, after_s)


@experiment(
    "gpu_fault",
    group="gpu",
    question="what does a fault of one call cost the others, and how long is the device away?",
    needs_gpu=True,
)
def fault(bench: Bench) -> Found:
    """Seven callers make good calls, and an eighth touches memory that is not its own."""
    found: dict[tuple[str, str], Storm] = {}
    before_s, after_s = bench.pick((0.05, 0.1), (0.3, 1.0), (0.3, 1.0))
    pause_s = bench.pick(1.0, 0.0, 4.0) if bench.gpu else 0.0

    def measure(system: str, _: int, node: Node) -> None:
        for x in (PREPARED, AT_ONCE):
            bench.say(f"{system}, a fault, {x}")
            if x == PREPARED:
                time.sleep(pause_s)
            found[x, system] = storm(node, before_s, after_s, again=x == AT_ONCE)

    told_s = told(bench)
    own = RegistrationDocument(functions=(one_block("stray", bare_fault.STRAY),))
    skips = on_nodes(bench, (matmul.document(), own), measure)
    rows = [_row(system, x, seen, told_s) for (x, system), seen in found.items()]
    if told_s:
        rows.insert(0, Row(names.BARE, NO_ENGINE, {"outage": told_s * 1e6}, BARE_FAULTS))
    panel = Panel(
        "fault", "A fault of one call among those of eight callers", Axis("when"), METRICS,
        tuple(rows), Look.BARS, names.SEQUENTIAL,
    )  # fmt: skip
    return Found(
        (panel,),
        budgets=budgets(bench, found, told_s),
        skips=skips,
        scaled="" if bench.gpu else "no process waits on processors: a new one is started",
        notes=tuple(f"{system}, {x}: {seen.words}" for (x, system), seen in found.items()),
    )


def told(bench: Bench) -> float:
    """Give how long the device takes to tell a bare process of a fault; 0 if it does not."""
    bench.say("a fault in a bare process")
    try:
        seen = [bare_fault.ask(bare_fault.FaultOrder(bench.backend)) for _ in range(BARE_FAULTS)]
    except BackendUnavailable:
        return 0.0
    return statistics.median(one.told_s for one in seen)


def _row(system: str, x: str, seen: Storm, told_s: float) -> Row:
    values = {
        "outage": seen.outage_s * 1e6,
        "slowest": seen.slowest_s * 1e6,
        "good": float(len(seen.good)),
        "wrong": float(seen.wrong),
        "lost": float(seen.lost),
        "failed": float(seen.failed),
    }
    if told_s:
        values["added"] = max(0.0, seen.outage_s - told_s) * 1e6
    return Row(system, x, values, 1)


def budgets(
    bench: Bench, found: Mapping[tuple[str, str], Storm], told_s: float
) -> tuple[Budget, ...]:
    """Hold what a GPU did against the budget.

    Args:
        bench: what is measured on.
        found: by when the fault came, and the system.
        told_s: how long a bare process waits until it is told of a fault.
    """
    if not bench.gpu or bench.quick:
        return ()
    lines = []
    for (x, system), seen in found.items():
        path = f"{system}, a fault among {GOOD_CALLERS + 1} callers, {x}"
        got = f"{seen.failed} error, {seen.wrong} good wrong, {seen.lost} good failed"
        kept = (seen.failed, seen.wrong, seen.lost) == (1, 0, 0) and len(seen.good) > 0
        lines.append(Budget(path, "1 error, 0 good wrong, 0 good failed", got, kept))
        added_ms = max(0.0, seen.outage_s - told_s) * 1e3
        path = f"{path}, without a good answer, beyond the {told_s * 1e3:.0f} ms of a bare process"
        lines.append(under(path, added_ms, LIMITS_MS[x], " ms"))
    return tuple(lines)
