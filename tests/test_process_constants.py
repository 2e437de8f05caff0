"""Static sets of Python functions: mapped by all sandboxes, and a way to none of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from dandelion.backends.process.constants import KEPT_FILES, LEAST_BYTES, ConstantFiles
from dandelion.backends.process.engine import ProcessEngine

from dandelion.data import Item, ItemSet
from dandelion.errors import ContextFull, Raised, Unauthorized
from dandelion.function import Function, digest_of

from .python_functions import first, function, process_engine, run

SUMS = """
def f(x, w, v):
    return str([int(i.numpy("u1").astype("i8").sum()) for s in (x, w, v) if s for i in s]).encode()
"""
LARGE = bytes(range(256)) * (LEAST_BYTES // 256)


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


def static(name: str, *items: bytes) -> ItemSet:
    return ItemSet(name, tuple(Item(f"{i}", i, data) for i, data in enumerate(items)))


def with_static(source: str, *sets: ItemSet, inputs: tuple[str, ...] = ("x", "w", "v")) -> Function:
    made = function(source, inputs=inputs)
    content = str([[digest_of(bytes(i.data)) for i in s.items] for s in sets])
    static = {s.name: s for s in sets}
    return dataclasses.replace(made, static=static, identity=type(made.identity)(content + source))


def call(engine: ProcessEngine, wanted: Function, x: bytes = b"\1") -> bytes:
    """Call with the static sets, as an engine process does."""
    given = [ItemSet("x", (Item("x", 0, x),)), None, None]
    values = wanted.with_static(given[: len(wanted.spec.inputs)])
    return first(run(engine, wanted, *values)).bytes()


def static_files() -> list[str]:
    """List the files of static sets that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if "dandelion-static" in path]


def total(*items: bytes) -> bytes:
    return str([sum(item) for item in items]).encode()


def test_the_sets_of_a_call_are_right_whatever_goes_by_file(engine: ProcessEngine) -> None:
    odd = LARGE[:-5]
    for sets in (
        (static("w", LARGE),),
        (static("w", odd, b"", b"\7", odd), static("v", LARGE)),
        (static("v", LARGE, b"\3"),),
        (static("w", b"\1\2"), static("v", b"\3")),
        (static("w", bytes(LEAST_BYTES - 1)), static("v", b"\1")),
        (static("w"), static("v", LARGE)),
    ):
        wanted = with_static(SUMS, *sets)
        items = {s.name: [bytes(i.data) for i in s.items] for s in sets}
        for x in (b"\5", bytes(100_000) + b"\6"):  # in the message, in a file
            right = total(x, *items.get("w", []), *items.get("v", []))
            assert call(engine, wanted, x) == right
            assert call(engine, wanted, x) == right


def test_all_calls_map_one_file(engine: ProcessEngine) -> None:
    wanted = with_static(SUMS, static("w", LARGE))
    constants = engine._constants
    for _ in range(3):
        call(engine, wanted)
    assert len(static_files()) == len(constants._files)
    kept = constants._files[wanted.identity].file
    call(engine, wanted)
    assert constants._files[wanted.identity].file == kept
    engine.forget(wanted)
    assert wanted.identity not in constants._files
    assert len(static_files()) == len(constants._files)
    assert call(engine, wanted) == total(b"\1", LARGE)


def test_what_a_call_writes_is_seen_by_none(engine: ProcessEngine) -> None:
    """Mapped memory can be made writable by C code, and is then a copy."""
    source = """
import ctypes
def f(x, w):
    a = w[0].numpy("u1")
    seen = int(a[0])
    libc = ctypes.CDLL(None)
    address = a.ctypes.data // 4096 * 4096
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3) == 0
    ctypes.memset(a.ctypes.data, 9, 1)
    assert a[0] == 9
    return str(seen).encode()
"""
    wanted = with_static(source, static("w", LARGE), inputs=("x", "w"))
    assert [call(engine, wanted) for _ in range(3)] == [b"0"] * 3


def test_arrays_of_static_sets_are_read_only(engine: ProcessEngine) -> None:
    source = "def f(x, w):\n    w[0].numpy('u1')[0] = 1\n"
    with pytest.raises(Raised, match="read-only"):
        call(engine, with_static(source, static("w", LARGE), inputs=("x", "w")))


