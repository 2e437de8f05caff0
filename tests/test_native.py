"""Native functions by Dandelion's binary interface: reading executables, laying out inputs, reading
outputs, running; the readers against many thousand broken files and outputs."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dandelion.backends.native import elf, launcher, sandbox_pool
from dandelion.backends.native.cores import NativeDriver, enforcement
from dandelion.backends.native.outputs import HEAP_BYTES, OutputReader
from dandelion.backends.native.programs import NativeProgram
from dandelion.backends.native.structures import (
    NATIVE,
    WASM,
    Structures,
    SystemData,
    lay_out,
    system_data,
)

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, Content, FunctionDocument, set_spec
from dandelion.driver import Engine, Hosting, load_driver
from dandelion.errors import (
    BackendUnavailable,
    BadOutput,
    Exited,
    Faulted,
    FunctionError,
    InvalidFunction,
    InvalidInput,
    OutOfMemory,
)
from dandelion.function import CodeObject, FunctionSpec, Limits
from dandelion.memory import HeapDomain, SharedDomain
from dandelion.node import Node, Settings
from dandelion.testing import Tracked

from .native_functions import (
    HEADERS,
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


# --- running ----------------------------------------------------------------------------------


def test_driver_is_found_by_name() -> None:
    driver = load_driver("native")
    assert driver.formats == {"elf"}
    assert driver.hosting is Hosting.THREAD
    assert [r.name for r in driver.factory().probe()] == [
        str(n) for n in range(len(os.sched_getaffinity(0)))
    ]
    for resource in ("100000", "x"):
        with pytest.raises(BackendUnavailable):
            driver.factory().engine(resource)


@pytest.mark.parametrize(
    ("name", "value"), [("ahead", "0"), ("ahead", "x"), ("pin", "maybe"), ("pins", "yes")]
)
def test_bad_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput):
        NativeDriver().configure({name: value})


def test_the_interface_word_by_word(engine: Engine) -> None:
    result = first(
        run(engine, function(built("bare.c")), ItemSet("x", (Item("é", 7, b"\1\2\x80"),)))
    )
    assert [(i.name, i.key, i.bytes()) for i in result] == [("é", 8, b"\2\4\0")]


@pytest.mark.parametrize("instruction", ["hlt", "int $0x20"])
def test_the_ends_of_executables_for_virtual_machines(engine: Engine, instruction: str) -> None:
    """The original's KVM backend ends at these; a process may not execute them."""
    fn = function(build(SOURCES / "bare.c", f'-DEXIT="{instruction}"'))
    result = first(run(engine, fn, ItemSet("x", (Item("a", 7, b"\1\2\x80"),))))
    assert [(i.name, i.key, i.bytes()) for i in result] == [("a", 8, b"\2\4\0")]
    with pytest.raises(Exited) as caught:  # its own code: no inputs
        run(engine, function(fn.main, inputs=("x", "y", "z")), b"")
    assert caught.value.code == 12


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        ("hlt", ""),
        ("int $0x20", ""),
        ("int $0x21", "general protection fault"),
        ("cli", "general protection fault"),
        ("in $0x20, %al", "general protection fault"),
        ("movabs $0x8000000000000000, %rax; mov (%rax), %eax", "general protection fault"),
        ("mov 0x10, %rax", "segmentation fault at address 0x10, not mapped"),
        ("lea halts(%rip), %rax; jmp *%rax", "not permitted"),
        ("ud2", "illegal instruction"),
        ("int3", "breakpoint"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_only_a_finished_function_ends_that_way(
    engine: Engine, tmp_path: Path, last: str, fault: str, finished: bool
) -> None:
    source = tmp_path / "ends.c"
    last = last.replace("%", "%%")
    source.write_text(
        '#include "dandelion_sets.h"\n'
        '__attribute__((section(".data"), used)) unsigned char halts[] = {0xf4, 0xcd, 0x20};\n'
        "static int32_t dandelion_main(void)\n{\n"
        f"    if ({int(finished)}) __dandelion_system_data.exit_code = 0;\n"
        f'    __asm__ volatile("{last}" : : : "rax", "memory");\n    return 0;\n}}\n'
    )
    fn = function(build(source))
    if finished and not fault:
        assert run(engine, fn) == (None,)
        return
    with pytest.raises(Faulted, match=fault or "general protection fault"):
        run(engine, fn)


def test_thread_local_storage(engine: Engine) -> None:
    assert first(run(engine, function(built("tls.c")), b"abcde")).bytes() == b"5dec"


@pytest.mark.skipif(
    " fsgsbase" not in Path("/proc/cpuinfo").read_text(), reason="the machine has no wrfsbase"
)
def test_thread_local_storage_of_executables_for_virtual_machines(engine: Engine) -> None:
    fn = function(build(SOURCES / "tls.c", "-DWRFSBASE"))
    assert first(run(engine, fn, b"abcde")).bytes() == b"5dec"


def test_names_and_keys_survive(engine: Engine) -> None:
    items = (Item("é" * 100, 7, b"a"), Item("", 2**32 - 1, b""), Item("é" * 100, 0, b"ccc"))
    result = first(run(engine, function(built("echo.c")), ItemSet("x", items)))
    assert [(i.name, i.key, i.bytes()) for i in result] == [
        (i.name, i.key, i.bytes()) for i in items
    ]


@pytest.mark.parametrize("size", [0, 1, HEAP_BYTES, HEAP_BYTES + 1, 70_000, 32 * MIB])
def test_all_sizes_arrive_and_lie_in_the_domain(engine: Engine, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    domain = Tracked(SharedDomain(64 * MIB))
    item = first(run(engine, function(built("echo.c")), data, domain=domain)).only()
    assert item.bytes() == data.tobytes()
    assert (domain.locate(item.data) is not None) == (size > HEAP_BYTES)
    del item
    assert domain.alive == []
    domain.close()


def test_many_items(engine: Engine) -> None:
    items = tuple(Item(str(key), key, key.to_bytes(4, "little")) for key in range(4000))
    result = first(run(engine, function(built("echo.c")), ItemSet("x", items)))
    assert [(i.name, i.key, i.bytes()) for i in result] == [
        (i.name, i.key, i.bytes()) for i in items
    ]


def test_absent_sets(engine: Engine) -> None:
    fn = function(built("echo.c"), outputs=("y", "w"))
    assert run(engine, fn) == (None, None)


def test_standard_streams(engine: Engine) -> None:
    fn = function(built("stdio.c"), inputs=("stdio",), outputs=("stdio",))
    sent = {"stdin": b"in", "argv": b"0", "environ": b"LANG=C"}
    items = {i.name: i.bytes() for i in first(run(engine, fn, sent))}
    assert items == {"stdout": b"in", "stderr": b"LANG=C"}
    with pytest.raises(Exited) as caught:
        run(engine, fn, sent | {"argv": b"3", "environ": b"it went wrong"})
    assert (caught.value.code, caught.value.stderr) == (3, "it went wrong")
    with pytest.raises(OutOfMemory):  # the original's code for a heap that is used up
        run(engine, fn, sent | {"argv": b"259"})


def test_constants_as_outputs(engine: Engine, tmp_path: Path) -> None:
    """What is mapped from the program's own file is read from there, also across its borders."""
    source = tmp_path / "constant.c"
    source.write_text(
        '#include "dandelion_sets.h"\n'
        'static const char text[9000] = "begin";\n'
        "static int32_t dandelion_main(void)\n{\n"
        '    dandelion_output(0, "whole", 5, text, sizeof text, 0);\n'
        "    const char *start = (const char *)(((uintptr_t)text & -4096) - 4096);\n"
        '    return dandelion_output(0, "across", 6, start, 64 * 1024, 1);\n}\n'
    )
    whole, across = first(run(engine, function(build(source)), b""))
    assert whole.bytes() == b"begin".ljust(9000, b"\0")
    assert whole.bytes() in across.bytes()


def test_inputs_that_do_not_fit(engine: Engine) -> None:
    small = function(built("echo.c"), context_bytes=8 * MIB)
    assert first(run(engine, small, bytes(MIB))).size_bytes == MIB
    with pytest.raises(OutOfMemory) as caught:
        run(engine, small, bytes(8 * MIB))
    assert caught.value.limit_bytes == 8 * MIB


def test_calls_leave_nothing_for_the_next(engine: Engine, tmp_path: Path) -> None:
    source = tmp_path / "counter.c"
    source.write_text(
        '#include "dandelion_sets.h"\n'
        "static char count = '0';\nstatic char bss[100000];\n"
        "static int32_t dandelion_main(void)\n{\n"
        "    char *heap = dandelion_alloc(4096);\n"
        "    count += 1 + bss[99999] + heap[4000];\n    bss[99999] = heap[4000] = 1;\n"
        '    return dandelion_output(0, "n", 1, &count, 1, 0);\n}\n'
    )
    fn = function(build(source))
    assert [first(run(engine, fn)).bytes() for _ in range(5)] == [b"1"] * 5


def test_a_node_runs_native_functions() -> None:
    code = (CodeDocument("elf", Content(data=built("echo.c"))),)
    text = "function Echo(x) => (y);\ncomposition Each(a) => (b) { Echo(x = each a) => (b = y); }"
    settings = Settings(backends=("native",), engines={"native": 1}, arena_bytes=16 * MIB)
    with Node(settings) as node:
        node.register(FunctionDocument("Echo", ("x",), ("y",), code=code), text)
        found = node.invoke("Each", a=[b"1", b"2", b"3"]).b
        assert sorted(item.bytes() for item in found) == [b"1", b"2", b"3"]


def test_what_is_enforced_is_told() -> None:
    facts = enforcement()
    assert {"landlock", "namespaces", "seccomp", "user", "vdso"} <= facts.keys()
    assert "no capabilities" in facts["user"]


def test_a_zygote_that_cannot_lock_itself_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_pool, "_BOOT", "raise SystemExit(1)")
    with pytest.raises(BackendUnavailable):
        NativeDriver().factory().engine("0")


# --- the launcher -----------------------------------------------------------------------------


def test_the_launcher_is_what_its_source_says(tmp_path: Path) -> None:
    made = tmp_path / "launcher.o"
    binary = tmp_path / "launcher.bin"
    source = HEADERS / "launcher.S"
    subprocess.run([compiler(), "-c", str(source), "-o", str(made)], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(made), str(binary)], check=True)
    assert binary.read_bytes() == (HEADERS / "launcher.bin").read_bytes()


