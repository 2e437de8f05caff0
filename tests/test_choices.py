"""Blueprints that choose by size: their text, their plans, and what a device makes of padding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.checker import GpuChecker
from dandelion.backends.gpu.device import Handle
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.plan import Launch, Plan, Pointer, plan
from dandelion.backends.gpu.plan_cache import PlanCache

import dandelion.blueprint as bp
from dandelion.blueprint.first_uses import is_written_first
from dandelion.blueprint.launch_counts import launches
from dandelion.blueprint.records import contains
from dandelion.blueprint.uses import written_buffers
from dandelion.data import SetSpec
from dandelion.documents import gpu_function
from dandelion.errors import InvalidBlueprint, InvalidInput
from dandelion.function import Batching, CodeObject, Function, FunctionSpec, digest_of
from dandelion.node import Node, Settings
from tests.test_gpu_engine import KERNELS, MODULES, POOL_BYTES, Runner, first, function, one

ROW = 12
KERNEL = """
#include "dandelion.h"
KERNEL void sums(GLOBAL const f32 *x, GLOBAL f32 *t, GLOBAL f32 *y, u32 rows)
{
    f32 all = 0;
    for (u32 i = 0; i < 3 * rows; i++) { all += x[i]; }
    for (u32 row = 0; row < rows; row++) {
        t[row] = all;
        y[row] = t[row] + rows;
    }
}
"""


def built(*sizes: int) -> bp.Blueprint:
    """Each result is the sum of all rows and of the padding, and the rows of the case."""
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    b.kernel("sums", access=["read", "write", "write", "value"])
    rows = bp.ceil_div(bp.sizeof(b.x), ROW)
    y = b.buffer("y", rows * 4)
    with b.choose(rows) as choice:
        for most in sizes or (1, 4, 6):
            t = b.buffer(f"t{most}", 4 * most, temporary=True)
            with choice.case(most, {b.x: ROW * most, y: 4 * most}):
                b.launch("sums", [b.x, t, y, bp.scalar("u32", most)])
    return b


def planned(config: bp.GpuConfig, rows: int) -> Plan:
    return plan(config, {"x": ROW * rows}, lambda name, index: 0)


@pytest.mark.parametrize(("rows", "case"), [(0, 1), (1, 1), (2, 4), (4, 4), (5, 6), (6, 6)])
def test_the_first_case_that_suffices_is_planned(rows: int, case: int) -> None:
    made = planned(built().build(), rows)
    (launch,) = made.steps
    assert isinstance(launch, Launch)
    x, t, y, number = launch.args
    assert number == case.to_bytes(4, "little")
    for pointer, size in ((x, ROW * case), (t, 4 * case), (y, 4 * case)):
        assert isinstance(pointer, Pointer)
        assert pointer.size_bytes == size
    assert made.outputs["y"].size_bytes == 4 * rows, "padding is not copied out"
    assert set(made.slots) == {"x", f"t{case}", "y"}, "other cases take no memory"


def test_a_size_without_a_case_is_the_callers_fault() -> None:
    with pytest.raises(InvalidInput) as caught:
        planned(built().build(), 7)
    assert caught.value.where == "blueprint.control_flow[0].sizes"
    assert "at most 6" in str(caught.value)


def test_sizes_must_be_equal() -> None:
    b = bp.Blueprint(["x", "z"], outputs=["x"], modules=["k.c"])
    with b.choose(bp.sizeof(b.x), bp.sizeof(b.z)) as choice, choice.case(8):
        b.zero(b.x)
    config = b.build()
    plan(config, {"x": 8, "z": 8}, lambda name, index: 0)
    with pytest.raises(InvalidInput, match="8, 4"):
        plan(config, {"x": 8, "z": 4}, lambda name, index: 0)


def test_padding_is_not_copied_between_buffers() -> None:
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    y = b.buffer("y", like="x")
    with b.choose(bp.sizeof(b.x)) as choice, choice.case(100, {b.x: 100}):
        b.copy(y, b.x)
    (copy,) = plan(b.build(), {"x": 60}, lambda name, index: 0).steps
    assert (copy.target.size_bytes, copy.source.size_bytes) == (60, 60)  # type: ignore[union-attr]


def test_padding_behind_a_copy_is_zero() -> None:
    """So the copy may not take memory that another buffer used before."""
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    b.kernel("k", access=["read", "write"])
    y, s, t = b.buffer("y", 4), b.buffer("s", 100, temporary=True), b.buffer("t", like="x")
    b.launch("k", [b.x, s])
    b.launch("k", [s, y])
    with b.choose(bp.sizeof(b.x)) as choice, choice.case(100, {t: 100}):
        b.copy(t, b.x)
        b.launch("k", [t, y])
    slots = plan(b.build(), {"x": 60}, lambda name, index: 0).slots
    assert len({slots[name].offset_bytes for name in ("x", "y", "s", "t")}) == 4


@pytest.mark.parametrize("writer", ["launch", "product", "copy", "zero"])
def test_padding_behind_a_result_is_zero(writer: str) -> None:
    """What was written before the choice did not know of it, so it may not lie on other data."""
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    b.kernel("k", access=["read", "write"])
    y, s, t = b.buffer("y", 4), b.buffer("s", 512, temporary=True), b.buffer("t", 256)
    b.launch("k", [b.x, s])
    b.launch("k", [s, y])
    if writer == "launch":
        b.launch("k", [b.x, t])
    elif writer == "product":
        b.gemm(b.x, b.x, t, m=8, n=8, k=8)
    elif writer == "copy":
        b.copy(t, b.x)
    else:
        b.zero(t)
    with b.choose(bp.sizeof(b.x)) as choice, choice.case(512, {t: 512}):
        b.launch("k", [t, y])
    slots = plan(b.build(), {"x": 256}, lambda name, index: 0).slots
    apart = abs(slots["s"].offset_bytes - slots["t"].offset_bytes) >= 512
    assert apart is (writer != "zero"), "all of its memory is zeroed"


def test_a_result_within_a_case_fills_its_padding() -> None:
    """Its kernels were made for so many rows, so it needs no zeros."""
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    b.kernel("k", access=["read", "write"])
    y, s, t = b.buffer("y", 4), b.buffer("s", 512, temporary=True), b.buffer("t", 256)
    b.launch("k", [b.x, s])
    b.launch("k", [s, y])
    with b.choose(bp.sizeof(b.x)) as choice, choice.case(512, {t: 512}):
        b.launch("k", [b.x, t])
        b.launch("k", [t, y])
    slots = plan(b.build(), {"x": 256}, lambda name, index: 0).slots
    assert slots["s"].offset_bytes == slots["t"].offset_bytes


def test_memory_of_a_buffer_is_never_less_than_its_data() -> None:
    b = bp.Blueprint(["x"], outputs=["x"], modules=["k.c"])
    with b.choose(bp.sizeof(b.x)) as choice, choice.case(100, {b.x: 50}):
        b.zero(b.x)
    plan(b.build(), {"x": 50}, lambda name, index: 0)
    with pytest.raises(InvalidInput, match="padded"):
        plan(b.build(), {"x": 51}, lambda name, index: 0)


def test_a_pointer_may_be_a_place_in_the_padding() -> None:
    b = bp.Blueprint(["x"], outputs=["x"], modules=["k.c"])
    with b.choose(bp.sizeof(b.x)) as choice, choice.case(100, {b.x: 100}):
        b.launch("k", [bp.part(b.x, 50)])
    b.launch("k", [bp.part(b.x, bp.sizeof(b.x))])
    for size in (0, 40, 60, 99):
        inside, end = plan(b.build(), {"x": size}, lambda name, index: 0).steps
        assert isinstance(inside, Launch)
        assert isinstance(end, Launch)
        assert inside.args == (Pointer(50, 50),)
        assert end.args == (Pointer(size, 100 - size),)
    with pytest.raises(InvalidInput, match="outside"):
        plan(b.build(), {"x": 100}, lambda name, index: 0)


def test_an_offset_in_an_empty_buffer_may_be_zero() -> None:
    b = bp.Blueprint(["x"], outputs=["x"], modules=["k.c"])
    b.launch("k", [bp.part(b.x, bp.sizeof(b.x) * 2)])
    (launch,) = plan(b.build(), {"x": 0}, lambda name, index: 0).steps
    assert isinstance(launch, Launch)
    assert launch.args == (Pointer(0, 0),)


def test_sizes_of_one_case_share_what_a_device_prepares() -> None:
    cache = PlanCache()
    config = built().build()
    made = [cache.get("f", config, (), {"x": ROW * n}, lambda name, index: 0) for n in (2, 3, 4, 5)]
    assert [one.twin for one in made] == [None, made[0], made[0], None]
    assert [one.outputs["y"].size_bytes for one in made] == [8, 12, 16, 20]
    other = cache.get("g", config, (), {"x": ROW * 2}, lambda name, index: 0)
    assert other.twin is None, "another function"


def test_calls_of_one_case_use_the_same_graph() -> None:
    captured = 0

    class CountingDevice(HostDevice):
        def _capture(self, *given: Any) -> Handle | None:
            nonlocal captured
            captured += 1
            return super()._capture(*given)

    b = bp.Blueprint(["x"], outputs=["y"], modules=MODULES)
    b.kernel("add", module="kernels", access=["read", "read", "both", "value"])
    y = b.buffer("y", like="x")
    with b.choose(b.x.elements("u32")) as choice:
        for most in (4, 100):
            with choice.case(most, {b.x: 4 * most, y: 4 * most}):
                b.launch("add", [b.x, b.x, y, bp.scalar("u64", most)], grid=2, block=64)
    wanted = function(b, ("y",))
    runner = Runner(CountingDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True))
    try:
        for count in (5, 100, 7, 50, 5, 99, 3, 4, 1, 2):
            x = np.arange(count, dtype=np.int32)
            assert (first(runner.run(wanted, one("x", x))).numpy(np.int32) == 2 * x).all()
    finally:
        runner.engine.close()
    assert captured == 2, "a graph for each case"


def test_text_and_records() -> None:
    config = built().build()
    text = bp.print_blueprint(config)
    assert bp.parse_blueprint(text) == config
    for spelling in (bp.Spelling.THESIS, bp.Spelling.ORIGINAL):
        with pytest.raises(InvalidInput):
            bp.print_blueprint(config, spelling)
    assert launches(config.blueprint.control_flow) == 1, "one of the cases runs"
    assert contains((bp.Repeat(bp.Absolute(2), config.blueprint.control_flow),), bp.Choose)
    assert written_buffers(config) == {"t1", "t4", "t6", "y", "x"}, "x is padded with zeros"
    assert is_written_first("y", config)
    assert is_written_first("t4", config), "other cases do not use it"


@pytest.mark.parametrize(
    ("change", "where", "code"),
    [
        ({"sizes": []}, "", "missing"),
        ({"cases": []}, "", "missing"),
        ({"cases": [{"up_to": -1, "actions": []}]}, ".cases[0].up_to", "negative"),
        ({"cases": [{"up_to": 4, "actions": []}] * 2}, ".cases[1].up_to", "out-of-range"),
        ({"sizes": [{"Sizeof": "z"}]}, ".sizes[0]", "unknown-buffer"),
        ({"cases": [{"up_to": 4}]}, ".cases[0]", "missing-field"),
        ({"colour": 1}, ".colour", "unknown-field"),
        (
            {"cases": [{"up_to": 4, "actions": [{"ZeroBuffer": "z"}]}]},
            ".cases[0].actions[0]",
            "unknown-buffer",
        ),
        (
            {"cases": [{"up_to": 4, "actions": [], "padded": {"z": 4}}]},
            ".cases[0].padded.z",
            "unknown-buffer",
        ),
        (
            {"cases": [{"up_to": 4, "actions": [], "padded": {"w": 4}}]},
            ".cases[0].padded.w",
            "weight",
        ),
        ({"cases": [{"up_to": 4, "actions": [], "padded": 3}]}, ".cases[0].padded", "type"),
    ],
)
def test_a_problem_names_its_place(change: dict[str, Any], where: str, code: str) -> None:
    choice = {"sizes": [4], "cases": [{"up_to": 4, "actions": []}], **change}
    body = {"inputs": ["x"], "weights": ["w"], "buffers": {}, "outputs": ["x"]}
    body["control_flow"] = [{"Choose": choice}]  # type: ignore[assignment]  # JSON
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps({"modules": {}, "kernels": {}, "blueprint": body}))
    found = {problem.where.partition("]")[2]: problem.code for problem in caught.value.problems}
    assert found.get(where) == code, found


def test_choices_are_bounded_like_repeats() -> None:
    actions: list[Any] = []
    for _ in range(40):
        actions = [{"Choose": {"sizes": [1], "cases": [{"up_to": 1, "actions": actions}]}}]
    body = {"inputs": [], "buffers": {}, "outputs": [], "control_flow": actions}
    with pytest.raises(InvalidBlueprint, match="nested"):
        bp.parse_blueprint(json.dumps({"modules": {}, "kernels": {}, "blueprint": body}))


def _registered(
    batching: Batching, b: bp.Blueprint | None = None, x: str = "x: float32[?, 3]"
) -> list[tuple[str, str]]:
    """Check a function as a node does at registration; gives codes and places of problems."""
    made = built() if b is None else b
    main = made.json().encode()
    files = {"k.c": KERNEL.encode()}
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    kind, _, shape = x.partition(" ")[2].partition("[")
    declared = (kind, (-1, *map(int, shape.rstrip("]").split(", ")[1:]))) if kind else (None, None)
    spec = FunctionSpec(
        "F", (SetSpec("x", *declared),), (SetSpec("y"),), {}, (code,), batching=batching
    )
    try:
        GpuChecker().check([Function(spec, code, main, files)])
    except InvalidBlueprint as error:
        return [(problem.code, problem.where) for problem in error.problems]
    return []


SIZES = "blueprint.control_flow[0].sizes[0]"
BY_ROWS = bp.ceil_div(bp.sizeof(bp.Blueprint(["x"]).x), ROW)


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (Batching(("x",), rows=6), []),
        (Batching(("x",), rows=1), []),
        (Batching(("x",), rows=7), [("batching", SIZES)]),
        (Batching(("x",)), [("batching", SIZES)]),
    ],
)
def test_a_batch_must_fit_the_last_case(batching: Batching, expected: list[object]) -> None:
    assert _registered(batching) == expected
    assert _registered(batching, built(1, 4, 6, 100)) == ([] if batching.rows else expected)


def test_choices_of_batches_are_found_wherever_they_are() -> None:
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    b.kernel("sums", access=["read", "write", "write", "value"])
    y = b.buffer("y", like="x")
    with b.repeat(2), b.choose(bp.sizeof(y), 8) as choice, choice.case(24):
        b.zero(y)
    inside = "blueprint.control_flow[0].actions[0].sizes[0]"
    assert _registered(Batching(("x",), rows=3), b) == [("batching", inside)]
    assert _registered(Batching(("x",), rows=2), b) == []
    assert _registered(Batching(("x",), rows=7), b, "x: float16[?, 2]") == [("batching", inside)]
    assert _registered(Batching(("x",), rows=6), b, "x: float16[?, 2]") == []


def test_sizes_that_refer_to_others_many_times_are_checked_at_once() -> None:
    """Each buffer has the size of the next one twice: 2**200 ways lead to the last one."""
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"])
    b.kernel("sums", access=["read", "write", "write", "value"])
    y = b.buffer("y", like="x")
    b.buffer("last", size=1, temporary=True)
    buffers = [b.buffer("b0", size=bp.sizeof(b.last), temporary=True)]
    for number in range(1, 200):
        twice = bp.sizeof(buffers[-1]) + bp.sizeof(buffers[-1])
        buffers.append(b.buffer(f"b{number}", size=twice, temporary=True))
    with b.choose(bp.sizeof(buffers[-1])) as choice, choice.case(24):
        b.zero(y)
    assert _registered(Batching(("x",), rows=7), b) == []


def test_a_choice_by_the_members_of_a_batch_must_fit_them() -> None:
    b = bp.Blueprint(["x"], outputs=["y"], modules=["k.c"], batch=BY_ROWS)
    b.kernel("sums", access=["read", "write", "write", "value"])
    y = b.buffer("y", like="x")
    with b.choose(bp.by_batch(2)) as choice, choice.case(12):
        b.zero(y)
    assert _registered(Batching(("x",), rows=7), b) == [("batching", SIZES)]
    assert _registered(Batching(("x",), rows=6), b) == []


def test_what_lies_behind_an_input_is_zero_in_every_call() -> None:
    document = gpu_function(
        "Sums", built(), inputs=["x: float32[?, 3]"], outputs=["y: float32[?]"],
        files={"k.c": KERNEL},
    )  # fmt: skip
    with Node(Settings(backends=("cuda|hip|opencl",), arena_bytes=32 << 20)) as node:
        node.register(functions=[document])
        for rows, case in ((4, 4), (3, 4), (2, 4), (3, 4), (1, 1), (6, 6), (5, 6), (2, 4), (6, 6)):
            x = np.arange(1, 3 * rows + 1, dtype=np.float32).reshape(rows, 3)
            found = node.invoke("Sums", x=x)["y"].numpy()
            assert found.tolist() == [x.sum() + case] * rows
        with pytest.raises(InvalidInput, match="at most 6"):
            node.invoke("Sums", x=np.zeros((7, 3), np.float32))
        assert node.invoke("Sums", x=np.zeros((0, 3), np.float32))["y"].numpy().shape == (0,)
        assert node.invoke("Sums", x=np.zeros((2, 3), np.float32))["y"].numpy().tolist() == [4, 4]
