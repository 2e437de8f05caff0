"""What a loop costs that ends when a value on the device says so.

The application `heat_plate` sweeps a plate until no point changes by more than a tolerance. As one
call the engine reads a word after each iteration; with `fuse = false` each iteration is a call of
`sweep` and one of `change`, and the sets between them pass through the node. Beside them is one
blueprint with the same launches and a fixed number of iterations, which reads nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from dandelion.compositions.heat_plate import bundle as heat_plate
from dandelion.compositions.heat_plate import oracle

import dandelion.blueprint as bp
from dandelion.data import ItemSet
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.node import Node
from dandelion.set_values import item_set

from ..experiment import Bench, experiment
from ..records import Axis, Findings, Panel, Plot, at_most
from ..samples import LATENCIES, row
from ..systems.nodes import MIB, gpu_settings, open_node
from ..timing import in_turns

FIXED, LOOP, APART = "fixed number, one blueprint", "until", "until, fuse = false"
MOST_RATIO = 0.25
SHAPES = ((24, 40), (256, 256))
Plate = npt.NDArray[np.float32]


def fixed(times: int) -> FunctionDocument:
    """Describe a function with the launches of so many iterations."""
    b = bp.Blueprint(
        inputs=["plate", "shape", "tolerance"], outputs=["plate"], modules={"heat": "heat.c"}
    )
    b.kernel("sweep", access=("read", "write", "value", "value", "value"))
    b.kernel("largest_change", access=("read", "read", "both", "value"))
    b.kernel("decide", access=("read", "read", "write"))
    swept = b.buffer("swept", like="plate", temporary=True)
    largest = b.buffer("largest", 4, temporary=True)
    going = b.buffer("going", 4, temporary=True)
    rows, columns, count = b.shape[0], b.shape[1], b.plate.elements("f32")
    with b.repeat(times):
        b.zero(largest)
        height, width = bp.scalar("u64", rows), bp.scalar("u64", columns)
        grid = (bp.ceil_div(columns, 32), bp.ceil_div(rows, 8))
        sizes = (height, width, bp.sizeof(b.plate))
        b.launch("sweep", (b.plate, swept, *sizes), grid=grid, block=(32, 8))
        number, blocks = bp.scalar("u64", count), bp.ceil_div(count, 256)
        b.launch("largest_change", [swept, b.plate, largest, number], grid=blocks, block=256)
        b.launch("decide", [largest, b.tolerance, going])
        b.copy(b.plate, swept)
    source = heat_plate.HERE / "heat.c"
    names = ("plate", "shape", "tolerance")
    return gpu_function(
        f"fixed_{times}", b.json(), inputs=names, outputs=("plate",), files={"heat.c": source}
    )


def problem(shape: tuple[int, int], sweeps: int) -> tuple[dict[str, ItemSet | None], Plate]:
    """Make a plate that takes so many sweeps; give the inputs and the result."""
    plate = np.zeros(shape, np.float32)
    plate[0], plate[:, 0] = 100, 50
    swept, before = plate, plate
    for _ in range(sweeps):
        before, swept = swept, oracle.sweep(swept)
    tolerance = float(np.abs(swept - before).max())
    if oracle.relax(plate, tolerance)[2] != sweeps:
        raise ValueError(f"{sweeps} sweeps cannot be asked for: the changes do not fall")
    inputs = heat_plate.inputs(plate, tolerance)
    return {name: item_set(name, value) for name, value in inputs.items()}, swept


class Called:
    """A function or composition of a node, and its inputs."""

    def __init__(
        self, node: Node, name: str, output: str, inputs: Mapping[str, Any], expected: Plate
    ) -> None:
        self._node, self._name, self._inputs = node, name, inputs
        for _ in range(2):
            found = node.invoke_sets(name, inputs).sets[output]
            if found is None or not np.array_equal(found.numpy(np.float32), expected.reshape(-1)):
                raise ValueError(f"{name} gives a wrong result")

    def call(self) -> None:
        """Make the timed call."""
        self._node.invoke_sets(self._name, self._inputs)


@experiment(
    "gpu_loops", group="gpu", needs_device=True,
    question="what does a loop cost that ends by a value on the device?",
)  # fmt: skip
def loops(bench: Bench) -> Findings:
    """One call for a whole loop, a call for each function of each iteration, a fixed number."""
    sweeps = bench.pick((10,), (100, 1000), (100, 1000))
    pool = "1G" if bench.gpu else "64M"
    settings = gpu_settings(bench.backend, 0, pool, 256 * MIB)
    panels, budgets = [], []
    with contextlib.ExitStack() as closing:
        nodes = {
            fuse: closing.enter_context(open_node({**settings, "fuse": fuse}, 1))
            for fuse in (True, False)
        }
        for node in nodes.values():
            node.register(heat_plate.document())
        nodes[True].register(*map(fixed, sweeps))
        for shape in SHAPES[: bench.pick(1, 2, 2)]:
            rows = []
            for count in sweeps:
                bench.say(f"timing {count} iterations on {shape[0]} x {shape[1]} points")
                inputs, expected = problem(shape, count)
                calls = {
                    FIXED: Called(nodes[True], f"fixed_{count}", "plate", inputs, expected),
                    LOOP: Called(nodes[True], "heat_plate", "warm", inputs, expected),
                    APART: Called(nodes[False], "heat_plate", "warm", inputs, expected),
                }
                timed = in_turns(
                    {what: called.call for what, called in calls.items()},
                    count=bench.pick(2, 7, 10), warm_up=1, block=1,
                )  # fmt: skip
                rows += [row(what, str(count), found) for what, found in timed.items()]
                median = {what: found.median for what, found in timed.items()}
            title = f"Jacobi's method on {shape[0]} x {shape[1]} points, through a node"
            axis = Axis("iterations")
            key = f"{shape[0]}x{shape[1]}"
            panels.append(Panel(key, title, axis, LATENCIES, tuple(rows), Plot.BARS, LOOP))
            if not bench.quick and (bench.gpu or shape == SHAPES[0]):
                path = f"loop until, {sweeps[-1]} iterations, {key} points: one call over calls"
                budgets.append(at_most(path, median[LOOP] / median[APART], MOST_RATIO, "x"))
    return Findings(tuple(panels), budgets=tuple(budgets))
