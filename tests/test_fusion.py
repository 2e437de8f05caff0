"""Which GPU functions of a composition are run as one, rule by rule."""

from __future__ import annotations

import pytest

import dandelion.blueprint as bp
from dandelion.blueprint.first_uses import is_written_first
from dandelion.data import SetSpec
from dandelion.dataflow.language import parse
from dandelion.function import (
    Batching,
    CodeObject,
    Digest,
    FunctionSpec,
    Limits,
    StaticItem,
)
from dandelion.fusion import Fused, Loaded, fused
from dandelion.fusion.functions import joined_name


def gpu(
    name: str,
    inputs: str = "x",
    outputs: str = "y",
    reads: str = "",
    static: str = "",
    typed: str = "",
    chooses: bool = False,
    absent: str = "",
    loops: str = "",
    **fields: object,
) -> tuple[FunctionSpec, Loaded | None]:
    """Describe a function; sets in `typed` are float32, and a size is read from `reads`.

    Outputs in `absent`, as ``output:buffer``, are absent if a word is zero. `loops` are around its
    launch, the innermost first: a number, or ``word:number``.
    """
    types = dict.fromkeys(typed.split(), ("float32", (-1,)))
    size: bp.Size = bp.FromInput(reads, 0) if reads else bp.Absolute(8)
    made = outputs.split()
    args = tuple(bp.Ptr(n) for n in (*inputs.split(), *made))
    flow: tuple[bp.Action, ...] = (bp.ExecKernel("k", args, bp.LaunchConfig()),)
    if chooses:
        flow = (bp.Choose((bp.Absolute(1),), (bp.Case(1, flow),)),)
    for loop in loops.split():
        word, _, times = loop.rpartition(":")
        most = bp.Absolute(int(times))
        flow = (bp.RepeatWhile(most, word, flow) if word else bp.Repeat(most, flow),)
    body = bp.ExecutionBlueprint(
        tuple(inputs.split()), (), dict.fromkeys(made, size), tuple(made), flow,
        present_if=dict(pair.split(":") for pair in absent.split()),  # type: ignore[misc]  # pairs
    )  # fmt: skip
    module = bp.Module("m", (bp.Code("k.c"),))
    config = bp.GpuConfig((module,), (bp.Kernel("k", "m"),), body)
    code = CodeObject("blueprint", Digest(name), {"k.c": Digest("file")})
    spec = FunctionSpec(
        name,
        tuple(SetSpec(n, *types.get(n, (None, None))) for n in inputs.split()),
        tuple(SetSpec(n, *types.get(n, (None, None))) for n in made),
        {n: (StaticItem("c", Digest("c")),) for n in static.split()},
        (code,),
        version=1,
        **fields,  # type: ignore[arg-type]  # fields of the record
    )
    return spec, Loaded(code, config)


def cpu(name: str) -> tuple[FunctionSpec, None]:
    return FunctionSpec(name, (SetSpec("x"),), (SetSpec("y"),), {}, (CodeObject("python"),)), None


PLAIN = [gpu("A"), gpu("B"), gpu("C"), gpu("J", "x z"), cpu("P")]


def joined(text: str, *functions: tuple[FunctionSpec, Loaded | None]) -> Fused | None:
    given = {spec.name: (spec, loaded) for spec, loaded in (*PLAIN, *functions)}
    declared = "".join(
        f"function {s.name}({', '.join(s.input_names)}) => ({', '.join(s.output_names)});\n"
        for s, _ in given.values()
    )
    (composition,) = parse(declared + text).compositions
    return fused(composition, lambda n: given[n][0], lambda spec: given[spec.name][1])


def groups(text: str, *functions: tuple[FunctionSpec, Loaded | None]) -> list[str]:
    """Run the rules; return the names of the functions that are left."""
    made = joined(text, *functions)
    return [] if made is None else sorted(made.ids)


