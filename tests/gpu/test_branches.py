"""Branches of one blueprint on a real device, side by side and one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dandelion.backends.gpu.pacing import PART_NS

import dandelion.blueprint as bp
from dandelion.errors import Cancelled
from dandelion.function import Function
from tests.fake_driver.fake import LONG_NS, Real, Runner, function, numbers

SOURCE = """
#include "dandelion.h"

DEVICE u32 work(u32 value, u64 rounds)
{
    for (u64 i = 0; i < rounds; i++)
        value = value * 1664525u + 1013904223u;
    return value;
}

KERNEL void branch_step(GLOBAL const u32 *x, GLOBAL u32 *y, u64 rounds)
{
    y[GLOBAL_ID(0)] = work(x[GLOBAL_ID(0)], rounds);
}

KERNEL void branch_step_in_turn(GLOBAL const u32 *x, GLOBAL u32 *y, u64 rounds, GLOBAL u32 *turn)
{
    y[GLOBAL_ID(0)] = work(x[GLOBAL_ID(0)], rounds);
}

KERNEL void branch_join_in_turn(GLOBAL const u32 *a, GLOBAL const u32 *b, GLOBAL u32 *y,
                                GLOBAL u32 *turn)
{
    y[GLOBAL_ID(0)] = a[GLOBAL_ID(0)] * 31u + b[GLOBAL_ID(0)];
}

KERNEL void branch_join(GLOBAL const u32 *a, GLOBAL const u32 *b, GLOBAL u32 *y)
{
    y[GLOBAL_ID(0)] = a[GLOBAL_ID(0)] * 31u + b[GLOBAL_ID(0)];
}
"""
BLOCK = 1024
LENGTH = 8
ROUNDS = 20_000
Words = npt.NDArray[np.uint32]


def blueprint(blocks: int, in_turn: bool, times: int = 1) -> Function:
    """Two chains of launches of so many blocks, and a join of both.

    Args:
        blocks: of each launch.
        in_turn: all launches also get one buffer that is not `const`, so that each one waits for
            the one before it.
        times: how often all of that is repeated.
    """
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "k.c"})
    rounds = bp.scalar("u64", ROUNDS)
    more = [b.buffer("turn", size=256, temporary=True)] if in_turn else []
    suffix = "_in_turn" if in_turn else ""
    shape: dict[str, Any] = {"grid": blocks, "block": BLOCK}
    with b.repeat(times):
        ends = []
        for branch in "ab":
            previous = b.x
            for i in range(LENGTH):
                following = b.buffer(f"{branch}{i}", like="x", temporary=True)
                b.launch("branch_step" + suffix, [previous, following, rounds, *more], **shape)
                previous = following
            ends.append(previous)
        y = b.buffer("y", like="x")
        b.launch("branch_join" + suffix, [*ends, y, *more], **shape)
    return function(b, {"k.c": SOURCE.encode()})


def expected(x: Words) -> Words:
    """Compute the result with the powers of a step instead of its loop."""
    factor, term, whole, sums = 1664525, 1013904223, 1, 0
    rounds = ROUNDS * LENGTH
    while rounds:
        if rounds % 2:
            whole, sums = whole * factor % 2**32, (sums * factor + term) % 2**32
        factor, term = factor * factor % 2**32, (term * factor + term) % 2**32
        rounds //= 2
    end = x * np.uint32(whole) + np.uint32(sums)
    return end * np.uint32(31) + end


@pytest.fixture(scope="module")
def half(cuda: str) -> int:
    """How many blocks fill half of the device: one keeps a compute unit busy."""
    made = Real("cuda", Path()).device()
    made.open()
    try:
        return made.properties().compute_units // 2
    finally:
        made.close()


@pytest.fixture
def x(half: int) -> Words:
    return np.arange(half * BLOCK, dtype=np.uint32)


@pytest.fixture
def runner(cuda: str, tmp_path: Path) -> Iterator[Runner]:
    made = Runner(Real("cuda", tmp_path / "code"), pool_bytes=64 << 20)
    yield made
    made.close()


def lanes(runner: Runner) -> set[int]:
    """How many lanes the graphs have that were captured."""
    found = set()
    for ready in runner.engine.modules._ready.values():
        for segment in ready.segments:
            forks = segment.part.forks
            found.add(1 if forks is None else max(forks.lanes) + 1)
    return found


def run_checked(runner: Runner, wanted: Function, x: Words) -> None:
    """Run a call, and check its result."""
    found = numbers(runner.run(wanted, runner.one("x", x)), np.uint32)
    assert (found == expected(x)).all()


def test_branches_run_side_by_side_and_give_what_they_give_in_turn(
    runner: Runner, half: int, x: Words
) -> None:
    together, in_turn = blueprint(half, False), blueprint(half, True)
    for _ in range(6):
        run_checked(runner, together, x)
        run_checked(runner, in_turn, x)
    assert lanes(runner) == {1, 2}


@pytest.mark.parametrize("in_turn", [False, True])
def test_parts_with_branches_give_the_serial_result(
    cuda: str, half: int, x: Words, tmp_path: Path, in_turn: bool
) -> None:
    """Calls of tens of milliseconds, cut into parts of 3 ms, and as one graph."""
    wanted = blueprint(half, in_turn, times=20)
    for part_ns in (PART_NS, LONG_NS):
        runner = Runner(Real("cuda", tmp_path / "code"), 64 << 20, part_ns=part_ns)
        for _ in range(6):
            run_checked(runner, wanted, x)
        found = lanes(runner)
        assert (max(found) > 1) is not in_turn
        runner.close()


def test_calls_with_branches_can_be_stopped(cuda: str, half: int, x: Words, tmp_path: Path) -> None:
    wanted = blueprint(half, False, times=50)
    runner = Runner(Real("cuda", tmp_path / "code"), 64 << 20, part_ns=PART_NS)
    for _ in range(3):
        run_checked(runner, wanted, x)
    for looks in range(4):
        with pytest.raises(Cancelled):
            runner.run_stopped(wanted, looks, x)
        run_checked(runner, wanted, x)
    runner.close()


@pytest.mark.parametrize("seed", range(5))
def test_random_branches_give_what_one_stream_gives(
    runner: Runner, half: int, x: Words, seed: int
) -> None:
    """Launches between few buffers at random; the first call launches one by one, in order."""
    source = np.random.default_rng(seed)
    b = bp.Blueprint(inputs=["x"], outputs=["b0", "b1", "b2"], modules={"k": "k.c"})
    buffers = [b.x, *(b.buffer(f"b{i}", like="x") for i in range(3))]
    buffers += [b.buffer(f"t{i}", like="x", temporary=True) for i in range(3)]
    rounds = bp.scalar("u64", ROUNDS)
    with b.repeat(2):
        for _ in range(30):
            p, q, r = source.choice(range(1, 7), 3, replace=False)
            first = buffers[0] if source.random() < 0.3 else buffers[p]
            if source.random() < 0.3:
                b.launch(
                    "branch_join", [first, buffers[q], buffers[r]], grid=half // 4, block=BLOCK
                )
            else:
                b.launch("branch_step", [first, buffers[r], rounds], grid=half // 4, block=BLOCK)
    wanted = function(b, {"k.c": SOURCE.encode()}, outputs=("b0", "b1", "b2"))
    found = []
    for _ in range(5):
        outputs = runner.run(wanted, runner.one("x", x))
        found.append(b"".join(bytes(s.items[0].data) for s in outputs if s is not None))
        del outputs
    assert len(set(found)) == 1
    assert max(lanes(runner)) > 1
