"""The blueprint format: spellings, printing, the static check, the builder."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

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

SOURCE = b"""
#include "dandelion.h"
// KERNEL void commented(GLOBAL i64 *A) {}
KERNEL void matmul(GLOBAL const i64 *A, u64 bytes, GLOBAL i64 *B) { }
"""

LAUNCH = {
    "grid_dim_x": {"FromInput": {"bufname": "cfg", "idx": 0}},
    "grid_dim_y": {"FromInput": {"bufname": "cfg", "idx": 0}},
    "grid_dim_z": {"Absolute": 1},
    "block_dim_x": {"Absolute": 32},
    "block_dim_y": {"Absolute": 32},
    "block_dim_z": {"Absolute": 1},
    "shared_mem_bytes": {"Absolute": 0},
}
BODY = {
    "inputs": ["cfg", "A"],
    "buffers": {"B": {"Sizeof": "A"}},
    "outputs": ["B"],
    "control_flow": [
        {"ExecKernel": ["matmul", [{"Ptr": "A"}, {"Sizeof": "A"}, {"Ptr": "B"}], LAUNCH]}
    ],
}
THESIS: dict[str, Any] = {"module_path": "lib.cl", "kernels": ["matmul"], "blueprint": BODY}
ORIGINAL: dict[str, Any] = {
    "modules": [{"module_name": "lib.cl", "path": "lib.cl"}],
    "kernels": [{"module_name": "lib.cl", "kernel_name": "matmul"}],
    "blueprint": BODY,
}
CANONICAL: dict[str, Any] = {
    "modules": {"lib.cl": "lib.cl"},
    "kernels": {"matmul": "lib.cl"},
    "blueprint": {
        **BODY,
        "control_flow": [
            {
                "ExecKernel": [
                    "matmul",
                    [{"Ptr": "A"}, {"u64": {"Sizeof": "A"}}, {"Ptr": "B"}],
                    {
                        "grid_dim_x": {"FromInput": {"bufname": "cfg", "idx": 0}},
                        "grid_dim_y": {"FromInput": {"bufname": "cfg", "idx": 0}},
                        "block_dim_x": 32,
                        "block_dim_y": 32,
                    },
                ]
            }
        ],
    },
}


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


def problems(document: object, files: Any = None) -> dict[str, str]:
    """Positions and codes of all problems."""
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(document), files)
    return {p.where: p.code for p in caught.value.problems}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The thesis' listing with one place changed; a place is written as a/0/b."""
    document = copy.deepcopy(THESIS)
    *parents, last = path.split("/")
    place: Any = document
    for step in parents:
        place = place[int(step) if step.isdigit() else step]
    key: Any = int(last) if last.isdigit() else last
    if value is KeyError:
        del place[key]
    else:
        place[key] = value
    return document


EXEC = "blueprint/control_flow/0/ExecKernel"
AT = "blueprint.control_flow[0]"

# --- spellings ------------------------------------------------------------------------------


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


