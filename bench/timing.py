"""Timing calls of several systems in turns, so that the noise of a machine affects all of them.

All loops here are closed: the next call is made when the last has returned. They show what a call
costs. For the latency under a load that does not wait for answers, see `dandelion.bench.load`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from .samples import Samples

Action = Callable[[], object]

_NOTHING_AFTER: Mapping[str, Action] = MappingProxyType({})
_DRAWS = 4000


class Ratio(msgspec.Struct, frozen=True):
    """A ratio of two medians, and the interval that contains it with 95 % probability."""

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
) -> dict[str, Samples]:
    """Time several actions in turns, from one thread.

    Args:
        actions: what is timed, by name.
        count: timed calls of each.
        warm_up: calls of each that come first and do not count.
        after: what is run after each call of the action of that name, untimed.
        block: calls of one action in a row before the next one's turn.
        seconds: stop after this time, warm-up left out, but not before each had a turn.
        rest_s: pause before each turn, in which what the last one left running comes to rest.
    """
    found = {name: Samples() for name in actions}
    for name in actions:
        _calls(actions[name], after.get(name), warm_up)
    deadline = time.perf_counter() + seconds if seconds is not None else None
    for done in range(0, count, block):
        for name, action in actions.items():
            if rest_s:
                time.sleep(rest_s)
            found[name].ns += _calls(action, after.get(name), min(block, count - done))
        if deadline is not None and time.perf_counter() >= deadline:
            break
    return found


def _calls(action: Action, after: Action | None, count: int) -> list[int]:
    clock = time.perf_counter_ns
    took_ns = []
    for _ in range(count):
        start = clock()
        action()
        took_ns.append(clock() - start)
        if after is not None:
            after()
    return took_ns


def throughput(call: Action, callers: int, seconds: float) -> float:
    """Call from several threads as fast as they can.

    Args:
        call: safe to be called from several threads.
        callers: number of threads.
        seconds: how long; each thread makes one call before, which does not count.

    Returns:
        Calls per second of all threads together; calls that ended late do not count.

    Raises:
        Exception: what a call raised; the other threads stop, too.
    """
    begun = threading.Barrier(callers)
    failed = threading.Event()

    def work() -> int:
        try:
            call()
            begun.wait()
            deadline, made = time.perf_counter() + seconds, 0
            while not failed.is_set():
                call()
                if time.perf_counter() > deadline:
                    break
                made += 1
        except threading.BrokenBarrierError:  # another thread's call failed, which is raised
            return 0
        except BaseException:
            failed.set()
            begun.abort()
            raise
        return made

    with ThreadPoolExecutor(callers) as pool:
        futures = [pool.submit(work) for _ in range(callers)]
        return sum(future.result() for future in futures) / seconds


def ratio(a: Samples, b: Samples) -> Ratio:
    """Divide the median of `a` by that of `b`; both need at least one sample.

    The interval is a bootstrap's. The median of a resample is one of the ordered samples, at a
    place that follows a beta distribution, so places are drawn instead of resamples.
    """
    generator = np.random.default_rng(1)
    over, under = _medians(a, generator), _medians(b, generator)
    low, high = np.quantile(over[1:] / under[1:], [0.025, 0.975])
    return Ratio(float(over[0] / under[0]), float(low), float(high))


def _medians(samples: Samples, generator: np.random.Generator) -> NDArray[np.float64]:
    """Give the median, and after it the medians of resamples."""
    total = samples.count
    if not total:
        raise ValueError("there are no samples to take a median of")
    half = (total + 1) / 2
    places = np.concatenate([[0.5], generator.beta(half, half, _DRAWS)])
    ranks = np.minimum((places * total).astype(np.int64), total - 1)
    medians: NDArray[np.float64] = samples.sorted_us()[ranks]
    return medians


@contextlib.contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Keep this thread, and processes that it starts meanwhile, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