def test_the_launcher_has_nothing_writable_and_executable() -> None:
    content = launcher.executable()
    (count,) = struct.unpack_from("<H", content, 56)
    flags = [struct.unpack_from("<II", content, 64 + 56 * i)[1] for i in range(count)]
    assert flags == [6, 5, 6]
    assert len(content) == 0x5000


# --- reading executables ----------------------------------------------------------------------


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


# --- laying out and reading back --------------------------------------------------------------


class Bytes:
    """A function's memory as a plain buffer; it refuses what was not checked."""

    def __init__(self, content: bytes, lowest: int) -> None:
        self.content = content
        self.lowest = lowest
        self.end = lowest + len(content)

    def read(self, address: int, size_bytes: int) -> bytes:
        assert self.lowest <= address <= address + size_bytes <= self.end
        return self.content[address - self.lowest : address - self.lowest + size_bytes]

    def read_into(self, address: int, target: memoryview) -> None:
        target[:] = self.read(address, len(target))


def spec_of(*outputs: str, **limits: int) -> FunctionSpec:
    sets = tuple(set_spec(name) for name in outputs)
    return FunctionSpec("probe", (), sets, limits=Limits(**limits))


@pytest.mark.parametrize("structures", [NATIVE, WASM], ids=["native", "wasm"])
def test_what_is_laid_out_can_be_read_back(structures: Structures) -> None:
    sets = (
        ItemSet("a", (Item("one", 1, b"1" * 300), Item("", 2**32 - 1, b""))),
        None,
        ItemSet("c", (Item("é", 0, memoryview(np.arange(40)).cast("B")),)),
    )
    address = 0x20000
    inputs = lay_out(structures, address, sets, ("a", "b", "c"), ("y",))
    content = b"".join(bytes(part) for part in inputs.parts)
    assert len(content) == inputs.size_bytes
    system = structures.system.unpack(system_data(structures, inputs, (1, 2), 3, 1))
    data = SystemData(*system)
    assert (data.exit_code, data.heap_begin, data.heap_end, data.output_buffers) == (-1, 1, 2, 0)
    # The inputs, taken for outputs, are what went in.
    taken = SystemData(0, 0, 0, 0, 0, 3, data.input_sets, 0, data.input_buffers)
    memory = Bytes(content, address)
    reader = OutputReader(structures, memory, spec_of("a", "b", "c"))
    entries = reader.entries(taken)
    assert all(entry.address % 128 == 0 for listed in entries for entry in listed)
    a, b, c = reader.outputs(entries, HeapDomain(1 << 20))
    assert a == sets[0]
    assert b is None
    assert c is not None
    assert c.only().bytes() == np.arange(40).tobytes()


