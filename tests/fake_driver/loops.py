"""FIXTURE. Scenarios of loops that end by a word on the device; see `scenarios`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import dandelion.blueprint as bp
from dandelion.errors import Cancelled
from dandelion.function import Function
from tests.fake_driver.fake import LONG_NS, Fake, Runner, function, numbers
from tests.fake_driver.scenarios import BROKEN, OTHER, X, expect, fail_each

SOURCE = """
#include "dandelion.h"

KERNEL void add_one(GLOBAL i32 *x, u64 count)
{
    if (GLOBAL_ID(0) < count)
        x[GLOBAL_ID(0)] += 1;
}

KERNEL void below(GLOBAL const i32 *x, GLOBAL const i64 *limit, GLOBAL u32 *word)
{
    word[0] = x[0] < (i32)limit[0];
}
"""
FILES = {"loop.c": SOURCE.encode()}
MOST = 40


def counting(launches: int = 1) -> Function:
    """Adds one to x until its first element reaches the limit; y is there if it does not."""
    b = bp.Blueprint(inputs=["x", "limit"], outputs=["x", "y"], modules={"k": "loop.c"})
    word = b.buffer("word", 4, temporary=True)
    y = b.buffer("y", 8)
    count = b.x.elements("i32")
    with b.repeat_while(word, at_most=MOST):
        with b.repeat(launches):
            shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
            b.launch("add_one", [b.x, bp.scalar("u64", count)], **shape)
        b.launch("below", [b.x, b.limit, word])
    b.present_if(y, word)
    return function(b, FILES, outputs=("x", "y"))


def _run(runner: Runner, wanted: Function, limit: int) -> tuple[npt.NDArray[Any], bool]:
    given = runner.one("x", X), runner.one("limit", np.array([limit], np.int64))
    outputs = runner.run(wanted, *given)
    return numbers(outputs) - X, outputs[1] is not None


def loops_end_where_the_word_says(fake: Fake) -> None:
    for part_ns in (1, LONG_NS):
        runner = Runner(fake, part_ns=part_ns)
        for limit in (0, 1, 2, 7, MOST - 1, MOST, MOST + 1, 1000, 7, 0):
            added, is_there = _run(runner, counting(), limit)
            assert (added == min(max(limit, 1), MOST)).all(), (limit, added)
            assert is_there is (limit > MOST), limit
        runner.close()
        fake.nothing_left()


def an_iteration_is_a_graph(fake: Fake) -> None:
    runner = Runner(fake)
    _run(runner, counting(20), 1000)
    if fake.counts:
        assert fake.live()["executable"] == 1, "it was captured within its first call"
        before = fake.calls()
        _run(runner, counting(20), 20 * 10)
        least = fake.calls() - before
        before = fake.calls()
        _run(runner, counting(20), 20 * 30)
        assert fake.calls() - before - least <= 20 * 6, "a further iteration asks for little"
    runner.close()
    fake.nothing_left()


def loops_are_stopped_between_iterations(fake: Fake) -> None:
    wanted = counting()
    runner = Runner(fake)
    for looks in (0, 1, 3, 10):
        limit = np.array([1000], np.int64)
        expect(Cancelled, lambda n=looks, at=limit: runner.run_stopped(wanted, n, X, at))
        assert not runner.engine.pool.dirty_bytes
        added, _ = _run(runner, wanted, 5)
        assert (added == 5).all()
    runner.close()
    fake.nothing_left()


def every_call_of_a_loop_fails_once(fake: Fake) -> None:
    fail_each(fake, OTHER, life=_life)


def every_call_of_a_loop_breaks_the_device_once(fake: Fake) -> None:
    fail_each(fake, BROKEN, life=_life)


def _life(fake: Fake, made: list[Runner], part_ns: int) -> None:
    runner = Runner(fake, part_ns=part_ns)
    made.append(runner)
    try:
        for limit in (3, 2):
            added, _ = _run(runner, counting(), limit)
            assert (added == limit).all()
    finally:
        runner.engine.close()


ON_REAL_DEVICES = (
    loops_end_where_the_word_says,
    an_iteration_is_a_graph,
    loops_are_stopped_between_iterations,
)
