"""What it gains that independent launches of a blueprint run side by side.

A blueprint has two chains of launches, each launch with half as many blocks as the device has
compute units, and a join. The same blueprint is also run in turn: there all launches get one more
buffer, which no kernel declares as `const`, so each one must wait for the one before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Panel, Plot, at_least
from ..samples import LATENCIES, row
from ..systems import names
from ..systems.engines import LocalGpuEngine
from ..timing import in_turns
from .gpu_engines import checked

TOGETHER, IN_TURN = "side by side", "in turn"
LEAST_RATIO = 1.7
BLOCK, LENGTH = 1024, 8
_FACTOR, _TERM = 1664525, 1013904223
_SOURCE = """
#include "dandelion.h"
KERNEL void branch_step(GLOBAL const u32 *x, GLOBAL u32 *y, u64 rounds TURN)
{
    u32 value = x[GLOBAL_ID(0)];
    for (u64 i = 0; i < rounds; i++)
        value = value * 1664525u + 1013904223u;
    y[GLOBAL_ID(0)] = value;
}
KERNEL void branch_join(GLOBAL const u32 *a, GLOBAL const u32 *b, GLOBAL u32 *y TURN)
{
    y[GLOBAL_ID(0)] = a[GLOBAL_ID(0)] * 31u + b[GLOBAL_ID(0)];
}
"""


def branches(blocks: int, rounds: int, in_turn: bool) -> FunctionDocument:
    """Describe the function.

    Args:
        blocks: of each launch.
        rounds: steps of arithmetic in each thread of a launch.
        in_turn: add the buffer that orders all launches.
    """
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "branches.c"})
    more = [b.buffer("turn", size=256, temporary=True)] if in_turn else []
    shape: dict[str, Any] = {"grid": blocks, "block": BLOCK}
    ends = []
    for branch in "ab":
        previous = b.x
        for i in range(LENGTH):
            following = b.buffer(f"{branch}{i}", like="x", temporary=True)
            b.launch("branch_step", [previous, following, bp.scalar("u64", rounds), *more], **shape)
            previous = following
        ends.append(previous)
    b.launch("branch_join", [*ends, b.buffer("y", like="x"), *more], **shape)
    source = _SOURCE.replace(" TURN", ", GLOBAL u32 *turn" if in_turn else "")
    name = "branches_in_turn" if in_turn else "branches"
    files = {"branches.c": source}
    return gpu_function(name, b.json(), inputs=["x"], outputs=["y"], files=files)


def expected(x: npt.NDArray[np.uint32], rounds: int) -> npt.NDArray[np.uint32]:
    """Compute the result with the powers of a step instead of its loop."""
    factor, term, whole, rest = _FACTOR, _TERM, 1, 0
    left = rounds * LENGTH
    while left:
        if left % 2:
            whole, rest = whole * factor % 2**32, (rest * factor + term) % 2**32
        factor, term = factor * factor % 2**32, (term * factor + term) % 2**32
        left //= 2
    end = x * np.uint32(whole) + np.uint32(rest)
    return end * np.uint32(31) + end


@experiment(
    "gpu_branches", group="gpu", needs_device=True,
    question="what does it gain that independent launches of a blueprint run side by side?",
)  # fmt: skip
def side_by_side(bench: Bench) -> Findings:
    """Two chains of launches that fill half of the device each, side by side and in turn."""
    rounds = bench.pick(50, 500, 30_000)
    with LocalGpuEngine(bench.backend) as local:
        blocks = max(local.engine.capacity.blocks // 2, 1)
        x = np.arange(blocks * BLOCK, dtype=np.uint32)
        right = expected(x, rounds).tobytes()
        calls = {
            what: checked(
                local.prepared(branches(blocks, rounds, what == IN_TURN), {"x": x.tobytes()}),
                right.__eq__,
            )
            for what in (TOGETHER, IN_TURN)
        }
        bench.say("timing")
        timed = in_turns(
            {what: held.call for what, held in calls.items()},
            count=bench.pick(10, 30, 200), warm_up=5, block=5,
            after={what: held.clean_up for what, held in calls.items()},
        )  # fmt: skip
    rows = tuple(row(names.SEQUENTIAL, what, found) for what, found in timed.items())
    title = f"Two chains of {LENGTH} launches, each of half a device"
    panel = Panel("branches", title, Axis("how they run"), LATENCIES, rows, Plot.BARS)
    ratio = timed[IN_TURN].median / timed[TOGETHER].median
    path = "two branches of half a device each: in turn, over side by side"
    judged = bench.gpu and not bench.quick
    scaled = "" if judged else f"{rounds} rounds a launch; processors run graphs in order"
    return Findings(
        (panel,),
        budgets=(at_least(path, ratio, LEAST_RATIO, "x"),) if judged else (),
        scaled=scaled,
    )
