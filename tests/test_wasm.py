"""WebAssembly functions: reading modules, running them, and errors of hostile ones."""

from __future__ import annotations

import ctypes
import importlib
import math
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dandelion.backends.native.structures import WASM
from dandelion.backends.wasm import library, module
from dandelion.backends.wasm.driver import WasmDriver
from dandelion.backends.wasm.engine import FUEL_PER_CPU_S, WasmEngine

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Engine, Hosting, load_driver
from dandelion.errors import (
    BackendUnavailable,
    BadOutput,
    Cancelled,
    DandelionError,
    Exited,
    Faulted,
    FunctionError,
    InvalidFunction,
    OutOfMemory,
    TimedOut,
)
from dandelion.function import Function
from dandelion.memory import SharedDomain
from dandelion.node import Node, Settings
from dandelion.testing import Tracked

from .native_functions import MIB, call_of, engine_of, first, function, run

wasmtime = pytest.importorskip("wasmtime")

HEAD = """(module
    (memory (export "memory") 1)
    (global (export "__dandelion_system_data") i32 (i32.const 1024))
    (func $exit (param i32) (i32.store (i32.const 1024) (local.get 0)))
"""
PASS_ON = """
    (i32.store (i32.const 1056) (i32.load (i32.const 1052)))
    (i32.store offset=8 (i32.load (i32.const 1048)) (i32.const 0))
    (i32.store offset=20 (i32.load (i32.const 1048))
        (i32.load offset=20 (i32.load (i32.const 1040))))
    (call $exit (i32.const 0))
"""
"""Output buffers and the first set's indices are those of the inputs."""


def assembled(body: str, fields: str = "", head: str = HEAD) -> bytes:
    """Make a module whose `run` has this body."""
    return bytes(wasmtime.wat2wasm(f'{head}{fields}(func (export "run") {body}))'))


def made(body: str, fields: str = "", **how: Any) -> Function:
    """Make a function of a module."""
    return function(assembled(body, fields), kind="wasm", inputs=("x",), **how)


ECHO = made(PASS_ON)


@pytest.fixture(scope="module")
def engine() -> Iterator[WasmEngine]:
    with engine_of("wasm") as engine:
        assert isinstance(engine, WasmEngine)
        yield engine


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: Engine) -> Iterator[None]:
    yield
    assert first(run(engine, ECHO, b"honest")).bytes() == b"honest"


# --- running ----------------------------------------------------------------------------------


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


# --- hostile modules --------------------------------------------------------------------------

FAULTS = {
    "reading far": ("(drop (i32.load (i32.const 0x7fffffff)))", "memory"),
    "reading at the end": ("(drop (i32.load offset=0xffffffff (i32.const -1)))", "memory"),
    "writing far": ("(i64.store (i32.const -8) (i64.const 1))", "memory"),
    "filling": ("(memory.fill (i32.const 0) (i32.const 1) (i32.const -1))", "memory"),
    "copying": ("(memory.copy (i32.const 1) (i32.const 0) (i32.const -1))", "memory"),
    "an empty table entry": ("(call_indirect (type $t) (i32.const 1))", "table entry"),
    "beyond the table": ("(call_indirect (type $t) (i32.const 77))", "table"),
    "another type": ("(drop (call_indirect (type $u) (i32.const 0)))", "type"),
    "endless recursion": ("(call $deep)", "stack overflow"),
    "division by zero": ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "division by zero"),
    "overflow": ("(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))", "overflow"),
    "conversion": ("(drop (i32.trunc_f64_s (f64.const nan)))", "float"),
    "unreachable": ("unreachable", "unreachable"),
}
FIELDS = """
    (type $t (func)) (type $u (func (result i32)))
    (table 4 funcref) (elem (i32.const 0) $deep)
    (func $deep (call $deep) (call $deep))
"""


@pytest.mark.parametrize("name", FAULTS)
def test_faults(engine: Engine, name: str) -> None:
    body, expected = FAULTS[name]
    with pytest.raises(Faulted) as caught:
        run(engine, made(body, FIELDS), b"")
    assert expected in caught.value.fault
    assert "offset 0x" in caught.value.fault


def test_an_exit_code_does_not_excuse_a_fault(engine: Engine) -> None:
    body = PASS_ON + "(drop (i32.div_u (i32.const 1) (i32.const 0)))"
    with pytest.raises(Faulted):
        run(engine, made(body), b"")


