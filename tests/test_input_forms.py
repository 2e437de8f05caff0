"""What callers may give for the inputs of a composition, by what it does with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dandelion as dd
from dandelion.frontend.server import BackgroundServer


@dd.function
def square(x: int) -> int:
    return x * x


@dd.function
def invert(x: bool) -> bool:
    return not x


@dd.function
def add_length(x: int, of: list[int]) -> int:
    return x + len(of)


@dd.function
def unbounded(x: float) -> float:
    return x * float("inf")


@dd.function
def doubled(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return x * 2


@dd.function
def rows(x: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    return list(x)


@dd.function
def raw(x: bytes) -> bytes:
    return x[::-1]


@dd.composition
def all_doubled(xs: Any) -> Any:
    return doubled(dd.each(xs))


@dd.composition
def all_raw(xs: Any) -> Any:
    return raw(dd.each(xs))


@dd.composition
def squares(xs: Any) -> Any:
    return square(dd.each(xs))


@dd.composition
def inverted(xs: Any) -> Any:
    return invert(dd.each(xs))


@dd.composition
def lengths(xs: Any, of: Any) -> Any:
    return add_length(dd.each(xs), of)


@dd.composition
def caught(xs: Any) -> Any:
    made = square(dd.each(xs))
    return {"squares": made, "errors": made.catch()}


@pytest.fixture(scope="module")
def node() -> Iterator[dd.Node]:
    with dd.Node(dd.Settings(backends=("process",))) as made:
        for one in (squares, inverted, lengths, unbounded, caught, all_doubled, all_raw, rows):
            made.register(one)
        yield made


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("squares", {"xs": [1, 2, 3]}, [1, 4, 9]),
        ("squares", {"xs": (1, 2)}, [1, 4]),
        ("squares", {"xs": [3]}, [9]),
        ("squares", {"xs": 3}, [9]),
        ("squares", {"xs": {"a": 1, "b": 2}}, [1, 4]),
        ("inverted", {"xs": [True, False]}, [False, True]),
        ("lengths", {"xs": [1, 2], "of": [1, 2, 3, 4]}, [5, 6]),
        ("unbounded", {"x": -2}, -float("inf")),
    ],
)
def test_a_list_is_an_item_for_each_where_it_is_shared_out(
    node: dd.Node, name: str, given: dict[str, Any], expected: Any
) -> None:
    result = node.invoke(name, **given)
    (made,) = result.values()
    assert made is not None
    assert made.value() == expected


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_several_values_are_a_list_also_if_there_is_one(
    node: dd.Node, over_http: bool, count: int
) -> None:
    given = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    with contextlib.ExitStack() as stack:
        caller: dd.Node | dd.Client = node
        if over_http:
            served = stack.enter_context(BackgroundServer(node, drain_s=5))
            caller = stack.enter_context(dd.Client(served.url, timeout_s=20))
        found = caller.invoke("all_doubled", xs=list(given)).result.value()
        assert [one.tolist() for one in found] == (2 * given).tolist()
        found = caller.invoke("rows", x=given).result.value()
        assert [one.tolist() for one in found] == given.tolist()
        found = caller.invoke("all_raw", xs=[b"ab", b"cd"][:count]).result.value()
        assert found == [b"ba", b"dc"][:count]


def test_errors_sets_are_json(node: dd.Node) -> None:
    found = node.invoke("caught", xs=[1, "two", 3])
    squares, errors = found["squares"], found["errors"]
    assert squares is not None
    assert errors is not None
    assert squares.value() == [1, 9]
    (error,) = errors.value()
    assert (error["kind"], error["application"]) == ("Raised", "square")


def test_names_of_backends_are_several() -> None:
    with pytest.raises(dd.DandelionError, match=r'a text instead of names; write \("process",\)'):
        dd.Settings(backends="process")  # type: ignore[arg-type]
