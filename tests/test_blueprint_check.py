"""The static check of blueprints."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from dandelion.backends.gpu.plan import plan

import dandelion.blueprint as bp
from dandelion.blueprint.check import check_blueprint
from dandelion.errors import InvalidBlueprint, InvalidInput
from tests.blueprint_spellings import (
    CANONICAL,
    EXEC,
    ORIGINAL,
    SOURCE,
    THESIS,
    changed,
)


def problems(document: object, files: Any = None) -> dict[str, str]:
    """Positions and codes of all problems."""
    with pytest.raises(InvalidBlueprint) as caught:
        bp.parse_blueprint(json.dumps(document), files)
    return {p.where: p.code for p in caught.value.problems}


AT = "blueprint.control_flow[0]"


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


@pytest.mark.parametrize(
    ("parameter", "argument", "fits"),
    [
        ("i32 n", bp.scalar("i32", 7), True),
        ("i32 n", bp.scalar("u32", 7), True),
        ("const u64 count", 7, True),
        ("i64 n", bp.scalar("i32", 7), False),
        ("i32 n", 7, False),
        ("i32 n", "cfg", False),
        ("i64 n", "cfg", True),
        ("i16 n", bp.scalar("i32", 7), False),
        ("f32 n", bp.scalar("i32", 7), False),
        ("i32 n", bp.scalar("f32", 7), False),
        ("float n", bp.scalar("f32", 7), True),
        ("f64 n", bp.scalar("f32", 7), False),
        ("unsigned  int n", bp.scalar("u32", 7), True),
        ("unsigned long long n", bp.scalar("u32", 7), False),
        ("signed char n", bp.scalar("i8", 7), True),
        ("int n", bp.Raw(bytes(4)), True),
        ("int n", bp.Raw(bytes(8)), False),
        ("item_t n", bp.scalar("i32", 7), True),  # not known
        ("struct pair n", bp.Raw(bytes(16)), True),
        ("T n", 7, True),
    ],
)
def test_numbers_have_the_types_of_the_source(parameter: str, argument: Any, fits: bool) -> None:
    source = f"KERNEL void k(GLOBAL i32 *y, {parameter}) {{}}".encode()
    b = bp.Blueprint(inputs=["cfg"], modules={"m": "m.c"})
    given = b.cfg[0] if argument == "cfg" else argument
    b.launch("k", [b.buffer("y", 4), given])
    found = check_blueprint(b.build(), {"m.c": source})
    assert [p.code for p in found] == ([] if fits else ["argument"])
    for problem in found:
        assert problem.where == "blueprint.control_flow[0].args[1]"
        kind = problem.message.split()[-1]
        assert f'scalar("{kind}", ...)' in problem.expected
