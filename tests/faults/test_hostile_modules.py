"""WebAssembly modules that cost a compiler much: refused within limits, and not in the node."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import Any

import pytest
from dandelion.backends.native.structures import WASM
from dandelion.backends.wasm.compilers import Compilers, _Process
from dandelion.backends.wasm.driver import WasmDriver

from dandelion.errors import Cancelled, InvalidFunction
from tests.native_functions import MIB, engine_of, function, run
from tests.processes import children, peak_bytes

wasmtime = pytest.importorskip("wasmtime")

SPENT = re.compile("takes more than|not compiled within")
SYSTEM_DATA = 1024
HEAD = f"""(module
    (memory (export "memory") 1)
    (global (export "__dandelion_system_data") i32 (i32.const {SYSTEM_DATA}))
"""
assert WASM.system.size < 65536 - SYSTEM_DATA


def number(value: int) -> bytes:
    """Write an unsigned LEB128."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def small() -> bytes:
    return bytes(wasmtime.wat2wasm(f'{HEAD} (func (export "run")))'))


def with_body(body: bytes) -> bytes:
    """Put another body, with one local of type i32, into the small module."""
    module = small()
    code = module.index(b"\x0a\x04\x01\x02\x00\x0b")
    whole = b"\x01\x01\x7f" + body + b"\x0b"
    section = b"\x01" + number(len(whole)) + whole
    return module[:code] + b"\x0a" + number(len(section)) + section + module[code + 6 :]


def many_blocks(count: int) -> bytes:
    """A function of so many ifs, each of which changes a variable that lives through all."""
    return with_body(b"\x20\x00\x04\x40\x20\x00\x41\x01\x6a\x21\x00\x0b" * count)


@pytest.mark.timeout(300)
def test_a_module_that_takes_too_much_is_refused() -> None:
    driver = WasmDriver()
    driver.checker().check([function(small(), kind="wasm")])
    hostile = many_blocks(500_000)
    before = peak_bytes()
    with pytest.raises(InvalidFunction, match=SPENT):
        driver.checker().check([function(hostile, kind="wasm")])
    assert peak_bytes() - before < 64 * MIB
    driver.checker().check([function(many_blocks(10), kind="wasm")])
    driver.checker().close()


def test_no_module_is_compiled_in_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    original = wasmtime.Module

    class Refusing:
        deserialize = original.deserialize

        def __init__(self, *args: Any) -> None:
            raise AssertionError("compiled in the node")

    monkeypatch.setattr(wasmtime, "Module", Refusing)
    body = f"(i32.store (i32.const {SYSTEM_DATA}) (i32.const 0))"
    code = bytes(wasmtime.wat2wasm(f'{HEAD} (func (export "run") {body}))'))
    with engine_of("wasm") as engine:
        assert run(engine, function(code, kind="wasm", inputs=(), outputs=())) == ()


def test_the_next_module_is_compiled_after_the_process_died() -> None:
    before = children()
    compilers = Compilers()
    for _ in range(3):
        assert compilers.compile(small())
        (process,) = children() - before
        os.kill(process, signal.SIGKILL)
    assert compilers.compile(small())
    compilers.close()
    assert children() <= before
    assert compilers.compile(small())  # it may be used again
    compilers.close()
    assert children() <= before


def test_closing_ends_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    compilers = Compilers()
    compilers.compile(small())
    begun = threading.Event()
    ended: list[BaseException] = []
    original = _Process.compile

    def compile_in(process: _Process, main: bytes) -> bytes:
        begun.set()
        return original(process, main)

    def compile_for_long() -> None:
        try:
            compilers.compile(many_blocks(500_000))
        except BaseException as error:
            ended.append(error)

    monkeypatch.setattr(_Process, "compile", compile_in)
    thread = threading.Thread(target=compile_for_long)
    thread.start()
    begun.wait()
    compilers.close()
    thread.join()
    assert [type(error) for error in ended] == [Cancelled]
    assert children() <= before


def test_several_modules_at_once() -> None:
    compilers = Compilers()
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.append(compilers.compile(many_blocks(100))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compilers.close()
    assert len(made) == 6
    assert len(set(made)) == 1
