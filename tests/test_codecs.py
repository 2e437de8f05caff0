"""Sets on the wire: what is read, what is refused and where the refusal points, what is written."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    ContextFull,
    InvalidInput,
    Problem,
    Problems,
    TooLarge,
    from_record,
)
from dandelion.frontend.asgi import Message, Request
from dandelion.frontend.body import Body
from dandelion.frontend.chunks import CHUNK_BYTES
from dandelion.frontend.codecs import (
    PackItem,
    SetMap,
    check_names,
    decode_json,
    decode_msgpack,
    decode_raw,
    decode_response,
)
from dandelion.frontend.multipart import decode_multipart
from dandelion.frontend.negotiation import Codec, reader, writers
from dandelion.frontend.problem import (
    NotAcceptable,
    UnsupportedMedia,
    decode_problem,
    encode_problem,
    problem_of,
)
from dandelion.frontend.set_encoding import encode_json, encode_msgpack, encode_request
from dandelion.memory import Context, HeapDomain
from dandelion.set_values import checked

SPECS = {"a": SetSpec("a"), "x": SetSpec("x", "float32", (-1, 2)), "n": SetSpec("n", "int32")}

Decode = Callable[[Any, dict[str, SetSpec]], SetMap]


def from_json(sets: object, specs: Mapping[str, SetSpec] = SPECS) -> SetMap:
    return decode_json(json.dumps({"sets": sets}).encode(), specs)


def from_msgpack(sets: object, specs: Mapping[str, SetSpec] = SPECS) -> SetMap:
    return decode_msgpack(msgspec.msgpack.encode({"sets": sets}), specs)


def items(value: ItemSet | None) -> list[tuple[str, int, bytes]]:
    assert value is not None
    return [(item.name, item.key, bytes(item.data)) for item in value]


# --- what is read -------------------------------------------------------------------------------

F12 = np.array([[1, 2]], "float32").tobytes()


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


# --- what is refused ----------------------------------------------------------------------------


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


# --- what is written ----------------------------------------------------------------------------

RESULT = {
    "t": ItemSet("t", (Item("p", 3, b"text\n"), Item("q", 0, b"\xff"), Item("r", 0, b"\0"))),
    "f": ItemSet("f", (Item("f", 0, F12 * 2),), "float32", (-1, 2)),
    "nan": ItemSet("nan", (Item("f", 0, b"\0\0\xc0\x7f"),), "float32"),
    "z": ItemSet("z", (Item("z", 0, b"\0" * 8),), "complex64"),
    "of": ItemSet(
        "of",
        (
            Item.of("i", np.array([[1, 2]], np.int16), 4),
            Item.of("nan", np.array(np.nan)),
            Item("flat", 0, b"\1\0", "uint8"),
            Item("hollow", 0, b"", "int8", (1 << 40, 0)),
            Item("plain", 0, b"x"),
        ),
    ),
    "none": None,
}


def test_json_reply() -> None:
    (body,) = encode_json("id7", RESULT)
    reply = json.loads(bytes(body))
    assert reply["id"] == "id7"
    assert reply["sets"]["t"] == [
        {"name": "p", "key": 3, "text": "text\n"},
        {"name": "q", "key": 0, "data": "/w=="},
        {"name": "r", "key": 0, "data": "AA=="},
    ]
    assert reply["sets"]["f"] == [{"name": "f", "key": 0, "numbers": [[1, 2], [1, 2]]}]
    assert reply["sets"]["nan"] == [{"name": "f", "key": 0, "data": "AADAfw=="}]
    assert "data" in reply["sets"]["z"][0]
    assert reply["sets"]["of"] == [
        {"name": "i", "key": 4, "dtype": "int16", "shape": [1, 2], "numbers": [[1, 2]]},
        {"name": "nan", "key": 0, "dtype": "float64", "shape": [], "data": "AAAAAAAA+H8="},
        {"name": "flat", "key": 0, "dtype": "uint8", "numbers": [1, 0]},
        {"name": "hollow", "key": 0, "dtype": "int8", "shape": [1 << 40, 0], "numbers": []},
        {"name": "plain", "key": 0, "text": "x"},
    ]
    assert reply["sets"]["none"] is None
    assert reply["types"]["f"] == {"dtype": "float32", "shape": [-1, 2]}


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


def test_floats_written_as_integers_of_more_than_64_bits() -> None:
    made = from_json({"x": [10**20, 0.5]})["x"]
    assert made is not None
    assert made[0].numpy("float32").tolist() == [np.float32(1e20), 0.5]


@pytest.mark.parametrize(("dtype", "numbers"), [(d, v) for d, vs in UNFIT.items() for v in vs])
def test_large_integers_that_do_not_fit_are_refused(dtype: str, numbers: list[Any]) -> None:
    with pytest.raises(InvalidInput, match=f"does not fit {dtype}") as caught:
        from_json({"a": numbers}, {"a": SetSpec("a", dtype)})
    assert caught.value.where == "sets.a"


@pytest.mark.parametrize(
    ("shape", "data", "expected"),
    [
        (None, F12, [1, 2]),
        ((2,), F12, [1, 2]),
        ((1, 2), F12, [[1, 2]]),
        ((-1, -1), F12, [1, 2]),
        ((-1, 2), b"", []),
        ((), F12[:4], 1),
    ],
)
def test_numbers_take_the_declared_shape(
    shape: tuple[int, ...] | None, data: bytes, expected: object
) -> None:
    (body,) = encode_json("", {"f": ItemSet("f", (Item("f", 0, data),), "float32", shape)})
    assert json.loads(bytes(body))["sets"]["f"][0]["numbers"] == expected


def test_json_reply_is_a_request() -> None:
    (body,) = encode_json("id7", RESULT)
    given = json.loads(bytes(body))["sets"]
    specs = {"f": SetSpec("f", "float32", (-1, 2))}
    again = decode_json(json.dumps({"sets": given}).encode(), specs)
    assert items(again["t"]) == items(RESULT["t"])
    assert again["of"] is not None
    kinds = [(i.dtype, i.shape) for i in again["of"]]
    hollow = ("int8", (1 << 40, 0))
    assert kinds == [("int16", (1, 2)), ("float64", ()), ("uint8", (2,)), hollow, (None, None)]
    assert again["f"] is not None
    assert again["f"].numpy().tolist() == [[1, 2], [1, 2]]


def test_msgpack_reply_round_trip() -> None:
    chunks = encode_msgpack("id7", RESULT)
    id_, sets = decode_response(b"".join(chunks))
    assert id_ == "id7"
    assert {n: s and items(s) for n, s in sets.items()} == {
        n: s and items(s) for n, s in RESULT.items()
    }
    assert sets.f.numpy().tolist() == [[1, 2], [1, 2]]
    assert sets.of == RESULT["of"]


@pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536, CHUNK_BYTES - 1, CHUNK_BYTES])
@pytest.mark.parametrize("count", [1, 15, 16, 40])
def test_msgpack_reply_of_any_size(size: int, count: int) -> None:
    data = bytes(i % 251 for i in range(size))
    sets = {f"s{i}": ItemSet(f"s{i}", (Item("n", i, data),) * count) for i in range(17)}
    _, again = decode_response(b"".join(encode_msgpack("id", sets)))
    assert [items(s) for s in again.values() if s] == [items(s) for s in sets.values()]


def test_large_data_is_not_copied() -> None:
    data = memoryview(bytearray(CHUNK_BYTES)).toreadonly()
    chunks = encode_msgpack("id", {"s": ItemSet("s", (Item("n", 0, data),))})
    assert any(chunk is data for chunk in chunks)


def test_request_of_a_client_is_read_without_copies() -> None:
    item = PackItem(memoryview(b"d" * CHUNK_BYTES), "n", 4, "uint8")
    body = b"".join(encode_request({"a": (item,), "x": None, "n": {"numbers": [1]}}))
    sets = decode_msgpack(body, SPECS)
    assert items(sets["a"]) == [("n", 4, b"d" * CHUNK_BYTES)]
    assert sets["x"] is None
    assert items(sets["n"]) == [("n", 0, b"\1\0\0\0")]


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc1", b'{"id":"x"}'])
def test_a_reply_that_is_none(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_response(body)


# --- negotiation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "codec"),
    [
        (b"", Codec.RAW),
        (b"application/json", Codec.JSON),
        (b"Application/JSON; charset=utf-8", Codec.JSON),
        (b"application/x-msgpack", Codec.MSGPACK),
        (b"multipart/form-data; boundary=x", Codec.MULTIPART),
    ],
)
def test_reader(header: bytes, codec: Codec) -> None:
    assert reader(header) is codec


@pytest.mark.parametrize("header", [b"text/html", b"application/x-www-form-urlencoded", b"\xff;"])
def test_no_reader(header: bytes) -> None:
    with pytest.raises(UnsupportedMedia):
        reader(header)


@pytest.mark.parametrize(
    ("accept", "request_codec", "expected"),
    [
        (b"", Codec.JSON, [Codec.JSON]),
        (b"*/*", Codec.MSGPACK, [Codec.MSGPACK, Codec.JSON]),
        (b"*/*", Codec.RAW, [Codec.RAW, Codec.JSON]),
        (b"*/*", Codec.MULTIPART, [Codec.JSON]),
        (b"application/msgpack", Codec.JSON, [Codec.MSGPACK]),
        (b"application/octet-stream", Codec.JSON, [Codec.RAW]),
        (b"text/html, application/json;q=0.5", Codec.RAW, [Codec.JSON]),
        (
            b"application/json;q=0.1, application/msgpack;q=0.9",
            Codec.RAW,
            [Codec.MSGPACK, Codec.JSON],
        ),
        (b"*/*, application/json;q=0", Codec.RAW, [Codec.RAW]),
        (b"application/json;q=0, */*", Codec.RAW, [Codec.RAW]),
        (b"application/*", Codec.MSGPACK, [Codec.MSGPACK, Codec.JSON]),
        (b"application/x-msgpack, application/json", Codec.JSON, [Codec.MSGPACK, Codec.JSON]),
        (b"text/*, application/vnd.msgpack;q=0.1", Codec.JSON, [Codec.MSGPACK]),
        (b"rubbish, Application/JSON; Q=0.2", Codec.RAW, [Codec.JSON]),
        (b",".join([b"text/html"] * 10 + [b"*/*"]), Codec.RAW, [Codec.RAW, Codec.JSON]),
    ],
)
def test_writers(accept: bytes, request_codec: Codec, expected: list[Codec]) -> None:
    assert list(writers(accept, request_codec)) == expected


@pytest.mark.parametrize(
    "accept",
    [b"text/html", b"application/json;q=0", b";;;,", b"*/*;q=x", b"*/*;q=nan", b'a/b;"' * 20_000],
)
def test_nothing_acceptable(accept: bytes) -> None:
    with pytest.raises(NotAcceptable):
        writers(accept, Codec.JSON)


# --- bodies and multipart -----------------------------------------------------------------------


def request_of(pieces: list[bytes], headers: Mapping[bytes, bytes], ends: bool = True) -> Request:
    """A request whose body comes in pieces; without `ends` the client leaves after them."""
    messages: list[Message] = [
        {"type": "http.request", "body": p, "more_body": not ends or i < len(pieces) - 1}
        for i, p in enumerate(pieces)
    ]
    messages.append({"type": "http.disconnect"})
    stream = iter(messages)

    async def receive() -> Message:
        return next(stream)

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": list(headers.items())}
    return Request(scope, receive)


def run(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await awaitable

    return asyncio.run(main())


def body_of(
    pieces: list[bytes],
    limit: int = 1000,
    *,
    sized: bool = True,
    ends: bool = True,
    domain: HeapDomain | None = None,
    **headers: str,
) -> Body:
    known = {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
    if sized:
        known.setdefault(b"content-length", b"%d" % sum(map(len, pieces)))
    memory = domain or HeapDomain(1 << 20)

    async def acquire(size_bytes: int) -> Context:
        return memory.acquire(size_bytes)

    return Body(request_of(pieces, known, ends), acquire, limit)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("pieces", [[b""], [b"ab"], [b"ab", b"", b"cd"], [b"", b"a"], [b"", b""]])
def test_body_in_pieces(pieces: list[bytes], sized: bool) -> None:
    body = body_of(pieces, sized=sized)
    assert bytes(run(body.read())) == b"".join(pieces)


def test_body_in_pieces_lies_in_a_context() -> None:
    domain = HeapDomain(1 << 20)
    data = run(body_of([b"ab", b"cd"], domain=domain).read())
    assert domain.stats().contexts == 1
    assert data.readonly
    del data
    assert domain.stats().contexts == 0


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("pieces", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"x" * 5, b"x" * 9, b"x"]])
def test_body_over_the_limit(pieces: list[bytes], sized: bool) -> None:
    domain = HeapDomain(1 << 20)
    body = body_of(pieces, 10, sized=sized, domain=domain)
    with pytest.raises(TooLarge) as caught:
        run(body.read())
    assert caught.value.limit_bytes == 10
    assert domain.stats().contexts == 0


def test_a_body_far_over_the_limit_is_not_heard_out() -> None:
    body = body_of([b"x"], 10, content_length=str(10**12))
    with pytest.raises(TooLarge):
        run(body.read())
    assert body._request.close


def test_body_that_the_arena_cannot_hold() -> None:
    with pytest.raises(ContextFull):
        run(body_of([b"ab", b"cd"], domain=HeapDomain(3)).read())


def test_client_that_leaves() -> None:
    domain = HeapDomain(1 << 20)
    body = body_of([b"ab"], ends=False, content_length="100", domain=domain)

    async def read() -> str:
        try:
            await body.read()
        except Cancelled:
            return "cancelled"
        return "complete"

    assert run(read()) == "cancelled"
    assert domain.stats().contexts == 0


def test_content_encoding_is_refused() -> None:
    with pytest.raises(UnsupportedMedia):
        body_of([b"x"], content_encoding="gzip")


FORM = (
    b"--B\r\n"
    b'Content-Disposition: form-data; name="a"; filename="../x.png"\r\n'
    b"Dandelion-Key: 7\r\n\r\n"
    b"first\r\n--BUT not the boundary\r\n"
    b"--B\r\n"
    b'content-disposition: form-data; name="a"\r\n\r\n'
    b"\r\n--B\r\n"
    b'Content-Disposition: form-data; name="n"; filename="\xc3\xa9"\r\n\r\n'
    b"\1\0\0\0\r\n--B--\r\n"
)


def form(pieces: list[bytes], content_type: str = "multipart/form-data; boundary=B") -> SetMap:
    body = body_of(pieces, 100_000)
    sets: SetMap = run(decode_multipart(body, content_type, SPECS, 1000))
    return sets


def test_form_with_types() -> None:
    head = b'--B\r\nContent-Disposition: form-data; name="%s"\r\n%s\r\n\r\n%s\r\n--B--\r\n'
    kind = b"Dandelion-Dtype: float32\r\nDandelion-Shape: 1, 2"
    assert form([head % (b"x", kind, F12)])["x"] == checked(
        "x", [Item.of("0", np.array([[1, 2]], "float32"))], SPECS["x"]
    )
    made = form([head % (b"a", kind, F12)])["a"]
    assert made is not None
    assert made.numpy().tolist() == [[1, 2]]
    for bad in (b"Dandelion-Dtype: float64", b"Dandelion-Shape: 2", kind + b", 3"):
        with pytest.raises(InvalidInput) as caught:
            form([head % (b"x", bad, F12)])
        assert caught.value.where == "sets.x"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_form_cut_anywhere(size: int) -> None:
    sets = form([FORM[i : i + size] for i in range(0, len(FORM), size)])
    assert items(sets["a"]) == [
        ("../x.png", 7, b"first\r\n--BUT not the boundary"),
        ("1", 0, b""),
    ]
    assert items(sets["n"]) == [("é", 0, b"\1\0\0\0")]
    assert sets["x"] is None


def test_form_of_unknown_size() -> None:
    body = body_of([FORM[:100], FORM[100:]], sized=False)
    sets = run(decode_multipart(body, "multipart/form-data; boundary=B", SPECS, 1000))
    assert len(sets["a"]) == 2


@pytest.mark.parametrize(
    ("form_body", "content_type"),
    [
        (FORM, "multipart/form-data"),
        (FORM, "multipart/form-data; boundary="),
        (FORM, "multipart/form-data; boundary=" + "b" * 71),
        (FORM, "multipart/form-data; boundary=other"),
        (b"", "multipart/form-data; boundary=B"),
        (FORM[:-8], "multipart/form-data; boundary=B"),
        (FORM[:60], "multipart/form-data; boundary=B"),
        (FORM.replace(b'name="a"', b'nome="a"'), "multipart/form-data; boundary=B"),
        (FORM.replace(b"form-data", b"attachment"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"Key: 7", b"Key: -7"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"Key: 7", b"Key: 4294967296"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"\xc3\xa9", b"\xff\xff"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"\1\0\0\0", b"\1\0\0"), "multipart/form-data; boundary=B"),
        (FORM.replace(b"Dandelion-Key", b"K" * 5000), "multipart/form-data; boundary=B"),
    ],
)
def test_bad_form(form_body: bytes, content_type: str) -> None:
    with pytest.raises(InvalidInput):
        form([form_body], content_type)


# --- problems -----------------------------------------------------------------------------------


def test_problem_names_the_root_and_rebuilds_the_chain() -> None:
    error = ApplicationFailed("c", "f", 2, 7).because(ContextFull("shared", 10, 3))
    problem = decode_problem(encode_problem(problem_of(error, "id7")))
    assert problem is not None
    assert (problem.type, problem.status) == ("urn:dandelion:error:ContextFull", 507)
    assert problem.instance == "id7"
    again = from_record(problem.error)
    assert isinstance(again, ApplicationFailed)
    assert isinstance(again.__cause__, ContextFull)
    assert again.__cause__.free_bytes == 3


def test_problem_lists_all_problems() -> None:
    found = (Problem("a", "first", "f:1:2", 1, 2), Problem("b", "second", nearest="x"))
    problem = problem_of(Problems(found))
    assert problem.problems == found


def test_problem_with_text_that_is_no_unicode() -> None:
    problem = decode_problem(encode_problem(problem_of(InvalidInput("w", "bad \ud800 text"))))
    assert problem is not None
    assert "\\ud800" in problem.detail
