"""Replies of the codecs, and which codec is used."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.errors import (
    InvalidInput,
)
from dandelion.frontend.chunks import CHUNK_BYTES
from dandelion.frontend.codecs import (
    PackItem,
    decode_json,
    decode_msgpack,
    decode_response,
)
from dandelion.frontend.negotiation import Codec, reader, writers
from dandelion.frontend.problem import (
    NotAcceptable,
    UnsupportedMedia,
)
from dandelion.frontend.set_encoding import encode_json, encode_msgpack, encode_request
from tests.codec_items import F12, SPECS, items

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
    with pytest.raises(UnsupportedMedia) as caught:
        reader(header)
    assert ("curl" in str(caught.value)) == (b"form" in header)


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
        (b"application/json;q=0, */*", Codec.JSON, [Codec.MSGPACK, Codec.RAW]),
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
