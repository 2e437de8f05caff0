"""What a fault of one call costs the others: how long no caller gets a good answer.

Seven callers ask a node for products of matrices, each for the next as soon as it has one, and each
result is checked. Meanwhile an eighth calls a function that accesses memory which is not its own.
The outage is the time from the last good answer before the fault to the first one after it, of any
caller: the longest gap between neighbours among the times of all good answers. Callers end with an
answer, so a gap that has begun is measured to its end.

Much of that is the time that the device itself takes to report a fault. That is measured in bare
processes, and what a node adds to it is the budget.

A standby process shortens the gap, if it had time to prepare. So there are two faults for each
node: one after a pause, and one after a first fault used the standby up. As soon as the device has
answered after that, the fault that counts is made.
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
from ..records import Axis, Budget, Findings, Metric, Panel, Plot, Row, Unit, at_most
from ..systems import bare_fault, names
from .gpu_sharing import CheckedCall, on_nodes, one_block

GOOD_CALLERS = 7
BARE_FAULTS = 3
PREPARED, AT_ONCE = "a standby process is ready", "right after another"
LIMITS_MS = {PREPARED: 150.0, AT_ONCE: 1500.0}
"""The longest permitted outage after the device has reported the fault."""

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
class TimedCall:
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
class FaultRun:
    """A bad call among good ones, which went on for `after_s` after it."""

    good: tuple[TimedCall, ...]
    bad: TimedCall
    after_s: float

    @property
    def outage_s(self) -> float:
        """The longest time without a good answer, from the bad call to the end of all calls."""
        answers = (call.end_s for call in self.good if call.right)
        end_s = max([self.bad.end_s + self.after_s, *(call.end_s for call in self.good)])
        return longest_gap(answers, self.bad.begin_s, end_s)

    @property
    def slowest_s(self) -> float:
        """Duration of the slowest good call that was not over before the bad one."""
        ends = (c.end_s - c.begin_s for c in self.good if c.end_s >= self.bad.begin_s)
        return max(ends, default=0.0)

    @property
    def wrong(self) -> int:
        """Good calls with a wrong result."""
        return sum(not call.right and not call.error for call in self.good)

    @property
    def lost(self) -> int:
        """Good calls that failed."""
        return sum(bool(call.error) for call in self.good)

    @property
    def failed(self) -> int:
        """How often the bad call failed, which it should."""
        return int(bool(self.bad.error))

    @property
    def summary(self) -> str:
        """The error of the bad call, and that of the first good one that failed."""
        lost = next((f"; a good call got {call.error}" for call in self.good if call.error), "")
        return f"the bad call got {self.bad.error or 'a result'}{lost}"

    def added_s(self, reported_s: float) -> float:
        """Give the outage beyond the time in which a bare process gets the report."""
        return max(0.0, self.outage_s - reported_s)


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


def good_call() -> CheckedCall:
    """Describe the good call."""
    inputs = matmul.example_inputs(1)
    wanted = matmul.expected(inputs)
    return CheckedCall(
        "a product", "matmul", inputs,
        lambda found: bool(matmul.agrees(matmul.results(found), wanted)),
    )  # fmt: skip


def bad_call() -> CheckedCall:
    """Describe the bad call, for which no result is right."""
    return CheckedCall("a fault", "stray", {"a": np.ones(1, np.uint64)}, lambda _: False)


def timed_call(node: Node, call: CheckedCall) -> TimedCall:
    """Make a call; its result is checked after its end was taken."""
    begin_s = time.monotonic()
    try:
        outputs = node.invoke(call.function, **call.inputs)
    except DandelionError as error:
        words = f"{type(error).__name__}: {error}"[:160]
        return TimedCall(begin_s, time.monotonic(), False, words)
    end_s = time.monotonic()
    return TimedCall(begin_s, end_s, call.right(outputs))


def fault_run(node: Node, before_s: float, after_s: float, *, again: bool = False) -> FaultRun:
    """Make a bad call while others make good ones.

    Args:
        node: has `matmul` and `stray`.
        before_s, after_s: how long good calls are made before the bad one and after it.
        again: make another bad call first, and this one as soon as the device answers again.
    """
    good, bad = good_call(), bad_call()
    over = threading.Event()

    def calling() -> list[TimedCall]:
        calls = []
        while not over.is_set():
            calls.append(timed_call(node, good))
        return calls

    with ThreadPoolExecutor(GOOD_CALLERS) as pool:
        callers = [pool.submit(calling) for _ in range(GOOD_CALLERS)]
        try:
            over.wait(before_s)
            between = [timed_call(node, call) for call in (bad, good) if again]
            fault = timed_call(node, bad)
            over.wait(after_s)
        finally:
            over.set()
        calls = [call for caller in callers for call in caller.result()]
    return FaultRun((*calls, *between[1:]), fault, after_s)


@experiment(
    "gpu_fault", group="gpu", needs_gpu=True,
    question="what does a fault of one call cost the others, and how long is the device away?",
)  # fmt: skip
def fault(bench: Bench) -> Findings:
    """Seven callers make good calls, and an eighth accesses memory that is not its own."""
    found: dict[tuple[str, str], FaultRun] = {}
    before_s, after_s = bench.pick((0.05, 0.1), (0.3, 1.0), (0.3, 1.0))
    pause_s = bench.pick(1.0, 0.0, 4.0) if bench.gpu else 0.0

    def measure(system: str, _: int, node: Node) -> None:
        for x in (PREPARED, AT_ONCE):
            bench.say(f"{system}, a fault, {x}")
            if x == PREPARED:
                time.sleep(pause_s)
            found[x, system] = fault_run(node, before_s, after_s, again=x == AT_ONCE)

    reported_s = _reported_s(bench)
    own = RegistrationDocument(functions=(one_block("stray", bare_fault.STRAY),))
    skips = on_nodes(bench, (matmul.document(), own), measure)
    rows = [_row(system, x, run, reported_s) for (x, system), run in found.items()]
    if reported_s:
        rows.insert(0, Row(names.BARE, "no engine", {"outage": reported_s * 1e6}, BARE_FAULTS))
    panel = Panel(
        "fault", "A fault of one call among those of eight callers", Axis("when"), METRICS,
        tuple(rows), Plot.BARS, names.SEQUENTIAL,
    )  # fmt: skip
    return Findings(
        (panel,),
        budgets=budgets(bench, found, reported_s),
        skips=skips,
        scaled="" if bench.gpu else "no process waits on processors: a new one is started",
        notes=tuple(f"{system}, {x}: {run.summary}" for (x, system), run in found.items()),
    )


def _reported_s(bench: Bench) -> float:
    """Give how long the device takes to report a fault to a bare process; 0 if it does not."""
    bench.say("a fault in a bare process")
    order = bare_fault.FaultOrder(bench.backend)
    try:
        return statistics.median(bare_fault.ask(order).reported_s for _ in range(BARE_FAULTS))
    except BackendUnavailable:
        return 0.0


def _row(system: str, x: str, run: FaultRun, reported_s: float) -> Row:
    values = {
        "outage": run.outage_s * 1e6,
        "slowest": run.slowest_s * 1e6,
        "good": float(len(run.good)),
        "wrong": float(run.wrong),
        "lost": float(run.lost),
        "failed": float(run.failed),
    }
    if reported_s:
        values["added"] = run.added_s(reported_s) * 1e6
    return Row(system, x, values, 1)


def budgets(
    bench: Bench, found: Mapping[tuple[str, str], FaultRun], reported_s: float
) -> tuple[Budget, ...]:
    """Judge a GPU's values, by when the fault came and by system."""
    if not bench.gpu or bench.quick:
        return ()
    lines = []
    for (x, system), run in found.items():
        path = f"{system}, a fault among {GOOD_CALLERS + 1} callers, {x}"
        counts = f"{run.failed} error, {run.wrong} good wrong, {run.lost} good failed"
        passes = (run.failed, run.wrong, run.lost) == (1, 0, 0) and len(run.good) > 0
        lines.append(Budget(path, "1 error, 0 good wrong, 0 good failed", counts, passes))
        path += f", without a good answer, beyond the {reported_s * 1e3:.0f} ms of a bare process"
        lines.append(at_most(path, run.added_s(reported_s) * 1e3, LIMITS_MS[x], " ms"))
    return tuple(lines)