def test_an_endless_loop_ends_at_the_wall_clock(engine: Engine) -> None:
    with pytest.raises(TimedOut) as caught:
        run(engine, made("(loop (br 0))", wall_s=0.05), b"")
    assert (caught.value.what, caught.value.limit_s) == ("wall", 0.05)


def test_an_earlier_deadline_of_the_call_counts(engine: Engine) -> None:
    with pytest.raises(TimedOut) as caught:
        run(engine, made("(loop (br 0))", wall_s=10.0), b"", left_s=0.05)
    assert caught.value.limit_s == 0.05


def test_fuel_is_the_cpu_limit(engine: Engine) -> None:
    with pytest.raises(TimedOut) as caught:
        run(engine, made("(loop (br 0))", cpu_s=0.01), b"")
    assert (caught.value.what, caught.value.limit_s) == ("cpu", 0.01)
    assert FUEL_PER_CPU_S > 1e9


def test_memory_cannot_grow_beyond_its_limit(engine: Engine) -> None:
    body = """
        (loop $more (if (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)) (then (br $more))))
        (i32.store (i32.const 60000) (memory.size))
        (i32.store offset=4 (i32.load (i32.const 1052)) (i32.const 0))
        (i32.store offset=8 (i32.load (i32.const 1052)) (i32.const 60000))
    """
    size = first(run(engine, made(body + PASS_ON, memory_bytes=4 * MIB), b"1234")).bytes()
    assert int.from_bytes(size, "little") == 4 * MIB // 65536 + 1  # and a page for the input


def test_inputs_beyond_the_declared_memory(engine: Engine) -> None:
    head = HEAD.replace('"memory") 1', '"memory") 1 2')
    fn = function(assembled(PASS_ON, head=head), kind="wasm", inputs=("x",))
    with pytest.raises(OutOfMemory):
        run(engine, fn, bytes(MIB))


def test_tables_cannot_grow_without_end(engine: Engine) -> None:
    body = "(if (i32.eq (table.grow (ref.null func) (i32.const 100000000)) (i32.const -1)) (then "
    fn = made(f"{body} {PASS_ON}))", FIELDS)
    assert first(run(engine, fn, b"refused")).bytes() == b"refused"


def test_limits_of_outputs(engine: Engine) -> None:
    items = ItemSet("x", tuple(Item(str(i), i, bytes(100)) for i in range(10)))
    run(engine, made(PASS_ON, output_items=10, output_bytes=1000), items)
    for limits in ({"output_items": 9}, {"output_bytes": 999}):
        with pytest.raises(BadOutput):
            run(engine, made(PASS_ON, **limits), items)


