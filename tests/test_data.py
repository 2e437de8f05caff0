"""Items and sets: accepted and refused values of Python callers, and reading them back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.errors import InvalidInput
from dandelion.json_values import json_bytes
from dandelion.set_values import item_set
from tests.given_sets import given_set


def contents(value: Any, spec: SetSpec | None = None) -> list[tuple[str, int, bytes]]:
    return [(i.name, i.key, i.bytes()) for i in given_set(value, spec)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc", [("s", 0, b"abc")]),
        (b"", [("s", 0, b"")]),
        (bytearray(b"abc"), [("s", 0, b"abc")]),
        (memoryview(b"abc"), [("s", 0, b"abc")]),
        ("käse", [("s", 0, "käse".encode())]),
        ("", [("s", 0, b"")]),
        (np.uint16(258), [("s", 0, b"\x02\x01")]),
        (np.array([1, 2], np.uint8), [("s", 0, b"\x01\x02")]),
        (np.array(5, np.uint8), [("s", 0, b"\x05")]),
        (np.zeros(0), [("s", 0, b"")]),
        ([b"a", "b"], [("0", 0, b"a"), ("1", 0, b"b")]),
        ((b"a",), [("0", 0, b"a")]),
        (iter([b"a", b"b"]), [("0", 0, b"a"), ("1", 0, b"b")]),
        ({"x": b"a", 7: "b"}, [("x", 0, b"a"), ("7", 0, b"b")]),
        (Item("i", 9, b"z"), [("i", 9, b"z")]),
        ([Item("i", 9, b"z"), b"a"], [("i", 9, b"z"), ("1", 0, b"a")]),
        (ItemSet("other", (Item("i", 9, b"z"),)), [("i", 9, b"z")]),
        (Item("i", np.int64(9), b"z"), [("i", 9, b"z")]),  # type: ignore[arg-type]  # as users do
    ],
)
def test_what_callers_may_give(value: Any, expected: list[tuple[str, int, bytes]]) -> None:
    made = given_set(value)
    assert made.name == "s"
    assert [(i.name, i.key, i.bytes()) for i in made] == expected


@pytest.mark.parametrize("value", [None, [], (), {}, iter([])])
def test_a_set_without_items_does_not_exist(value: Any) -> None:
    assert item_set("s", value) is None


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        object(),
        {1, 2},
        [[b"nested"]],
        [{"a": {1: "key"}}],
        {"x": [float("inf")]},
        np.array(["a", object()], dtype=object),
        Item("i", 0, "text"),  # type: ignore[arg-type]  # a wrong type
        Item("i", 0, None),  # type: ignore[arg-type]
        Item(3, 0, b""),  # type: ignore[arg-type]
        Item("i", "\ud800", b""),  # type: ignore[arg-type]
        Item("i", 1.0, b""),  # type: ignore[arg-type]
        ItemSet("s", (Item("i", None, b""),)),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_an_item_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        item_set("s", value)
    assert caught.value.where == "sets.s"


def test_bytes_and_arrays_are_not_copied() -> None:
    data = b"x" * 1000
    assert given_set(data)[0].data is data
    item = Item("i", 0, memoryview(data))
    assert given_set([item])[0] is item
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen = given_set(array).numpy(np.float32)
    assert np.shares_memory(seen, array)
    turned = given_set(array.T).numpy(np.float32)
    assert not np.shares_memory(turned, array)
    assert turned.tolist() == array.T.reshape(-1).tolist()


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"abcd"),
        memoryview(bytearray(b"abcd")),
        np.frombuffer(b"abcd", np.uint16).data,
        np.frombuffer(b"abcd", np.uint8).reshape(2, 2).data,
        memoryview(b"a_b_c_d")[::2],
    ],
)
def test_data_is_always_read_only_flat_bytes(data: bytearray | memoryview) -> None:
    for value in (data, Item("i", 0, data)):  # type: ignore[arg-type]  # bytearray, as users do
        (item,) = given_set(value)
        assert item.bytes() == b"abcd"
        assert item.size_bytes == 4
        view = memoryview(item.data)
        assert (view.readonly, view.format, view.ndim) == (True, "B", 1)


FLOATS = SetSpec("s", "float32", (2, 2))


def test_declared_sets_know_their_type_and_shape() -> None:
    made = given_set(np.eye(2, dtype=np.float32), FLOATS)
    assert (made.dtype, made.shape) == ("float32", (2, 2))
    assert made.numpy().tolist() == [[1, 0], [0, 1]]
    assert made.numpy(np.uint32, (4,)).shape == (4,)
    assert given_set(b"\0" * 16, FLOATS).numpy().shape == (2, 2)
    assert given_set(np.float32(3), SetSpec("s", "float32", ())).numpy().shape == ()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([0.1, 1e20], "float32"),  # rounded
        ([[0.1, 1e38], [1, math.inf]], "bfloat16"),
        ([True, 3], "bfloat16"),
        ([257, 1], "bfloat16"),  # as of 257.0
        ([2**24 + 1, 2**64], "float32"),
        ([float("nan"), float("inf"), -float("inf")], "float32"),
        ([1, 2, 3], "float32"),
        ([1.0, 2.0], "int64"),
        ([0, 255], "uint8"),
        ([True, False], "int32"),
        ([1, 0], "bool"),
        ([1.5], ">f8"),
        ([2**53], "float64"),
        ([1, 2.5], "complex128"),
        ([[1.5, 2], [0.1, 4]], "float32"),
        (7, "int16"),
    ],
)
def test_numbers_without_a_type_get_the_declared_one(value: Any, dtype: str) -> None:
    made = given_set({"x": value}, SetSpec("s", dtype))
    expected = np.atleast_1d(np.asarray(value).astype(dtype))
    assert np.array_equal(made.numpy(), expected, equal_nan=expected.dtype.kind == "f")


def test_nested_numbers_have_a_shape() -> None:
    tall = [[1, 2], [3, 4], [5, 6]]
    assert given_set(tall, SetSpec("s", "float32", (-1, 2))).items[0].shape == (3, 2)
    assert given_set(tall, SetSpec("s", "float32")).numpy().tolist() == tall
    assert given_set([1, 2, 3, 4], FLOATS).numpy().tolist() == [[1, 2], [3, 4]]
    for shape in ((-1, 3), (2, 3), (6,)):
        with pytest.raises(InvalidInput, match=r"is float32\[3, 2\], expected"):
            given_set(tall, SetSpec("s", "float32", shape))


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_results_that_json_has_no_number_for(number: str) -> None:
    (value,) = [Item("r", 0, number.encode()).value("json")]
    assert repr(value) == number
    with pytest.raises(ValueError, match="not valid JSON"):
        Item("r", 0, b"nano").value("json")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "int32"),
        ([float("nan")], "int32"),
        ([1e300], "float32"),
        ([1e39], "bfloat16"),
        ([2**63 + 1, 1.5], "bfloat16"),
        ([10**30], "float32"),
        ([10**400], "float64"),
        ([300], "uint8"),
        ([-1], "uint64"),
        ([2**63], "int64"),
        ([2**53 + 1], "float64"),
        ([2], "bool"),
        ([[1, 2], [3]], "float32"),
        (["a", "b"], "int32"),
    ],
)
def test_numbers_that_would_change_are_refused(value: Any, dtype: str) -> None:
    with pytest.raises(InvalidInput):
        item_set("s", {"x": value}, SetSpec("s", dtype))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_large_integers_beside_floats_keep_their_value(dtype: str) -> None:
    numbers = [9007199254740993, 0.0]
    assert given_set({"x": numbers}, SetSpec("s", dtype)).numpy().tolist() == numbers
    for refused in ([9007199254740993, 0.5], [2**65 + 1, 0.0], [9007199254740993, math.nan]):
        with pytest.raises(InvalidInput):
            given_set({"x": refused}, SetSpec("s", dtype))
    with pytest.raises(InvalidInput, match="exactly"):
        given_set({"x": numbers}, SetSpec("s", "float64"))


@example([9007199254740993, 0.0], "int64")
@given(
    st.lists(st.integers(-(2**70), 2**70) | st.floats(), max_size=4),
    st.sampled_from(["int8", "uint16", "int32", "int64", "uint64", "float64", "bool"]),
)
def test_a_conversion_keeps_every_value(numbers: list[float], dtype: str) -> None:
    try:
        made = given_set({"x": numbers}, SetSpec("s", dtype))
    except InvalidInput:
        return
    found = made.numpy().tolist()
    assert [v for v in found if v == v] == [v for v in numbers if v == v]


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (np.zeros(3), "float32", None),
        (np.zeros(3, np.float32), "float64", None),
        (np.zeros(3, np.int64), "float64", None),
        (np.zeros(3, ">f8"), "float64", None),
        (np.zeros(8, np.uint8), "float32", None),
        (np.zeros(8, "bfloat16"), "float16", None),
        (np.zeros(8, "uint16"), "bfloat16", None),
        (np.float64(1), "float32", ()),
        (np.zeros(0), "int8", None),
        (np.zeros((2, 2)), "float64", (4,)),
        (np.zeros(4), "float64", (2, 2)),
        (np.zeros((2, 3)), "float64", (3, 2)),
        (np.zeros((2, 3)), "float64", (-1, 2)),
        (np.zeros((1, 2)), "float64", (2,)),
        (np.zeros(1), "float64", ()),
        (np.array(["a"]), "float32", None),
        (np.array(["a"], dtype=object), "float32", None),
        (Item("x", 0, b"\0" * 16, "int32", (4,)), "float64", None),
        (ItemSet("x", (Item("x", 0, b"\0" * 16),), "float32"), "float64", None),
    ],
)
def test_an_array_of_another_type_is_refused(
    value: Any, dtype: str, shape: tuple[int, ...] | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        item_set(
            "s",
            {"x": value} if isinstance(value, np.ndarray) else value,
            SetSpec("s", dtype, shape),
        )
    assert caught.value.where == "sets.s"
    assert dtype in caught.value.message  # what is declared; and what there is
    found = value.dtype if not isinstance(value, ItemSet) else "float32"
    assert str(np.dtype(found)) in caught.value.message or str(found) in caught.value.message


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (np.zeros((2, 3)), "float64", (2, 3)),
        (np.zeros((2, 3)), "float64", (-1, 3)),
        (np.zeros((2, 3)), "<f8", None),
        (np.zeros((0, 3)), "float64", (-1, 3)),
        (np.float64(1), "float64", ()),
        (np.ones((2, 3), "bfloat16"), "bfloat16", (-1, 3)),
        (np.zeros(2, np.longdouble), "longdouble", None),
    ],
)
def test_an_array_of_the_declared_type_passes(
    value: Any, dtype: str, shape: tuple[int, ...] | None
) -> None:
    made = given_set(value, SetSpec("s", dtype, shape))
    assert made.numpy().dtype == value.dtype
    assert np.array_equal(made.numpy(), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=np.int8).reshape(2, 3).T,
        np.array(7, np.uint16),
        np.float16(1.5),
        np.array([[1.5, -2]], "bfloat16").T,
        np.zeros((3, 0, 2), np.complex64),
        np.array([True]),
        np.array([1, 2], ">u4"),
    ],
)
def test_an_array_is_seen_again_as_it_was(array: Any) -> None:
    for made in (given_set(array), given_set([array]), given_set({"x": array})):
        item = made.only()
        assert (np.dtype(item.dtype), item.shape) == (array.dtype, array.shape)
        for seen in (made.numpy(), item.numpy()):
            assert (seen.dtype, seen.shape) == (array.dtype, array.shape)
            assert np.array_equal(seen, array)
            assert not seen.flags.writeable
        assert given_set(made) == ItemSet("s", made.items)
        assert made.numpy("uint8").ndim == 1


def test_plain_bytes_have_no_type() -> None:
    for value in (b"abc", "abc", bytearray(b"abc"), memoryview(b"abc"), Item("s", 0, b"abc")):
        item = given_set(value).only()
        assert (item.dtype, item.shape) == (None, None)
        assert item.numpy().tolist() == [97, 98, 99]


def test_an_item_of_an_array_has_its_name_and_key() -> None:
    array = np.arange(4, dtype=np.int16).reshape(2, 2)
    item = Item.of("i", array, 7)
    assert (item.name, item.key, item.dtype, item.shape) == ("i", 7, "int16", (2, 2))
    assert np.shares_memory(item.numpy(), array)
    for value in (np.array(["text"]), np.array([object()])):
        with pytest.raises(InvalidInput):
            Item.of("i", value)
        with pytest.raises(InvalidInput):
            item_set("s", value)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float31", (2,)),
        ("object", (1,)),
        ("(2,)f4", (1,)),
        (None, (8,)),
        ("float32", (3,)),
        ("float32", (-1,)),
        ("float32", (-1, -2)),
        ("float32", (2.0,)),
        ("float32", ("2",)),
        ("float32", "2"),
        ("float32", (1,) * 65),
        ("complex128", None),
        (4, (2,)),
    ],
)
def test_an_item_with_a_type_that_cannot_be_is_refused(dtype: Any, shape: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        item_set("s", [Item("good", 0, b""), Item("i", 0, bytes(8), dtype, shape)])
    assert caught.value.where.startswith("sets.s: item 'i'")


def test_types_have_one_spelling() -> None:
    made = given_set(Item("i", 0, bytes(8), "<f4", [2]))  # type: ignore[arg-type]  # as users do
    assert (made[0].dtype, made[0].shape) == ("float32", (2,))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (-1,)])
def test_a_number_of_numpy_is_one_element(shape: tuple[int, ...]) -> None:
    made = item_set("p", np.int64(3), SetSpec("p", "int64", shape))
    assert made is not None
    assert made.numpy("int64").tolist() == np.full([1] * len(shape), 3).tolist()
    with pytest.raises(InvalidInput, match=r"expected int64\[2\]"):
        item_set("p", np.int64(3), SetSpec("p", "int64", (2,)))


def test_numbers_beyond_64_bits_and_shapes_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="a number does not fit int64"):
        item_set("p", 2**70, SetSpec("p", "int64", (1,)))
    whole = np.zeros((2, 63), np.float32)
    with pytest.raises(InvalidInput) as caught:
        item_set("p", whole, SetSpec("p", "float32", (2, 64)))
    assert caught.value.hint == ""
    with pytest.raises(InvalidInput, match="reshape it"):
        item_set("p", np.zeros(128, np.float32), SetSpec("p", "float32", (2, 64)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_json_has_no_such_numbers_in_arrays_either(number: float, dtype: str) -> None:
    array = np.array([1, number]).astype(dtype)
    assert json_bytes({"a": array[:1], "b": array[0]}) == b'{"a":[1.0],"b":1.0}'
    for value in ({"a": array}, [array[1]]):
        with pytest.raises(ValueError, match="JSON has no numbers"):
            json_bytes(value)


@dataclass
class Measured:
    value: object
    data: bytes = b"x"


class Stored(msgspec.Struct):
    value: object


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_json_has_no_such_numbers_in_fields_and_sets_either(number: float) -> None:
    assert json_bytes(Measured({1: 2.5})) == b'{"value":{"1":2.5},"data":"eA=="}'
    assert json_bytes([Stored({1})]) == b'[{"value":[1]}]'
    for value in (Measured(number), Stored([number]), {"a": Measured(Stored(number))}, [{number}]):
        with pytest.raises(ValueError, match="JSON has no number"):
            json_bytes(value)
