"""Native functions by Dandelion's binary interface: reading executables, laying out inputs, reading
outputs, running; the readers against many thousand broken files and outputs."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dandelion.backends.native import launcher, sandbox_pool
from dandelion.backends.native.cores import NativeDriver, enforcement
from dandelion.backends.native.outputs import HEAP_BYTES

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Engine, Hosting, load_driver
from dandelion.errors import (
    BackendUnavailable,
    Exited,
    Faulted,
    InvalidInput,
    OutOfMemory,
)
from dandelion.memory import SharedDomain
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
