"""Graphs whose launches run side by side, of random programs: any order gives the serial result.

The programs are those of `test_plan_properties`: few buffers, many launches, loops, and kernels
that read all they declare and write what depends on it. Their plans are put on lanes, cut into
parts, and run in orders that the dependencies allow. A dependency that is left out must show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from dandelion.backends.gpu import hazards, lanes
from dandelion.backends.gpu.forks import Forks
from dandelion.backends.gpu.graph_parts import GraphPart, Width, graph_parts
from dandelion.backends.gpu.lanes import LaneSchedule
from dandelion.backends.gpu.pacing import StepTimes
from dandelion.backends.gpu.plan import Plan, plan
from hypothesis import given, settings
from hypothesis import strategies as st

import dandelion.blueprint as bp
from tests.properties.test_plan_layout import INPUTS, SIZES, program, run_apart, run_plan

PART_NS = 100_000
Order = Callable[[Forks], list[int]]


@pytest.fixture(autouse=True, scope="module")
def everything_pays() -> Iterator[None]:
    """Use lanes wherever something could run side by side."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaneSchedule, "pays", lambda schedule, least_ns=0.0: True)
        patch.setattr(lanes, "CROSSING_NS", 0.0)
        yield


def timed(made: Plan, source: random.Random) -> StepTimes:
    """Times of steps at random; few steps fill a part."""
    times = StepTimes(len(made.steps), PART_NS)
    for index in range(len(made.steps)):
        times.measured([index], source.choice([10_000, 20_000, 60_000]))
    return times


def forked(made: Plan, source: random.Random, width: int, whole: bool) -> list[GraphPart]:
    """Put a plan on lanes."""
    order = list(made.walk())
    parts = graph_parts(made.steps, order, timed(made, source), Width(width), whole)
    if not whole:
        assert sorted(i for part in parts for i in part.steps) == sorted(order)
    return parts


def any_order(forks: Forks, source: random.Random) -> list[int]:
    """Order launches at random, as the dependencies allow."""
    before, done = forks.before(), list[int]()
    while len(done) < len(before):
        ready = [p for p, b in enumerate(before) if p not in done and b.issubset(done)]
        done.append(source.choice(ready))
    return done


def unrolled(parts: list[GraphPart], order: Order) -> list[int]:
    """List the steps of parts as they run, one part after the other."""
    found: list[int] = []
    for part in parts:
        places = range(len(part.steps)) if part.forks is None else order(part.forks)
        found += [part.steps[place] for place in places]
    return found


def result(made: Plan, steps: list[int]) -> tuple[dict[str, bytes], list[int]]:
    """Give the outputs, and what the launches read, sorted."""
    outputs, seen = run_plan(
        Plan(
            made.slots, made.steps, tuple(steps), made.launches, made.used_bytes, made.outputs, 0, 0
        ),
        INPUTS,
    )
    return outputs, sorted(seen)


def expected(config: bp.GpuConfig) -> tuple[dict[str, bytes], list[int]]:
    outputs, seen = run_apart(config, INPUTS)
    return outputs, sorted(seen)


def layouts(config: bp.GpuConfig) -> list[Plan]:
    """The plan in order, for lanes, and with as little memory as possible."""
    return [
        plan(config, SIZES, lambda n, i: 0, limit, lanes=count)
        for limit, count in ((None, 1), (None, 4), (1, 4))
    ]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([2, 3, 8]), st.booleans())
def test_any_order_gives_the_serial_result(seed: int, width: int, whole: bool) -> None:
    source = random.Random(seed)
    config = program(seed)
    for made in layouts(config):
        parts = forked(made, source, width, whole)
        assert all(p.forks is None or p.forks.fit(len(p.steps), width) for p in parts)
        for order in (Forks.last_first, lambda forks: any_order(forks, source)):
            assert result(made, unrolled(parts, order)) == expected(config), seed


def test_many_programs_have_something_to_run_side_by_side() -> None:
    source = random.Random(1)
    found = [
        part.forks
        for seed in range(100)
        for part in forked(layouts(program(seed))[1], source, 8, True)
    ]
    assert sum(forks is not None for forks in found) > 50


@pytest.mark.parametrize("kind", ["_read_after_write", "_write_after_read", "_write_after_write"])
def test_a_kind_of_dependency_that_is_left_out_shows(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> int:
        source = random.Random(2)
        count = 0
        for seed in range(150):
            config = program(seed)
            for made in layouts(config):
                steps = unrolled(forked(made, source, 8, True), Forks.last_first)
                count += result(made, steps) != expected(config)
        return count

    assert wrong() == 0
    monkeypatch.setattr(hazards, kind, lambda state: ())
    assert wrong() > 0


def test_a_wait_that_follows_from_others_is_left_out() -> None:
    """Without it the order is the same: each wait is needed."""
    source = random.Random(3)
    for seed in range(150):
        made = layouts(program(seed))[1]
        (part,) = forked(made, source, 8, True)
        if part.forks is None:
            continue
        before = part.forks.before()
        follows: list[set[int]] = []
        for place, direct in enumerate(before):
            for wait in part.forks.waits[place]:
                assert not any(wait in follows[other] for other in direct), seed
            follows.append(direct.union(*(follows[other] for other in direct)))


def test_the_layout_for_lanes_changes_no_result_in_order() -> None:
    larger = 0
    for seed in range(400):
        config = program(seed)
        serial, wide = (plan(config, SIZES, lambda n, i: 0, lanes=count) for count in (1, 8))
        larger += wide.used_bytes > serial.used_bytes
        assert run_plan(wide, INPUTS) == run_apart(config, INPUTS), seed
    assert larger > 20


def test_clocks_tell_what_the_dependencies_imply() -> None:
    source = random.Random(4)
    for _ in range(50):
        schedule = LaneSchedule(3)
        before: list[set[int]] = []
        last: dict[int, int] = {}
        for step in range(30):
            waits = set(source.sample(range(step), min(step, source.randint(0, 3))))
            lane = schedule.add(waits, source.choice([1.0, 5.0]))
            direct = waits | ({last[lane]} if lane in last else set())
            before.append(direct.union(*(before[other] for other in direct)))
            last[lane] = step
        found = np.array([[schedule.is_before(a, b) for a in range(30)] for b in range(30)])
        right = np.array([[a in before[b] for a in range(30)] for b in range(30)])
        assert (found == right).all()
