"""Annotations and values: what arguments functions get, what their results become, and errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.call_values import (
    InputMismatch,
    OutputMismatch,
    arguments,
    results,
)
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.decorators.annotations import spec_of
from dandelion.errors import InvalidInput, TooMany
from dandelion.frontend.codecs import decode_json, decode_msgpack, decode_response
from dandelion.frontend.outgoing import Plain, outgoing_sets
from dandelion.frontend.set_encoding import encode_json, encode_msgpack, encode_request
from dandelion.json_values import text_key
from dandelion.set_values import item_set

HERE = sys.modules[__name__]


@dataclass
class Point:
    x: float


def argument(kind: str, value: Any) -> Any:
    """Give a value to a parameter of a kind, as a caller gives it."""
    spec = spec_of(SetSpec("x"), kind)
    return arguments({"x": kind}, {"x": item_set("x", value, spec)}, HERE)["x"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("str", "é", "é"),
        ("bytes", b"\xff", b"\xff"),
        ("bytes", np.array([1], "uint8"), b"\x01"),
        ("int", 3, 3),
        ("int", "3", 3),
        ("int", np.int8(3), 3),
        ("float", 3, 3.0),
        ("float", "1e3", 1000.0),
        ("float", np.array([2.5]), 2.5),
        ("float", np.array([2.5], "bfloat16"), 2.5),
        ("list", np.array([[2.5, 1]], "bfloat16"), [[2.5, 1.0]]),
        ("bool", True, True),
        ("bool", "False", False),
        ("bool", np.bool_(True), True),
        ("dict", {"a": [1, None, {"b": True}]}, {"a": [1, None, {"b": True}]}),
        ("dict", '{"a": 1}', {"a": 1}),
        ("dict", {}, {}),
        ("list", [1, 2.5, "a"], [1, 2.5, "a"]),
        ("list", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("list", np.array([[1, 2]]), [[1, 2]]),
        ("list", [], []),
        ("struct/Point", Point(2.0), Point(2.0)),
        ("struct/Point", {"x": 2}, Point(2.0)),
        ("list:str", ["a", "b"], ["a", "b"]),
        ("list:str", {"n": "a"}, ["a"]),
        ("list:int", [1, 2], [1, 2]),
        ("list:int", None, []),
        ("list:dict", [{"a": 1}, {}], [{"a": 1}, {}]),
        ("list:list", [[1], [2, 3]], [[1], [2, 3]]),
        ("list:struct/Point", [Point(1.0), {"x": 2}], [Point(1.0), Point(2.0)]),
        ("named:bytes", {"a": b"1", "b": b"2"}, {"a": b"1", "b": b"2"}),
        ("named:bytes", None, {}),
        ("str?", None, None),
        ("item", Item("n", 7, b"x"), Item("n", 7, b"x")),
        ("list:item", [Item("n", 7, b"x")], [Item("n", 7, b"x")]),
    ],
)
def test_arguments(kind: str, value: Any, expected: Any) -> None:
    found = argument(kind, value)
    assert found == expected
    assert type(found) is type(expected)


def test_arrays_keep_type_and_shape() -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    found = argument("array/float32", array)
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert argument("array/float32", [1, 2.5]).dtype == "float32"
    several = argument("list:array", [array, array[0]])
    assert [a.shape for a in several] == [(2, 3), (3,)]


def test_iterators_and_sets() -> None:
    found = argument("iter:int", [1, 2])
    assert isinstance(found, Iterator)
    assert list(found) == [1, 2]
    given_set = item_set("x", "a")
    assert arguments({}, {"x": given_set}, HERE) == {"x": given_set}
    assert arguments({"x": "set="}, {"x": None}, HERE) == {}
    assert arguments({"x": "str="}, {"x": None, "_files": given_set}, HERE) == {}


@pytest.mark.parametrize(
    ("kind", "value", "expected", "found"),
    [
        ("str", b"\xff", "expected str", "1 bytes that are not text"),
        ("str", np.zeros((2, 3), "float32"), "expected str", "an array float32[2, 3]"),
        ("int", "two", "expected int", "'two'"),
        ("int", "1.5", "expected int", "'1.5'"),
        ("int", np.array([1, 2]), "expected int", "an array int64[2]"),
        ("int", np.array(1.5), "expected int", "an array float64[]"),
        ("int", [1, 2], "a list of numbers is one item", "'[1,2]'"),
        ("float", b"\xff", "expected float", "1 bytes that are not text"),
        ("bool", "yes", "expected bool", "'yes'"),
        ("array", b"1234", "expected an array", "'1234'"),
        ("array/float32", np.zeros(2), "is float64[2]", "expected float32"),
        ("dict", "[1]", "expected a JSON object", "'[1]'"),
        ("dict", "{", "expected a JSON object", "'{'"),
        ("list", '{"a": 1}', "expected a JSON array", '{"a": 1}'),
        ("struct/Point", '{"x": "far"}', "expected Point", "x: expected a number, found a text"),
        ("str", ["a", "b"], "expected one str", "2 items"),
        ("str", None, "expected str", "is absent"),
        ("int", "9" * 200, "", ""),
    ],
)
def test_wrong_arguments(kind: str, value: Any, expected: str, found: str) -> None:
    if not expected:
        assert argument(kind, value) == int(value)
        return
    with pytest.raises((InputMismatch, InvalidInput)) as caught:
        argument(kind, value)
    text = str(caught.value)
    assert expected in text
    assert found in text
    assert "'x'" in text or "sets.x" in text


@pytest.mark.parametrize(
    ("kinds", "names", "returned", "expected"),
    [
        (("str",), ["a"], "x", {"a": "x"}),
        (("int",), ["a"], 3, {"a": b"3"}),
        (("int",), ["a"], np.int8(3), {"a": b"3"}),
        (("float",), ["a"], float("nan"), {"a": "nan"}),
        (("bool",), ["a"], np.bool_(False), {"a": b"false"}),
        (("dict",), ["a"], {"k": np.float32(0.5)}, {"a": b'{"k":0.5}'}),
        (("list",), ["a"], (1, [2]), {"a": b"[1,[2]]"}),
        (("struct/Point",), ["a"], Point(1.0), {"a": b'{"x":1.0}'}),
        (("list:int",), ["a"], [1, 2], {"a": [b"1", b"2"]}),
        (("iter:str",), ["a"], iter("xy"), {"a": ["x", "y"]}),
        (("named:bytes",), ["a"], {"n": b"1"}, {"a": {"n": b"1"}}),
        (("str",), ["a"], None, {"a": None}),
        (("str",), ["a"], Item("n", 1, b""), {"a": Item("n", 1, b"")}),
        (("str", "int"), ["a", "b"], ("x", 1), {"a": "x", "b": b"1"}),
        (("str", "int"), ["a", "b"], {"b": 1}, {"b": b"1"}),
        (("", ""), ["a", "b"], (b"x", None), {"a": b"x", "b": None}),
    ],
)
def test_results(kinds: tuple[str, ...], names: list[str], returned: Any, expected: Any) -> None:
    assert results(kinds, names, returned) == expected


@pytest.mark.parametrize(
    ("kinds", "returned", "part"),
    [
        (("str",), b"x", "output set 'a': expected str, found bytes"),
        (("int",), True, "expected int, found bool"),
        (("int",), 1.0, "expected int, found float"),
        (("array",), [1], "expected an array, found list"),
        (
            ("array/float32",),
            np.zeros(1),
            "expected an array of float32, found an array of float64",
        ),
        (("dict",), [1], "expected a JSON object, found list"),
        (("dict",), {1: 2}, "keys of JSON objects are text, not 1"),
        (("dict",), {"a": float("inf")}, "JSON has no number inf"),
        (("list",), [b"x"], "JSON has no bytes"),
        (("list",), [object()], "a value of type object is not a JSON value"),
        (("list",), [Item("n", 1, b"")], "it has items; annotate it with list[Item]"),
        (("dict",), {"a": Item("n", 1, b"")}, "it has items; annotate it with dict[str, Item]"),
        (("list:int",), "12", "expected several values of int, found str"),
        (("str", "str"), ("a",), "a tuple of 1 values was returned for 2 output sets"),
        (("str", "str"), "a", "a str was returned; return a dict or a tuple with a, b"),
    ],
)
def test_wrong_results(kinds: tuple[str, ...], returned: Any, part: str) -> None:
    with pytest.raises(OutputMismatch) as caught:
        results(kinds, ["a", "b"][: len(kinds)], returned)
    assert part in str(caught.value)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


documents = st.dictionaries(texts, plain, max_size=5) | st.lists(plain, max_size=5)


@given(documents)
def test_json_values_keep_their_shape_everywhere(value: Any) -> None:
    spec = SetSpec("x", form="json")
    specs = {"x": spec}
    here = item_set("x", value, spec)
    items, values = outgoing_sets({"x": value})
    packed = b"".join(encode_request(items, values))
    read = [
        here,
        decode_msgpack(packed, specs)["x"],
        decode_json(msgspec.json.encode({"values": {"x": value}}), specs)["x"],
        decode_json(msgspec.json.encode({"sets": {"x": {"value": value}}}), specs)["x"],
    ]
    for found in read:
        assert found == here
        assert found is not None
        kind = "dict" if isinstance(value, dict) else "list"
        assert arguments({"x": kind}, {"x": found}, None) == {"x": value}
        result = found.with_form("json")
        _, sets = decode_response(b"".join(encode_msgpack("id", {"x": result})))
        assert sets.x.value() == value
        (text,) = encode_json("id", {"x": result})
        assert msgspec.json.decode(text)["sets"]["x"][0]["value"] == value


@pytest.mark.parametrize(("form", "named"), [("json", "JSON"), ("text", "text")])
def test_json_and_text_are_no_arrays(form: str, named: str) -> None:
    found = ItemSet("x", (Item("x", data=b"12"),), form=form)
    with pytest.raises(InvalidInput, match=rf"set x: it is {named}, not an array; use .value\(\)"):
        found.numpy()
    assert found.numpy("uint8").tolist() == [49, 50]
    array = ItemSet("x", (Item("x", data=b"12", dtype="uint8", shape=(2,)),), form=form)
    assert array.numpy().tolist() == array.value().tolist() == [49, 50]


@given(st.lists(documents, max_size=4), st.booleans())
def test_several_json_values_are_several_items(values: list[Any], remote: bool) -> None:
    specs = {"x": SetSpec("x", form="json[]")}
    found: ItemSet | None
    if remote:
        packed = b"".join(encode_request(*outgoing_sets({"x": values})))
        found = decode_msgpack(packed, specs)["x"]
    else:
        found = item_set("x", values, specs["x"])
    assert ([] if found is None else [item.json() for item in found]) == values


@given(
    st.sampled_from(["bool", "int8", "uint16", "int64", "float32", "float64"]),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_arrays_keep_type_and_shape_everywhere(dtype: str, shape: list[int]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    packed = b"".join(encode_request(*outgoing_sets({"x": array})))
    for found in (item_set("x", array), decode_msgpack(packed, {})["x"]):
        assert found is not None
        _, sets = decode_response(b"".join(encode_msgpack("id", {"x": found})))
        value = sets.x.value()
        np.testing.assert_array_equal(value, array)
        assert value.dtype == array.dtype
        assert value.shape == array.shape


def test_items_have_values_of_their_own() -> None:
    body = msgspec.json.encode({"sets": {"x": [{"name": "n", "key": 3, "value": [1]}, "text"]}})
    found = decode_json(body, {})["x"]
    assert found is not None
    assert [(i.name, i.key, i.bytes()) for i in found] == [("n", 3, b"[1]"), ("1", 0, b"text")]
    with pytest.raises(InvalidInput, match="no dtype or shape"):
        decode_json(b'{"sets": {"x": {"value": 1, "dtype": "int8"}}}', {})
    with pytest.raises(InvalidInput, match="exactly one"):
        decode_json(b'{"sets": {"x": {"value": null, "text": "a"}}}', {})


@pytest.mark.parametrize(
    "body",
    [
        b'{"values": {"x": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"values": {"x": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}}",
        b'{"values": 3}',
        b'{"values": {"x": 1}, "sets": {"x": null}}',
        b'{"value": {"x": 1}}',
    ],
)
def test_hostile_values_are_refused_or_read(body: bytes) -> None:
    """Deep nesting is an error or a value, never a crash."""
    try:
        found = decode_json(body, {})
    except InvalidInput:
        return
    assert found["x"] is not None


@pytest.mark.parametrize(
    ("value", "is_value"),
    [
        ({"a": [1]}, True),
        ({}, True),
        ([1, 2], True),
        (["a"], True),
        ([{"a": 1}], True),
        (3, True),
        (None, False),
        ({"text": "a"}, False),
        ([{"name": "n", "data": ""}, "b"], False),
    ],
)
def test_json_of_the_command_line_is_a_value_or_a_set(value: Any, is_value: bool) -> None:
    items, values = outgoing_sets({"x": Plain(value)})
    assert (values, items) == (({"x": value}, {}) if is_value else ({}, {"x": value}))


def test_too_many_values_are_refused() -> None:
    with pytest.raises(TooMany):
        decode_json(b'{"values": {"x": ["a", "b"], "y": ["c"]}}', {}, 2)


def test_keys_may_be_text() -> None:
    given_set = item_set("x", [Item("a", "ada", b"1"), Item.of("b", {"n": 1}, "bo")])  # type: ignore[arg-type]
    assert given_set is not None
    assert [i.key for i in given_set] == [text_key("ada"), text_key("bo")]
    assert [i.key for i in item_set("y", [Item("c", "ada")])] == [text_key("ada")]  # type: ignore[arg-type, union-attr]


def test_texts_with_the_same_key_are_refused() -> None:
    first, second = "plumless", "buckeroo"  # a known pair
    assert text_key(first) == text_key(second)
    with pytest.raises(InvalidInput, match="'plumless' and 'buckeroo' have the same number"):
        item_set("x", [Item("a", first), Item("b", second)])  # type: ignore[arg-type]
    item_set("x", [Item("a", first), Item("b", first)])  # type: ignore[arg-type]
