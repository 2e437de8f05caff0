"""The executor of an engine in a thread: lost and recovered engines, orders that come too late."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from dandelion.driver import Call, Engine, Hosting, InstanceSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    EngineDied,
    InternalError,
    Raised,
)
from dandelion.executors import StartedEngine, ThreadExecutor
from dandelion.function import Function
from dandelion.memory import SharedDomain
from dandelion.scheduler import CallState
from dandelion.testing import Failures, Gate, Script, ScriptedDriver, echo
from dandelion.testing.scripted import ScriptedEngine
from tests.executors.harness import Loop, call_of, engine_state, flow_of, surroundings, text_of

FLOW = flow_of()


def call() -> CallState:
    return call_of(FLOW)


@contextmanager
def executor_of(driver: ScriptedDriver, loop: Loop) -> Iterator[ThreadExecutor]:
    """Give an executor, not started; it is closed in the end."""
    with closing(SharedDomain(1 << 20)) as arena:

        def make() -> Engine:
            engine = driver.factory().engine("0")
            assert isinstance(engine, Engine)
            return engine

        info = StartedEngine("", driver.name, "0")
        executor = ThreadExecutor(engine_state(), info, surroundings(loop, arena), make)
        with closing(executor):
            yield executor


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver("scripted", Script(), Hosting.THREAD)


@pytest.fixture
def executor(driver: ScriptedDriver, loop: Loop) -> Iterator[ThreadExecutor]:
    with executor_of(driver, loop) as executor:
        executor.start()
        loop.until(lambda: loop.log)
        assert loop.log == ["up"]
        yield executor


def loses(engine: Engine, call: Call) -> InstanceSets:
    """Lose the engine in a call."""
    engine.lost = True
    raise EngineDied(engine.name, "as told")


def test_calls_run_one_after_the_other(executor: ThreadExecutor, loop: Loop) -> None:
    calls = [call() for _ in range(3)]
    for one in calls:
        executor.send(one)
    loop.until(lambda: len(loop.outputs) == 3)
    assert list(loop.outputs) == [one.id for one in calls]
    assert all(text_of(outputs) == b"data" for outputs in loop.outputs.values())
    assert all(0 < one.started_ns <= one.ended_ns for one in calls)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Raised("f", "ValueError", "no"), Raised),
        (ValueError("a bug"), InternalError),
        (SystemExit(1), InternalError),
    ],
)
def test_an_error_is_the_answer_of_its_call(
    error: BaseException,
    expected: type[Exception],
    executor: ThreadExecutor,
    driver: ScriptedDriver,
    loop: Loop,
) -> None:
    driver.script.run = Failures(error, echo)
    bad, good = call(), call()
    executor.send(bad)
    executor.send(good)
    loop.until(lambda: loop.outputs)
    assert isinstance(loop.failures[bad.id][0], expected)
    assert loop.log == ["up", "failed", "done"]


# --- starting -----------------------------------------------------------------------------------


def test_an_engine_that_cannot_be_made_may_be_made_later(
    driver: ScriptedDriver, loop: Loop
) -> None:
    driver.script.start = Failures(BackendUnavailable("scripted", "no room"), list)
    with executor_of(driver, loop) as executor:
        executor.start()
        loop.until(lambda: loop.refused)
        assert isinstance(loop.refused[0], BackendUnavailable)
        executor.start()
        loop.until(lambda: loop.infos)
    assert loop.log == ["start_failed", "up"]
    assert loop.infos[0].name == "scripted:0"
    assert driver.seen.closed == ["scripted:0"]


# --- lost engines -------------------------------------------------------------------------------


def test_a_lost_engine_recovers_and_calls_behind_are_taken_back(
    executor: ThreadExecutor, driver: ScriptedDriver, loop: Loop
) -> None:
    driver.script.run, driver.script.recover = loses, id
    bad, behind = call(), call()
    executor.send(bad)
    executor.send(behind)
    loop.until(lambda: loop.losses)
    error, begun = loop.losses[0]
    assert isinstance(error, EngineDied)
    assert list(begun) == [bad.id]
    driver.script.run = echo
    executor.start()
    loop.until(lambda: len(loop.infos) == 2)
    assert driver.seen.ran == [("scripted:0", "f")]  # what was behind did not run
    executor.send(behind)
    loop.until(lambda: loop.outputs)
    assert loop.log == ["up", "lost", "up", "done"]


def test_an_engine_that_does_not_recover_is_tried_again(
    executor: ThreadExecutor, driver: ScriptedDriver, loop: Loop
) -> None:
    driver.script.run = loses
    executor.send(call())
    loop.until(lambda: loop.losses)
    driver.script.recover = Failures(BackendUnavailable("scripted", "not yet"), id)
    executor.start()
    loop.until(lambda: loop.refused)
    executor.send(call())  # the scheduler does not; it is not run on a broken engine
    executor.start()
    loop.until(lambda: len(loop.infos) == 2)
    assert loop.log == ["up", "lost", "start_failed", "up"]
    assert len(driver.seen.ran) == 1


def test_an_engine_that_is_lost_after_its_outputs_has_answered(
    executor: ThreadExecutor, driver: ScriptedDriver, loop: Loop
) -> None:
    def run(engine: Engine, call: Call) -> InstanceSets:
        engine.lost = True
        return echo(engine, call)

    driver.script.run = run
    executor.send(call())
    loop.until(lambda: loop.losses)
    assert loop.log == ["up", "done", "lost"]
    assert loop.losses[0][1] == {}


def test_an_engine_that_cannot_clean_up_is_lost_after_its_answer(
    executor: ThreadExecutor, driver: ScriptedDriver, loop: Loop
) -> None:
    driver.script.clean_up = Failures(ValueError("memory error"), list)
    driver.script.recover = id
    first, behind = call(), call()
    executor.send(first)
    executor.send(behind)
    loop.until(lambda: loop.losses)
    assert loop.log == ["up", "done", "lost"]
    assert loop.losses[0][1] == {}
    executor.start()
    loop.until(lambda: len(loop.infos) == 2)
    assert list(loop.outputs) == [first.id]
    executor.send(behind)
    loop.until(lambda: behind.id in loop.outputs)


def test_an_engine_that_cannot_forget_is_lost(
    executor: ThreadExecutor, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []

    def forget(engine: Engine, function: Function) -> None:
        forgotten.append(function.spec.name)
        raise ValueError("no")

    monkeypatch.setattr(ScriptedEngine, "forget", forget)
    executor.forget(FLOW)
    executor.forget(flow_of("g"))
    loop.until(lambda: loop.losses)
    assert forgotten == ["f"]  # it is not asked again before it is recovered
    assert len(loop.losses) == 1


# --- orders that come too late --------------------------------------------------------------------


def test_a_call_that_is_cancelled_before_its_turn_is_not_run(loop: Loop) -> None:
    gate = Gate()
    driver = ScriptedDriver("scripted", gate.script)
    with executor_of(driver, loop) as executor:
        executor.start()
        running, waiting = call(), call()
        executor.send(running)
        executor.send(waiting)
        assert gate.entered()
        waiting.cancelled = True
        gate.open()
        loop.until(lambda: len(loop.log) == 3)
    assert isinstance(loop.failures[waiting.id][0], Cancelled)
    assert list(loop.outputs) == [running.id]
    assert len(driver.seen.ran) == 1


def test_a_call_that_runs_is_cancelled_by_its_engine(loop: Loop) -> None:
    gate = Gate()
    driver = ScriptedDriver("scripted", gate.script)
    with executor_of(driver, loop) as executor:
        executor.stop(call())  # before there is an engine
        executor.start()
        running = call()
        executor.send(running)
        assert gate.entered()
        running.cancelled = True
        executor.stop(running)
        loop.until(lambda: loop.outputs)
    assert driver.seen.cancelled == [running.id]


# --- closing --------------------------------------------------------------------------------------


def test_closing_before_the_start_leaves_no_thread(driver: ScriptedDriver, loop: Loop) -> None:
    before = set(threading.enumerate())
    with executor_of(driver, loop):
        pass
    assert set(threading.enumerate()) <= before
    assert driver.seen.closed == []


def test_calls_that_wait_as_it_closes_are_answered_and_not_run(loop: Loop) -> None:
    gate = Gate()
    driver = ScriptedDriver("scripted", gate.script)
    with executor_of(driver, loop) as executor:
        executor.start()
        running, waiting = call(), call()
        executor.send(running)
        executor.send(waiting)
        assert gate.entered()
        executor._closing = True
        gate.open()
    loop.until(lambda: len(loop.log) == 3)
    assert isinstance(loop.failures[waiting.id][0], Cancelled)
    assert driver.seen.closed == ["scripted:0"]


def test_an_engine_is_not_brought_back_as_it_closes(driver: ScriptedDriver, loop: Loop) -> None:
    """The loop may order that while a thread closes the executor."""
    recovered: list[Engine] = []
    driver.script.recover = recovered.append
    with executor_of(driver, loop) as executor:
        executor.start()
        loop.until(lambda: loop.infos)
        executor._closing = True
        executor._worker.submit(executor._shut)
        executor.start()
    assert recovered == []
    assert loop.log == ["up"]


def test_an_engine_that_cannot_be_closed_is_left(driver: ScriptedDriver, loop: Loop) -> None:
    driver.script.close = Failures(ValueError("no"), list)
    before = set(threading.enumerate())
    with executor_of(driver, loop) as executor:
        executor.start()
        loop.until(lambda: loop.infos)
    assert set(threading.enumerate()) <= before
