"""Lists of different lengths are no array, and the error says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dandelion.data import Item, SetSpec
from dandelion.errors import InvalidInput
from dandelion.frontend.values import set_of
from dandelion.set_values import item_set

SPEC = SetSpec("m", "float32", (-1, -1))
RAGGED = [[1, 2], [3]]


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: item_set("m", RAGGED, SPEC), "sets.m"),
        (lambda: item_set("m", {"a": [[1], 2]}, SPEC), "sets.m"),
        (lambda: set_of("m", RAGGED, SPEC), "sets.m"),
        (lambda: set_of("m", [{"numbers": RAGGED}], SPEC), "sets.m[0].numbers"),
        (lambda: Item.of("m", RAGGED), "item 'm'"),
    ],
    ids=["value", "values", "JSON", "numbers", "item"],
)
def test_rows_of_different_lengths(make: Callable[[], object], where: str) -> None:
    with pytest.raises(InvalidInput, match="rows have different lengths") as caught:
        make()
    assert caught.value.where == where


def test_lists_that_are_too_deep_are_another_mistake() -> None:
    deep: list[object] = [1]
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidInput, match="dimension"):
        item_set("m", deep, SPEC)
