"""Whether a blueprint writes a buffer before it reads it."""

from __future__ import annotations

from typing import Any

import pytest

import dandelion.blueprint as bp
from dandelion.blueprint.first_uses import is_written_first

ZERO = bp.ZeroBuffer("t")
READ = bp.CopyBuffer("y", "t")
OTHER = bp.ZeroBuffer("y")


def flow(*actions: bp.Action, word: str = "") -> bp.GpuConfig:
    sizes: dict[str, bp.Size] = {n: bp.Absolute(64) for n in ("t", "y", "go")}
    words = {"y": word} if word else {}
    body = bp.ExecutionBlueprint(("x", "w"), (), sizes, ("y",), actions, present_if=words)
    return bp.GpuConfig((), (), body)


def case(*actions: bp.Action) -> Any:
    return bp.Case(9, {}, actions)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ((), True),  # nothing reads it
        ((OTHER,), True),
        ((ZERO, READ), True),
        ((READ, ZERO), False),
        ((bp.Candidates(((ZERO, READ), (OTHER,))),), True),
        ((bp.Candidates(((ZERO, READ), (OTHER,))), READ), False),
        ((bp.Candidates(((ZERO, READ), (READ,))),), False),
        ((bp.Candidates(((OTHER,), (OTHER,))), ZERO, READ), True),
        ((bp.Candidates(((ZERO,), (OTHER,))), bp.Candidates(((READ,), (OTHER,)))), False),
        ((bp.Choose((bp.Sizeof("x"),), (case(ZERO, READ), case(OTHER))),), True),
        ((bp.Choose((bp.Sizeof("x"),), (case(ZERO), case(OTHER))), READ), False),
        ((bp.Repeat(bp.FromInput("x", 0), (ZERO, READ)),), True),
        ((bp.Repeat(bp.FromInput("x", 0), (ZERO,)), READ), False),
        ((bp.Repeat(bp.Absolute(2), (ZERO,)), READ), True),
        ((bp.Repeat(bp.Absolute(2), (READ, ZERO)),), False),
        ((bp.RepeatWhile(bp.Absolute(9), "t", (OTHER,)),), False),
        ((bp.RepeatWhile(bp.Absolute(9), "t", (bp.Candidates(((ZERO,), (OTHER,))),)),), False),
        ((bp.RepeatWhile(bp.Absolute(9), "t", (ZERO,)),), True),
        ((bp.RepeatWhile(bp.Absolute(9), "go", (OTHER,)),), True),
    ],
)
def test_the_order_decides(actions: tuple[bp.Action, ...], expected: bool) -> None:
    assert is_written_first("t", flow(*actions)) is expected


def test_a_word_is_read_at_the_end() -> None:
    assert not is_written_first("t", flow(OTHER, word="t"))
    assert is_written_first("t", flow(ZERO, word="t"))


def product(**fields: Any) -> bp.GpuConfig:
    b = bp.Blueprint(inputs=["x", "w"], outputs=["y"], modules={})
    b.buffer("y", 64)
    b.buffer("t", fields.pop("size", 64), temporary=True)
    given = {"a": b.x, "b": b.w, "out": bp.Matrix("t"), "m": 4, "n": 4, "k": 4, **fields}
    b.gemm(given.pop("a"), given.pop("b"), given.pop("out"), **given)
    b.copy(b.y, b.t)
    return b.build()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"size": 68}, False),
        ({"m": 2}, False),
        ({"batch": 2, "size": 128}, True),
        ({"out": bp.Matrix("t", bp.Absolute(16)), "m": 3}, False),
        ({"out": bp.Matrix("t", ld=bp.Absolute(5)), "size": 80}, False),
        ({"c": bp.Matrix("t")}, False),
        ({"k": bp.Buffer("x")[0]}, False),  # perhaps it does not fill it
        ({"dtype": "f64", "size": 128}, True),
    ],
)
def test_a_product_that_fills_its_buffer_writes_it(fields: dict[str, Any], expected: bool) -> None:
    assert is_written_first("t", product(**fields)) is expected


def test_a_convolution_that_fills_its_buffer_writes_it() -> None:
    for size, expected in ((4 * 8 * 6 * 6, True), (4 * 8 * 6 * 6 + 4, False)):
        b = bp.Blueprint(inputs=["x", "w"], outputs=["t"], modules={})
        b.buffer("t", size)
        b.convolution(b.x, b.w, b.t, batch=1, channels=3, size=8, filters=8, kernel=3)
        assert is_written_first("t", b.build()) is expected
