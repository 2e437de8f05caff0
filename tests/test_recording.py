"""The format of recordings, their limits, and the differences of two."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.data import Item, ItemSet, Origin
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError, InvalidInput, Raised, TooLarge
from dandelion.function import FunctionSpec
from dandelion.recording.compare import Change, differences
from dandelion.recording.recorder import InvocationRecorder, SeenCall
from dandelion.recording.records import MAGIC, Recording, decode_recording

DOCUMENT = RegistrationDocument(
    (FunctionDocument("f", ("x",), ("y",), code=(CodeDocument("null"),)),)
)


def sets(*data: bytes, name: str = "y") -> InstanceSets:
    return (ItemSet(name, tuple(Item(f"i{at}", at, one) for at, one in enumerate(data))),)


def seen(
    instance: int,
    inputs: bytes,
    answer: InstanceSets | DandelionError,
    kind: str = "compute",
    function: str = "f",
) -> SeenCall:
    failed = isinstance(answer, DandelionError)
    return SeenCall(
        FunctionSpec(function, kind=kind),
        instance,
        "f",
        instance,
        sets(inputs, name="x"),
        None if failed else answer,  # type: ignore[arg-type]  # it is not an error
        answer if isinstance(answer, DandelionError) else None,
        "null:0",
        2_000,
        9_000,
        Origin("i0", 0),
    )


def recording(
    *calls: SeenCall,
    limit_bytes: int = 1 << 20,
    answer: InstanceSets | DandelionError | None = None,
    document: RegistrationDocument = DOCUMENT,
) -> Recording:
    recorder = InvocationRecorder(limit_bytes, sets(b"input", name="x"), "fixed:3")
    for call in calls:
        recorder.add(call)
    code = (document, (FunctionSpec("HTTP", kind="io"),))
    return recorder.recording(
        "f", "id-1", 1_000, code, ("x",), sets(b"out") if answer is None else answer
    )


@given(st.lists(st.binary(max_size=64), max_size=5), st.binary(max_size=64))
def test_a_recording_is_read_as_it_was_written(data: list[bytes], result: bytes) -> None:
    made = recording(
        *(seen(at, one, sets(one, b"more")) for at, one in enumerate(data)),
        seen(9, b"bad", Raised("f", "no")),
        answer=sets(result),
    )
    read = decode_recording(made.encode())
    assert read == made
    assert read.outputs is not None
    (restored,) = [read.restored(one) for one in read.outputs]
    assert restored is not None
    assert [item.data for item in restored] == [result]
    assert differences(made, read) == []


def test_large_data_is_read_as_it_was_written() -> None:
    large = [bytes([number]) * 300_000 for number in range(3)]
    made = recording(seen(0, large[0], sets(large[1])), answer=sets(large[2]), limit_bytes=1 << 21)
    read = decode_recording(made.encode())
    assert read == made
    assert sorted(bytes(blob) for blob in read.blobs.values() if len(blob) > 10) == large


@pytest.mark.parametrize("at", [0, 5, len(MAGIC), len(MAGIC) + 40])
def test_a_damaged_file_is_refused(at: int) -> None:
    data = bytearray(recording(seen(0, b"a", sets(b"b"))).encode())
    with pytest.raises(InvalidInput) as caught:
        decode_recording(bytes(data[:at]))
    assert caught.value.where == "recording"
    data[at] ^= 0xFF
    with pytest.raises(InvalidInput):
        decode_recording(bytes(data))


def test_data_that_is_not_that_of_its_digest_is_refused() -> None:
    made = recording(seen(0, b"a", sets(b"b")))
    changed = dict.fromkeys(made.blobs, b"other")
    with pytest.raises(InvalidInput, match="differs"):
        decode_recording(msgspec.structs.replace(made, blobs=changed).encode())
    read = decode_recording(msgspec.structs.replace(made, blobs={}).encode())
    with pytest.raises(InvalidInput, match="'i0' is missing"):
        read.restored(read.inputs[0])


def test_equal_data_is_stored_once() -> None:
    many = recording(*(seen(at, b"same" * 1000, sets(b"same" * 1000)) for at in range(50)))
    assert len(many.encode()) < 4000 + 50 * 300


def test_compute_calls_beyond_the_limit_are_counted() -> None:
    calls = [seen(at, b"x", sets(bytes(100))) for at in range(10)]
    made = recording(*calls, limit_bytes=350)
    assert (len(made.calls), made.omitted_calls) == (3, 7)


def test_answers_of_io_have_to_fit() -> None:
    calls = [seen(at, b"x", sets(bytes(100)), "io") for at in range(10)]
    assert len(recording(*calls, limit_bytes=1005).calls) == 10
    with pytest.raises(TooLarge) as caught:
        recording(*calls, limit_bytes=1004)
    assert caught.value.size_bytes == 1005
    mixed = [seen(0, b"x", sets(bytes(300))), *calls]
    with pytest.raises(TooLarge):
        recording(*mixed, limit_bytes=1004)
    made = recording(*mixed, limit_bytes=1005)  # the call of a compute function makes room
    assert ([call.kind for call in made.calls], made.omitted_calls) == (["io"] * 10, 1)
    made = recording(*calls, seen(0, b"x", sets(bytes(300))), limit_bytes=1304)
    assert (len(made.calls), made.omitted_calls) == (10, 1)


def test_calls_that_were_left_out_are_not_compared() -> None:
    calls = [seen(at, b"%d" % at, sets(bytes(100))) for at in range(10)]
    short, whole = recording(*calls, limit_bytes=350), recording(*calls)
    assert differences(short, whole) == differences(whole, short) == []
    more = recording(*calls, seen(10, b"more", sets(b"")))
    found = {(one.change, one.where) for one in differences(short, more)}
    assert (Change.ADDED, "f[10]") in found
    io = recording(*calls, seen(10, b"more", sets(b""), "io"))
    assert [(one.change, one.where) for one in differences(short, io)] == [(Change.ADDED, "f[10]")]


@pytest.mark.parametrize("part", ["names", "inputs", "outputs"])
def test_a_recording_with_other_sets_than_its_functions_is_damaged(part: str) -> None:
    made = recording(seen(0, b"a", sets(b"b")))
    (call,) = made.calls
    changed = {
        "names": {"input_names": ("x", "z")},
        "inputs": {"calls": (msgspec.structs.replace(call, inputs=()),)},
        "outputs": {"calls": (msgspec.structs.replace(call, outputs=(None, None)),)},
    }[part]
    with pytest.raises(InvalidInput, match="a call lacks sets, or has others"):
        decode_recording(msgspec.structs.replace(made, **changed).encode())


def test_only_the_last_run_of_a_compute_call_counts() -> None:
    again = [seen(4, b"x", Raised("f", "first")), seen(4, b"x", sets(b"second"))]
    made = recording(*again)
    assert [call.error for call in made.calls] == [None]
    tried = [seen(4, b"x", Raised("f", "first"), "io"), seen(4, b"x", sets(b"second"), "io")]
    assert len(recording(*tried).calls) == 2


CHANGED = RegistrationDocument(
    (FunctionDocument("f", ("x",), ("y",), code=(CodeDocument("null", "other"),)),)
)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"document": CHANGED}, [(Change.CODE, "f", "changed")]),
        ({"document": RegistrationDocument()}, [(Change.CODE, "f", "removed")]),
        ({"calls": [(0, b"a", b"B")]}, [(Change.CALL, "f[0]", "set 'y': item 'i0': 1 of 1 bytes")]),
        ({"calls": []}, [(Change.MISSING, "f[0]", "f")]),
        ({"calls": [(0, b"a", b"b"), (1, b"c", b"d")]}, [(Change.ADDED, "f[1]", "f")]),
        ({"answer": sets(b"other")}, [(Change.RESULT, "f", "set 'y': item 'i0': 3 bytes, now 5")]),
        ({"answer": sets(b"out", b"b")}, [(Change.RESULT, "f", "set 'y': 1 items, now 2")]),
        ({"answer": (None,)}, [(Change.RESULT, "f", "set 'y': 1 items, now 0")]),
        (
            {"answer": Raised("f", "no")},
            [(Change.RESULT, "f", f"a result, now {Raised('f', 'no')}")],
        ),
    ],
)
def test_differences(after: dict[str, Any], expected: list[tuple[Change, str, str]]) -> None:
    before = recording(seen(0, b"a", sets(b"b")))
    calls = after.pop("calls", [(0, b"a", b"b")])
    made = recording(*(seen(at, given, sets(out)) for at, given, out in calls), **after)
    found = [(one.change, one.where, one.detail) for one in differences(before, made)]
    assert found == expected
