"""Calls that wait are run as one, on an engine process (OpenCL) and in sandboxes (Python)."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from dandelion.data import Item
from dandelion.documents import FunctionDocument, gpu_function, python_function
from dandelion.errors import DandelionError, InvalidFunction, Raised, root_of
from dandelion.function import Batching
from dandelion.node import Node, Settings
from dandelion.testing import wait_until

COLUMNS = 8
KERNEL = """
#include "dandelion.h"
KERNEL void rows(GLOBAL const f32 *x, GLOBAL const f32 *scale, GLOBAL f32 *y, u64 y_bytes)
{
    u64 row = GLOBAL_ID(0);
    if (row * sizeof(f32) < y_bytes) {
        f32 sum = 0;
        for (int i = 0; i < 8; i++) { sum += x[row * 8 + i]; }
        y[row] = scale[0] * sum;
    }
}
"""
ROWS: dict[str, Any] = {"CeilDiv": [{"Sizeof": "x"}, 4 * COLUMNS]}
BLUEPRINT: dict[str, Any] = {
    "modules": {"rows": "rows.c"},
    "kernels": {"rows": "rows"},
    "blueprint": {
        "inputs": ["x", "scale"],
        "buffers": {"y": {"Mul": [ROWS, 4]}},
        "outputs": ["y"],
        "control_flow": [
            {
                "ExecKernel": [
                    "rows",
                    [{"Ptr": "x"}, {"Ptr": "scale"}, {"Ptr": "y"}, {"Sizeof": "y"}],
                    {"grid_dim_x": {"CeilDiv": [ROWS, 64]}, "block_dim_x": 64},
                ]
            }
        ],
    },
}
TEXT = """
function GpuRows(x, scale) => (y);
composition Each(x, scale) => (y) { GpuRows(x = each x, scale = all scale) => (y = y); }
"""


def rows_on_gpu(batching: Batching | None) -> FunctionDocument:
    return gpu_function(
        "GpuRows",
        json.dumps(BLUEPRINT),
        inputs=(f"x: float32[?, {COLUMNS}]", "scale: float32"),
        outputs=("y: float32[?]",),
        files={"rows.c": KERNEL},
        batching=batching,
    )


def positive_rows(x, scale):  # type: ignore[no-untyped-def]  # its source is the function
    values = x.numpy()
    if (values < 0).any():
        raise ValueError("a negative number")
    return (values.sum(axis=1) * scale.numpy()[0]).astype("float32")


PYTHON = python_function(
    positive_rows,
    inputs=(f"x: float32[?, {COLUMNS}]", "scale: float32"),
    outputs=("y: float32[?]",),
    name="PyRows",
    imports=["numpy"],
    batching=Batching(("x",), calls=8, wait_s=0.05),
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(Settings(backends=("process", "opencl"), engines={"process": 1})) as node:
        node.register(TEXT, functions=[rows_on_gpu(Batching(("x",), calls=8, wait_s=0.05)), PYTHON])
        assert node.wait_ready()
        yield node


def value(number: int) -> Any:
    return np.random.default_rng(number).random((1 + number % 3, COLUMNS), np.float32)


async def call(node: Node, name: str, number: int, scale: float, **given: Any) -> None:
    x = value(number)
    found = await node.invoke_async(name, x=x, scale=np.float32([scale]), **given)
    np.testing.assert_allclose(found.y.numpy(), scale * x.sum(axis=1), rtol=1e-5)


def batches(node: Node, name: str) -> int:
    return sum(
        flow.counts.batches
        for flow in node._runtime.scheduler.calls.flows.values()
        if flow.spec.name == name
    )


@pytest.mark.parametrize("name", ["GpuRows", "PyRows"])
def test_each_caller_gets_its_rows(node: Node, name: str) -> None:
    async def main() -> None:
        await asyncio.gather(*[call(node, name, number, 2.0) for number in range(40)])

    before = batches(node, name)
    asyncio.run(main())
    assert batches(node, name) >= before + 4


def test_calls_with_other_inputs_that_differ_are_not_joined(node: Node) -> None:
    async def main() -> None:
        calls = [call(node, "GpuRows", number, float(number)) for number in range(8)]
        await asyncio.gather(*calls)

    before = batches(node, "GpuRows")
    asyncio.run(main())
    assert batches(node, "GpuRows") == before


def test_a_call_alone_does_not_wait_for_ever(node: Node) -> None:
    before = batches(node, "GpuRows")
    asyncio.run(call(node, "GpuRows", 1, 3.0))
    assert batches(node, "GpuRows") == before


def test_a_caller_does_not_get_the_error_of_another(node: Node) -> None:
    async def bad() -> None:
        x = -np.ones((1, COLUMNS), np.float32)
        with pytest.raises(DandelionError) as caught:
            await node.invoke_async("PyRows", x=x, scale=np.float32([1]))
        assert isinstance(root_of(caught.value), Raised)

    async def main() -> None:
        good = [call(node, "PyRows", number, 1.0) for number in range(7)]
        await asyncio.gather(bad(), *good)

    asyncio.run(main())


def test_instances_of_one_invocation_are_joined(node: Node) -> None:
    items = [Item.of(f"i{number}", value(number)) for number in range(8)]
    before = batches(node, "GpuRows")
    found = node.invoke("Each", x=items, scale=np.float32([1.5]))
    assert batches(node, "GpuRows") > before
    assert [item.name for item in found.y] == [item.name for item in items]
    for item, x in zip(found.y, items, strict=True):
        np.testing.assert_allclose(item.numpy(), 1.5 * x.numpy().sum(axis=1), rtol=1e-5)


def test_callers_that_leave_do_not_disturb_the_others(node: Node) -> None:
    async def main() -> None:
        calls = [asyncio.create_task(call(node, "GpuRows", n, 2.5)) for n in range(16)]
        await asyncio.sleep(0)
        for task in calls[::2]:
            task.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results[::2])
        assert results[1::2] == [None] * 8
        await asyncio.gather(*[call(node, "GpuRows", n, 2.5) for n in range(8)])

    asyncio.run(main())
    scheduler = node._runtime.scheduler
    assert not scheduler.invocations
    assert not any(flow.gathering for flow in scheduler.calls.flows.values())


def test_calls_of_two_tenants_are_not_joined(node: Node) -> None:
    async def main() -> None:
        mine = [call(node, "GpuRows", number, 1.0) for number in range(3)]
        others = [call(node, "GpuRows", number, 1.0, tenant="other") for number in range(3)]
        await asyncio.gather(*mine, *others)

    node.register(functions=[rows_on_gpu(Batching(("x",), calls=8, wait_s=0.05))], tenant="other")
    before = batches(node, "GpuRows")
    asyncio.run(main())
    assert batches(node, "GpuRows") >= before + 2  # more, if the calls come slowly


def test_batches_keep_no_memory(node: Node) -> None:
    async def main() -> None:
        await asyncio.gather(*[call(node, "GpuRows", number, 2.0) for number in range(40)])

    asyncio.run(call(node, "GpuRows", 1, 2.0))  # its code is in memory from now on
    gc.collect()
    before = node.info().arena.contexts
    asyncio.run(main())
    gc.collect()
    wait_until(lambda: node.info().arena.contexts <= before)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"batching": Batching(())}, "no-set"),
        ({"batching": Batching(("z",))}, "unknown-set"),
        ({"batching": Batching(("x",), calls=1)}, "bad-limit"),
        ({"batching": Batching(("x",), wait_s=float("nan"))}, "bad-limit"),
        ({"batching": Batching(("x",), wait_s=11.0)}, "bad-limit"),
        ({"batching": Batching(("x",), rows=0)}, "bad-limit"),
        ({"batching": Batching(("scale",), rows=4)}, "bad-shape"),
        ({"inputs": (f"x: float32[4, {COLUMNS}]", "scale: float32")}, "bad-shape"),
        ({"outputs": ("y: float32[4]",)}, "bad-shape"),
        ({"outputs": ()}, "no-set"),
        ({"batching": Batching(("scale",)), "static": {"scale": {"s": "1234"}}}, "static-set"),
    ],
)
def test_declarations_that_cannot_be_kept_are_refused(
    node: Node, changed: dict[str, Any], code: str
) -> None:
    document = msgspec.structs.replace(PYTHON, name="Refused", **changed)
    with pytest.raises(InvalidFunction) as caught:
        node.register(functions=[document])
    assert code in [problem.code for problem in caught.value.problems]
