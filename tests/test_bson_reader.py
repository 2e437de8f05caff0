"""BSON: read and written as pymongo's module `bson` does, and never more than an error."""

from __future__ import annotations

import contextlib
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dandelion.data import Item, ItemSet
from dandelion.errors import DandelionError, InvalidInput, TooMany
from dandelion.frontend.bson.reader import BsonReader, read_int32_array
from dandelion.frontend.bson.requests import (
    BsonInvocation,
    joined_invocation,
    read_composition,
    read_function,
    read_invocation,
    read_library,
    separated_invocation,
)
from dandelion.frontend.bson.writer import encode_reply

LIMIT = 100_000
SUBTYPES = [0, 1, 3, 4, 5, 6, 7, 8, 128, 255]  # without 2, whose data pymongo takes apart
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
items = st.fixed_dictionaries(
    {
        "identifier": names,
        "key": st.integers(0, 2**32 - 1).flatmap(lambda k: st.sampled_from([k, Int64(k)])),
        "data": st.builds(Binary, st.binary(max_size=300), st.sampled_from(SUBTYPES)),
    }
)
sets = st.fixed_dictionaries({"identifier": names, "items": st.lists(items, max_size=14)})


@st.composite
def invocations(draw: st.DrawFn) -> dict[str, Any]:
    """An invocation whose fields are in any order, at every level."""

    def shuffled(document: dict[str, Any]) -> dict[str, Any]:
        return {name: document[name] for name in draw(st.permutations(list(document)))}

    given_sets = [
        shuffled({**s, "items": [shuffled(i) for i in s["items"]]})
        for s in draw(st.lists(sets, max_size=4))
    ]
    field = draw(st.sampled_from(["name", "composition"]))
    return shuffled({field: draw(names), "sets": given_sets})


def plain(read: BsonInvocation) -> dict[str, Any]:
    """An invocation as pymongo decodes it, without subtypes."""
    return {
        "composition" if read.is_text else "name": read.target,
        "sets": [
            {
                "identifier": one.identifier,
                "items": [
                    {"identifier": i.name, "key": i.key, "data": i.bytes()} for i in one.items
                ],
            }
            for one in read.sets
        ],
    }


@settings(max_examples=60, deadline=None)
@given(invocations())
def test_invocations_are_read_as_by_the_library(document: dict[str, Any]) -> None:
    body = bson.encode(document)
    expected = bson.decode(body)
    for one in expected["sets"]:
        for item in one["items"]:
            item["data"] = bytes(item["data"])
    assert plain(read_invocation(body, LIMIT)) == expected
    assert plain(read_invocation(memoryview(body), LIMIT)) == expected
    assert plain(joined_invocation(*separated_invocation(body, LIMIT))) == expected


def test_the_data_of_items_is_not_copied() -> None:
    body = bson.encode({"name": "f", "sets": [{"identifier": "", "items": [
        {"identifier": "i", "key": 1, "data": bytes(range(200))}]}]})  # fmt: skip
    (one,) = read_invocation(memoryview(body), LIMIT).sets
    data = one.items[0].data
    assert isinstance(data, memoryview)
    assert data.obj is body


@settings(max_examples=120, deadline=None)
@given(invocations(), st.data())
def test_damaged_invocations_are_errors(document: dict[str, Any], data: st.DataObject) -> None:
    body = bytearray(bson.encode(document))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (bytes(body), bytes(body[:cut]), bytes(body) + b"\0"):
        for read in (read_invocation, read_function, read_library, read_composition):
            with contextlib.suppress(DandelionError):
                read(damaged, 1000)


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=200))
@example(b"\5\0\0\0\0")
@example(b"\xff\xff\xff\xff")
def test_rubbish_is_an_error(rubbish: bytes) -> None:
    for body in (rubbish, (len(rubbish) + 5).to_bytes(4, "little") + rubbish + b"\0"):
        for read in (read_invocation, read_function, read_library, read_composition):
            with pytest.raises(DandelionError):
                read(body, 1000)


