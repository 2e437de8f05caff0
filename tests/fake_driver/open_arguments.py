"""FIXTURE. Scenarios of integers that kernels take by value and that change; see `scenarios`."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

import dandelion.blueprint as bp
from dandelion.errors import Cancelled, InvalidInput
from dandelion.function import Function
from tests.fake_driver.fake import LONG_NS, Fake, Runner, function, numbers
from tests.fake_driver.scenarios import OTHER, X, expect, fail_each, life_of, long_steps

SOURCE = """
#include "dandelion.h"

KERNEL void append(GLOBAL i32 *y, i32 digit, u64 count)
{
    if (GLOBAL_ID(0) < count)
        y[GLOBAL_ID(0)] = 10 * y[GLOBAL_ID(0)] + digit;
}

KERNEL void add(GLOBAL const i32 *x, GLOBAL i32 *y, u64 count)
{
    if (GLOBAL_ID(0) < count)
        y[GLOBAL_ID(0)] += x[GLOBAL_ID(0)];
}

KERNEL void rest(GLOBAL i32 *left, GLOBAL u32 *word)
{
    left[0] = left[0] ? left[0] - 1 : 3;
    word[0] = left[0] - 1;
}
"""
FILES = {"k.c": SOURCE.encode()}
TURNS = 3


def digits(waits: bool = False) -> Function:
    """y = x + two numbers: the digits of cfg written some times, and those with one added.

    Args:
        waits: a word on the device ends the loop.
    """
    b = bp.Blueprint(inputs=["x", "cfg"], outputs=["y"], modules={"k": "k.c"})
    y, z = b.buffer("y", like="x"), b.buffer("z", like="x", temporary=True)
    word, left = (b.buffer(name, 4, temporary=True) for name in ("word", "left"))
    count = bp.scalar("u64", b.x.elements("i32"))
    shape: dict[str, Any] = {"grid": bp.ceil_div(b.x.elements("i32"), 64), "block": 64}
    with b.repeat_while(word, at_most=9) if waits else b.repeat(TURNS):
        for place in (0, 1):
            b.launch("append", [y, bp.scalar("i32", b.cfg[place]), count], **shape)
            b.launch("append", [z, bp.scalar("i32", b.cfg[place] + 1), count], **shape)
        if waits:
            b.launch("rest", [left, word])
    for source in (z, b.x):
        b.launch("add", [source, y, count], **shape)
    return function(b, FILES)


def _given(runner: Runner, first: int, second: int) -> list[Any]:
    return [runner.one("x", X), runner.one("cfg", np.array([first, second], np.int64))]


def _check(runner: Runner, wanted: Function, first: int, second: int) -> None:
    found = numbers(runner.run(wanted, *_given(runner, first, second)))
    assert (found == X + (20 * first + 2 * second + 11) * 10101).all(), (first, second)


def values_of_calls_reach_all_launches(fake: Fake) -> None:
    """Step by step, in graphs of parts, in one graph, on lanes, and in loops with a word."""
    for part_ns in (1, LONG_NS):
        for waits in (False, True):
            runner = Runner(fake, part_ns=part_ns)
            wanted = digits(waits)
            with long_steps() if part_ns == LONG_NS else contextlib.nullcontext():
                for call in range(12):
                    _check(runner, wanted, call % 5, call % 3)
            assert runner.engine.plans.misses == 1
            runner.close()
            fake.nothing_left()


def one_graph_serves_all_values(fake: Fake) -> None:
    runner, wanted = Runner(fake), digits()
    for _ in range(3):
        _check(runner, wanted, 8, 2)
    (known,) = runner.engine._known.values()
    graph = known.ready.graph
    assert graph is not None
    for call in range(8, 16):
        _check(runner, wanted, call, 3)
        assert known.ready.graph is graph
    assert len(runner.engine._known) == 1
    _check(runner, wanted, 16, 3)  # of more bits
    assert len(runner.engine._known) == 2
    runner.close()
    fake.nothing_left()


def a_stopped_call_leaves_right_values(fake: Fake) -> None:
    runner, wanted = Runner(fake, part_ns=1), digits()
    for looks in range(1, 9):
        values = X, np.array([looks, 1], np.int64)
        expect(Cancelled, lambda v=values, n=looks: runner.run_stopped(wanted, n, *v))
        runner.engine.clean_up()
        _check(runner, wanted, looks % 2, 1)
    runner.close()
    fake.nothing_left()


def values_that_fit_no_type_are_refused(fake: Fake) -> None:
    runner, wanted = Runner(fake), digits()
    for _ in range(3):
        _check(runner, wanted, 4, 2)
        error = expect(InvalidInput, lambda: runner.run(wanted, *_given(runner, 4, 2**31)))
        assert isinstance(error, InvalidInput)
        assert error.where == "blueprint.control_flow[0].actions[2].args[1]"
        assert "2147483648, which is no i32" in str(error)
    runner.close()
    fake.nothing_left()


def every_call_with_open_arguments_fails_once(fake: Fake) -> None:
    """The second call is captured, and the third one changes the graph."""
    fail_each(fake, OTHER, LONG_NS, life_of(lambda r, n: _check(r, digits(), n, 3), (4, 4, 5)))


ON_REAL_DEVICES = (
    values_of_calls_reach_all_launches,
    one_graph_serves_all_values,
    a_stopped_call_leaves_right_values,
    values_that_fit_no_type_are_refused,
)
