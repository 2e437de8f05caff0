"""WebAssembly functions: reading modules, running them, and errors of hostile ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.backends.wasm.driver import WasmDriver
from dandelion.backends.wasm.engine import WasmEngine

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Engine, Hosting, load_driver
from dandelion.errors import (
    BackendUnavailable,
    Exited,
    OutOfMemory,
)
from dandelion.memory import SharedDomain
from dandelion.node import Node, Settings
from dandelion.testing import Tracked
from tests.wasm_modules import ECHO, PASS_ON, assembled, made

from .native_functions import MIB, engine_of, first, function, run


@pytest.fixture(scope="module")
def engine() -> Iterator[WasmEngine]:
    with engine_of("wasm") as engine:
        assert isinstance(engine, WasmEngine)
        yield engine


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: Engine) -> Iterator[None]:
    yield
    assert first(run(engine, ECHO, b"honest")).bytes() == b"honest"


def test_driver_is_found_by_name() -> None:
    driver = load_driver("wasm")
    assert driver.formats == {"wasm"}
    assert driver.hosting is Hosting.CONFINED
    assert driver.factory().probe()
    with pytest.raises(BackendUnavailable):
        driver.factory().engine("100000")


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    driver = WasmDriver()
    driver.checker().check([ECHO])
    for action in (driver.factory().probe, lambda: driver.factory().engine("0")):
        with pytest.raises(BackendUnavailable) as caught:
            action()
        assert "[wasm]" in caught.value.remedy


def test_names_and_keys_survive(engine: Engine) -> None:
    items = (Item("é" * 100, 7, b"a"), Item("", 2**32 - 1, b""), Item("é" * 100, 0, b"ccc"))
    result = first(run(engine, ECHO, ItemSet("x", items)))
    assert [(i.name, i.key, i.bytes()) for i in result] == [
        (i.name, i.key, i.bytes()) for i in items
    ]


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65536, 70_000, 16 * MIB])
def test_all_sizes_arrive_and_lie_in_the_domain(engine: Engine, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    domain = Tracked(SharedDomain(64 * MIB))
    item = first(run(engine, ECHO, data, domain=domain)).only()
    assert item.bytes() == data.tobytes()
    assert (domain.locate(item.data) is not None) == (size > 4096)
    del item
    assert domain.alive == []
    domain.close()


def test_inputs_lie_aligned_above_the_modules_own_memory(engine: Engine) -> None:
    body = """
        (local $buffer i32)
        (local.set $buffer (i32.load (i32.const 1052)))
        (if (i32.rem_u (i32.load offset=8 (local.get $buffer)) (i32.const 128))
            (then (call $exit (i32.const 5)) (return)))
        (if (i32.lt_u (i32.load offset=8 (local.get $buffer)) (i32.const 65536))
            (then (call $exit (i32.const 6)) (return)))
        (if (i32.gt_u (i32.load (i32.const 1028)) (i32.load (i32.const 1032)))
            (then (call $exit (i32.const 7)) (return)))
        (if (i32.ne (i32.load (i32.const 1024)) (i32.const -1))
            (then (call $exit (i32.const 8)) (return)))
    """
    assert first(run(engine, made(body + PASS_ON), b"abc")).bytes() == b"abc"


def test_absent_sets(engine: Engine) -> None:
    assert run(engine, ECHO) == (None,)


def test_calls_leave_nothing_for_the_next(engine: Engine) -> None:
    body = """
        (if (i32.or (global.get $count) (i32.load (i32.const 60000)))
            (then (call $exit (i32.const 9)) (return)))
        (global.set $count (i32.const 1))
        (i32.store (i32.const 60000) (i32.const 1))
    """
    fn = made(body + PASS_ON, "(global $count (mut i32) (i32.const 0))")
    for _ in range(3):
        assert first(run(engine, fn, b"1")).bytes() == b"1"


def test_an_exit_code_comes_with_standard_error(engine: Engine) -> None:
    code = assembled(PASS_ON.replace("(call $exit (i32.const 0))", "(call $exit (i32.const 3))"))
    fn = function(code, kind="wasm", inputs=("stdio",), outputs=("stdio",))
    with pytest.raises(Exited) as caught:
        run(engine, fn, {"stderr": b"it went wrong", "stdout": b"no"})
    assert (caught.value.code, caught.value.stderr) == (3, "it went wrong")


def test_leaving_from_the_depth_of_calls(engine: Engine) -> None:
    left = PASS_ON + "unreachable"
    assert first(run(engine, made(left), b"1")).bytes() == b"1"
    with pytest.raises(Exited) as caught:
        run(engine, made("(call $exit (i32.const 4)) unreachable"), b"")
    assert caught.value.code == 4
    with pytest.raises(OutOfMemory):
        run(engine, made("(call $exit (i32.const 259)) unreachable"), b"")


def test_not_a_numbers_are_all_the_same(engine: Engine) -> None:
    body = """
        (f64.store (i32.load offset=8 (i32.load (i32.const 1052)))
            (f64.div (f64.load (i32.load offset=8 (i32.load (i32.const 1052)))) (f64.const 0)))
    """
    fn = made(body + PASS_ON)
    payload = np.array([0x7FF8_0000_0000_1234], np.uint64)
    results = {first(run(engine, fn, v)).bytes() for v in (payload, np.array([0.0]))}
    assert len(results) == 1
    assert math.isnan(np.frombuffer(results.pop(), np.float64)[0])


def test_a_node_runs_modules_and_keeps_what_was_compiled() -> None:
    code = (CodeDocument("wasm", Content(data=bytes(ECHO.main))),)
    text = "function Echo(x) => (y);\ncomposition Each(a) => (b) { Echo(x = each a) => (b = y); }"
    settings = Settings(backends=("wasm",), engines={"wasm": 2}, arena_bytes=16 * MIB)
    with Node(settings) as node:
        node.register(FunctionDocument("Echo", ("x",), ("y",), code=code), text)
        found = node.invoke("Each", a=[b"1", b"2", b"3"]).b
        assert sorted(item.bytes() for item in found) == [b"1", b"2", b"3"]
