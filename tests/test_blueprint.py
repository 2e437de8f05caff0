"""The blueprint format: spellings, printing, the static check, the builder."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.plan import plan

import dandelion.blueprint as bp
from dandelion.blueprint import check as check_module
from dandelion.blueprint import reading as reading_module
from dandelion.blueprint import signatures as signatures_module
from dandelion.blueprint.document import MOST_PROBLEMS
from dandelion.blueprint.reading import read_config
from dandelion.blueprint.signatures import is_portable, signatures
from dandelion.errors import InvalidBlueprint, InvalidInput
from tests.blueprint_spellings import (
    CANONICAL,
    EXEC,
    ORIGINAL,
    SOURCE,
    THESIS,
    changed,
)


def test_one_name_may_be_given_without_a_list() -> None:
    alone = bp.Blueprint("image", weights="filters", outputs="scores", modules="conv.c")
    listed = bp.Blueprint(["image"], weights=["filters"], outputs=["scores"], modules=["conv.c"])
    for blueprint in (alone, listed):
        blueprint.buffer("scores", like="image")
    assert alone.json() == listed.json()


def built() -> bp.GpuConfig:
    blueprint = bp.Blueprint(inputs=["cfg", "A"], modules=["lib.cl"])
    result = blueprint.buffer("B", like="A")
    blueprint.launch(
        "matmul",
        [blueprint.A, bp.sizeof(blueprint.A), result],
        grid=(blueprint.cfg[0], blueprint.cfg[0]),
        block=(32, 32),
    )
    return blueprint.build()


@pytest.mark.parametrize("document", [THESIS, ORIGINAL, CANONICAL])
def test_all_spellings_mean_the_same(document: dict[str, Any]) -> None:
    assert bp.parse_blueprint(json.dumps(document), {"lib.cl": SOURCE}) == built()


@pytest.mark.parametrize("spelling", bp.Spelling)
def test_it_is_printed_in_every_spelling(spelling: bp.Spelling) -> None:
    text = bp.print_blueprint(built(), spelling)
    assert bp.parse_blueprint(text) == built()
    head = json.loads(text)
    assert ("module_path" in head) == (spelling is bp.Spelling.THESIS)
    if spelling is not bp.Spelling.CANONICAL:
        wanted = THESIS if spelling is bp.Spelling.THESIS else ORIGINAL
        assert head == wanted


def test_weights_and_batch() -> None:
    document = copy.deepcopy(ORIGINAL)
    document["blueprint"] |= {
        "inputs": ["cfg"],
        "weights": ["A"],
        "buffers": {"B": {"AbsoluteByBatch": 24}, "C": {"AbsoluteByBatchEven": 24}},
    }
    config = bp.parse_blueprint(json.dumps(document))
    assert config.blueprint.weights == ("A",)
    assert config.blueprint.buffers == {"B": bp.ByBatch(24), "C": bp.ByBatch(24, even=True)}
    text = bp.print_blueprint(config, bp.Spelling.ORIGINAL)
    assert json.loads(text)["blueprint"]["buffers"] == document["blueprint"]["buffers"]


def test_alternatives_for_several_backends() -> None:
    document = copy.deepcopy(CANONICAL)
    codes = ["lib.cl", {"path": "lib.cubin", "backend": "cuda", "arch": "sm_90"}]
    document["modules"] = {"lib.cl": codes}
    config = bp.parse_blueprint(json.dumps(document))
    assert config.modules[0].code[1] == bp.Code("lib.cubin", "cuda", "sm_90")
    assert config.paths == ("lib.cl", "lib.cubin")
    assert bp.parse_blueprint(bp.print_blueprint(config)) == config


@pytest.mark.parametrize("shared_bytes", [0, 65536])
def test_local_memory_of_an_alternative(shared_bytes: int) -> None:
    code = bp.Code("lib.cubin", "cuda", "sm_90", shared_bytes)
    blueprint = bp.Blueprint(inputs=["A"], modules={"lib": [code, "lib.cl"]})
    blueprint.launch("matmul", [blueprint["A"]])
    document = json.loads(blueprint.json())
    assert document["modules"]["lib"][0]["shared_mem_bytes"] == shared_bytes
    assert bp.parse_blueprint(blueprint.json()) == blueprint.build()


@pytest.mark.parametrize("shared_bytes", [-1, 2**20 + 1, "48K", 1.5, None, True])
def test_local_memory_of_an_alternative_is_a_number_in_range(shared_bytes: object) -> None:
    document = copy.deepcopy(CANONICAL)
    document["modules"] = {"lib.cl": {"path": "lib.cl", "shared_mem_bytes": shared_bytes}}
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(document))
    (problem,) = caught.value.problems
    assert problem.where == "modules.lib.cl.shared_mem_bytes"


def test_old_spellings_refuse_local_memory_of_an_alternative() -> None:
    blueprint = bp.Blueprint(
        inputs=["A"], modules={"lib.cl": bp.Code("lib.cl", shared_mem_bytes=1024)}
    )
    blueprint.launch("matmul", [blueprint["A"]])
    for spelling in (bp.Spelling.THESIS, bp.Spelling.ORIGINAL):
        with pytest.raises(InvalidInput):
            blueprint.json(spelling)


@pytest.mark.parametrize(
    "argument",
    [bp.scalar("f32", 1.5), bp.scalar("i32", 3), bp.Raw(b"xy"), bp.scalar("u64", bp.by_batch(2))],
)
def test_old_spellings_refuse_what_they_have_no_word_for(argument: bp.Scalar | bp.Raw) -> None:
    blueprint = bp.Blueprint(inputs=["A"], modules=["lib.cl"])
    blueprint.launch("matmul", [argument])
    assert bp.parse_blueprint(blueprint.json()) == blueprint.build()
    for spelling in (bp.Spelling.THESIS, bp.Spelling.ORIGINAL):
        with pytest.raises(InvalidInput):
            blueprint.json(spelling)


def test_a_listing_with_two_modules_is_not_the_thesis() -> None:
    blueprint = bp.Blueprint(inputs=["A"], modules=["a.cl", "b.cl"])
    blueprint.kernel("k", module="b.cl")
    with pytest.raises(InvalidInput):
        blueprint.json(bp.Spelling.THESIS)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "word",
    [
        "kernel ",
        "kernel void a(",
        "kernel void __launch_bounds__(",
        "kernel ((( ",
        "/* ",
        "void ",
        '"a',
    ],
)
def test_a_source_is_read_in_time_that_grows_with_its_length_alone(word: str) -> None:
    text = word * (300_000 // len(word))
    assert not signatures(text)
    assert "b" in signatures("KERNEL void b(void) {}\n" + text)


def test_signatures_of_a_source() -> None:
    text = """
    #include <dandelion.h>
    /* KERNEL void hidden(GLOBAL i32 *a) { } */
    KERNEL void first(GLOBAL const f32 *RESTRICT a, GLOBAL f32 *b, u64 n DYNAMIC_LOCAL) { }
    __kernel void second(__global float *x, const int n) { }
    extern "C" __global__ void __launch_bounds__(256) third(float *__restrict__ x, float const *y) {
    }
    KERNEL void none(void) { }
    DEVICE f32 helper(f32 x) { return x; }
    """
    read, both, value = bp.Access.READ, bp.Access.BOTH, bp.Access.VALUE
    found = signatures(text)
    assert {name: s.access for name, s in found.items()} == {
        "first": (read, both, value),
        "second": (both, value),
        "third": (both, read),
        "none": (),
    }
    assert found["first"].dynamic_local
    assert is_portable(text)
    assert not is_portable('// #include "dandelion.h"')


def test_the_builder_makes_loops_arithmetic_and_scalars() -> None:
    b = bp.Blueprint(inputs=["x"], weights=["w"], modules={"m": ["m.c", "m.cubin"]}, batch=2)
    t = b.buffer("t", size=b.x.elements("f32") * 8 + 16, temporary=True)
    y = b.buffer("y", like=b.x)
    b.kernel("k", access=["read", "both", "write", "value", "value"])
    with b.repeat(b.x[1]):
        b.launch(
            "k",
            [b.w, t, y, bp.scalar("f32", 2), b.x.elements("f32")],
            grid=bp.ceil_div(b.x.elements("f32"), 128),
            block=128,
            shared_mem_bytes=64,
        )
    body = b.build().blueprint
    x = bp.Elements("x", bp.ScalarType.F32)
    assert body.outputs == ("y",)
    assert body.buffers["t"] == bp.Add((bp.Mul((x, bp.Absolute(8))), bp.Absolute(16)))
    (loop,) = body.control_flow
    assert isinstance(loop, bp.Repeat)
    assert loop.times == bp.FromInput("x", 1)
    (launch,) = loop.actions
    assert isinstance(launch, bp.ExecKernel)
    assert launch.args[3:] == (bp.Scalar(bp.ScalarType.F32, 2.0), bp.Scalar(bp.ScalarType.I64, x))
    assert launch.launch.grid_dim_x == bp.CeilDiv(x, bp.Absolute(128))
    assert bp.parse_blueprint(b.json()) == b.build()


def test_products_of_many_factors_are_refused_at_once() -> None:
    """Computed in full they take minutes, and have more digits than Python writes."""
    factors = (bp.Absolute(2**40),) * 20_000

    def config(*first: bp.Size) -> bp.GpuConfig:
        flow = (bp.Repeat(bp.Mul((*first, *factors)), (bp.ZeroBuffer("x"),)),)
        return bp.GpuConfig((), (), bp.ExecutionBlueprint(("x",), (), {}, ("x",), flow))

    assert "out-of-range" in {p.code for p in check_module.check_blueprint(config())}
    read = config(bp.FromInput("x", 0))
    for sign in (1, -1):
        with pytest.raises(InvalidInput, match="comes to"):
            plan(read, {"x": 8}, lambda name, index, sign=sign: sign)
    assert plan(read, {"x": 8}, lambda name, index: 0).launches == 0


@pytest.mark.parametrize("index", ["w0", -1, 1.5, slice(2)])
def test_the_builder_refuses_parts_of_buffers_that_are_not_integers(index: Any) -> None:
    b = bp.Blueprint(inputs=["x"])
    with pytest.raises(InvalidInput, match="'x' has no part"):
        b.x[index]


def test_the_builder_refuses_unknown_buffers() -> None:
    b = bp.Blueprint(inputs=["image"], modules=["m.c"])
    with pytest.raises(AttributeError, match="image"):
        _ = b.imagge
    with pytest.raises(InvalidInput):
        b["imagge"]
    with pytest.raises(InvalidInput):
        b.buffer("t")
    b.launch("k", [bp.Ptr("nothing")])
    with pytest.raises(InvalidBlueprint):
        b.build()


def manual() -> str:
    return (Path(__file__).parent.parent / "docs" / "blueprint.md").read_text()


def around(action: dict[str, Any], listing: str) -> dict[str, Any]:
    """Make a document of an action of the manual, with the names in it."""
    (fields,) = action.values()
    out = fields["out"] if isinstance(fields, dict) and "out" in fields else "y"
    words = re.findall(r'"(next|going)"', listing)
    used = [n for n in re.findall(r'"(x|weights|row|skip|b)"', listing) if n != out]
    buffers: dict[str, Any] = {out: 2**22} | {n: {"Sizeof": "x"} for n in words}
    body = {"inputs": list(dict.fromkeys(used)), "buffers": buffers, "outputs": [out]}
    kernels = {name: {"module": "m"} for name in re.findall(r'"ExecKernel": \["(\w+)"', listing)}
    modules = {"m": "m.c"} if kernels else {}
    body["control_flow"] = [action]
    return {"modules": modules, "kernels": kernels, "blueprint": body}


def test_the_listings_of_the_manual_are_right() -> None:
    first, *listings = re.findall(r"```json\n(.*?)```", manual(), re.DOTALL)
    found = []
    for listing in listings:
        document = json.loads(listing)
        if "outputs" in document:  # a blueprint
            document = {"modules": {}, "kernels": {}, "blueprint": document}
        elif "modules" not in document:  # one action
            document = around(document, listing)
        made = bp.parse_blueprint(json.dumps(document)).blueprint
        found += [type(one) for one in made.control_flow] or [made.present_if]
    shown = [bp.Choose, bp.RepeatWhile, {"change": "going"}, bp.Gemm, bp.Conv2d, bp.Candidates]
    assert found[-6:] == shown
    python, *blocks = re.findall(r"```python\n(.*?)```", manual(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(python, names)
    assert bp.parse_blueprint(names["text"]) == bp.parse_blueprint(first)
    flows = []
    for block in blocks:
        exec(block, names)
        flows.append([type(one) for one in names["b"].build().blueprint.control_flow])
    assert flows == [[bp.Choose], [bp.RepeatWhile], [bp.Gemm, bp.Conv2d], [bp.Candidates]]


def test_every_size_and_argument_of_the_manual_can_be_read() -> None:
    rows = re.findall(r"^\| `(\{.*\})`", manual(), re.MULTILINE)
    assert len(rows) > 8
    for row in rows:
        for written in row.split("`, `"):
            text = written.replace("size, ...", "1, 2").replace("size", "3")
            examples = ("Repeat", "Choose", "ExecKernel", "Gemm", "Conv2d", "Candidates")
            if any(word in text for word in examples):
                continue  # these are in all examples
            if "Buffer" in text:
                bp.parse_blueprint(
                    json.dumps(changed("blueprint/control_flow/0", json.loads(text)))
                )
                continue
            document = changed(f"{EXEC}/1/1", json.loads(text))
            if next(iter(document["blueprint"]["control_flow"][0]["ExecKernel"][1][1])) in SIZES:
                document = changed("blueprint/buffers/B", json.loads(text))
            bp.parse_blueprint(json.dumps(document))


SIZES = {"Absolute", "FromInput", "Elements", "CeilDiv", "Add", "Mul"}


SIZES |= {"AbsoluteByBatch", "AbsoluteByBatchEven"}


def _of_many(count: int, **body: Any) -> str:
    buffers = {f"buffer_of_number_{number}": 4 for number in range(count)}
    empty: dict[str, Any] = {"inputs": [], "outputs": [], "buffers": buffers, "control_flow": []}
    return json.dumps({"modules": {}, "kernels": {}, "blueprint": {**empty, **body}})


@pytest.mark.parametrize("kind", ["ZeroBuffer", "ZeroBufer"])
def test_names_are_compared_a_bounded_number_of_times(kind: str) -> None:
    """Otherwise a document of this size takes hours, in which the node does nothing else."""
    count = 30_000
    flow = [{kind: f"bufer_of_number_{number}"} for number in range(count)]
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(_of_many(count, control_flow=flow))
    assert len(caught.value.problems) == MOST_PROBLEMS


def test_a_name_given_twice_among_many() -> None:
    text = _of_many(200_000).replace('"buffer_of_number_0"', '"buffer_of_number_1"', 1)
    with pytest.raises(InvalidBlueprint, match="buffer_of_number_1: given twice"):
        bp.parse_blueprint(text)


def test_a_blueprint_that_was_read_on_a_deep_stack_is_none_the_worse() -> None:
    nested = b'{"a":' * 150 + b"1" + b"}" * 150

    def found(text: bytes, levels: int = 0) -> list[str]:
        return found(text, levels - 1) if levels else [p.message for p in read_config(text)[1]]

    expected = found(nested)
    failed = 0
    for levels in range(0, sys.getrecursionlimit(), 10):
        text = b" " * levels + nested  # it was not read before
        with contextlib.suppress(RecursionError):
            failed += "recursion" in "".join(found(text, levels))
        assert found(text) == expected
    assert failed


def test_large_blueprints_are_not_cached() -> None:
    reading_module._read.cache_clear()
    small, large = b"[]", b" " * (1 << 20) + b"[]"
    assert read_config(large) == read_config(small)
    assert reading_module._read.cache_info().currsize == 1


def test_a_source_is_looked_into_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many kernels and modules it is for."""
    seen: list[str] = []

    def counting(text: str) -> dict[str, signatures_module.Signature]:
        seen.append(text)
        return signatures(text)

    monkeypatch.setattr(check_module, "signatures", counting)
    source = SOURCE + b"KERNEL void two(u64 n) {}\nKERNEL void three(u64 n) {}\n"
    document = copy.deepcopy(CANONICAL)
    document["modules"]["again"] = "lib.cl"
    document["kernels"] |= {"two": "lib.cl", "three": "again"}
    bp.parse_blueprint(json.dumps(document), {"lib.cl": source})
    assert seen == [source.decode()]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda b: b.launch("k", [b.a, 1.5]), "kernel k: 1.5 (float) is no argument"),
        (lambda b: b.launch("k", [b.copy]), "write b['name'] for the buffer"),
        (lambda b: b.launch("k", [b.a], grid=b.a), "size: the buffer 'a' is no size"),
        (lambda b: b.launch("k", [b.a], grid=(2, "x")), "size: 'x' is no size"),
        (lambda b: b.buffer("grid", b.a), "'size' is a buffer; write like=b.a"),
        (lambda b: bp.scalar("i32", 2**31), "2147483648 is no i32"),
        (lambda b: bp.scalar("i32", 1.5), "1.5 is no i32"),
        (lambda b: bp.scalar("f32", b.a[0]), "a size cannot be passed as f32"),
        (lambda b: bp.scalar("i32", b.a), "the buffer 'a' is no number"),
    ],
)
def test_mistakes_in_the_builder_say_what_to_write(mistake: Any, words: str) -> None:
    b = bp.Blueprint(inputs=["a", "copy"], modules={"m": "m.c"})
    with pytest.raises(InvalidInput) as caught:
        mistake(b)
    assert words in str(caught.value)


def test_the_builder_takes_numbers_of_numpy_and_differences() -> None:
    b = bp.Blueprint(inputs=["a"], modules={"m": "m.c"})
    b.launch("k", [np.int32(3), b.a[0] - 1, 7 - b.a[0]], grid=np.int64(2))
    (launch,) = b.build().blueprint.control_flow
    assert isinstance(launch, bp.ExecKernel)
    read, minus = bp.FromInput("a", 0), bp.Absolute(-1)
    assert launch.args == (
        bp.Scalar(bp.ScalarType.I64, 3),
        bp.Scalar(bp.ScalarType.I64, bp.Add((read, bp.Mul((minus, bp.Absolute(1)))))),
        bp.Scalar(bp.ScalarType.I64, bp.Add((bp.Absolute(7), bp.Mul((minus, read))))),
    )
    assert launch.launch.grid_dim_x == bp.Absolute(2)
