"""A node among enemies: engines with bugs, compositions without end, everything at once.

After each test nothing may run, wait, be busy or lie in the arena.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Call, Capacity, Driver, Engine, Hosting, InstanceSets
from dandelion.errors import (
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    EngineDied,
    InternalError,
    NoEngine,
    Raised,
)
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings
from dandelion.set_values import item_set
from dandelion.testing import Script, ScriptedDriver, echo, wait_until

ENDLESS = """
function F(a) => (b);
composition Million(a) => (b) { F(a = all a) => (b = b) repeat 1000000 feeding (a = b); }
composition Calls(x) => (y) { Million(a = all x) => (y = b) repeat 1000000 feeding (a = b); }
"""
HOLLOW = """
composition Swap(a, c) => (c, a) { }
composition Million(a, c) => (x, y) {
    Swap(a = all a, c = all c) => (x = c, y = a) repeat 1000000 feeding (a = c, c = a);
}
composition Calls(x) => (p, q) {
    Million(a = all x, c = all x) => (p = x, q = y) repeat 1000000 feeding (a = x, c = y);
}
"""
WIDE = "function A(a) => (b); composition Wide(x) => (y) { A(a = each x) => (y = b); }"


class Bug(Exception):
    """An error that no caller expects."""


def acted(hosting: Hosting = Hosting.THREAD, engines: int = 1) -> ScriptedDriver:
    """A backend whose engines come back whenever they are lost."""
    resources = {str(number): Capacity() for number in range(engines)}
    script = Script(recover=lambda engine: None)
    return ScriptedDriver("acted", script, hosting, resources)


def after(act: Callable[[Engine], object]) -> Callable[[Engine, Call], InstanceSets]:
    """Do something in each call, and then give its inputs back."""

    def run(engine: Engine, call: Call) -> InstanceSets:
        act(engine)
        return echo(engine, call)

    return run


def function(name: str, code_format: str = "null") -> FunctionDocument:
    return FunctionDocument(name, ("a",), ("b",), code=(CodeDocument(code_format),))


def fail(*arguments: object) -> bool:
    raise Bug("of a backend")


@contextmanager
def started(*drivers: Driver, deadline_s: float = 30.0) -> Iterator[Node]:
    settings = Settings(
        backends=("null",), arena_bytes=1 << 22, default_deadline_s=deadline_s, max_waiting=100_000
    )
    with Node(settings, drivers) as node:
        node.register(function("F"))
        if drivers:
            node.register(function("A", "acted"))
        assert node.wait_ready()
        yield node
        assert_idle(node)


def assert_idle(node: Node) -> None:
    """Engines may be a moment behind the invocations that they worked for."""

    def used() -> tuple[int, int, int]:
        info = node.info()
        return info.running, info.waiting, info.arena.contexts

    def idle() -> bool:
        gc.collect()
        return not any(e.busy for e in node.engines()) and used() == (0, 0, 0)

    with suppress(TimeoutError):
        wait_until(idle, 2.0)
    if used() != (0, 0, 0):  # a thread that waits may hold what it did last, and nothing older
        node.invoke("F", a=b"")
        wait_until(idle)
    assert [e.busy for e in node.engines()] == [0] * len(node.engines())


@pytest.mark.parametrize("text", [ENDLESS, HOLLOW])
def test_a_composition_without_end_keeps_its_deadline_and_delays_no_other(text: str) -> None:
    with started() as node, ThreadPoolExecutor(1) as pool:
        node.register(text)

        def answers_meanwhile() -> int:
            endless = pool.submit(node.invoke, "Calls", x=b"1", deadline_s=0.5)
            answers = 0
            while not endless.done():
                assert node.invoke("F", a=b"2").b.text() == "2"
                answers += 1
            assert isinstance(endless.exception(), DeadlineExceeded)
            return answers

        assert any(answers_meanwhile() > 3 for _ in range(5))  # this machine may be busy


@pytest.mark.parametrize("step", ["clean_up", "close"])
def test_a_bug_of_an_engine_outside_of_calls_costs_no_call(step: str) -> None:
    driver = acted()
    setattr(driver.script, step, fail)
    with started(driver) as node:
        for number in range(3):
            assert node.invoke("A", a=str(number)).b.text() == str(number)


def test_an_engine_that_cannot_be_brought_back_refuses_what_comes() -> None:
    def die(engine: Engine) -> None:
        engine.lost = True
        raise EngineDied("acted:0", "it was killed")

    driver = acted()
    driver.script.run = after(die)
    driver.script.recover = fail
    with started(driver) as node:
        for _ in range(3):
            with pytest.raises((InternalError, NoEngine)):
                node.invoke("A", a=b"")
        assert node.ready()


@pytest.mark.parametrize("error", [Bug("no"), SystemExit(3), MemoryError()])
def test_whatever_an_engine_raises_is_an_error_of_one_call(error: BaseException) -> None:
    def leave(engine: Engine) -> None:
        raise error

    driver = acted()
    driver.script.run = after(leave)
    with started(driver) as node:
        for _ in range(2):
            with pytest.raises(InternalError, match=type(error).__name__) as caught:
                node.invoke("A", a=b"")
            assert caught.value.__cause__ is None or not caught.value.__cause__.__traceback__


def test_an_error_keeps_no_memory_of_its_call() -> None:
    """Not even for the collector to find: a full arena does not wait for it."""

    def refuse(engine: Engine) -> None:
        raise Raised("A", "ValueError: no")

    driver = acted()
    driver.script.run = after(refuse)
    with started(driver) as node:
        node.register(WIDE)
        gc.disable()
        try:
            for name, given in [("A", "a"), ("Wide", "x")]:
                data = node.acquire(5000).view.toreadonly()
                with suppress(DandelionError):
                    node.invoke_sets(name, {given: item_set(given, data)})
                del data
                assert wait_until(lambda: node.info().arena.contexts == 0)
        finally:
            gc.enable()


def test_an_engine_that_cannot_cancel_delays_no_other_call() -> None:
    gate = threading.Event()
    driver = acted()
    driver.script.run = after(lambda engine: gate.wait(20) or fail())
    driver.script.cancel = fail
    with started(driver) as node:
        with pytest.raises(DeadlineExceeded):
            node.invoke("A", a=b"", deadline_s=0.05)
        gate.set()
        assert node.invoke("A", a=b"1").b.text() == "1"


@pytest.mark.parametrize("hosting", [Hosting.THREAD, Hosting.INLINE])
def test_a_backend_that_cannot_start_is_named_and_the_node_runs(hosting: Hosting) -> None:
    driver = acted(hosting)
    driver.script.start = fail
    with started(driver) as node:
        assert "Bug" in next(e.reason for e in node.engines() if e.backend == "acted")
        assert node.invoke("F", a=b"1").b.text() == "1"


def test_a_backend_without_resources_is_named() -> None:
    settings = Settings(backends=(), engines={"acted": 2}, arena_bytes=1 << 20)
    with Node(settings, [acted(engines=0)]) as node:
        assert [e.backend for e in node.engines()] == ["acted"]


@pytest.mark.parametrize("hosting", [Hosting.THREAD, Hosting.INLINE])
def test_a_node_closes_whatever_its_engines_do(hosting: Hosting) -> None:
    driver = acted(hosting)
    driver.script.close = fail
    before = set(threading.enumerate())
    with started(driver):
        pass
    assert set(threading.enumerate()) <= before


def test_closing_from_many_threads_ends_every_invocation_once() -> None:
    gate = threading.Event()
    begun = threading.Semaphore(0)

    def wait(engine: Engine) -> None:
        begun.release()
        gate.wait(20)

    driver = acted()
    driver.script.run = after(wait)

    def go(call_id: int) -> bool:
        gate.set()
        return True

    driver.script.cancel = go
    node = Node(Settings(backends=("null",), arena_bytes=1 << 20), [driver])
    node.start()
    node.register(function("A", "acted"))
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(node.invoke, "A", a=b"") for _ in range(8)]
        begun.acquire()
        closing = [pool.submit(node.close) for _ in range(4)]
        for one in closing:
            one.result()
        assert all(isinstance(c.exception(), Cancelled) for c in calls)
    with pytest.raises(Cancelled):
        node.invoke("A", a=b"")


def test_thousands_of_waiting_calls_go_at_once_when_their_callers_leave() -> None:
    gate = threading.Event()
    driver = acted()
    driver.script.run = after(lambda engine: gate.wait(30) or fail())

    async def leave(node: Node) -> float:
        callers = [
            asyncio.ensure_future(node.invoke_async("Wide", x=[b"1"] * 64)) for _ in range(300)
        ]
        while node.info().waiting < 300 * 64 - 1:
            await asyncio.sleep(0.01)  # to ask more often takes longer than what is waited for
        begin = time.process_time()
        for caller in reversed(callers):
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        return time.process_time() - begin

    with started(driver) as node:
        node.register(WIDE)
        took_s = asyncio.run(leave(node))
        gate.set()
        assert took_s < 2  # looking through all that wait, for each, takes more


def test_everything_at_once() -> None:
    """Invoke, register, remove, miss deadlines and lose engines from many threads."""
    lock = threading.Lock()
    count = 0

    def run(engine: Engine) -> None:
        nonlocal count
        with lock:
            count += 1
            number = count
        if number % 7 == 0:
            engine.lost = True
            raise EngineDied("acted:0", "it was killed")
        if number % 11 == 0:
            raise Bug("now and then")

    driver = acted(engines=3)
    driver.script.run = after(run)
    unforeseen: list[BaseException] = []

    def torment(node: Node, seed: int) -> None:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            name = f"G{seed % 3}"
            steps: list[Callable[[], object]] = [
                partial(node.invoke, "A", a=bytes(5000)),
                partial(node.invoke, "Wide", x=[bytes(3000)] * 20),
                partial(node.invoke, "Wide", x=[b"2"] * 50, deadline_s=0.002),
                partial(node.register, function(name, "acted")),
                partial(node.invoke, name, a=b"3"),
                partial(node.remove, FunctionSpec, name),
            ]
            try:
                for step in steps:
                    with suppress(DandelionError):
                        step()
            except BaseException as error:
                unforeseen.append(error)
                raise

    with started(driver) as node:
        node.register(WIDE)
        threads = [threading.Thread(target=torment, args=(node, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not unforeseen
