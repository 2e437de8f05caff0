"""Executables of native functions: what is read, and what is refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from dandelion.backends.native import elf
from dandelion.backends.native.cores import NativeDriver
from dandelion.backends.native.programs import NativeProgram

from dandelion.driver import Engine
from dandelion.errors import (
    FunctionError,
    InvalidFunction,
)
from dandelion.function import CodeObject

from .native_functions import (
    MIB,
    SOURCES,
    build,
    built,
    compiler,
    engine_of,
    first,
    function,
    run,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    compiler()
    with engine_of("native") as engine:
        yield engine


def problems_of(data: bytes, size_bytes: int = 32 * MIB) -> list[str]:
    return [problem.code for problem in elf.read(data, size_bytes)[1]]


def patched(data: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, value)
    return bytes(changed)


def segment(data: bytes, *, writable: bool = False, executable: bool = False) -> int:
    """Offset of the first loaded segment's header with these flags."""
    (count,) = struct.unpack_from("<H", data, 56)
    for at in range(64, 64 + 56 * count, 56):
        kind, flags = struct.unpack_from("<II", data, at)
        if kind == 1 and bool(flags & 2) == writable and bool(flags & 1) == executable:
            return at
    raise AssertionError("no such segment")


def test_a_good_file_is_read() -> None:
    data = built("echo.c")
    found, problems = elf.read(data, 32 * MIB)
    assert problems == []
    assert found is not None
    assert any(s.executable and s.address <= found.entry < s.end for s in found.segments)
    assert any(s.writable and s.address <= found.system_data < s.end for s in found.segments)


def test_what_is_wrong_with_a_file_is_named() -> None:
    data = built("echo.c")
    code, writable = segment(data, executable=True), segment(data, writable=True)
    (entry,) = struct.unpack_from("<Q", data, 24)
    cases = {
        b"": "no-elf",
        b"#!/bin/sh\n" * 10: "no-elf",
        data[:60]: "no-elf",
        patched(data, 4, "B", 1): "wrong-machine",
        patched(data, 5, "B", 2): "wrong-machine",
        patched(data, 18, "<H", 183): "wrong-machine",
        patched(data, 16, "<H", 3): "wrong-type",
        patched(data, 16, "<H", 1): "wrong-type",
        patched(data, 54, "<H", 57): "bad-size",
        patched(data, 32, "<Q", len(data)): "bad-offset",
        patched(data, 56, "<H", 0): "bad-offset",
        patched(data, 40, "<Q", len(data) - 8): "no-symbols",
        patched(data, 40, "<Q", 2**64 - 1): "no-symbols",
        patched(data, 60, "<H", 0): "no-symbols",
        patched(data, 24, "<Q", 0): "bad-entry",
        patched(data, 24, "<Q", entry + 0x100000): "bad-entry",
        patched(data, code + 4, "<I", 7): "writable-code",
        patched(data, code + 8, "<Q", len(data)): "bad-offset",
        patched(data, code + 8, "<Q", 2**64 - 8): "bad-offset",
        patched(data, code + 16, "<Q", 0x8000): "bad-address",
        patched(data, code + 16, "<Q", 2**64 - 4096): "bad-address",
        patched(data, code + 40, "<Q", 2**63): "bad-address",
        patched(data, code + 40, "<Q", 1): "bad-size",
        patched(data, code, "<I", 3): "not-static",
        patched(data, code, "<I", 2): "not-static",
        patched(data, writable + 4, "<I", 4): "system-data",
        data.replace(b"__dandelion_system_data\0", b"__dandelion_system_dato\0"): "system-data",
    }
    for changed, expected in cases.items():
        assert expected in problems_of(changed), expected
    address, _, size = struct.unpack_from("<QQQ", data, code + 16)
    shared_page = patched(data, writable + 16, "<Q", address + size + 16)
    assert "writable-code" in problems_of(shared_page)
    (address,) = struct.unpack_from("<Q", data, writable + 16)
    overlapping = patched(data, code + 16, "<Q", address)
    assert "overlap" in problems_of(overlapping)
    assert "bad-address" in problems_of(data, MIB)


