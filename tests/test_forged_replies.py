"""Replies that a hostile function forges."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from dandelion.backends.process import wire
from dandelion.backends.process.engine import ProcessEngine

from dandelion.errors import (
    BadOutput,
    DandelionError,
    Exited,
    OutOfMemory,
    Raised,
    Unauthorized,
)
from tests.sandbox_attempts import ECHO, attempt

from .python_functions import first, function, process_engine, run


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: ProcessEngine) -> Iterator[None]:
    yield
    assert first(run(engine, ECHO, b"still here")).bytes() == b"still here"


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


pack = msgspec.msgpack.encode


def forged(record: bytes, data: bytes = b"", data_bytes: int | None = None) -> bytes:
    head = wire.PREFIX.pack(len(record), len(data) if data_bytes is None else data_bytes)
    start = head + record
    return start + bytes(-len(start) % 64) + data


def done(*sets: Any) -> bytes:
    return pack(["done", list(sets)])


def say(engine: ProcessEngine, message: bytes, **limits: Any) -> DandelionError:
    return attempt(engine, f"import os\ndef f(x):\n    os.write(3, {message!r})\n", **limits)


FORGED = {
    "no parcel": b"\1",
    "almost a prefix": bytes(15),
    "garbage": os.urandom(200),
    "text": b"HTTP/1.1 200 OK\r\n\r\n" * 4,
    "the longest message": bytes(wire.PREFIX.size + wire.INLINE_BYTES),
    "longer than the longest": bytes(wire.PREFIX.size + wire.INLINE_BYTES + 1000),
    "a record in the file, which is empty": wire.PREFIX.pack(100, 0),
    "no record at all": wire.PREFIX.pack(0, 0),
    "a huge record": wire.PREFIX.pack(1 << 63, 0),
    "huge data": wire.PREFIX.pack(10, 1 << 63),
    "sums that overflow": wire.PREFIX.pack((1 << 64) - 1, (1 << 64) - 1),
    "data that is not there": forged(done([["n", 0, 64]]), b"", 64),
    "data that nobody lists": forged(done(None), bytes(64)),
    "too few sets": forged(done()),
    "too many sets": forged(done(None, None)),
    "a huge array": forged(b"\x92\xa4done\xdd\xff\xff\xff\xff"),
    "a huge array of items": forged(b"\x92\xa4done\x91\xdd\xff\xff\xff\xff\x93\xa1n\0\0"),
    "a huge name": forged(b"\x92\xa4done\x91\x91\x93\xdb\xff\xff\xff\xffn"),
    "a huge map": forged(b"\x92\xa4done\xdf\xff\xff\xff\xff"),
    "deep nesting": forged(b"\x92\xa4done" + b"\x91" * 60_000),
    "a negative size": forged(done([["n", 0, -64]]), b""),
    "a size of 2^64 - 1": forged(done([["n", 0, 2**64 - 1]]), bytes(64)),
    "sizes that cancel out": forged(done([["n", 0, 2**62]] * 4), b""),
    "a size that is too small": forged(done([["n", 0, 0]]), bytes(64)),
    "a size that is too large": forged(done([["n", 0, 65]]), bytes(64)),
    "a negative key": forged(done([["n", -1, 0]])),
    "a key beyond u32": forged(done([["n", 2**32, 0]])),
    "a key of another type": forged(done([["n", 1.5, 0]])),
    "a name of another type": forged(done([[b"n", 0, 0]])),
    "a name that is too long": forged(done([["n" * 256, 0, 0]])),
    "a name with NUL": forged(done([["a\0b", 0, 0]])),
    "a name that is no UTF-8": forged(done([["nn", 0, 0]]).replace(b"nn", b"\xff\xfe")),
    "a name with a surrogate": forged(done([["nnn", 0, 0]]).replace(b"nnn", b"\xed\xa0\x80")),
    "an overlong name": forged(done([["nn", 0, 0]]).replace(b"nn", b"\xc0\xaf")),
    "a type without a name": forged(done([["n", 0, 0, None, [0]]])),
    "an unknown type": forged(done([["n", 0, 8, "object", [1]]]), bytes(64)),
    "a type that numpy would evaluate": forged(done([["n", 0, 8, "(2,)f4", [1]]]), bytes(64)),
    "a type of another size": forged(done([["n", 0, 8, "float32", [1]]]), bytes(64)),
    "a type of half an element": forged(done([["n", 0, 7, "float32", None]]), bytes(64)),
    "a negative dimension": forged(done([["n", 0, 8, "float32", [-2, -1]]]), bytes(64)),
    "a dimension that is no integer": forged(done([["n", 0, 8, "float32", [2.0]]]), bytes(64)),
    "too many dimensions": forged(done([["n", 0, 4, "float32", [1] * 65]]), bytes(64)),
    "more than there can be": forged(done([["n", 0, 0, "int8", [0, 2**62, 2**62]]])),
    "an item without a size": forged(done([["n", 0]])),
    "an item that is no list": forged(done(["n"])),
    "an unknown reply": forged(pack(["granted", []])),
    "a reply without a kind": forged(pack([])),
    "an exit code beyond 32 bits": forged(pack(["exited", 2**40])),
    "frames that are none": forged(pack(["raised", "E", [["f", 1]]])),
    "a reply and more behind it": forged(done(None) + b"\xc0"),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_replies(engine: ProcessEngine, what: str) -> None:
    assert isinstance(say(engine, FORGED[what]), BadOutput)


def test_forged_counts_and_sizes_meet_the_limits(engine: ProcessEngine) -> None:
    many = forged(done([["", 0, 0]] * 11))
    large = forged(done([["", 0, 64]]), bytes(64))
    huge = "def f(x): return bytes(100_000)"
    for error, limit in (
        (say(engine, many, output_items=10), "output_items"),
        (say(engine, large, output_bytes=63), "output_bytes"),
        (attempt(engine, huge, output_bytes=1000), "output_bytes"),
    ):
        assert isinstance(error, BadOutput)
        assert f"its limit '{limit}'" in str(error)


def test_forged_errors_are_only_the_functions_own(engine: ProcessEngine) -> None:
    frames = [[2**62, "x" * 5000], [0, "y"]] * 500
    error = say(engine, forged(pack(["raised", "E" * 9000, frames])))
    assert isinstance(error, Raised)
    assert len(str(error)) < 60_000
    assert isinstance(say(engine, forged(pack(["exited", -7]))), Exited)
    assert isinstance(say(engine, forged(pack(["memory"]))), OutOfMemory)


def test_a_file_that_shrinks_does_not_kill_the_node(engine: ProcessEngine) -> None:
    record = done([["n", 0, 1 << 20]])
    parcel = forged(record, bytes(1 << 20))
    source = f"""
    import os
    def f(x):
        os.write(4, {parcel[:200]!r})
        os.ftruncate(4, 1 << 19)
        os.write(3, {parcel[:16]!r})
        while True:
            os.ftruncate(4, 0)
            os.ftruncate(4, 1 << 20)
    """
    assert isinstance(attempt(engine, source), BadOutput)


def test_the_file_of_a_reply_is_read_from_where_it_says(engine: ProcessEngine) -> None:
    parcel = forged(done([["n", 3, 1 << 20]]), b"ab" * (1 << 19))
    source = f"""
    import os
    def f(x):
        head = {parcel[:64]!r}
        os.pwrite(4, head + b"ab" * (1 << 19), 0)
        os.write(3, head[:16])
    """
    item = first(run(engine, function(source), b"")).only()
    assert (item.name, item.key, item.bytes()) == ("n", 3, b"ab" * (1 << 19))


def test_silence_on_a_closed_channel(engine: ProcessEngine) -> None:
    for body in ("os.close(3)\n    while True: pass", "os.write(3, b'')\n    while True: pass"):
        error = attempt(engine, f"import os\ndef f(x):\n    {body}\n")
        assert isinstance(error, BadOutput)


def test_a_patched_reply_path_is_no_way_out(engine: ProcessEngine) -> None:
    source = """
    import sys
    def f(x):
        wire = sys.modules["dandelion.backends.process.wire"]
        wire.entries = lambda sets: ([wire.ItemHeader("n", 0, 1 << 40)],)
        return b"x"
    """
    assert isinstance(attempt(engine, source), BadOutput)
    source = source.replace("wire.entries =", "wire.send = wire.parcel =")
    assert isinstance(attempt(engine, source), Exited)


def test_descriptors_sent_along_are_dropped() -> None:
    source = f"""
    import sys, socket, gc
    def f(x):
        wire = sys.modules["dandelion.backends.process.wire"]
        sockets = [o for o in gc.get_objects() if isinstance(o, socket.socket)]
        [channel] = [s for s in sockets if s.fileno() == 3]
        wire.send(channel, [{forged(done(None))!r}], [0, 3])
    """
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    # Where many descriptors of this user are under way, the kernel refuses.
    with process_engine() as own, suppress(Raised):
        assert run(own, function(source), b"") == (None,)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_channel_cannot_be_looked_into(engine: ProcessEngine) -> None:
    error = attempt(engine, "import socket\ndef f(x): socket.socket(fileno=3)\n")
    assert isinstance(error, Unauthorized)
    assert error.what.startswith("use the network")