# --- the static check -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "where", "code"),
    [
        ("extra", 1, "extra", "unknown-field"),
        ("blueprint/outputs", KeyError, "blueprint", "missing-field"),
        ("blueprint/inputs/1", 7, "blueprint.inputs[1]", "type"),
        ("blueprint/inputs/0", "A", "blueprint.inputs", "duplicate"),
        ("blueprint/outputs/0", "BB", "blueprint.outputs[0]", "unknown-buffer"),
        ("blueprint/buffers/B", {"Sizeof": "AA"}, "blueprint.buffers.B", "unknown-buffer"),
        ("blueprint/buffers/B", {"Sizeof": "B"}, "blueprint.buffers.B", "circular-size"),
        ("blueprint/buffers/B", {"Absolute": -4}, "blueprint.buffers.B", "negative"),
        ("blueprint/buffers/B", {"Absolute": 0}, "blueprint.buffers.B", "out-of-range"),
        ("blueprint/buffers/B", {"Absolute": 2**60}, "blueprint.buffers.B", "out-of-range"),
        ("blueprint/buffers/A", {"Absolute": 4}, "blueprint.buffers.A", "duplicate"),
        ("kernels/0", "matmult", f"{AT}.kernel", "unknown-kernel"),
        (f"{EXEC}/0", "nomat", f"{AT}.kernel", "unknown-kernel"),
        (f"{EXEC}/1/0", {"Ptr": "Z"}, f"{AT}.args[0]", "unknown-buffer"),
        (f"{EXEC}/1/0", {"Pt": "A"}, f"{AT}.args[0]", "unknown-tag"),
        (f"{EXEC}/1/1", {"i8": 200}, f"{AT}.args[1]", "out-of-range"),
        (f"{EXEC}/1/1", {"f32": 1e300}, f"{AT}.args[1]", "out-of-range"),
        (f"{EXEC}/1/1", {"bytes": "no base64!"}, f"{AT}.args[1]", "type"),
        (f"{EXEC}/1", [], f"{AT}.args", "arity"),
        (f"{EXEC}/1/1", {"Ptr": "B"}, f"{AT}.args[1]", "argument-kind"),
        (f"{EXEC}/2/grid_dim_x", {"Absolute": 0}, f"{AT}.launch.grid_dim_x", "out-of-range"),
        (f"{EXEC}/2/grid_dim_w", {"Absolute": 1}, f"{AT}.launch.grid_dim_w", "unknown-field"),
        (f"{EXEC}/2/block_dim_z", {"Absolute": 65}, f"{AT}.launch.block_dim_z", "out-of-range"),
        (f"{EXEC}/2/block_dim_z", {"Absolute": 2}, f"{AT}.launch", "out-of-range"),
        (
            f"{EXEC}/2/shared_mem_bytes",
            {"Absolute": -1},
            f"{AT}.launch.shared_mem_bytes",
            "negative",
        ),
        (
            f"{EXEC}/2/grid_dim_x",
            {"FromInput": {"bufname": "B", "idx": 0}},
            f"{AT}.launch.grid_dim_x.bufname",
            "unknown-input",
        ),
        (
            f"{EXEC}/2/grid_dim_x",
            {"FromInput": {"bufname": "cfg", "idx": -1}},
            f"{AT}.launch.grid_dim_x.idx",
            "negative",
        ),
        (
            f"{EXEC}/2/grid_dim_x",
            {"CeilDiv": [{"Sizeof": "A"}, 0]},
            f"{AT}.launch.grid_dim_x",
            "division-by-zero",
        ),
        (
            f"{EXEC}/2/grid_dim_x",
            {"Mul": [{"Absolute": 2**20}, 2**20]},
            f"{AT}.launch.grid_dim_x",
            "out-of-range",
        ),
        ("blueprint/control_flow/0", {"Repeat": [3]}, AT, "type"),
        ("blueprint/control_flow/0", {"Repeat": [-1, []]}, f"{AT}.times", "negative"),
    ],
)
def test_a_problem_names_its_place(path: str, value: Any, where: str, code: str) -> None:
    assert problems(changed(path, value), {"lib.cl": SOURCE}).get(where) == code


def test_all_problems_come_at_once() -> None:
    document = changed(f"{EXEC}/1/0", {"Ptr": "AA"})
    document["blueprint"]["outputs"] = ["C"]
    document["blueprint"]["colour"] = "red"
    document["blueprint"]["control_flow"].append({"Repeet": [1, []]})
    found = problems(document, ["other.cl"])
    assert found == {
        "blueprint.colour": "unknown-field",
        "blueprint.control_flow[1]": "unknown-tag",
        "modules.lib.cl": "unknown-file",
        "blueprint.outputs[0]": "unknown-buffer",
        f"{AT}.args[0]": "unknown-buffer",
    }


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(changed(f"{EXEC}/0", "matmull")))
    assert caught.value.problems[0].nearest == "matmul"


def test_names_given_twice_in_json() -> None:
    text = json.dumps(CANONICAL).replace('{"B": {', '{"B": {"Absolute": 8}, "B": {')
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(text)
    assert [p.where for p in caught.value.problems] == ["blueprint.buffers.B"]


def test_repeats_are_bounded() -> None:
    launch = THESIS["blueprint"]["control_flow"][0]
    nested = {"Repeat": [1000, [{"Repeat": [1000, [launch, launch]]}]]}
    document = changed("blueprint/control_flow/0", nested)
    assert problems(document) == {"blueprint.control_flow": "too-many-launches"}
    fitting = {"Repeat": [1000, [{"Repeat": [1000, [launch]]}]]}
    bp.parse_blueprint(json.dumps(changed("blueprint/control_flow/0", fitting)))