WAITS_FOR_B = """
    A(x = all in) => (a = y); P(x = all a) => (p = y);
    B(x = all a) => (b = y); J(x = all p, z = all b) => (out = y);
"""  # as one, A and B would delay P
WAITS_FOR_P = """
    A(x = all in) => (a = y); P(x = all in) => (p = y);
    J(x = all a, z = all p) => (out = y);
"""  # as one, A and J would have to wait for P
AFTER_P = """
    P(x = all in) => (p = y);
    A(x = all p) => (a = y); J(x = all a, z = all p) => (out = y);
"""
WAITS_FOR_ERRORS = """
    P(x = all in) => (p = y) catch e; A(x = all in) => (a = y);
    J(x = all a, z = all e) => (out = y);
"""  # as one, A and J would have to wait for P
AFTER_ERRORS = """
    A(x = each in) => (a = y) catch e; B(x = all a) => (b = y);
    J(x = all b, z = all e) => (out = y);
"""
DIAMOND = """
    A(x = all in) => (a = y); B(x = all a) => (b = y); C(x = all a) => (c = y);
    J(x = all b, z = all c) => (out = y);
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("A(x = all in) => (a = y); B(x = all a) => (out = y);", ["A+B"]),
        ("B(x = all a) => (out = y); A(x = all in) => (a = y);", ["A+B"]),
        ("A(x = all in) => (a = y); B(x = each a) => (out = y);", []),
        ("A(x = each in) => (a = y); B(x = each a) => (out = y);", ["A+B"]),
        ("A(x = each in) => (a = y); B(x = all a) => (out = y);", []),
        ("A(x = keyed in) => (a = y); B(x = keyed a) => (out = y);", []),
        ("A(x = all in) => (a = y); B(x = optional all a) => (out = y);", []),
        ("A(x = all in) => (a = y); P(x = all a) => (p = y); B(x = all p) => (out = y);", []),
        (WAITS_FOR_B, []),
        (WAITS_FOR_P, []),
        (AFTER_P, ["A+J", "P"]),
        (DIAMOND, ["A+B+C+J"]),
        ("A(x = each in) => (a = y); J(x = each a, z = all in) => (out = y);", []),
        ("A(x = all in) => (a = y) attempts 2; B(x = all a) => (out = y);", []),
        ("A(x = all in) => (a = y); B(x = all a) => (out = y) catch e;", []),
        (WAITS_FOR_ERRORS, []),
        (AFTER_ERRORS, ["A", "B+J"]),
    ],
)
def test_groups(body: str, expected: list[str]) -> None:
    assert groups(f"composition T(in) => (out) {{ {body} }}") == expected


def test_the_order_of_items_must_be_the_same() -> None:
    body = "A(x = each in) => (a = y); J({} = each a, {} = all w) => (out = y);"
    text = "composition T(in, w) => (out) {{ " + body + " }}"
    assert groups(text.format("x", "z")) == ["A+J"]
    assert groups(text.format("z", "x")) == [], "all items would have the key of w"


def test_outputs_have_names_of_the_same_item() -> None:
    text = """composition T(in, w) => (out, b) {{
        A(x = all in) => (a = y); J({} = all a, {} = all w) => (out = y); B(x = all a) => (b = y);
    }}"""
    assert groups(text.format("x", "z")) == ["A+J+B"]
    assert groups(text.format("z", "x")) == ["A+B", "J"]


GOING = [
    gpu("L", "x", "y u", absent="u:u"),
    gpu("M", "x", "y u", absent="u:u y:u"),
    gpu("N", "x", "y u", absent="u:u y:y"),
    gpu("O", "x", "y u", absent="u:x"),
]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("L(x = all in) => (out = y) repeat 9 until u feeding (x = y);", ["L"]),
        ("L(x = all in) => (out = y) repeat 9 until u feeding (x = u);", ["L"]),
        ("L(x = all in) => (out = y) repeat 9 feeding (x = u);", []),
        ("L(x = all in) => (out = y) repeat 9 until y feeding (x = y);", ["L"]),
        ("L(x = all in) => (out = u) repeat 9 until u feeding (x = y);", ["L"]),
        ("M(x = all in) => (out = y) repeat 9 until u feeding (x = y);", ["M"]),
        ("N(x = all in) => (out = y) repeat 9 until u feeding (x = y);", []),
        ("O(x = all in) => (out = y) repeat 9 until u feeding (x = y);", []),
        ("L(x = all in) => (out = y) repeat 100000 until u feeding (x = y);", ["L"]),
        ("L(x = all in) => (out = y) repeat 1000000 until u feeding (x = y);", []),
        ("L(x = all in) => (a = u); A(x = all a) => (out = y);", []),
        ("A(x = all in) => (a = y); L(x = all a) => (out = u);", ["A+L"]),
        (
            "L(x = all in) => (a = y) repeat 9 until u feeding (x = y); A(x = all a) => (out = y);",
            ["L+A"],
        ),
    ],
)
def test_loops_with_a_condition(body: str, expected: list[str]) -> None:
    assert groups(f"composition T(in) => (out) {{ {body} }}", *GOING) == expected


@pytest.mark.parametrize(
    ("loops", "expected"),
    [
        ("4000", ["A+N"]),
        ("5000", []),
        ("y:60000", ["A+N"]),
        ("y:900000", ["A+N"]),
        ("y:1000000", []),
        ("y:500 100", ["A+N"]),
        ("500 y:100", ["A+N"]),
        ("5000 y:2", []),  # one iteration is too long
        ("y:2 5000", []),
        ("y:9000 100", ["A+N"]),
        ("y:11000 100", []),
    ],
)
def test_conditions_count_wherever_they_are(loops: str, expected: list[str]) -> None:
    body = "A(x = all in) => (a = y); N(x = all a) => (out = y);"
    text = f"composition T(in) => (out) {{ {body} }}"
    assert groups(text, gpu("N", loops=loops)) == expected


@pytest.mark.parametrize(("until", "ends"), [("until u", True), ("until y", False), ("", False)])
def test_a_condition_becomes_a_word(until: str, ends: bool) -> None:
    body = f"L(x = all in) => (out = y, more = u) repeat 9 {until} feeding (x = y);"
    made = joined(f"composition T(in) => (out, more) {{ {body} }}", *GOING)
    assert made is not None
    (function,) = made.functions.values()
    body_of = bp.parse_blueprint(function.blueprint).blueprint
    loops = [a for a in body_of.control_flow if isinstance(a, bp.Repeat | bp.RepeatWhile)]
    assert [isinstance(a, bp.RepeatWhile) for a in loops] == [ends]
    assert list(body_of.present_if) == ["u"]


CHAIN = "composition T(in) => (out) { F(x = all in) => (a = y); G(x = all a) => (out = y); }"


@pytest.mark.parametrize(
    ("f", "g", "together"),
    [
        (gpu("F"), gpu("G"), True),
        (gpu("F", reads="x"), gpu("G"), True),
        (gpu("F"), gpu("G", reads="x"), False),
        (gpu("F", typed="y"), gpu("G", typed="x"), True),
        (gpu("F", typed="y"), gpu("G"), True),
        (gpu("F"), gpu("G", typed="x"), False),
        (gpu("F"), gpu("G", cache=True), False),
        (gpu("F"), gpu("G", batching=Batching(("x",))), False),
        (gpu("F"), gpu("G", chooses=True), False),
        (gpu("F", limits=Limits(concurrency=1)), gpu("G"), False),
        (gpu("F", limits=Limits(queue_length=1)), gpu("G"), False),
        (gpu("F", limits=Limits(wall_s=1)), gpu("G", limits=Limits(wall_s=2)), True),
    ],
)
def test_what_functions_must_be_like(
    f: tuple[FunctionSpec, Loaded], g: tuple[FunctionSpec, Loaded], together: bool
) -> None:
    assert groups(CHAIN, f, g) == (["F+G"] if together else [])


def test_limits_add_up() -> None:
    f, g = (
        gpu(n, limits=Limits(wall_s=s, memory_bytes=m)) for n, s, m in [("F", 1, 9), ("G", 2, 5)]
    )
    made = joined(CHAIN, f, g)
    assert made is not None
    (function,) = made.functions.values()
    assert (function.limits.wall_s, function.limits.memory_bytes) == (3, 9)
    assert function.parts == (("F", 1), ("G", 1))


def test_equal_groups_are_one_function() -> None:
    text = """composition T(in) => (one, two) {
        F(x = all in) => (a = y); P(x = all a) => (one = y);
        F(x = all in) => (c = y); G(x = all c) => (d = y); P(x = all d) => (e = y);
        F(x = all e) => (f = y); G(x = all f) => (two = y);
    }"""
    made = joined(text, gpu("F", "x w", static="w"), gpu("G"))
    assert made is not None
    assert len(made.functions) == 1
    assert sorted(made.ids) == ["F", "F#2+G", "F#3+G#2", "P", "P#2"]


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        ((bp.ZeroBuffer("y"),), True),
        ((bp.CopyBuffer("y", "x"),), True),
        ((bp.CopyBuffer("x", "y"),), False),
        ((), False),
        ((bp.Repeat(bp.Absolute(2), (bp.ZeroBuffer("y"),)),), True),
        ((bp.Repeat(bp.Absolute(0), (bp.ZeroBuffer("y"),)),), False),
        ((bp.Repeat(bp.FromInput("x", 0), (bp.ZeroBuffer("y"),)),), False),
        ((bp.ExecKernel("writes", (bp.Ptr("y"),), bp.LaunchConfig()),), True),
        ((bp.ExecKernel("writes", (bp.Ptr("x"), bp.Ptr("y")), bp.LaunchConfig()),), False),
        ((bp.Candidates(((bp.ZeroBuffer("y"),), (bp.ZeroBuffer("y"),))),), True),
        ((bp.Candidates(((bp.ZeroBuffer("y"),), ())),), False),  # and it is read at the end
        ((bp.Candidates(((bp.ZeroBuffer("y"),), ())), bp.ZeroBuffer("y")), True),
        ((bp.Candidates(((bp.ZeroBuffer("y"),), ())), bp.CopyBuffer("x", "y")), False),
    ],
)
def test_what_is_written_before_it_is_read(flow: tuple[bp.Action, ...], expected: bool) -> None:
    kernel = bp.Kernel("writes", "m", "", (bp.Access.WRITE,))
    body = bp.ExecutionBlueprint(("x",), (), {"y": bp.Absolute(8)}, ("y",), flow)
    assert is_written_first("y", bp.GpuConfig((), (kernel,), body)) is expected


def test_long_groups_have_short_names() -> None:
    assert joined_name(["A", "B", "C", "D"]) == "A+B+C+D"
    assert joined_name(["A", "B", "C", "D", "E"]) == "A+(3 more)+E"