def test_all_problems_come_at_once() -> None:
    data = built("echo.c")
    broken = patched(patched(data, 24, "<Q", 0), segment(data, executable=True) + 4, "<I", 7)
    with pytest.raises(InvalidFunction) as caught:
        NativeDriver().checker().check([function(broken)])
    codes = {problem.code for problem in caught.value.problems}
    assert {"bad-entry", "writable-code"} <= codes


def test_names_that_end_alike_are_not_confused(tmp_path: Path) -> None:
    """The original takes the first name that contains the word."""
    source = tmp_path / "names.c"
    source.write_text(
        "int not__dandelion_system_data[18] = {1};\nint __dandelion_system_data_too[18] = {1};\n"
        + (SOURCES / "bare.c").read_text()
    )
    found, _ = elf.read(build(source), 32 * MIB)
    plain, _ = elf.read(built("bare.c"), 32 * MIB)
    assert found is not None
    assert plain is not None
    data = build(source)
    at = found.system_data
    inside = next(s for s in found.segments if s.address <= at < s.end)
    (code,) = struct.unpack_from("<i", data, inside.offset + at - inside.address)
    assert code == 256


def test_position_independent_executables_say_how_to_link() -> None:
    data = build(SOURCES / "echo.c", "-static-pie", "-fpie")
    found, problems = elf.read(data, 32 * MIB)
    assert found is None
    assert any("-no-pie" in problem.expected for problem in problems)


@pytest.mark.parametrize("options", [
    {"context_bytes": "12"}, {"context_bytes": "x"}, {"ctx": "1"}, {"input_names": "x"},
    {"input_names": '["x"]'}, {"output_names": "[1]"}, {"output_names": '["\\ud800"]'},
])  # fmt: skip
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    fn = function(built("echo.c"))
    fn.code = CodeObject("elf", fn.code.main, options=options)
    with pytest.raises(InvalidFunction):
        NativeDriver().checker().check([fn])


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Change headers, symbols and random places of a file."""
    rng = random.Random(seed)
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    values = [0, 1, 2, 7, 8, 0xFF, 0xFFFF, 0x10000, 0x400000, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            where = rng.choice((64, 64 + 56 * 6, sections_at, len(data)))
            at = rng.randrange(max(0, where - 64), min(where + 400, len(data)) - 8)
            size = rng.choice((1, 2, 4, 8))
            value = rng.choice(values) if rng.random() < 0.7 else rng.getrandbits(64)
            changed[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        yield bytes(changed[: rng.randrange(len(data))] if rng.random() < 0.05 else changed)


def test_ten_thousand_broken_files() -> None:
    accepted = 0
    for name in ("bare.c", "attempt.c"):
        for data in mutants(built(name), 5_000, seed=len(name)):
            found, problems = elf.read(data, 32 * MIB)
            assert (found is None) == bool(problems)
            if found is not None:
                accepted += 1
                NativeProgram(found, data)
                for one, two in zip(found.segments, found.segments[1:], strict=False):
                    assert elf.LOWEST <= one.address < one.end <= two.address < two.end < 32 * MIB
    assert 500 < accepted < 9_500


def test_a_few_hundred_of_them_run(engine: Engine) -> None:
    ran = 0
    for data in mutants(built("bare.c"), 600, seed=3):
        fn = function(data, wall_s=0.2)
        try:
            run(engine, fn, b"abc")
            ran += 1
        except InvalidFunction:
            continue
        except FunctionError:  # other errors are bugs of the reader
            ran += 1
        finally:
            engine.forget(fn)
    assert ran >= 200
    assert first(run(engine, function(built("bare.c")), b"\1")).bytes() == b"\2"
