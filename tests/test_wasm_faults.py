"""WebAssembly modules that fail, and modules that are refused."""

from __future__ import annotations

import ctypes
import importlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from dandelion.backends.native.structures import WASM
from dandelion.backends.wasm import library, module
from dandelion.backends.wasm.driver import WasmDriver
from dandelion.backends.wasm.engine import FUEL_PER_CPU_S, WasmEngine

from dandelion.data import Item, ItemSet
from dandelion.driver import Engine
from dandelion.errors import (
    BadOutput,
    Cancelled,
    DandelionError,
    Faulted,
    FunctionError,
    InvalidFunction,
    OutOfMemory,
    TimedOut,
)
from tests.wasm_modules import ECHO, HEAD, PASS_ON, assembled, made, wasmtime

from .native_functions import MIB, call_of, engine_of, first, function, run


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: Engine) -> Iterator[None]:
    yield
    assert first(run(engine, ECHO, b"honest")).bytes() == b"honest"


@pytest.fixture(scope="module")
def engine() -> Iterator[WasmEngine]:
    with engine_of("wasm") as engine:
        assert isinstance(engine, WasmEngine)
        yield engine


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