def test_deep_nesting_is_refused() -> None:
    actions: list[Any] = []
    for _ in range(40):
        actions = [{"Repeat": [1, actions]}]
    document = changed("blueprint/control_flow", actions)
    assert "depth" in problems(document).values()
    size: Any = 1
    for _ in range(40):
        size = {"Add": [size]}
    assert "depth" in problems(changed("blueprint/buffers/B", size)).values()
    with pytest.raises(InvalidBlueprint):
        bp.parse_blueprint("[" * 100_000)


def test_long_chains_of_sizes_are_fine_and_circles_are_not() -> None:
    document = changed("blueprint/buffers/B", {"Sizeof": "A"})
    buffers = document["blueprint"]["buffers"]
    for i in range(50):
        buffers[f"c{i}"] = {"Add": [{"Sizeof": f"c{i - 1}" if i else "B"}, 1]}
    bp.parse_blueprint(json.dumps(document))
    buffers["B"] = {"Elements": {"bufname": "c49", "dtype": "f32"}}
    assert "circular-size" in problems(document).values()


@pytest.mark.parametrize(
    ("batch", "size"), [({"AbsoluteByBatch": 2}, 4), ({"Sizeof": "B"}, {"AbsoluteByBatch": 4})]
)
def test_a_batch_that_depends_on_itself_is_refused(batch: object, size: object) -> None:
    document = changed(
        "blueprint/buffers/B", size if isinstance(size, dict) else {"Absolute": size}
    )
    document["blueprint"]["batch"] = batch
    assert "circular-size" in problems(document).values()
    document["blueprint"]["batch"] = {"Sizeof": "A"}
    bp.parse_blueprint(json.dumps(document))


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "null", '{"modules": NaN}', b"\xff\xfe\x00"]
)
def test_what_is_no_blueprint_at_all(text: str | bytes) -> None:
    with pytest.raises(InvalidBlueprint):
        bp.parse_blueprint(text)


def mutations(count: int) -> list[str]:
    """The canonical listing, broken in random ways: values swapped, dropped, wrapped, cut."""
    source = random.Random(7)
    junk: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "A", "\x00", [], {}, [[]], {"Ptr": "A"}]
    junk += [{"Absolute": 3}, {"Repeat": [2, []]}, {"FromInput": {}}, {"Mul": [2**62, 2**62, -1]}]

    def places(value: Any) -> list[tuple[Any, Any]]:
        pairs = []
        if isinstance(value, dict):
            pairs = [(value, k) for k in value]
        elif isinstance(value, list):
            pairs = [(value, i) for i in range(len(value))]
        return pairs + [p for holder, key in pairs for p in places(holder[key])]

    made = []
    for number in range(count):
        document = copy.deepcopy(source.choice([THESIS, ORIGINAL, CANONICAL]))
        for _ in range(source.randint(1, 3)):
            holder, key = source.choice(places(document) or [(document, "x")])
            if source.random() < 0.25:
                holder.pop(key)
            else:
                holder[key] = copy.deepcopy(source.choice(junk))
        text = json.dumps(document)
        made.append(text[: source.randrange(len(text))] if number % 10 == 0 else text)
    return made


def test_a_thousand_broken_blueprints_only_give_invalid_blueprint() -> None:
    refused = 0
    for text in mutations(1000):
        try:
            config = bp.parse_blueprint(text, {"lib.cl": SOURCE})
        except InvalidBlueprint as error:
            refused += all(p.where and p.message for p in error.problems)
            continue
        names = (*config.blueprint.inputs, *config.blueprint.weights)
        try:
            plan(config, dict.fromkeys(names, 64), lambda name, index: 3)
        except (InvalidInput, InvalidBlueprint):
            continue
    assert refused > 800


# --- sources --------------------------------------------------------------------------------


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


# --- the builder ----------------------------------------------------------------------------


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


# --- the manual -----------------------------------------------------------------------------


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


# --- documents with very many mistakes ------------------------------------------------------


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


# --- caches of blueprints and sources -------------------------------------------------------


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