def forge(structures: Structures, sets: list[tuple[int, int, int]], *row: int) -> None:
    """Read outputs with these sets and this one buffer; memory begins with the name ``y``."""
    base = 0x10000
    content = b"y\xff".ljust(0x400, b"n") + b"".join(structures.set.pack(*s) for s in sets)
    buffers = base + len(content)
    content += structures.buffer.pack(*row)
    reader = OutputReader(structures, Bytes(content, base), spec_of("y", "z", output_bytes=500))
    reader.entries(SystemData(0, 0, 0, 0, 0, 2, base + 0x400, 0, buffers))


SETS = [(0x10000, 1, 0), (0, 0, 1), (0, 0, 1)]
ROW = (0x10000, 1, 0x10000, 4, 2**32 - 1)


@pytest.mark.parametrize("structures", [NATIVE, WASM], ids=["native", "wasm"])
@pytest.mark.parametrize(
    ("sets", "row", "expected"),
    [
        ([(0x10000, 1, 1), (0, 0, 0), (0, 0, 1)], ROW, "overlap"),
        ([(0x10000, 1, 0), (0, 0, 2), (0, 0, 1)], ROW, "overlap"),
        ([(0x10000, 1, 0), (0x10000, 1, 1), (0, 0, 1)], ROW, "instead of 'z'"),
        ([(0x10001, 1, 0), (0, 0, 1), (0, 0, 1)], ROW, "UTF-8"),
        (SETS, (0x10000, 256, 0x10000, 4, 0), "256 bytes"),
        (SETS, (0x10001, 1, 0x10000, 4, 0), "UTF-8"),
        (SETS, (0x1, 1, 0x10000, 4, 0), "outside"),
        (SETS, (0x10000, 1, 0x1FFFF, 4, 0), "outside"),
        (SETS, (0x10000, 1, 0xFFFF, 4, 0), "outside"),
        (SETS, (0x10000, 1, 0x10000, 2**32 - 1, 0), "outside"),
        (SETS, (0x10000, 1, 0x10000, 501, 0), "500 bytes"),
    ],
)
def test_outputs_that_are_refused(
    structures: Structures, sets: list[tuple[int, int, int]], row: tuple[int, ...], expected: str
) -> None:
    forge(structures, SETS, *ROW)
    with pytest.raises(BadOutput, match=expected):
        forge(structures, sets, *row)


