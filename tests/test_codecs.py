"""Sets on the wire: what is read, what is refused and where the refusal points, what is written."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from dandelion.arrays import of_numbers
from dandelion.data import SetSpec
from dandelion.errors import (
    InvalidInput,
)
from dandelion.frontend.codecs import (
    SetMap,
    check_names,
    decode_json,
    decode_msgpack,
    decode_raw,
)
from dandelion.memory import HeapDomain
from tests.codec_items import F12, SPECS, items

Decode = Callable[[Any, dict[str, SetSpec]], SetMap]


def from_json(sets: object, specs: Mapping[str, SetSpec] = SPECS) -> SetMap:
    return decode_json(json.dumps({"sets": sets}).encode(), specs)


def from_msgpack(sets: object, specs: Mapping[str, SetSpec] = SPECS) -> SetMap:
    return decode_msgpack(msgspec.msgpack.encode({"sets": sets}), specs)


@pytest.mark.parametrize("read", [from_json, from_msgpack])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("a", "hé", [("a", 0, "hé".encode())]),
        ("a", "", [("a", 0, b"")]),
        ("a", ["p", "q"], [("0", 0, b"p"), ("1", 0, b"q")]),
        ("a", {"text": "t"}, [("a", 0, b"t")]),
        ("a", {"text": "t", "name": "../../x", "key": 9}, [("../../x", 9, b"t")]),
        ("a", [{"text": "t", "name": ""}, "u"], [("", 0, b"t"), ("1", 0, b"u")]),
        ("a", {"numbers": [1, 258], "dtype": "uint16"}, [("a", 0, b"\x01\x00\x02\x01")]),
        ("x", [1, 2], [("x", 0, F12)]),
        ("x", [[1, 2]], [("x", 0, F12)]),
        ("x", [{"numbers": [1.0, 2.0], "key": 2**32 - 1}], [("0", 2**32 - 1, F12)]),
        ("x", {"numbers": [1, 2], "dtype": "float32"}, [("x", 0, F12)]),
        ("x", {"numbers": [1, 2], "dtype": "<f4", "shape": [1, 2]}, [("x", 0, F12)]),
        ("x", {"numbers": [1, 2], "shape": [1, 2]}, [("x", 0, F12)]),
        ("x", {"numbers": [], "shape": [0, 2]}, [("x", 0, b"")]),
        ("x", {"numbers": []}, [("x", 0, b"")]),
        ("n", 7, [("n", 0, b"\7\0\0\0")]),
        ("n", True, [("n", 0, b"\1\0\0\0")]),
        ("n", [{"numbers": 1}, {"numbers": 2.0}], [("0", 0, b"\1\0\0\0"), ("1", 0, b"\2\0\0\0")]),
    ],
)
def test_value_of_a_set(
    read: Callable[..., SetMap], name: str, value: object, expected: object
) -> None:
    assert items(read({name: value})[name]) == expected


@pytest.mark.parametrize("read", [from_json, from_msgpack])
@pytest.mark.parametrize("value", [None, []])
def test_a_set_without_items_is_absent(read: Callable[..., SetMap], value: object) -> None:
    assert read({"a": value}) == {"a": None}


def test_data_is_base64_in_json() -> None:
    data = bytes(range(256))
    sets = from_json({"a": {"data": base64.b64encode(data).decode()}})
    assert items(sets["a"]) == [("a", 0, data)]


@pytest.mark.parametrize(
    "value",
    [b"\xff\0", {"data": b"\xff\0"}, [b"\xff\0"], [{"data": b"\xff\0", "name": "0"}]],
)
def test_data_is_binary_in_msgpack(value: object) -> None:
    assert [data for _, _, data in items(from_msgpack({"a": value})["a"])] == [b"\xff\0"]


@pytest.mark.parametrize("read", [from_json, from_msgpack])
@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        ({"numbers": [[1, 2]], "dtype": "int16"}, "int16", (1, 2)),
        ({"numbers": [1, 2], "dtype": "int16", "shape": [2, 1]}, "int16", (2, 1)),
        ({"numbers": 3, "dtype": "float64"}, "float64", ()),
        ({"numbers": [], "dtype": "float64", "shape": [1 << 40, 0]}, "float64", (1 << 40, 0)),
        ({"data": "AAAAAA==", "dtype": "float32"}, "float32", None),
        ({"data": "AAAAAA==", "dtype": "<i2", "shape": [1, 2]}, "int16", (1, 2)),
        ({"text": "abc"}, None, None),
        ("abc", None, None),
    ],
)
def test_items_say_which_array_they_are(
    read: Callable[..., SetMap], value: Any, dtype: str | None, shape: tuple[int, ...] | None
) -> None:
    if read is from_msgpack and "data" in value:
        value = value | {"data": base64.b64decode(value["data"])}
    for given in (value, [value]):
        sets = read({"a": given})
        assert sets["a"] is not None
        assert (sets["a"][0].dtype, sets["a"][0].shape) == (dtype, shape)


@pytest.mark.parametrize(
    "kind",
    [
        {"dtype": "float64"},
        {"dtype": "int32"},
        {"dtype": ">f4"},
        {"dtype": "float32", "shape": [2, 1]},
        {"dtype": "float32", "shape": [2]},
        {"shape": [2]},
    ],
)
def test_an_array_of_another_type_than_declared_is_refused(kind: dict[str, Any]) -> None:
    data = np.array([[1, 2]], kind.get("dtype", "float32")).tobytes()
    bodies = [({"data": data} | kind, from_msgpack), ({"numbers": [1, 2]} | kind, from_json)]
    for value, read in bodies:
        with pytest.raises(InvalidInput) as caught:
            read({"x": [{"name": "good", "numbers": [1, 2]} if read is from_json else F12, value]})
        assert caught.value.where == "sets.x"
        assert "'1' is" in caught.value.message
        assert "expected float32[?, 2]" in caught.value.message


def test_ten_thousand_items() -> None:
    value = [{"name": f"i{i}", "key": i, "text": str(i)} for i in range(10_000)]
    long = [{"name": f"i{i}", "key": i, "data": str(i).encode()} for i in range(10_000)]
    assert from_json({"a": value}) == from_msgpack({"a": long})
    assert len(from_json({"a": value})["a"] or ()) == 10_000


def test_msgpack_items_are_views_into_the_context_and_keep_it() -> None:
    domain = HeapDomain(1 << 20)
    body = msgspec.msgpack.encode({"sets": {"a": [{"data": b"d" * 9000, "key": 1}, b"e"]}})
    context = domain.acquire(len(body))
    context.view[:] = body
    sets: SetMap | None = decode_msgpack(context.view.toreadonly(), SPECS)
    view = context.view
    at = view.tobytes().index(b"ddd")
    view[at : at + 1] = b"D"
    del context, view
    assert sets is not None
    assert sets["a"] is not None
    first, second = sets["a"].items
    assert bytes(first.data[:3]) == b"Ddd"  # the same memory, not a copy
    assert isinstance(first.data, memoryview)
    assert first.data.readonly
    del sets, first
    assert domain.stats().contexts == 1
    del second
    assert domain.stats().contexts == 0


@pytest.mark.parametrize("read", [from_json, from_msgpack])
@pytest.mark.parametrize(
    ("sets", "where"),
    [
        ([], "sets"),
        ("a", "sets"),
        ({"a": True}, "sets.a"),
        ({"a": 3}, "sets.a"),
        ({"a": [1, 2]}, "sets.a[0]"),
        ({"a": ["x", None]}, "sets.a[1]"),
        ({"a": {}}, "sets.a"),
        ({"a": {"text": "x", "numbers": [1]}}, "sets.a"),
        ({"a": {"txt": "x"}}, "sets.a.txt"),
        ({"a": ["x", {"text": 1}]}, "sets.a[1].text"),
        ({"a": {"text": "x", "key": -1}}, "sets.a"),
        ({"a": {"text": "x", "key": 2**32}}, "sets.a"),
        ({"a": {"text": "x", "key": 1.5}}, "sets.a.key"),
        ({"a": {"text": "x", "key": True}}, "sets.a.key"),
        ({"a": {"text": "x", "name": 3}}, "sets.a.name"),
        ({"a": {"text": "x", "name": "n" * 256}}, "sets.a"),
        ({"a": {"text": "x", "name": "nul\0"}}, "sets.a"),
        ({"a": {"text": "x", "dtype": "float31"}}, "sets.a.dtype"),
        ({"a": {"text": "x", "dtype": "object"}}, "sets.a.dtype"),
        ({"a": {"numbers": [1]}}, "sets.a.numbers"),
        ({"a": {"numbers": [1], "shape": [1]}}, "sets.a.numbers"),
        ({"a": {"numbers": [1, 2], "dtype": "int8", "shape": [3]}}, "sets.a.numbers"),
        ({"a": {"numbers": [1, 2], "dtype": "int8", "shape": [-1]}}, "sets.a.numbers"),
        ({"a": {"numbers": [1, 2], "dtype": "int8", "shape": 2}}, "sets.a.shape"),
        ({"a": {"numbers": [1, 2], "dtype": "int8", "shape": ["2"]}}, "sets.a.numbers"),
        ({"a": {"text": "x", "shape": [1]}}, "sets.a.text"),
        ({"a": {"text": "x", "dtype": "int8"}}, "sets.a.text"),
        ({"a": [{"text": "x"}, {"numbers": [1], "dtype": "no"}]}, "sets.a[1].dtype"),
        ({"x": [1, 2, 3]}, "sets.x"),
        ({"x": [[1, 2], [3]]}, "sets.x"),
        ({"x": [1, "2"]}, "sets.x"),
        ({"x": [1, None]}, "sets.x"),
        ({"x": [1e39, 0]}, "sets.x"),
        ({"x": "odd"}, "sets.x"),
        ({"n": [1.5]}, "sets.n"),
        ({"n": [2**31]}, "sets.n"),
        ({"n": {"numbers": [300], "dtype": "int8"}}, "sets.n.numbers"),
    ],
)
def test_a_value_that_does_not_fit(read: Callable[..., SetMap], sets: object, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(sets)
    assert caught.value.where == where


@pytest.mark.parametrize("text", ["a", "a===", "====", "*&^%", "YQ==\n", "é", "YQ"])
def test_bad_base64(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_json({"a": [{"data": text}]})
    assert caught.value.where == "sets.a[0].data"


@pytest.mark.parametrize(
    "value", [[{"data": b"123", "dtype": "int16"}], {"data": b"123", "dtype": "int16"}]
)
def test_data_that_is_not_a_multiple_of_its_dtype(value: object) -> None:
    with pytest.raises(InvalidInput, match="not a multiple"):
        from_msgpack({"n": value})


BAD_BODIES = [b"", b"\xc1", b"[]", b"3", b"null", b"{}", b'{"set":{}}', b'{"sets":{},"more":1}']


@pytest.mark.parametrize(
    "body",
    [
        *BAD_BODIES,
        b"{",
        b'{"sets":{"a":"\xff"}}',
        b'{"sets":{"\xff":"a"}}',
        b'{"sets":{"a":"\\ud800"}}',
        b'{"sets":{"n":[NaN]}}',
        b'{"sets":{"n":[1e999]}}',
        b"[" * 100_000,
        b'{"sets":{"n":' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    ],
)
def test_bad_json(body: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_json(body, SPECS)
    assert caught.value.where.startswith(("body", "sets"))


GOOD_PACK = msgspec.msgpack.encode({"sets": {"a": [{"data": b"123", "name": "n", "key": 70000}]}})


@pytest.mark.parametrize(
    "body",
    [
        *BAD_BODIES,
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        GOOD_PACK + b"\0",
        GOOD_PACK.replace(b"\xa4name", b"\xa4\xff\xffme"),
        GOOD_PACK.replace(b"\xa1n", b"\xa1\xff"),
        msgspec.msgpack.encode({"sets": {1: b"x"}}),
        msgspec.msgpack.encode({"sets": {"a": msgspec.msgpack.Ext(5, b"x")}}),
        msgspec.msgpack.encode({"sets": {"a": [{"data": msgspec.msgpack.Ext(5, b"x")}]}}),
    ],
)
def test_bad_msgpack(body: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_msgpack(body, SPECS)
    assert caught.value.where.startswith(("body", "sets"))


def test_msgpack_cut_anywhere_is_refused() -> None:
    for length in range(len(GOOD_PACK)):
        with pytest.raises(InvalidInput):
            decode_msgpack(GOOD_PACK[:length], SPECS)


def test_huge_names_are_not_echoed() -> None:
    for document in ({"sets": {}, "s" * 100_000: 1}, {"sets": {"a": {"t" * 100_000: 1}}}):
        with pytest.raises(InvalidInput) as caught:
            decode_json(json.dumps(document).encode(), SPECS)
        assert len(str(caught.value)) < 500


def test_names_of_sets() -> None:
    check_names({"a": 1, "x": None, "n": 2}, SPECS)
    with pytest.raises(InvalidInput, match="missing") as caught:
        check_names({"a": 1, "x": 1}, SPECS)
    assert caught.value.where == "sets.n"
    specs = {"image": SetSpec("image")}
    with pytest.raises(InvalidInput, match="did you mean 'image'"):
        check_names({"imagee": 1}, specs)
    with pytest.raises(InvalidInput, match="fixed at registration"):
        check_names({"image": 1, "weights": 1}, specs, ("weights",))


def test_raw_body_is_the_only_item() -> None:
    sets = decode_raw(b"\0\0\x80?" * 2, "x", SPECS)
    assert items(sets["x"]) == [("x", 0, b"\0\0\x80?" * 2)]
    assert sets["a"] is None
    with pytest.raises(InvalidInput):
        decode_raw(b"odd", "x", SPECS)


LARGE = {
    "uint64": [[2**63 + 1, 5], [2**64 - 1, 0], [2**53 + 1, 1.0], [[2**63 + 1], [0]]],
    "int64": [[2**53 + 1, 1.0], [-(2**63), 2**53 + 1, 2.0]],
}
UNFIT = {
    "uint64": [[2**63, -1], [2**64 - 1, 0.5], [1e300], [2.0**64]],
    "int64": [[2**63, 1], [-(2**63) - 1, 1.0], [2**53 + 1, 1.5], [2**64]],
    "float32": [[10**39], [10**400, 1]],
}


@pytest.mark.parametrize("read", [from_json, from_msgpack])
@pytest.mark.parametrize(("dtype", "numbers"), [(d, v) for d, vs in LARGE.items() for v in vs])
def test_large_integers_keep_their_value(read: Decode, dtype: str, numbers: list[Any]) -> None:
    specs = {"a": SetSpec("a", dtype)}
    given: list[Any] = [numbers, {"numbers": numbers}, {"numbers": numbers, "dtype": dtype}]
    for value in given:
        made = read({"a": value}, specs)["a"]
        assert made is not None
        found = np.frombuffer(made[0].data, dtype).tolist()
        assert found == np.ravel(np.asarray(numbers, dtype=object)).tolist()


@pytest.mark.parametrize("read", [from_json, from_msgpack])
def test_nested_numbers_have_a_shape(read: Decode) -> None:
    """A number, or one list, takes the declared shape."""
    tall = [[1, 2], [3, 4], [5, 6]]
    for shape, numbers, found in (
        ((-1, 2), tall, (3, 2)),
        (None, tall, (3, 2)),
        ((-1, 2), [1, 2, 3, 4], (2, 2)),
        ((1, 1), 7, (1, 1)),
        (None, [1, 2], None),
    ):
        specs = {"a": SetSpec("a", "float32", shape)}
        given: list[Any] = [numbers, {"numbers": numbers}, {"numbers": numbers, "dtype": "float32"}]
        for value in given:
            made = read({"a": value}, specs)["a"]
            assert made is not None
            assert made[0].shape in (found, found and (int(np.prod(found)),))
            assert made[0].numpy("float32").tolist() == np.ravel(numbers).tolist()
    for shape in ((-1, 3), (2, 3), (6,)):
        specs = {"a": SetSpec("a", "float32", shape)}
        for value in (tall, {"numbers": tall}, {"numbers": tall, "dtype": "float32"}):
            with pytest.raises(InvalidInput, match=r"is float32\[3, 2\], expected"):
                read({"a": value}, specs)


def test_floats_written_as_integers_of_more_than_64_bits() -> None:
    made = from_json({"x": [10**20, 0.5]})["x"]
    assert made is not None
    assert made[0].numpy("float32").tolist() == [np.float32(1e20), 0.5]


@pytest.mark.parametrize(("dtype", "numbers"), [(d, v) for d, vs in UNFIT.items() for v in vs])
def test_large_integers_that_do_not_fit_are_refused(dtype: str, numbers: list[Any]) -> None:
    with pytest.raises(InvalidInput, match=f"does not fit {dtype}") as caught:
        from_json({"a": numbers}, {"a": SetSpec("a", dtype)})
    assert caught.value.where == "sets.a"


@pytest.mark.parametrize("digits", [4000, 5000])
def test_errors_do_not_repeat_long_integers(digits: int) -> None:
    with pytest.raises(InvalidInput, match="does not fit int8") as caught:
        of_numbers("a", [10**digits, 1], np.dtype("int8"))
    assert len(str(caught.value)) < 80