ITEM = {"identifier": "i", "key": 0, "data": b""}
SET = {"identifier": "s", "items": [ITEM]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"sets": []}, "exactly one"),
        ({"name": "f", "composition": "c", "sets": []}, "exactly one"),
        ({"name": "f"}, "'sets' is missing"),
        ({"name": "f", "sets": [], "extra": 1}, "unknown field 'extra'"),
        ({"name": 7, "sets": []}, "send a string"),
        ({"name": "f", "sets": {}}, "send an array"),
        ({"name": "f", "sets": [7]}, "send a document"),
        ({"name": "f", "sets": [{"identifier": "s"}]}, "'items' is missing"),
        ({"name": "f", "sets": [{**SET, "x": 1}]}, "unknown field 'x'"),
        ({"name": "f", "sets": [{**SET, "items": [{"identifier": "i", "key": 0}]}]}, "'data'"),
        ({"name": "f", "sets": [{**SET, "items": [{**ITEM, "key": -1}]}]}, "outside"),
        ({"name": "f", "sets": [{**SET, "items": [{**ITEM, "key": 2**32}]}]}, "outside"),
        ({"name": "f", "sets": [{**SET, "items": [{**ITEM, "key": 1.5}]}]}, "send an integer"),
        ({"name": "f", "sets": [{**SET, "items": [{**ITEM, "data": "text"}]}]}, "send binary"),
    ],
)
def test_what_does_not_fit_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_invocation(bson.encode(document), LIMIT)


def test_a_field_twice_is_an_error() -> None:
    name = b"\x02name\0\x02\0\0\0f\0"
    body = b"\x04sets\0\x05\0\0\0\0" + name + name
    with pytest.raises(InvalidInput, match="twice"):
        read_invocation((len(body) + 5).to_bytes(4, "little") + body + b"\0", LIMIT)


def test_items_sets_and_elements_are_limited() -> None:
    body = bson.encode({"name": "f", "sets": [{**SET, "items": [ITEM] * 11}]})
    read_invocation(body, 11)
    with pytest.raises(TooMany, match="11 items"):
        read_invocation(body, 10)
    many = bson.encode({"name": "f", "sets": [{"identifier": "", "items": []}] * 5000})
    with pytest.raises(TooMany):
        read_invocation(many, LIMIT)
    with pytest.raises(TooMany, match="elements"):
        list(BsonReader(bson.encode(dict.fromkeys(map(str, range(101)), 1)), 100).body())


# --- bytes as arrays of integers ----------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 99, 100, 101, 1000, 1001, 12_345])
def test_arrays_of_integers_are_read_at_once(size: int) -> None:
    data = bytes(at * 7 % 256 for at in range(size))
    array = bson.encode({str(at): value for at, value in enumerate(data)})
    assert read_int32_array(array) == data
    assert read_int32_array(memoryview(array)) == data


@pytest.mark.parametrize("index", [12, 123])
def test_a_name_that_ends_early_is_another_array(index: int) -> None:
    """The rows of the table are the elements only if no name has a NUL."""
    array = bytearray(bson.encode({str(at): 7 for at in range(200)}))
    array[array.index(b"\x10%d\0" % index) + 2] = 0
    assert read_int32_array(bytes(array)) is None


def function(**changed: Any) -> dict[str, Any]:
    return {
        "name": "f",
        "context_size": 1 << 20,
        "engine_type": "Process",
        "binary": list(b"elf"),
        "input_sets": [["in", None]],
        "output_sets": ["out"],
        **changed,
    }


@pytest.mark.parametrize(
    "binary",
    [list(b"\0\xff7"), b"\0\xff7", Binary(b"\0\xff7", 128), [Int64(0), 255, Int64(55)]],
)
def test_an_executable_may_have_several_forms(binary: Any) -> None:
    read = read_function(bson.encode(function(binary=binary)), 1000)
    assert read.contents == (b"\0\xff7",)