FORGED = {
    "counts": (1, 0xFFFFFFFF, 2048, 0, 2048),
    "no memory there": (1, 1, 0xFFFFFFF0, 0, 2048),
    "across the end": (1, 1, 131072 - 8, 0, 2048),
    "misaligned": (1, 1, 2049, 0, 2048),
    "one too many": (1, 2, 2048, 0, 2048),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_outputs(engine: Engine, name: str) -> None:
    stores = "".join(
        f"(i32.store (i32.const {1040 + 4 * at}) (i32.const {value}))"
        for at, value in enumerate(FORGED[name])
    )
    with pytest.raises(BadOutput):
        run(engine, made(f"{stores} (call $exit (i32.const 0))"), b"")


def test_cancelling_ends_a_call(engine: WasmEngine) -> None:
    errors: list[DandelionError] = []
    call = call_of(made("(loop (br 0))"), b"")

    def work() -> None:
        try:
            engine.run(call)
        except DandelionError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not engine.cancel(call.id):
        assert thread.is_alive()
    thread.join()
    assert [type(error) for error in errors] == [Cancelled]
    assert not engine.cancel(call.id)


def test_closing_during_a_call_ends_it() -> None:
    before = set(threading.enumerate())
    driver = WasmDriver()
    engine = driver.factory().engine("0")
    call = call_of(made("(loop (br 0))"), b"")

    def work() -> None:
        with pytest.raises(Cancelled):
            engine.run(call)

    thread = threading.Thread(target=work)
    thread.start()
    while engine._call_id is None:
        assert thread.is_alive()
    engine.close()
    thread.join()
    assert set(threading.enumerate()) <= before


def test_an_interrupt_never_hits_the_next_call(engine: Engine) -> None:
    short = made("(loop (br 0))", wall_s=0.002)
    for _ in range(30):
        with pytest.raises(TimedOut):
            run(engine, short, b"")
        assert first(run(engine, ECHO, b"1")).bytes() == b"1"


# --- reading modules --------------------------------------------------------------------------

REFUSED = {
    "import": HEAD.replace("(memory", '(import "wasi" "fd_write" (func (param i32)))(memory'),
    "start": HEAD + "(start $begin) (func $begin)",
    "memory": HEAD.replace('"memory") 1', '"memory") 1000'),
    "export": HEAD.replace('"memory"', '"storage"'),
    "system-data": HEAD.replace("i32.const 1024))\n    (func", "i32.const 65504))\n    (func"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_refused_modules(code: str) -> None:
    fn = function(assembled("", head=REFUSED[code]), kind="wasm")
    with pytest.raises(InvalidFunction) as caught:
        WasmDriver().checker().check([fn])
    assert code in {problem.code for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (HEAD.replace('"memory") 1', '"memory") i64 1'), "memory"),
        (HEAD.replace('"memory") 1', '"memory") 1 2 shared'), "memory"),
        (HEAD.replace(" i32 (i32.const 1024)", " (mut i32) (i32.const 1024)"), "system-data"),
        (HEAD.replace(" i32 (i32.const 1024)", " i64 (i64.const 1024)"), "system-data"),
        (HEAD.replace("i32.const 1024))\n    (func", "i32.const 1026))\n    (func"), "system-data"),
    ],
)
def test_refused_memories_and_addresses(head: str, code: str) -> None:
    without_body = head.replace("(i32.store (i32.const 1024) (local.get 0))", "")
    data = wasmtime.wat2wasm(f'{without_body} (func (export "run")))')
    _, problems = module.read(bytes(data), 32 * MIB)
    assert code in {problem.code for problem in problems}


def test_run_must_be_a_plain_function() -> None:
    data = bytes(wasmtime.wat2wasm(f'{HEAD} (func (export "run") (param i32)))'))
    assert [p.code for p in module.read(data, MIB)[1]] == ["entry"]
    assert [p.code for p in module.read(b"\0asm\x0d\0\1\0", MIB)[1]] == ["malformed"]


def test_code_that_is_not_valid_is_refused_at_registration() -> None:
    driver = WasmDriver()
    with pytest.raises(InvalidFunction, match="nothing on stack") as caught:
        driver.checker().check([made("drop")])
    driver.checker().close()
    assert caught.value.problems[0].code == "invalid-code"


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(changed))
            changed[at] = rng.choice((0, 1, 0x41, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        yield bytes(changed[: rng.randrange(len(data))] if rng.random() < 0.05 else changed)


def test_thousands_of_broken_modules(engine: Engine) -> None:
    data = assembled(PASS_ON, FIELDS)
    accepted = ran = 0
    for changed in mutants(data, 5_000, seed=2):
        found, problems = module.read(changed, 32 * MIB)
        assert (found is None) == bool(problems)
        if found is None:
            continue
        accepted += 1
        assert found.system_data + WASM.system.size <= found.memory_bytes <= 32 * MIB
        if ran < 400:
            ran += _runs(engine, changed)
    assert 500 < accepted < 4_900
    assert ran == 400


def _runs(engine: Engine, data: bytes) -> bool:
    fn = function(data, kind="wasm", inputs=("x",), wall_s=0.05, cpu_s=0.001)
    try:
        run(engine, fn, b"abc")
    except InvalidFunction:
        return False
    except FunctionError:
        return True
    finally:
        engine.forget(fn)
    return True


def test_only_short_calls_of_the_library_keep_the_interpreter() -> None:
    WasmDriver()
    bindings: Any = importlib.import_module("wasmtime._bindings")
    keeping = {
        name.removeprefix("_")
        for name, value in vars(bindings).items()
        if isinstance(value, ctypes._CFuncPtr) and value._flags_ & 4  # FUNCFLAG_PYTHONAPI
    }
    assert keeping == set(library.SHORT)
