"""What it gains to run calls that wait together as one, where a function declares how."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import uvloop
from numpy.typing import NDArray

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.function import Batching
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Panel, Plot, Row, at_least, at_most
from ..samples import P50, P99, RATE, Samples, spread
from ..systems import names
from ..systems.nodes import MIB
from ..systems.spinning import default_node

CALLERS, TOGETHER, WAIT_S = 64, 32, 0.002
BATCHED = f"{names.DANDELION}, batched"
LIMITS = {"matmul": 4.0, "network": 8.0}
"""Throughput of batched calls over that of others, on a GPU."""

_SOURCE = """#include "dandelion.h"
KERNEL void layer(GLOBAL const f32 *x, GLOBAL const f32 *w, GLOBAL f32 *y, u64 width, u64 total) {
    u64 i = GLOBAL_ID(0);
    if (i >= total) { return; }
    GLOBAL const f32 *row = x + i / width * width;
    u64 column = i % width;
    f32 sum = 0.0f;
    for (u64 k = 0; k < width; k++) { sum += row[k] * w[k * width + column]; }
    y[i] = fmaxf(sum, 0.0f);
}
"""


@dataclass(frozen=True, slots=True)
class Layers:
    """Products of a row with square matrices, each followed by a ReLU."""

    name: str
    width: int
    weights: tuple[NDArray[np.float32], ...]

    @classmethod
    def of(cls, name: str, width: int, depth: int) -> Layers:
        """Draw the weights, so that values keep their size from layer to layer."""
        draw = np.random.default_rng(1)
        scale = np.float32((2 / width) ** 0.5)
        shape = (width, width)
        weights = [draw.standard_normal(shape, np.float32) * scale for _ in range(depth)]
        return cls(name, width, tuple(weights))

    def function(self, batching: Batching | None) -> FunctionDocument:
        """Describe the function; all sizes follow from that of its input `x`."""
        static = {f"w{i}": {f"w{i}": w.tobytes()} for i, w in enumerate(self.weights)}
        b = bp.Blueprint(["x"], weights=static, outputs=["y"], modules={"layer": "layer.c"})
        total, x = b.x.elements("f32"), b.x
        for index, name in enumerate(static):
            last = index == len(static) - 1
            y = b.buffer("y" if last else f"h{index}", like=b.x, temporary=not last)
            grid = bp.ceil_div(total, 128)
            b.launch("layer", [x, b[name], y, self.width, total], grid=grid, block=128)
            x = y
        rows = f"float32[?, {self.width}]"
        return gpu_function(
            self.called(batching), b.json(), inputs=[f"x: {rows}", *static],
            outputs=[f"y: {rows}"], files={"layer.c": _SOURCE}, static=static, batching=batching,
        )  # fmt: skip

    def called(self, batching: Batching | None) -> str:
        """Name the function."""
        return f"{self.name}_batched" if batching else self.name

    def expected(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the result in numpy."""
        for weights in self.weights:
            x = np.maximum(x @ weights, 0)
        return x


BATCHING = Batching(inputs=("x",), calls=TOGETHER, wait_s=WAIT_S)
SYSTEMS: Mapping[str, Batching | None] = {names.DANDELION: None, BATCHED: BATCHING}


@experiment(
    "sharing_batching", group="sharing", needs_device=True,
    question="what do many callers gain if calls that wait are run as one?",
)  # fmt: skip
def batching(bench: Bench) -> Findings:
    """Call two functions with and without declared batching, in turns."""
    width, deep, depth = bench.pick((64, 64, 2), (256, 128, 4), (4096, 1024, 8))
    works = (Layers.of("matmul", width, 1), Layers.of("network", deep, depth))
    rounds, seconds = bench.pick(1, 3, 5), bench.pick(0.2, 0.5, 1.0)
    found: dict[tuple[str, int, str], list[Samples]] = {}
    with default_node(bench, arena_bytes=1024 * MIB) as node:
        for work in works:
            node.register(*(work.function(declared) for declared in SYSTEMS.values()))
            for declared in SYSTEMS.values():
                uvloop.run(_checked(node, work, declared))
        for _ in range(rounds):
            for work in works:
                for callers in (1, CALLERS):
                    for system, declared in SYSTEMS.items():
                        bench.say(f"{work.name}, {callers} callers, {system}")
                        samples = uvloop.run(_called(node, work, declared, callers, seconds))
                        found.setdefault((work.name, callers, system), []).append(samples)
    rows = tuple(_row(*key, turns, seconds) for key, turns in found.items())
    panel = Panel(
        "batching", f"Up to {TOGETHER} calls as one, which wait {WAIT_S * 1e3:g} ms for each other",
        Axis("what is called"), (RATE, P50, P99), rows, Plot.BARS, names.DANDELION,
    )  # fmt: skip
    words = f"matmul of a row of {width} values, network of {depth} layers of {deep} values"
    return Findings((panel,), budgets=budgets(bench, rows), notes=(words,))


def at(work: str, callers: int) -> str:
    """Name the x of a row."""
    return f"{work}, {callers} caller{'s' if callers > 1 else ''}"


def _row(work: str, callers: int, system: str, turns: list[Samples], seconds: float) -> Row:
    rates = spread("achieved_per_s", [turn.count / seconds for turn in turns])
    every = Samples([ns for turn in turns for ns in turn.ns])
    return Row(system, at(work, callers), every.values() | rates, every.count)


async def _checked(node: Node, work: Layers, declared: Batching | None) -> None:
    """Compare results with numpy's, of one call and of many at once; each engine gets some.

    Raises:
        ValueError: a result is wrong.
    """
    inputs = np.random.default_rng(2).random((CALLERS, 1, work.width), np.float32)
    expected = work.expected(inputs[:, 0])
    for count in (1, CALLERS, CALLERS, CALLERS):
        calls = [node.invoke_async(work.called(declared), x=x) for x in inputs[:count]]
        for outputs, right in zip(await asyncio.gather(*calls), expected, strict=False):
            y = outputs["y"]
            if y is None or not np.allclose(y.numpy(np.float32, (-1,)), right, 1e-3, 1e-3):
                raise ValueError(f"a wrong result of {work.called(declared)}")


async def _called(
    node: Node, work: Layers, declared: Batching | None, callers: int, seconds: float
) -> Samples:
    """Let callers call for some time; calls that end later do not count."""
    found = Samples([])
    name, begun = work.called(declared), time.perf_counter_ns()
    end = begun + round(seconds * 1e9)

    async def caller(x: NDArray[np.float32]) -> None:
        while (start := time.perf_counter_ns()) < end:
            await node.invoke_async(name, x=x)
            if (now := time.perf_counter_ns()) < end:
                found.ns.append(now - start)

    inputs = np.random.default_rng(3).random((callers, 1, work.width), np.float32)
    await asyncio.gather(*map(caller, inputs))
    return found


def budgets(bench: Bench, rows: tuple[Row, ...]) -> tuple[Budget, ...]:
    """Judge a GPU's values."""
    if not bench.judges:
        return ()
    values = {(row.x, row.system): row.values for row in rows}
    lines = []
    for work, limit in LIMITS.items():
        x = at(work, CALLERS)
        batched, plain = values[x, BATCHED], values[x, names.DANDELION]
        gain = batched["achieved_per_s"] / plain["achieved_per_s"]
        lines.append(at_least(f"{x}, throughput batched over unbatched", gain, limit, "x"))
        later_ms = (batched["p99"] - plain["p99"]) / 1e3
        path = f"{x}, p99 batched, more than unbatched"
        lines.append(at_most(path, later_ms, WAIT_S * 1e3, " ms"))
    return tuple(lines)
