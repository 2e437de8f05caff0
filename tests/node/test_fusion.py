"""GPU functions of a composition that follow each other are run as one call."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from dandelion.catalog import CompositionRecord
from dandelion.data import Item, ItemSet
from dandelion.documents import FunctionDocument, gpu_function, python_function
from dandelion.errors import ApplicationFailed, BackendUnavailable, DandelionError, Faulted
from dandelion.function import FunctionSpec, FusedFunction, Limits
from dandelion.node import Node, Settings
from dandelion.scheduler import Flow
from dandelion.settings import TenantSettings
from dandelion.testing import wait_until
from tests.played_nodes import memory_of_calls

KERNEL = """
#include "dandelion.h"
KERNEL void axpy(GLOBAL const f32 *x, GLOBAL const f32 *c, GLOBAL f32 *y, u64 bytes)
{
    u64 i = GLOBAL_ID(0);
    if (i * sizeof(f32) < bytes) { y[i] = c[0] * x[i] + c[1]; }
}
KERNEL void add(GLOBAL const f32 *a, GLOBAL const f32 *b, GLOBAL f32 *y, u64 bytes)
{
    u64 i = GLOBAL_ID(0);
    if (i * sizeof(f32) < bytes) { y[i] = a[i] + b[i]; }
}
KERNEL void trap(GLOBAL const f32 *x, GLOBAL f32 *y, u64 bytes)
{
    u64 i = GLOBAL_ID(0);
    if (i * sizeof(f32) >= bytes) { return; }
    if (x[i] < 0) { *(GLOBAL volatile i32 *)0 = 1; }
    y[i] = x[i];
}
KERNEL void halve(GLOBAL f32 *x, u64 bytes)
{
    u64 i = GLOBAL_ID(0);
    if (i * sizeof(f32) < bytes) { x[i] = x[i] / 2; }
}
"""
SHAPE: dict[str, Any] = {
    "grid_dim_x": {"CeilDiv": [{"Elements": {"bufname": "x", "dtype": "f32"}}, 64]},
    "block_dim_x": 64,
}


def function(
    name: str, kernel: str, inputs: str, constant: tuple[float, float] | None = None, **given: Any
) -> FunctionDocument:
    """Describe a function of one kernel; without an output `y` it changes `x`."""
    names = inputs.split()
    outputs = {"y": {"Sizeof": "x"}} if kernel != "halve" else {}
    args = [{"Ptr": n} for n in (*names, *outputs)]
    launch = [kernel, [*args, {"Sizeof": "x"}], SHAPE]
    config = {
        "modules": {"work": "work.c"},
        "kernels": {kernel: "work"},
        "blueprint": {
            "inputs": names,
            "buffers": outputs,
            "outputs": list(outputs) or ["x"],
            "control_flow": [{"ExecKernel": launch}],
        },
    }
    static = {} if constant is None else {"c": {"c": np.float32(constant)}}
    return gpu_function(
        name,
        json.dumps(config),
        inputs=names,
        outputs=list(outputs) or ["x"],
        files={"work.c": KERNEL},
        static=static,
        **given,
    )


def total(y):  # type: ignore[no-untyped-def]  # its source is the function
    return str(float(y.numpy("float32").sum())).encode()


FUNCTIONS = [
    function("Double", "axpy", "x c", (2.0, 0.0)),
    function("Next", "axpy", "x c", (1.0, 1.0)),
    function("Scale", "axpy", "x c"),
    function("Add", "add", "x b"),
    function("Trap", "trap", "x"),
    function("Halve", "halve", "x"),
    python_function(total, inputs=("y",), outputs=("total",), name="Total", imports=["numpy"]),
]
TEXT = """
function Double(x, c) => (y);
function Next(x, c) => (y);
function Scale(x, c) => (y);
function Add(x, b) => (y);
function Trap(x) => (y);
function Halve(x) => (x);
function Total(y) => (total);
composition Chain(x) => (y) {
    Double(x = all x) => (a = y); Next(x = all a) => (b = y);
    Double(x = all b) => (c = y); Next(x = all c) => (d = y);
    Double(x = all d) => (y = y);
}
composition Each(x) => (y) { Double(x = each x) => (a = y); Next(x = each a) => (y = y); }
composition Diamond(x) => (y, left) {
    Double(x = all x) => (a = y); Next(x = all a) => (left = y);
    Halve(x = all a) => (right = x); Add(x = all left, b = all right) => (y = y);
}
composition Failing(x) => (y) {
    Double(x = each x) => (a = y); Trap(x = each a) => (b = y); Next(x = each b) => (y = y);
}
composition Lacking(x, c) => (doubled, y) {
    Double(x = all x) => (doubled = y); Scale(x = all doubled, c = all c) => (y = y);
}
composition Rounds(x) => (y) {
    Double(x = all x) => (a = y);
    Next(x = all a) => (b = y) repeat 20 feeding (x = y);
    Halve(x = all b) => (y = x) repeat 3 feeding (x = x);
}
composition Between(x) => (y, total) {
    Double(x = all x) => (a = y); Next(x = all a) => (b = y);
    Total(y = all b) => (total = total);
    Double(x = all b) => (c = y); Next(x = all c) => (y = y);
}
"""


SETTINGS = Settings(backends=("process", "cuda|hip|opencl"), engines={"process": 1})


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as node:
        node.register(TEXT, functions=FUNCTIONS)
        try:
            assert node.wait_ready()
        except BackendUnavailable as error:
            pytest.skip(str(error))
        yield node
        gc.collect()
        wait_until(lambda: memory_of_calls(node) <= 0)  # the code of Total is on the heap


X = np.arange(100, dtype=np.float32)


def flows(node: Node, tenant: str = "default") -> list[Flow]:
    return [f for f in node._runtime.scheduler.calls.flows.values() if f.tenant.name == tenant]


def calls(node: Node, tenant: str = "default") -> dict[str, int]:
    return {flow.spec.name: flow.counts.calls for flow in flows(node, tenant)}


def more(node: Node, before: dict[str, int]) -> dict[str, int]:
    """Count the calls of each function since then."""
    now = calls(node)
    return {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name)}


def test_a_chain_is_one_call(node: Node) -> None:
    before = calls(node)
    for _ in range(3):
        found = node.invoke_sets(
            "Chain", {"x": ItemSet("x", (Item("photo", 7, X.tobytes()),))}
        ).sets
        assert (found.y.numpy(np.float32) == 2 * (2 * (2 * X + 1) + 1)).all()
        assert (found.y.items[0].name, found.y.items[0].key) == ("photo", 7)
    assert more(node, before) == {"Double+(3 more)+Double": 3}
    result = node.invoke_sets("Chain", {"x": ItemSet("x", (Item("x", 0, X.tobytes()),))})
    assert "Double+(3 more)+Double#3" in {span.name for span in result.trace.spans}


def test_each_item_goes_through_all_functions_in_one_call(node: Node) -> None:
    before = calls(node)
    items = [Item(f"i{n}", n % 3, (X + n).tobytes()) for n in range(5)]
    found = node.invoke("Each", x=items)
    assert [(i.name, i.key) for i in found.y.items] == [
        ("i0", 0), ("i3", 0), ("i1", 1), ("i4", 1), ("i2", 2),
    ]  # fmt: skip
    for item in found.y.items:
        assert (item.numpy(np.float32) == 2 * (X + int(item.name[1:])) + 1).all()
    assert more(node, before) == {"Double+Next": 5}


def test_branches_that_join_are_one_call_and_each_has_its_own_copy(node: Node) -> None:
    before = calls(node)
    found = node.invoke("Diamond", x=X)
    assert (found.left.numpy(np.float32) == 2 * X + 1).all()
    assert (found.y.numpy(np.float32) == 3 * X + 1).all()
    assert more(node, before) == {"Double+Next+Halve+Add": 1}


def test_loops_are_one_call(node: Node) -> None:
    before = calls(node)
    for _ in range(3):
        found = node.invoke("Rounds", x=X)
        assert (found.y.numpy(np.float32) == (2 * X + 20) / 8).all()
    assert more(node, before) == {"Double+Next+Halve": 3}


def test_what_another_kind_of_function_needs_leaves_the_device(node: Node) -> None:
    before = calls(node)
    found = node.invoke("Between", x=X)
    assert (found.y.numpy(np.float32) == 2 * (2 * X + 1) + 1).all()
    assert float(found.total.items[0].text()) == (2 * X + 1).sum()
    assert more(node, before) == {"Double+Next": 2, "Total": 1}


def test_a_failure_names_the_function_at_fault(node: Node) -> None:
    items = [Item("good", 0, X.tobytes()), Item("bad", 1, (-X).tobytes())]
    with pytest.raises(DandelionError) as caught:
        node.invoke("Failing", x=items)
    error = caught.value
    assert isinstance(error, ApplicationFailed)
    assert (error.composition, error.application) == ("Failing", "Trap")
    assert (error.instance, error.key) == (1, 1)
    assert isinstance(error.__cause__, Faulted)
    assert error.__cause__.function == "Trap"
    before = calls(node)
    assert len(node.invoke("Failing", x=items[:1]).y.items) == 1
    assert more(node, before) == {"Double+Trap+Next": 1}


def test_an_absent_set_skips_only_the_functions_that_need_it(node: Node) -> None:
    found = node.invoke("Lacking", x=X, c=None)
    assert (found.doubled.numpy(np.float32) == 2 * X).all()
    assert found.get("y") is None
    found = node.invoke("Lacking", x=X, c=np.float32([3, 1]))
    assert (found.y.numpy(np.float32) == 6 * X + 1).all()


def test_what_is_too_large_as_one_is_run_one_by_one(node: Node) -> None:
    node.register(TEXT, functions=FUNCTIONS, tenant="small")
    large = np.ones(1 << 18, np.float32)
    node.set_tenant("small", TenantSettings(call_device_bytes=7 << 19))
    found = node.invoke("Diamond", x=large, tenant="small")
    assert (found.y.numpy(np.float32) == 4).all()
    made = calls(node, "small")
    assert made.pop("Double+Next+Halve+Add") == 0
    assert made == {"Double": 1, "Next": 1, "Halve": 1, "Add": 1}


def test_a_removed_function_takes_what_was_made_of_it_along(node: Node) -> None:
    node.register(TEXT, functions=FUNCTIONS, tenant="leaves")
    node.invoke("Each", x=X, tenant="leaves")

    assert set(calls(node, "leaves")) == {"Double+Next"}
    for name in ("Chain", "Each", "Diamond", "Failing", "Lacking", "Between", "Rounds"):
        node.remove(CompositionRecord, name, tenant="leaves")
    node.remove(FunctionSpec, "Next", tenant="leaves")
    node.invoke("Double", x=X, tenant="leaves")
    assert set(calls(node, "leaves")) == {"Double"}


def test_compositions_that_come_and_go_leave_few_functions(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.scheduler.calls.FUSED_FLOWS", 2)
    node.register(functions=FUNCTIONS, tenant="many")
    for count in range(1, 5):
        text = "Next(x = all x) => (y = y) repeat {} feeding (x = y);"
        node.register(f"composition C(x) => (y) {{ {text.format(count + 1)} }}", tenant="many")
        assert node.invoke("C", x=X, tenant="many").y.numpy(np.float32)[0] == count + 1
        node.remove(CompositionRecord, "C", tenant="many")
    every = node._runtime.scheduler.calls.flows.values()
    assert sum(isinstance(flow.spec, FusedFunction) for flow in every) <= 2


def test_a_new_version_of_a_part_counts(node: Node) -> None:
    node.register(TEXT, functions=FUNCTIONS, tenant="changes")
    assert node.invoke("Each", x=X, tenant="changes").y.numpy(np.float32)[1] == 3
    node.register(functions=[function("Next", "axpy", "x c", (1.0, 5.0))], tenant="changes")
    assert node.invoke("Each", x=X, tenant="changes").y.numpy(np.float32)[1] == 7


def test_functions_with_calls_of_their_own_are_left_alone(node: Node) -> None:
    limited = function("Next", "axpy", "x c", (1.0, 1.0), limits=Limits(concurrency=2))
    node.register(TEXT, functions=[*FUNCTIONS[:1], limited, *FUNCTIONS[2:]], tenant="limited")
    node.invoke("Each", x=X, tenant="limited")
    assert calls(node, "limited") == {"Double": 1, "Next": 1}


def test_it_can_be_turned_off() -> None:
    with Node(msgspec.structs.replace(SETTINGS, fuse=False)) as node:
        node.register(TEXT, functions=FUNCTIONS)
        found = node.invoke("Chain", x=X)
        assert (found.y.numpy(np.float32) == 2 * (2 * (2 * X + 1) + 1)).all()
        assert calls(node) == {"Double": 3, "Next": 2}
