"""The test doubles that are shipped: scripted backends, gates, failures, fake engine processes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import (
    Call,
    Capacity,
    Demand,
    Engine,
    Hosting,
    backend_names,
    load_driver,
)
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.messages import reply_channel
from dandelion.errors import (
    EngineDied,
    Faulted,
    InternalError,
    InvalidFunction,
    InvalidInput,
    Problem,
)
from dandelion.executors import processes
from dandelion.function import CodeObject, Function, FunctionSpec, Limits
from dandelion.memory import HeapDomain, SharedDomain
from dandelion.node import Node, Settings
from dandelion.testing import (
    Failures,
    FakeEngineProcess,
    Gate,
    ScriptedDriver,
    echo,
    installed,
    wait_until,
)
from dandelion.testing.played import play

FUNCTION = FunctionDocument(
    "F", ("a",), ("b",), code=(CodeDocument("scripted"),), limits=Limits(output_bytes=4096)
)


def an_engine(driver: ScriptedDriver) -> Engine:
    engine = driver.factory().engine("0")
    assert isinstance(engine, Engine)
    return engine


def a_call(number: int) -> Call:
    function = Function(FunctionSpec("F", (SetSpec("a"),), (SetSpec("b"),)), CodeObject("scripted"))
    return Call(number, function, (None,), HeapDomain(1), time.monotonic_ns() + 10**10)


@contextmanager
def started(driver: ScriptedDriver) -> Iterator[Node]:
    with Node(Settings(backends=(), arena_bytes=1 << 20), [driver]) as node:
        node.register(FUNCTION)
        assert node.wait_ready()
        yield node


@pytest.mark.parametrize("hosting", [Hosting.INLINE, Hosting.THREAD, Hosting.LOOP])
def test_a_scripted_backend_gives_its_inputs_back_wherever_it_is_hosted(hosting: Hosting) -> None:
    driver = ScriptedDriver(hosting=hosting)
    with started(driver) as node:
        assert node.invoke("F", a=b"1").b.bytes() == b"1"
    assert driver.seen.ran == [("scripted:0", "F")]
    assert driver.seen.closed == ["scripted:0"]


def test_steps_are_replaced_while_the_backend_is_used() -> None:
    driver = ScriptedDriver()
    with started(driver) as node:
        driver.script.run = Failures(ValueError("no"), echo)
        with pytest.raises(InternalError, match="ValueError"):
            node.invoke("F", a=b"1")
        assert node.invoke("F", a=b"2").b.bytes() == b"2"
        refused = InvalidFunction((Problem("bad", "no", "code"),))
        driver.script.check = Failures(refused, list)
        with pytest.raises(InvalidFunction):
            node.register(FunctionDocument("G", ("a",), ("b",), code=(CodeDocument("scripted"),)))


def test_engines_have_the_capacity_of_their_resource() -> None:
    resources = {"a": Capacity(archs=("x",)), "b": Capacity(device_bytes=5)}
    factory = ScriptedDriver(resources=resources).factory()
    assert [resource.name for resource in factory.probe()] == ["a", "b"]
    engine = factory.engine("b")
    assert isinstance(engine, Engine)
    assert engine.capacity.device_bytes == 5


def test_a_lost_engine_recovers_only_if_its_script_says_so() -> None:
    driver = ScriptedDriver()
    with closing(an_engine(driver)) as engine:
        engine.lost = True
        with pytest.raises(EngineDied):
            engine.recover()
        assert engine.lost
        driver.script.recover = id
        engine.recover()
        assert not engine.lost


def test_only_a_script_with_a_demand_has_a_planner() -> None:
    driver = ScriptedDriver()
    assert driver.planner() is None
    driver.script.demand = lambda function, inputs: Demand(output_bytes=3)
    assert driver.planner() is not None


def test_no_engine_of_a_process_is_started_in_the_node() -> None:
    factory = ScriptedDriver(hosting=Hosting.PROCESS).factory()
    for action in (factory.probe, lambda: factory.engine("0")):
        with pytest.raises(AssertionError):
            action()


def test_a_gate_holds_calls_until_it_opens() -> None:
    gate = Gate()
    driver = ScriptedDriver(script=gate.script)
    with started(driver) as node, ThreadPoolExecutor(1) as pool:
        call = pool.submit(node.invoke, "F", a=b"1")
        assert gate.entered()
        assert not call.done()
        gate.open()
        assert call.result(20).b.bytes() == b"1"
        assert not gate.entered(0)
        assert not gate.was_cancelled(0)


def test_a_gate_lets_a_cancelled_call_through() -> None:
    gate = Gate()
    driver = ScriptedDriver(script=gate.script)
    with ThreadPoolExecutor(1) as pool, closing(an_engine(driver)) as engine:
        waiting = pool.submit(engine.run, a_call(7))
        assert gate.entered()
        assert engine.cancel(7)
        assert gate.was_cancelled()
        assert waiting.result(20) == (None,)
    assert driver.seen.cancelled == [7]


def test_failures_come_at_their_time_and_then_end() -> None:
    step = Failures(InvalidInput("x", "no"), lambda given: 2 * given, after=1, count=2)
    assert step(1) == 2
    for _ in range(2):
        with pytest.raises(InvalidInput):
            step(1)
    assert step.left == 0
    assert step(2) == 4


def test_failures_are_counted_across_threads() -> None:
    step = Failures(InvalidInput("x", "no"), str, count=50)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(step, 1) for _ in range(200)]
    assert sum(call.exception() is not None for call in calls) == 50


def test_waiting_gives_what_the_condition_gave_or_ends() -> None:
    event = threading.Event()
    threading.Timer(0.02, event.set).start()
    assert wait_until(event.is_set) is True
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        wait_until(lambda: 0, limit_s=0.02)
    assert time.monotonic() - begin < 20


def test_installed_drivers_are_found_by_name_until_they_are_not(tmp_path: Path) -> None:
    one, two = ScriptedDriver("one"), ScriptedDriver("two")
    before = backend_names()
    with installed(tmp_path, one, two):
        assert set(backend_names()) == {*before, "one", "two"}
        assert load_driver("two") is two
        settings = Settings(
            backends=("one",), options={"one": {"colour": "red"}}, arena_bytes=1 << 20
        )
        with Node(settings) as node:
            assert node.wait_ready()
            code = (CodeDocument("one"),)
            node.register(FunctionDocument("F", ("a",), ("b",), code=code))
            assert node.invoke("F", a=b"1").b.bytes() == b"1"
    assert one.seen.options["colour"] == "red"
    assert two.seen.ran == []
    assert backend_names() == before


# --- fake engine processes ------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngineProcess]:
    fake = FakeEngineProcess(tmp_path)
    with fake.replaces(processes):
        yield fake


def device() -> ScriptedDriver:
    return ScriptedDriver(hosting=Hosting.PROCESS)


@pytest.mark.usefixtures("fake")
def test_a_fake_process_gives_inputs_back() -> None:
    with started(device()) as node:
        assert node.invoke("F", a=b"12").b.bytes() == b"12"


def test_a_fake_process_does_as_its_script_says(fake: FakeEngineProcess) -> None:
    fake.script(
        """
        from dandelion.driver import Capacity
        from dandelion.errors import InvalidInput

        process.opened()
        process.wait_for("go")
        process.ready(Capacity(device_bytes=77))
        call = process.call()
        process.note("calls", f"{call.function} {bytes(call.inputs[0].items[0].data)}")
        process.fail(call, InvalidInput("a", "no"))
        process.answer(process.call(), b"fixed", stages={"run": 5})
        process.call()
        """
    )
    with Node(Settings(backends=(), arena_bytes=1 << 20), [device()]) as node:
        node.register(FUNCTION)
        assert not node.wait_ready(0.05)
        fake.sign("go")
        assert node.wait_ready()
        with pytest.raises(InvalidInput):
            node.invoke("F", a=b"1")
        assert node.invoke("F", a=b"2").b.bytes() == b"fixed"
    assert fake.notes("calls") == ["F b'1'"]
    assert fake.notes("others") == []


def test_a_fake_process_plans_calls(fake: FakeEngineProcess) -> None:
    fake.script(
        """
        from dandelion.driver import Demand

        process.opened()
        process.demand = lambda name, inputs: Demand(output_bytes=2 * inputs[0].size_bytes)
        process.ready()
        for call in process.calls():
            process.answer(call, str(call.request.result_bytes).encode())
        """
    )
    with started(device()) as node:
        assert node.invoke("F", a=b"1").b.text() == "2"
        assert node.invoke("F", a=b"12345").b.text() == "10"


def test_a_fake_process_dies_and_is_replaced(fake: FakeEngineProcess) -> None:
    fake.script(
        """
        from dandelion.errors import Faulted

        process.opened()
        process.ready(standby=True)
        for call in process.calls():
            if process.first("fault"):
                process.fail(call, Faulted(call.function, "as told"), fatal=True)
            process.answer(call, b"well")
        """
    )
    with started(device()) as node:
        with pytest.raises(Faulted):
            node.invoke("F", a=b"1")
        fake.wait_for("fault")
        assert node.invoke("F", a=b"2").b.bytes() == b"well"


def test_a_fake_process_talks_nonsense_and_leaves_with_the_node(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with closing(SharedDomain(1 << 12)) as arena, closing(reply_channel(ours)) as node:
        place = (theirs.detach(), -1, arena.map.fd, arena.map.size_bytes)
        told = (*place, "", 0, "{}", "scripted")
        script = "process.frame(b'rubbish'); process.peer.shutdown(1); process.call()"
        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(play, tuple(map(str, told)), str(tmp_path), script)
            with pytest.raises(Ended, match="cannot be read"):
                node.receive(20)
            ours.shutdown(socket.SHUT_WR)
            assert playing.result(20) == 0
