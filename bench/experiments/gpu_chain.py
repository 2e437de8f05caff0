"""What GPU functions that follow each other cost over one function with all their launches.

Five functions pass a set on, through a node. They are run as one call, or, with `fuse = false`, as
five. The input lies in the node's arena, as the output of another function does, so that what the
caller would copy is not counted.
"""

from __future__ import annotations

import contextlib

import numpy as np

import dandelion.blueprint as bp
from dandelion.data import Item, ItemSet
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Panel, Plot, at_most
from ..samples import LATENCIES, row
from ..systems.nodes import MIB, gpu_settings, open_node
from ..timing import in_turns

ONE, CHAIN, APART = "one function", "five functions", "five functions, fuse = false"
LENGTH, BLOCK = 5, 256
MOST_RATIO = 1.1
SOURCE = """
#include "dandelion.h"
KERNEL void chain_step(GLOBAL const f32 *x, GLOBAL f32 *y, u64 count)
{
    u64 i = GLOBAL_ID(0);
    if (i < count) { y[i] = 0.5f * x[i] + 1.0f; }
}
"""


def steps(name: str, count: int) -> FunctionDocument:
    """Describe a function of some launches, one after the other."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": "chain.c"})
    b.kernel("chain_step", access=("read", "write", "value"))
    total, previous = b.x.elements("f32"), b.x
    for number in range(count):
        last = number == count - 1
        name_of = "y" if last else f"t{number}"
        following = b.buffer(name_of, like="x", temporary=not last)
        grid = bp.ceil_div(total, BLOCK)
        count_of = bp.scalar("u64", total)
        b.launch("chain_step", [previous, following, count_of], grid=grid, block=BLOCK)
        previous = following
    return gpu_function(name, b.json(), inputs=["x"], outputs=["y"], files={"chain.c": SOURCE})


def text() -> str:
    """Give the composition of the chain."""
    sets = ["x", *(f"s{i}" for i in range(1, LENGTH)), "y"]
    lines = [f"    Step(x = all {sets[i]}) => ({sets[i + 1]} = y);" for i in range(LENGTH)]
    body = "\n".join(lines)
    return f"function Step(x) => (y);\ncomposition Chain(x) => (y) {{\n{body}\n}}\n"


class Called:
    """A function or composition of a node, with an input in the node's arena."""

    def __init__(self, node: Node, name: str, size_bytes: int) -> None:
        self.node, self.name = node, name
        values = np.arange(size_bytes // 4, dtype=np.float32) % 1000
        moved = self.invoke(ItemSet("x", (Item("x", 0, values.tobytes()),)), "Step")
        self.x = ItemSet("x", moved.items)
        expected = 0.5 * values + 1
        for _ in range(LENGTH):
            expected = 0.5 * expected + 1
        for _ in range(3):
            found = self.invoke(self.x, name).items[0].numpy(np.float32)
            if not np.allclose(found, expected, rtol=1e-5):
                raise ValueError(f"{name} gives a wrong result")

    def invoke(self, x: ItemSet, name: str) -> ItemSet:
        """Invoke something with one input and one output."""
        found = self.node.invoke_sets(name, {"x": x}).sets["y"]
        if found is None:
            raise ValueError(f"{name} gives no result")
        return found

    def call(self) -> None:
        """Make the timed call."""
        self.invoke(self.x, self.name)


@experiment(
    "gpu_chain", group="gpu", needs_device=True,
    question="what do functions that follow each other cost over one function?",
)  # fmt: skip
def chain(bench: Bench) -> Findings:
    """Five functions as one call and as five, and one function with the same launches."""
    sizes = bench.pick((65536,), (65536, MIB), (128 * 1024, 64 * MIB))
    pool = "1G" if bench.gpu else "256M"
    settings = gpu_settings(bench.backend, 0, pool, 1024 * MIB)
    rows, lines, median = [], [], {}
    with contextlib.ExitStack() as closing:
        nodes = {
            fuse: closing.enter_context(open_node({**settings, "fuse": fuse}, 1))
            for fuse in (True, False)
        }
        for node in nodes.values():
            node.register(steps("Step", 1), steps("Steps", LENGTH), text())
        for size in sizes:
            bench.say(f"timing {size} bytes")
            calls = {
                ONE: Called(nodes[True], "Steps", size),
                CHAIN: Called(nodes[True], "Chain", size),
                APART: Called(nodes[False], "Chain", size),
            }
            timed = in_turns(
                {what: called.call for what, called in calls.items()},
                count=bench.pick(6, 30, 200), warm_up=5, block=3,
            )  # fmt: skip
            name = f"{size // 1024} KiB" if size < MIB else f"{size // MIB} MiB"
            rows += [row(what, name, found) for what, found in timed.items()]
            median = {what: found.median for what, found in timed.items()}
    title = f"{LENGTH} functions that follow each other, through a node"
    panel = Panel("chain", title, Axis("size of each set"), LATENCIES, tuple(rows), Plot.BARS, ONE)
    if bench.gpu and not bench.quick:
        path = "five functions that follow each other, 64 MiB, over one function"
        lines.append(at_most(path, median[CHAIN] / median[ONE], MOST_RATIO, "x"))
    return Findings((panel,), budgets=tuple(lines))
