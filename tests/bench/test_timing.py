"""Samples, timing in turns, throughput and ratios."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from dandelion.bench.samples import Samples
from dandelion.bench.timing import in_turns, pinned, ratio, throughput
from hypothesis import given
from hypothesis import strategies as st

NS = st.integers(0, 10 * 3600 * 10**9)


@given(st.lists(NS, min_size=1, max_size=200), st.floats(0, 100))
def test_percentiles_are_those_of_the_sorted_values(values_ns: list[int], q: float) -> None:
    samples = Samples(values_ns)
    rank = max(1, math.ceil(q / 100 * len(values_ns) - 1e-9 * len(values_ns)))
    assert samples.percentile(q) == sorted(values_ns)[rank - 1] / 1000
    values = samples.values()
    assert values["lowest"] == min(values_ns) / 1000
    assert values["highest"] == max(values_ns) / 1000
    assert values["mean"] == pytest.approx(sum(values_ns) / len(values_ns) / 1000)


def test_samples_cross_processes_as_they_are() -> None:
    samples = Samples.of_us([1.0, 1.0, 2500.0, 7e9, -3.0])
    assert samples.ns == [1000, 1000, 2_500_000, 7 * 10**12, 0]
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(samples), type=Samples) == samples


def test_no_samples_have_no_values() -> None:
    assert Samples().values() == {}
    assert math.isnan(Samples().median)
    with pytest.raises(ValueError, match="101"):
        Samples().percentile(101)


def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Replaces the clock of timings by one that only the given function moves, by nanoseconds."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0] / 1e9)

    def advance(by_ns: int) -> None:
        now[0] += by_ns

    return advance


def test_turns_are_timed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = scripted(monkeypatch)
    calls: list[str] = []

    def call(name: str, takes_ns: int) -> None:
        calls.append(name)
        advance(takes_ns)

    actions = {"a": lambda: call("a", 1000), "b": lambda: call("b", 3000)}
    after = {"b": lambda: call("after b", 50_000)}
    found = in_turns(actions, count=5, warm_up=1, after=after, block=2)
    b = ["b", "after b"]
    assert calls == ["a", *b, *(["a"] * 2 + b * 2) * 2, "a", *b]
    assert found["a"].count == found["b"].count == 5
    assert found["a"].values()["highest"] == 1
    assert found["b"].values()["highest"] == 3


def test_turns_end_early_but_never_before_all_had_one(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = scripted(monkeypatch)
    actions = {name: lambda: advance(400_000_000) for name in "ab"}
    found = in_turns(actions, count=100, warm_up=0, seconds=1)
    assert [h.count for h in found.values()] == [2, 2]
    found = in_turns(actions, count=100, warm_up=0, seconds=0.1)
    assert [h.count for h in found.values()] == [1, 1]


def test_throughput_counts_calls_of_all_callers() -> None:
    made: list[int] = []
    rate = throughput(lambda: made.append(threading.get_ident()), 3, 0.3)
    assert len(set(made)) == 3
    assert 0 < rate * 0.3 <= len(made)


def test_throughput_gives_on_what_a_call_raises() -> None:
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        if len(calls) > 20:
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        throughput(call, 2, 30)


def test_ratio_of_medians_and_its_interval() -> None:
    random = np.random.default_rng(3)
    a = (random.normal(200, 10, 4000)).tolist()
    b = (random.normal(100, 5, 4000)).tolist()
    found = ratio(Samples.of_us(a), Samples.of_us(b))
    assert found.low < found.median < found.high
    assert found.median == pytest.approx(2, rel=0.01)
    assert found.high - found.low < 0.05
    few = ratio(Samples.of_us(a[:10]), Samples.of_us(b[:10]))
    assert few.high - few.low > 0.05
    with pytest.raises(ValueError, match="no samples"):
        ratio(Samples(), Samples([1]))


def test_pinned_is_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    with pinned({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