@pytest.mark.parametrize("value", [256, -1, 2**31, "a", 1.0, None, [1]])
@pytest.mark.parametrize("at", [0, 5, 15, 150])
def test_other_elements_are_refused(value: Any, at: int) -> None:
    binary: list[Any] = [1] * 200
    binary[at] = value
    with pytest.raises(InvalidInput, match="binary"):
        read_function(bson.encode(function(binary=binary)), 1000)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=130), st.data())
def test_damaged_arrays_are_read_alike_by_both_readers(
    values: list[int], data: st.DataObject
) -> None:
    body = bytearray(bson.encode(function(binary=values)))
    begin = body.index(b"binary\0") + len(b"binary\0")
    end = body.index(b"\4input_sets\0")
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(begin, end - 1))] = data.draw(st.integers(0, 255))
    array = bytes(body[begin:end])
    fast = read_int32_array(array)
    if fast is not None and int.from_bytes(array[:4], "little") == len(array):
        reader = BsonReader(array, LIMIT)
        assert fast == bytes(reader.integer("binary", e, 256) for e in reader.body())


def test_a_function_with_all_fields() -> None:
    document = function(
        local_path="",
        input_sets=[["a", None], ["w", [["x", [1, 2]], ["y", b"three"]]], ["b"]],
        output_sets=["", "out"],
        min_set_bytes=[0, Int64(5)],
        later={"version": [1, {"of": None}], "when": 1.5, "id": bson.ObjectId()},
    )
    read = read_function(bson.encode(document), 1000)
    assert [(one.name, one.items) for one in read.inputs] == [
        ("a", ()), ("w", ("x", "y")), ("b", ())
    ]  # fmt: skip
    assert read.contents == (b"elf", b"\1\2", b"three")
    assert (read.outputs, read.minima, read.context_bytes) == (("", "out"), (0, 5), 1 << 20)


@pytest.mark.parametrize("name", ["name", "context_size", "engine_type", "binary", "input_sets"])
def test_missing_fields_of_a_function_are_named(name: str) -> None:
    document = function()
    del document[name]
    with pytest.raises(InvalidInput, match=f"'{name}' is missing"):
        read_function(bson.encode(document), 1000)


def test_a_large_executable_costs_few_elements() -> None:
    body = bson.encode(function(binary=[3] * 100_000))
    assert read_function(body, 100).contents == (b"\3" * 100_000,)
    wide = bson.encode(function(binary=[Int64(3)] * 1000))
    with pytest.raises(TooMany):
        read_function(wide, 100)


# --- replies ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(names, st.lists(st.builds(
    Item, names, st.integers(0, 2**32 - 1), st.binary(max_size=40)), max_size=13))))  # fmt: skip
def test_replies_are_those_of_the_library(given_sets: list[tuple[str, list[Item]]]) -> None:
    reply = encode_reply(
        [(name, ItemSet(name, tuple(made)) if made else None) for name, made in given_sets]
    )
    expected = {
        "sets": [
            {
                "identifier": name,
                "items": [
                    {"identifier": i.name, "key": Int64(i.key), "data": i.bytes()} for i in made
                ],
            }
            for name, made in given_sets
            if made
        ]
    }
    assert b"".join(reply) == bson.encode(expected)


@pytest.mark.parametrize("count", [9, 10, 11, 101, 1234])
def test_large_and_many_items_are_written(count: int) -> None:
    large = bytes(100_000)
    made = (*(Item(str(at), at, b"x") for at in range(count)), Item("l", 0, memoryview(large)))
    chunks = encode_reply([("s", ItemSet("s", made))])
    assert any(isinstance(chunk, memoryview) and chunk.obj is large for chunk in chunks)
    (one,) = bson.decode(b"".join(chunks))["sets"]
    assert [item["identifier"] for item in one["items"]] == [i.name for i in made]
    assert one["items"][-1]["data"] == large
