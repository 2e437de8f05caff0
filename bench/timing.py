"""Timing things against each other: in turns, so that the noise of a machine falls on all of them.

What is timed here is closed-loop: the next call is made when the last has returned. That tells what
a call costs; how long callers wait under a load that does not wait for answers is a question for
`dandelion.bench.load`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from .histogram import Histogram

Action = Callable[[], object]

_NOTHING_AFTER: Mapping[str, Action] = MappingProxyType({})
_DRAWS = 4000


class Ratio(msgspec.Struct, frozen=True):
    """A ratio of two medians.

    Attributes:
        median: of a over b.
        low, high: the interval that holds it with 95 %, as far as the samples are independent.
    """

    median: float
    low: float
    high: float


def in_turns(
    actions: Mapping[str, Action],
    *,
    count: int,
    warm_up: int = 10,
    after: Mapping[str, Action] = _NOTHING_AFTER,
    block: int = 1,
    seconds: float | None = None,
    rest_s: float = 0.0,
) -> dict[str, Histogram]:
    """Time several actions in turns, by one caller.

    Args:
        actions: what is timed, by name.
        count: timed calls of each.
        warm_up: calls of each that come first and do not count.
        after: what is run after each call of the action of that name, untimed.
        block: calls of one action in a row before the turn of the next.
        rest_s: how long nothing is done between turns, so that what the last one left running,
            such as a process that looks for its next call, is at rest.
        seconds: stop early after so long, warm-up left out, but not before each had a turn.

    Returns:
        The timings of each action.
    """
    found = {name: Histogram() for name in actions}
    turns = [_Turn(a, after.get(name), found[name]) for name, a in actions.items()]
    for turn in turns:
        turn.run(warm_up, counts=False)
    deadline = time.perf_counter() + seconds if seconds is not None else None
    for done in range(0, count, block):
        for turn in turns:
            if rest_s:
                time.sleep(rest_s)
            turn.run(min(block, count - done))
        if deadline is not None and time.perf_counter() >= deadline:
            break
    return found


@dataclass(slots=True)
class _Turn:
    action: Action
    after: Action | None
    timings: Histogram

    def run(self, calls: int, *, counts: bool = True) -> None:
        """Make calls in a row; their timings are counted when all are made."""
        clock, action, after = time.perf_counter_ns, self.action, self.after
        timings_ns = []
        for _ in range(calls):
            start = clock()
            action()
            timings_ns.append(clock() - start)
            if after is not None:
                after()
        if counts:
            for timing in timings_ns:
                self.timings.record_ns(timing)


def throughput(call: Action, callers: int, seconds: float) -> float:
    """Let threads call as fast as they can.

    Args:
        call: must be safe to be called by several threads.
        callers: threads.
        seconds: how long; each thread makes one call before, which does not count.

    Returns:
        Calls in a second, of all callers together; calls that ended late do not count.

    Raises:
        Exception: what a call raised; the others stop, too.
    """
    crew = _Crew(call, callers, seconds)
    threads = [threading.Thread(target=crew.work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if crew.failure is not None:
        raise crew.failure
    return crew.calls / seconds


class _Crew:
    def __init__(self, call: Action, callers: int, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._deadline = 0.0
        self._start = threading.Barrier(callers, action=self._started)
        self._lock = threading.Lock()
        self.calls = 0
        self.failure: Exception | None = None

    def _started(self) -> None:
        self._deadline = time.perf_counter() + self._seconds

    def work(self) -> None:
        try:
            self._call()
            if self._all_started():
                self._count(self._in_time())
        except Exception as error:  # a caller may raise anything; it is raised to who waits for it
            self.failure = self.failure or error
            self._start.abort()

    def _all_started(self) -> bool:
        try:
            self._start.wait()
        except threading.BrokenBarrierError:  # another caller failed before, and has said why
            return False
        return True

    def _in_time(self) -> int:
        call, clock, made = self._call, time.perf_counter, 0
        while self.failure is None:
            call()
            if clock() > self._deadline:
                break
            made += 1
        return made

    def _count(self, calls: int) -> None:
        with self._lock:
            self.calls += calls


def ratio(samples_a: Histogram | Sequence[float], samples_b: Histogram | Sequence[float]) -> Ratio:
    """Compare medians.

    The interval is that of a bootstrap. The median of a resample is one of the ordered samples, at
    a place that follows a beta distribution, so that places are drawn instead of resamples.

    Args:
        samples_a, samples_b: timings in any unit, the same for both; at least one each.

    Returns:
        Median of a over median of b.
    """
    generator = np.random.default_rng(1)
    a, b = _medians(samples_a, generator), _medians(samples_b, generator)
    low, high = np.quantile(a[1:] / b[1:], [0.025, 0.975])
    return Ratio(float(a[0] / b[0]), float(low), float(high))


def _medians(
    samples: Histogram | Sequence[float], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Give the median, and after it the medians of resamples."""
    if isinstance(samples, Histogram):
        values, counts = samples.spread()
    else:
        values = np.sort(np.asarray(samples, np.float64))
        counts = np.ones(len(values), np.int64)
    total = int(counts.sum())
    if not total:
        raise ValueError("there are no samples to take a median of")
    half = (total + 1) / 2
    places = np.concatenate([[0.5], generator.beta(half, half, _DRAWS)])
    ranks = np.minimum((places * total).astype(np.int64), total - 1)
    chosen: NDArray[np.float64] = values[np.searchsorted(np.cumsum(counts), ranks, side="right")]
    return chosen


@contextlib.contextmanager
def pinned(cores: Collection[int]) -> Generator[None, None, None]:
    """Keep this thread, and the processes that it starts meanwhile, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
