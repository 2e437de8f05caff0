"""WebAssembly in its own processes: large data, static sets, batches, stopping, and their death."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.errors import (
    ContextFull,
    DandelionError,
    Faulted,
    OutOfMemory,
    TimedOut,
)
from dandelion.function import Batching, Limits
from dandelion.node import Node, Settings
from dandelion.testing.waiting import wait_until
from tests.native_functions import MIB
from tests.processes import children, command_of
from tests.wasm_modules import ECHO, assembled

pytest.importorskip("wasmtime")

FOR_EVER = assembled("(loop $for_ever (br $for_ever))")
SETTINGS = Settings(backends=("wasm",), engines={"wasm": 1}, arena_bytes=64 * MIB)


def wasm(main: bytes, name: str = "F", **fields: object) -> FunctionDocument:
    code = (CodeDocument("wasm", Content(data=main)),)
    given = {"inputs": ("x",), "outputs": ("y",), **fields}
    return FunctionDocument(name, code=code, **given)  # type: ignore[arg-type]  # by the tests


def slow(**limits: float) -> FunctionDocument:
    chosen: dict[str, float] = {"wall_s": 30.0, "cpu_s": 30.0, **limits}
    return wasm(FOR_EVER, "Slow", limits=Limits(**chosen))  # type: ignore[arg-type]  # as above


class Engines:
    """The engine processes of this test's node."""

    def __init__(self) -> None:
        self._before = children()

    def ids(self) -> set[int]:
        started = children() - self._before
        return {pid for pid in started if b"engine_process" in (command_of(pid) or b"")}


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture(scope="module")
def healthy() -> Iterator[Node]:
    """A node of tests after which its processes are as before."""
    engines = Engines()
    with Node(SETTINGS) as node:
        node.register(wasm(bytes(ECHO.main)), slow())
        yield node
    assert engines.ids() == set()


@pytest.fixture
def node(engines: Engines) -> Iterator[Node]:
    with Node(SETTINGS) as node:
        node.register(wasm(bytes(ECHO.main)), slow())
        yield node
    assert engines.ids() == set()


def works(node: Node) -> bool:
    return bytes(node.invoke("F", x=b"honest").y.only().bytes()) == b"honest"


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65_536, 65_537, 600_000, 20 * MIB])
def test_all_sizes_pass_through(healthy: Node, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    at_rest = healthy.info().arena.contexts
    for _ in range(2):
        found = healthy.invoke("F", x=data).y.only()
        assert found.bytes() == data
        del found
    wait_until(lambda: healthy.info().arena.contexts <= at_rest + 1)


def test_large_and_small_calls_at_the_same_time(node: Node) -> None:
    sizes = [10, 2 * MIB, 700_000, 100] * 5
    results: list[bool] = []

    def call(size: int) -> None:
        data = bytes([size % 251]) * size
        results.append(node.invoke("F", x=data).y.only().bytes() == data)

    threads = [threading.Thread(target=call, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * len(sizes)


def test_results_that_find_no_room(node: Node) -> None:
    held = node.acquire(50 * MIB)
    with pytest.raises(ContextFull):
        node.invoke("F", x=bytes(20 * MIB))
    del held
    assert works(node)


def test_static_sets_and_types(node: Node) -> None:
    node.register(
        wasm(
            bytes(ECHO.main),
            "Typed",
            inputs=(SetSpec("x", "float32", (-1,)),),
            outputs=(SetSpec("y", "float32", (-1,)),),
        )
    )
    values = np.arange(10_000, dtype=np.float32)
    assert np.array_equal(node.invoke("Typed", x=values).y.only().numpy(), values)
    node.register(wasm(bytes(ECHO.main), "Fixed", static={"x": {"x": b"constant" * 10_000}}))
    assert node.invoke("Fixed").y.only().bytes() == b"constant" * 10_000


def test_calls_that_are_joined(node: Node) -> None:
    spec = SetSpec("x", "float32", (-1, 4))
    node.register(
        wasm(
            bytes(ECHO.main),
            "Joined",
            inputs=(spec,),
            outputs=(SetSpec("y", "float32", (-1, 4)),),
            batching=Batching(("x",), calls=4, wait_s=10.0),
        )
    )
    found: dict[int, bool] = {}

    def call(number: int) -> None:
        rows = np.full((number + 1, 4), number, np.float32)
        found[number] = np.array_equal(node.invoke("Joined", x=rows).y.only().numpy(), rows)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["wall_s", "cpu_s"])
def test_time_limits_leave_the_process_alone(node: Node, engines: Engines, limit: str) -> None:
    node.register(slow(**{limit: 0.2}))
    assert works(node)
    before = engines.ids()
    with pytest.raises(TimedOut) as caught:
        node.invoke("Slow", x=b"")
    assert caught.value.what == limit.removesuffix("_s")
    assert works(node)
    assert engines.ids() == before


def test_a_call_whose_caller_left_is_stopped(node: Node, engines: Engines) -> None:
    assert works(node)
    before = engines.ids()
    with pytest.raises(DandelionError):
        node.invoke("Slow", x=b"", deadline_s=0.3)
    assert works(node)  # which waits for the engine
    assert engines.ids() == before


def test_memory_is_limited(node: Node) -> None:
    refused = "(i32.eq (memory.grow (i32.const 60000)) (i32.const -1))"
    body = f"(if {refused} (then (call $exit (i32.const 259)) (unreachable)))"
    node.register(wasm(assembled(body), "Large", limits=Limits(memory_bytes=1 * MIB)))
    with pytest.raises(OutOfMemory):
        node.invoke("Large", x=b"")
    assert works(node)


# --- death --------------------------------------------------------------------------------------


def running(node: Node) -> bool:
    return bool(node.engines()[0].busy)


@pytest.mark.parametrize("deaths", [1, 2])  # of the process under the call; 2 is each time
def test_a_call_whose_process_dies_runs_once_more(
    node: Node, engines: Engines, deaths: int
) -> None:
    node.register(slow(wall_s=1.5 if deaths == 1 else 30.0))
    assert works(node)
    errors: list[DandelionError] = []

    def call() -> None:
        try:
            node.invoke("Slow", x=b"")
        except DandelionError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    killed: set[int] = set()

    def is_running() -> bool:
        return not thread.is_alive() or (running(node) and bool(engines.ids() - killed))

    while thread.is_alive() and (deaths > 1 or not killed):  # one that had not begun is no death
        wait_until(is_running, 20.0)
        time.sleep(0.1)
        for process in engines.ids() - killed if thread.is_alive() else ():
            killed.add(process)
            os.kill(process, signal.SIGKILL)
    thread.join()
    assert [type(error) for error in errors] == [TimedOut if deaths == 1 else Faulted]
    assert works(node)


def test_engines_start_when_calls_wait(engines: Engines) -> None:
    with Node(msgspec.structs.replace(SETTINGS, engines={"wasm": 3})) as node:
        node.register(wasm(bytes(ECHO.main)), slow())
        assert node.wait_ready()
        assert states(node) == ["dormant"] * 3
        assert works(node)
        assert states(node) == ["dormant", "dormant", "ready"]
        callers = [threading.Thread(target=be_slow, args=(node,)) for _ in range(2)]
        for caller in callers:
            caller.start()
        wait_until(lambda: states(node) == ["dormant", "ready", "ready"], 20.0)
    for caller in callers:
        caller.join()
    assert engines.ids() == set()


def states(node: Node) -> list[str]:
    return sorted(engine.state for engine in node.engines())


def be_slow(node: Node) -> None:
    with contextlib.suppress(DandelionError):  # the node closes before
        node.invoke("Slow", x=b"")
