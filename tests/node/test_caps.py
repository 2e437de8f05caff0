"""The operator's caps on the limits of functions: at registration, and for what is stored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dandelion.backends.native.programs import context_bytes

from dandelion.documents import CodeDocument, FunctionDocument, python_function
from dandelion.driver import load_driver
from dandelion.errors import InvalidFunction, InvalidInput, OutOfMemory
from dandelion.function import Limits
from dandelion.node import Node, Settings
from tests.native_functions import function as native_function

MIB = 1 << 20
NULL = Settings(backends=("null",), arena_bytes=4 * MIB)


def function(name: str = "F", **limits: Any) -> FunctionDocument:
    code = CodeDocument("null")
    return FunctionDocument(name, ("a",), ("b",), limits=Limits(**limits), code=(code,))


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("memory_bytes", 1 << 40),
        ("wall_s", 3e7),
        ("cpu_s", 3e7),
        ("output_bytes", 1 << 40),
        ("output_items", 10**9),
    ],
)
def test_more_than_the_cap_is_refused_at_registration(limit: str, value: float) -> None:
    with Node(NULL) as node:
        with pytest.raises(InvalidFunction) as caught:
            node.register(function("greedy", **{limit: value}))
        (problem,) = caught.value.problems
        cap = getattr(NULL, f"max_{limit}")
        for said in ("greedy", limit, str(value), str(cap), f"max_{limit}"):
            assert said in str(problem)
        assert node.records() == []
        node.register(function("greedy", **{limit: cap}))


def test_the_operator_decides() -> None:
    with Node(msgspec.structs.replace(NULL, max_memory_bytes=1 << 41)) as node:
        node.register(function(memory_bytes=1 << 40))


def test_what_is_left_at_its_default_is_lowered() -> None:
    with Node(msgspec.structs.replace(NULL, max_memory_bytes=MIB, max_wall_s=2.0)) as node:
        node.register(function())
        assert node.describe("F").limits == Limits(memory_bytes=MIB, wall_s=2.0)
        with pytest.raises(InvalidFunction):
            node.register(function(wall_s=3.0))


@pytest.mark.parametrize("cap", [0, -1, math.nan])
def test_a_cap_is_above_0(cap: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Node(msgspec.structs.replace(NULL, max_wall_s=cap))
    assert caught.value.where == "settings.max_wall_s"


def test_stored_functions_run_under_lower_caps(tmp_path: Path) -> None:
    """A function and a composition of it, registered under large caps, called under small ones."""
    settings = msgspec.structs.replace(
        NULL, backends=("process",), engines={"process": 1}, catalog=f"sqlite:{tmp_path}"
    )
    source = "def eat(a):\n    return bytes(256 << 20)[:1]\n"
    eat = python_function(
        source, name="eat", inputs=["a"], outputs=["b"], limits=Limits(memory_bytes=1 << 30)
    )
    whole = "function eat(a) => (b); composition meal(a) => (b) { eat(a = all a) => (b = b); }"
    with Node(settings) as node:
        node.register(eat, whole)
        assert node.invoke("eat", a="x").b.bytes() == b"\0"
    with Node(msgspec.structs.replace(settings, max_memory_bytes=128 * MIB)) as node:
        assert node.describe("eat").limits.memory_bytes == 128 * MIB
        with pytest.raises(OutOfMemory) as caught:
            node.invoke("eat", a="x")
        assert caught.value.limit_bytes == 128 * MIB
        with pytest.raises(Exception, match=str(128 * MIB)):
            node.invoke("meal", a="x")
    with Node(settings) as node:  # nothing of that was written down
        assert node.describe("eat").limits.memory_bytes == 1 << 30


def test_the_context_of_a_native_function_is_within_its_memory_limit() -> None:
    fn = native_function(b"no executable", context_bytes=64 * MIB, memory_bytes=32 * MIB)
    with pytest.raises(InvalidFunction, match=r"limits\.memory_bytes"):
        load_driver("native").checker().check([fn])
    assert context_bytes(fn) == 32 * MIB
    fn = native_function(b"no executable", context_bytes=64 * MIB, memory_bytes=128 * MIB)
    assert context_bytes(fn) == 64 * MIB
