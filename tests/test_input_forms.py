"""What callers may give for the inputs of a composition, by what it does with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dandelion as dd


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


@dd.composition
def squares(xs: Any) -> Any:
    return square(dd.each(xs))


@dd.composition
def inverted(xs: Any) -> Any:
    return invert(dd.each(xs))


@dd.composition
def lengths(xs: Any, of: Any) -> Any:
    return add_length(dd.each(xs), of)


@pytest.fixture(scope="module")
def node() -> Iterator[dd.Node]:
    with dd.Node(dd.Settings(backends=("process",))) as made:
        for one in (squares, inverted, lengths, unbounded):
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
