"""Names, keys and shapes of items."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.data import Item, ItemSet, Origin, Sets, SetSpec
from dandelion.errors import InvalidInput
from dandelion.invocation_result import InvocationResult
from dandelion.set_values import check_item, checked, item_set
from tests.given_sets import given_set


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a", [("a.png", 7)]),
        (np.zeros(2), [("a.png", 7)]),
        ([b"a"], [("a.png.0", 7)]),
        ([b"a", Item("own", 1), "c"], [("a.png.0", 7), ("own", 1), ("a.png.2", 7)]),
        ({"x": b"a", "y": Item("own", 1)}, [("x", 7), ("own", 1)]),
        (ItemSet("s", (Item("own", 1),)), [("own", 1)]),
    ],
)
def test_what_has_no_name_is_called_after_the_origin(
    value: Any, expected: list[tuple[str, int]]
) -> None:
    made = item_set("s", value, None, Origin("a.png", 7))
    assert made is not None
    assert [(i.name, i.key) for i in made] == expected


def test_an_origin_of_a_key_alone_gives_its_key() -> None:
    for value, names in ((b"a", ["s"]), ([b"a", b"b"], ["0", "1"])):
        made = item_set("s", value, None, Origin(None, 7))
        assert made is not None
        assert [(i.name, i.key) for i in made] == [(name, 7) for name in names]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "🌼" * 63, ""])
def test_numbered_names_keep_to_the_limit(name: str) -> None:
    made = item_set("s", [b""] * 1001, None, Origin(name, 0))
    assert made is not None
    assert made[1000].name.endswith(".1000")
    assert name.startswith(made[1000].name.removesuffix(".1000"))
    assert len({item.name for item in made}) == 1001


@pytest.mark.parametrize(
    ("shape", "count", "fits"),
    [
        (None, 3, True),
        ((), 1, True),
        ((), 2, False),
        ((4,), 4, True),
        ((4,), 3, False),
        ((2, 3), 6, True),
        ((2, 3), 12, False),
        ((-1, 3), 6, True),
        ((-1, 3), 7, False),
        ((-1, 3), 0, True),
        ((-1,), 5, True),
        ((-1, -1), 5, True),
        ((0,), 0, True),
        ((0,), 1, False),
        ((-1, 0), 1, False),
    ],
)
def test_items_fit_their_declared_shape(
    shape: tuple[int, ...] | None, count: int, fits: bool
) -> None:
    items = [Item("good", 0, b""), Item("i", 0, b"\0" * 4 * count)][1:]
    spec = SetSpec("s", "float32", shape)
    if fits:
        assert checked("s", items, spec) is not None
        return
    with pytest.raises(InvalidInput) as caught:
        checked("s", items, spec)
    assert "'i'" in caught.value.message


def test_sizes_are_multiples_of_the_element() -> None:
    with pytest.raises(InvalidInput):
        checked("s", [Item("i", 0, b"\0" * 7)], SetSpec("s", "float32"))
    assert checked("s", [Item("i", 0, b"\0" * 7)], SetSpec("s")) is not None


@pytest.mark.parametrize(
    "name", ["", "a", "../../etc/passwd", "päth/with space\n", "x" * 255, "é" * 127, "🌼" * 63]
)
@pytest.mark.parametrize("key", [0, 1, 2**32 - 1])
def test_good_names_and_keys(name: str, key: int) -> None:
    check_item("here", name, key)
    made = checked("s", [Item(name, key, b"")], None)
    assert made is not None


@pytest.mark.parametrize(
    "name", ["a\0", "\0", "x" * 256, "é" * 128, "🌼" * 64, "\ud800", "a" * 100 + "\udfff"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_item("here", name, 0)
    assert caught.value.where == "sets.here"
    with pytest.raises(InvalidInput):
        item_set("s", {name: b""})


@pytest.mark.parametrize("key", [-1, 2**32, 10**30])
def test_bad_keys(key: int) -> None:
    with pytest.raises(InvalidInput):
        check_item("here", "name", key)
    with pytest.raises(InvalidInput):
        item_set("s", Item("i", key, b""))


@given(st.text())
def test_names_are_refused_exactly_by_the_rule(name: str) -> None:
    good = "\0" not in name and len(name.encode(errors="replace")) <= 255
    try:
        check_item("here", name, 0)
    except InvalidInput:
        assert not good
    else:
        assert good
        name.encode()


def test_items_are_read_in_several_ways() -> None:
    item = Item("i", 0, np.arange(4, dtype=np.uint16).data.cast("B"))
    assert item.size_bytes == 8
    assert item.numpy(np.uint16, (2, -1)).tolist() == [[0, 1], [2, 3]]
    assert not item.numpy().flags.writeable
    assert Item("i", 0, "ä".encode()).text() == "ä"
    with pytest.raises(ValueError):
        item.numpy(np.dtype("V3"))
    with pytest.raises(ValueError):
        item.numpy(np.uint16, (3, 2))


def test_a_set_of_many_is_not_one() -> None:
    many = given_set([b"a", b"bc"])
    assert (len(many), many.size_bytes, many[1].bytes()) == (2, 3, b"bc")
    assert [i.name for i in many] == ["0", "1"]
    for read in (many.bytes, many.text, many.only, many.numpy):
        with pytest.raises(InvalidInput):
            read()


def test_results_are_reached_by_name() -> None:
    html = given_set(b"<p>")
    sets = Sets({"html": html, "log": None, "items": html, "_x": html})
    assert sets.html is html
    assert sets["items"] is html
    assert sets._x is html
    assert sets.log is None
    assert list(sets) == ["html", "log", "items", "_x"]
    assert repr(sets) == "Sets(html: 1, log: empty, items: 1, _x: 1)"
    with pytest.raises(AttributeError, match="did you mean 'html'"):
        _ = sets.htm
    with pytest.raises(KeyError):
        _ = sets["htm"]
    assert not hasattr(sets, "__array_interface__")
    assert copy.copy(sets) == sets
    assert copy.deepcopy(Sets({"a": None})) == {"a": None}


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # its own data


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_of_results_own_their_bytes(copied: Callable[[Any], Any]) -> None:
    received = bytearray(b"abcd")
    item = Item("x", 7, memoryview(received).toreadonly(), "uint8", (2, 2))
    sets = Sets({"a": ItemSet("a", (item,), "uint8", (-1, 2), "[]"), "b": None})
    again = copied(InvocationResult("id", sets))
    assert again.id == "id"
    assert again.sets == sets
    received[:] = b"gone"
    assert again.sets.a.numpy().tolist() == [[97, 98], [99, 100]]
