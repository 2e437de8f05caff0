"""What an integer costs that is another one in each call, such as the position of a decoder.

A blueprint has many short launches, and one in ten gets the integer by value. It is called with the
same integer each time, and with one that was not seen before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Panel, Plot, at_most
from ..samples import LATENCIES, row
from ..systems import names
from ..systems.engines import LocalGpuEngine, PreparedCall
from ..timing import in_turns
from .gpu_engines import checked

SAME, NEW = "the same", "a new one"
LAUNCHES = (20, 300)
EVERY = 10
MOST_RATIO = 1.5
_COUNT = 256
_SOURCE = """
#include "dandelion.h"
KERNEL void position_add(GLOBAL u32 *y, u32 position)
{
    y[GLOBAL_ID(0)] += position;
}
KERNEL void position_mix(GLOBAL u32 *y)
{
    y[GLOBAL_ID(0)] = y[GLOBAL_ID(0)] * 1664525u + 1013904223u;
}
"""


def positions(launches: int) -> FunctionDocument:
    """Describe the function."""
    b = bp.Blueprint(inputs=["x", "position"], outputs=["x"], modules={"k": "positions.c"})
    shape: dict[str, Any] = {"grid": _COUNT // 64, "block": 64}
    for index in range(launches):
        if index % EVERY:
            b.launch("position_mix", [b.x], **shape)
        else:
            b.launch("position_add", [b.x, bp.scalar("u32", b.position[0])], **shape)
    files = {"positions.c": _SOURCE}
    name = f"positions_{launches}"
    return gpu_function(name, b.json(), inputs=["x", "position"], outputs=["x"], files=files)


def expected(launches: int, position: int) -> bytes:
    """Compute the result for an x of zeros."""
    value = 0
    for index in range(launches):
        value = value * 1664525 + 1013904223 if index % EVERY else value + position
    return np.full(_COUNT, value % 2**32, np.uint32).tobytes()


def _calls(
    local: LocalGpuEngine, launches: int, given: range
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Prepare calls with integers, and give what makes one after the other, and what cleans up."""
    document, zeros = positions(launches), bytes(4 * _COUNT)

    def prepared(position: int) -> PreparedCall:
        found = {"x": zeros, "position": np.int64(position).tobytes()}
        return local.prepared(document, found)

    calls = [prepared(position) for position in given]
    for position, held in zip(given[:3], calls, strict=False):
        checked(held, expected(launches, position).__eq__)
    turns = itertools.cycle(calls)

    def call() -> None:
        next(turns).call()

    return call, calls[0].clean_up


@experiment(
    "gpu_positions", group="gpu", needs_device=True,
    question="what does an integer cost that kernels get by value, if it is new in each call?",
)  # fmt: skip
def changing(bench: Bench) -> Findings:
    """Calls with an integer that is always the same, and with one that is new each time."""
    count = bench.pick(5, 100, 600)
    rows = []
    budgets = []
    with LocalGpuEngine(bench.backend) as local:
        for launches in LAUNCHES:
            bench.say(f"{launches} launches")
            calls = {
                SAME: _calls(local, launches, range(7, 8)),
                NEW: _calls(local, launches, range(1000, 1020 + count)),
            }
            timed = in_turns(
                {what: call for what, (call, _) in calls.items()},
                count=count, warm_up=10, block=5,
                after={what: after for what, (_, after) in calls.items()},
            )  # fmt: skip
            for what, found in timed.items():
                rows.append(row(names.SEQUENTIAL, f"{launches} launches, {what}", found))
            ratio = timed[NEW].median / timed[SAME].median
            path = f"{launches} launches: a new integer in each call, over the same"
            budgets.append(at_most(path, ratio, MOST_RATIO, "x"))
    title = f"Short launches, one in {EVERY} with an integer by value"
    panel = Panel("positions", title, Axis("the integer"), LATENCIES, tuple(rows), Plot.BARS)
    judged = bench.gpu and not bench.quick
    return Findings((panel,), budgets=tuple(budgets) if judged else ())
