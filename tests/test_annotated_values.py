"""Annotations of a function's parameters and results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from dandelion.call_values import (
    CallValues,
    read_call_values,
)
from dandelion.data import ItemSet, SetSpec
from dandelion.decorators import function
from dandelion.decorators.annotations import Kinds
from dandelion.errors import InvalidFunction


@dataclass
class Point:
    x: float


def several(x: str) -> tuple[str, int]: ...


class Named(TypedDict):
    name: str


def takes(
    a: str,
    b: npt.NDArray[np.float32],
    c: list[dict[str, int]],
    d: Sequence[np.ndarray],
    e: Point | None,
    f: dict[str, bytes],
    g: Mapping[str, int],
    h: Named,
    i: ItemSet,
    j: Any,
    k: list[list[int]],
    l: tuple[int, ...] = (),  # noqa: E741
    m=None,
) -> Iterator[Point]: ...


def test_aliases_mean_what_they_stand_for() -> None:
    alias = pytest.importorskip("typing_extensions").TypeAliasType
    element = TypeVar("element")
    text, several = alias("text", str), alias("several", list[element], type_params=(element,))
    shape: Any = np.ndarray[tuple[Any, ...], np.dtype[element]]  # type: ignore[type-var]
    array = alias("array", shape, type_params=(element,))  # as NumPy 2.5 declares `NDArray`
    kinds = Kinds(takes)

    def kind_of(annotation: object) -> str:
        parameter = inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        return kinds.of_parameter(parameter)

    assert [kind_of(one) for one in (text, several[bytes], array[np.float32])] == [
        "str", "list:bytes", "array/float32",
    ]  # fmt: skip
    assert kind_of(several[array[np.int8]] | None) == "list:array/int8?"
    assert kind_of(npt.NDArray[ml_dtypes.bfloat16]) == "array/bfloat16"
    assert kind_of(npt.NDArray[np.floating[Any]]) == "array"
    assert kind_of(npt.NDArray[np.number]) == "array"


def test_annotations_become_kinds() -> None:
    document = function(takes).document
    values = read_call_values(document.code[0].options["values"])
    assert values.inputs == {
        "a": "str",
        "b": "array/float32",
        "c": "list:dict",
        "d": "list:array",
        "e": "struct/Point?",
        "f": "named:bytes",
        "g": "dict",
        "h": "struct/Named",
        "k": "list:list",
        "l": "list:int=",
        "m": "set=",
    }
    assert values.outputs == ("iter:struct/Point",)
    specs = {s.name: s for s in document.inputs if isinstance(s, SetSpec)}
    assert specs["b"] == SetSpec("b", "float32")
    assert specs["c"] == SetSpec("c", form="json[]")
    assert specs["e"] == SetSpec("e", form="json", optional=True)
    assert specs["l"] == SetSpec("l", form="json[]", optional=True)
    assert specs["m"] == SetSpec("m", optional=True)
    assert document.outputs == (SetSpec("result", form="json[]"),)
    assert "class Point" in str(document.code[0].main)


def wrong_tuple(x: tuple[int, str]): ...


def wrong_set(x: set[str]): ...


def wrong_union(x: str | int): ...


def wrong_name(x: NotDefined): ...  # type: ignore[name-defined]  # noqa: F821


def wrong_keys(x: dict[int, str]): ...


def wrong_any(x: list[Any]): ...


def wrong_result(x: str) -> complex: ...


def wrong_element(x: npt.NDArray[ml_dtypes.float8_e4m3fn]): ...


def wrong_elements(x: list[npt.NDArray[np.datetime64]]): ...


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_tuple,
        wrong_set,
        wrong_union,
        wrong_name,
        wrong_keys,
        wrong_any,
        wrong_result,
        wrong_element,
        wrong_elements,
    ],
)
def test_other_annotations_are_refused_with_the_line(wrong: Any) -> None:
    with pytest.raises(InvalidFunction) as caught:
        _ = function(wrong).document
    (problem,) = caught.value.problems
    assert problem.code == "bad-annotation"
    assert problem.where == f"{__file__}:{wrong.__code__.co_firstlineno}"


def one_tuple(x: str) -> tuple[int, ...]: ...


def nothing(x: str) -> None: ...


def star(*x: str): ...


async def asynchronous(x: str): ...


def test_outputs_of_annotations() -> None:
    assert function(outputs="y")(one_tuple).outputs == ("y",)
    assert function(one_tuple).outputs == ("result",)
    assert function(nothing).outputs == ()
    assert function(outputs=["a: float32[2]", "b"])(several).outputs == ("a", "b")
    with pytest.raises(InvalidFunction, match="has to name its output sets"):
        function(several)
    with pytest.raises(InvalidFunction, match="2 values for 3 output sets"):
        _ = function(outputs=["a", "b", "c"])(several).document
    with pytest.raises(InvalidFunction, match="cannot be an input set"):
        function(star)
    with pytest.raises(InvalidFunction, match="must not be async"):
        function(asynchronous)
    with pytest.raises(InvalidFunction, match="fixed set 'y' is not a parameter"):
        function(static={"y": b""})(nothing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"inputs": {"x": "eval(1)"}}',
        '{"inputs": {"x": "struct/__import__(\'os\')"}}',
        '{"outputs": ["list:list:str"]}',
        '{"file": "../../etc/passwd"}',
        '{"file": "' + "a" * 200 + '"}',
        '{"unknown": 1}',
        "[" * 100_000,
    ],
)
def test_records_of_values_are_checked(text: str) -> None:
    with pytest.raises(ValueError):
        read_call_values(text)
    assert read_call_values('{"inputs": {"x": "str"}}') == CallValues({"x": "str"})