@pytest.mark.parametrize("key", [2**32, 2**63, 2**64 - 1])
def test_keys_have_32_bits(key: int) -> None:
    with pytest.raises(BadOutput, match="key"):
        forge(NATIVE, SETS, *ROW[:4], key)


LOWEST, SIZE = 0x10000, 4096
EDGES = np.array(
    [0, 1, 2, 3, 7, 8, LOWEST, LOWEST + 8, LOWEST + 256, LOWEST + 4, LOWEST + SIZE - 8,
     LOWEST + SIZE, LOWEST - 8, 255, 256, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64 - 8],
    np.uint64,
)  # fmt: skip


def forged(structures: Structures, count: int, seed: int) -> Iterator[tuple[bytes, int, int]]:
    """Memories that are wild everywhere, and as many that are good but for a few words; with the
    addresses of their output sets and buffers."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(f"<u{structures.word_bytes}")
    wild = EDGES[rng.integers(0, len(EDGES), (count // 2, SIZE // dtype.itemsize))].astype(dtype)
    small = rng.random(wild.shape) < 0.5
    wild[small] = rng.integers(0, 4, int(small.sum()))
    for row, (sets, buffers) in zip(wild, EDGES[rng.integers(0, 20, (count, 2))], strict=False):
        yield row.tobytes(), int(sets), int(buffers)
    items = tuple(Item(f"item {i}", i, bytes(i * 9)) for i in range(5))
    inputs = lay_out(
        structures, LOWEST, (ItemSet("y", items), ItemSet("z", items[:2])), ("y", "z"), ("u",)
    )
    base = b"".join(bytes(part) for part in inputs.parts).ljust(SIZE, b"\0")
    start = (inputs.sets - LOWEST) // dtype.itemsize
    for _ in range(count - count // 2):
        words = np.frombuffer(base, dtype).copy()
        for at in rng.integers(start, start + 46, rng.integers(1, 4)):
            words[at] = EDGES[rng.integers(0, len(EDGES))].astype(dtype)
        yield words.tobytes(), inputs.sets, inputs.buffers


def test_a_hundred_thousand_forged_outputs() -> None:
    good = bad = 0
    domain = HeapDomain(1 << 20)
    spec = spec_of("y", "z", output_items=64, output_bytes=8192)
    for structures in (NATIVE, WASM):
        for content, sets, buffers in forged(structures, 50_000, structures.word_bytes):
            reader = OutputReader(structures, Bytes(content, LOWEST), spec)
            try:
                entries = reader.entries(SystemData(0, 0, 0, 0, 0, 2, sets, 0, buffers))
                reader.outputs(entries, domain)
                good += 1
            except BadOutput:
                bad += 1
    assert good + bad == 100_000
    assert good > 1_000
    assert bad > 10_000