def test_a_call_has_no_descriptor_of_the_file(engine: ProcessEngine) -> None:
    """Its position and its times would say something of other calls."""
    source = """
import os
def f(x, w):
    found = []
    for fd in range(16):
        try:
            found.append((fd, os.lseek(fd, 0, 1)))
        except OSError as error:
            if error.errno != 9:
                found.append((fd, error.errno))
    return repr(found).encode()
"""
    small = call(engine, with_static(source, static("w", b"1"), inputs=("x", "w")))
    assert call(engine, with_static(source, static("w", LARGE), inputs=("x", "w"))) == small
    assert b"(4, 0)" in small, "the file for its outputs"


def test_the_memory_of_static_sets_is_not_the_calls(engine: ProcessEngine) -> None:
    large = bytes(64 << 20)
    source = "def f(x, w):\n    return str(len(bytearray(16 << 20)) + len(w[0].data)).encode()\n"
    made = with_static(source, static("w", large), inputs=("x", "w"))
    limits = msgspec.structs.replace(made.spec.limits, memory_bytes=48 << 20)
    made.spec = msgspec.structs.replace(made.spec, limits=limits)
    assert call(engine, made) == str(80 << 20).encode()


def test_a_call_without_constants_gets_none(engine: ProcessEngine) -> None:
    call(engine, with_static(SUMS, static("w", LARGE)))
    assert call(engine, function(SUMS, inputs=("x", "w", "v"))) == total(b"\1")


def test_files_that_are_too_large_together_are_made_anew() -> None:
    constants = ConstantFiles(kept_bytes=3 * LEAST_BYTES)
    before = len(static_files())
    functions = [with_static(SUMS, static("w", LARGE, bytes([n]) * 64)) for n in range(5)]
    huge = with_static(SUMS, static("w", LARGE * 9))
    for wanted in (*functions, functions[4], huge, functions[0]):
        with constants.of(wanted) as found:
            assert found is not None
            (data,) = [bytes(i.data) for i in wanted.static["w"].items][:1]
            assert os.pread(found.file, len(data), 0) == data
            assert found.positions == (1,)
            with pytest.raises(OSError):
                os.write(found.file, b"1")
        assert sum(kept.size_bytes for kept in constants._files.values()) == constants._size_bytes
        assert len(constants._files) <= 2
    constants.close()
    constants.close()
    assert len(static_files()) == before


def test_without_a_file_the_sets_are_copied(
    engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = with_static(SUMS, static("w", LARGE[::-1]))

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    other = with_static(SUMS, static("w", LARGE))
    assert call(engine, other) == total(b"\1", LARGE)
    assert static_files()
    with monkeypatch.context() as patch:
        patch.setattr("dandelion.backends.process.constants.wire.sealed_file", refuse)
        with pytest.raises(ContextFull, match="Too many open files"):
            call(engine, with_static(SUMS, static("w", LARGE * 3)))  # by file, too
        assert not static_files(), "there is room for others"
        patch.setattr("dandelion.backends.process.wire.INLINE_BYTES", 1 << 17)
        assert call(engine, wanted) == total(b"\1", LARGE[::-1])
    assert call(engine, wanted) == total(b"\1", LARGE[::-1])
    assert static_files()


def test_many_functions_take_few_descriptors(engine: ProcessEngine) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(KEPT_FILES + 10):
        wanted = with_static(SUMS, static("w", LARGE, bytes([number])))
        assert call(engine, wanted) == total(b"\1", LARGE, bytes([number]))
    assert len(static_files()) == KEPT_FILES
    assert len(os.listdir("/proc/self/fd")) < before + KEPT_FILES + 40


def test_a_denied_call_is_seen_with_constants(engine: ProcessEngine) -> None:
    source = "def f(x, w):\n    import socket\n    socket.socket()\n"
    with pytest.raises(Unauthorized):
        call(engine, with_static(source, static("w", LARGE), inputs=("x", "w")))


def test_numpy_sees_the_whole_array(engine: ProcessEngine) -> None:
    array = np.random.default_rng(1).integers(0, 256, 3_000_001, np.uint8)
    assert call(engine, with_static(SUMS, static("w", array.tobytes()))) == total(
        b"\1", array.tobytes()
    )
