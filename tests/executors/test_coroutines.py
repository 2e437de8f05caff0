"""Executors whose calls run on the loop: asynchronous ones, and those that end where they begin."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from dandelion.driver import AsyncEngine, Call, Engine, Hosting, InstanceSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    InternalError,
    Raised,
    TimedOut,
)
from dandelion.executors import InlineExecutor, LoopExecutor, StartedEngine
from dandelion.memory import SharedDomain
from dandelion.scheduler import CallState
from dandelion.testing import Failures, Script, ScriptedDriver, echo
from tests.executors.harness import Loop, call_of, engine_state, flow_of, surroundings, text_of


async def forever(engine: object, call: Call) -> InstanceSets:
    """Never end by itself."""
    await asyncio.Event().wait()
    return ()


def playing(
    test: Callable[[LoopExecutor, Loop, ScriptedDriver], Awaitable[None]], script: Script
) -> None:
    """Run a test on a loop, with an executor that is up; it is closed in the end."""
    driver = ScriptedDriver("scripted", script, Hosting.LOOP)

    async def run() -> None:
        with closing(SharedDomain(1 << 20)) as arena:
            events = Loop()

            def make() -> AsyncEngine:
                engine = driver.factory().engine("0")
                assert isinstance(engine, AsyncEngine)
                return engine

            executor = LoopExecutor(
                engine_state(),
                StartedEngine("", "scripted", "0"),
                surroundings(events, arena),
                make,
                asyncio.get_running_loop(),
            )
            executor.start()
            await test(executor, events, driver)
            with ThreadPoolExecutor(1) as pool:
                await asyncio.wrap_future(pool.submit(executor.close))
            assert executor._tasks == {}
            assert driver.seen.closed == ["scripted:0"]

    asyncio.run(run())


async def answered(events: Loop, count: int = 1) -> None:
    """Wait until so many calls were answered."""
    async with asyncio.timeout(20):
        while len(events.outputs) + len(events.failures) < count:
            await asyncio.sleep(0.001)


def error_of(events: Loop, call: CallState) -> DandelionError:
    error, begun = events.failures[call.id]
    assert begun
    return error


def test_many_calls_run_at_once() -> None:
    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        together = asyncio.Barrier(3)

        async def meet(engine: object, call: Call) -> InstanceSets:
            await together.wait()
            return echo(engine, call)

        driver.script.run_async = meet
        for _ in range(3):
            executor.send(call_of(flow_of()))
        await answered(events, 3)
        assert [text_of(outputs) for outputs in events.outputs.values()] == [b"data"] * 3

    playing(test, Script())


def test_a_call_that_is_stopped_before_its_first_step_is_answered() -> None:
    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        call = call_of(flow_of())
        executor.send(call)
        executor.stop(call)
        await answered(events)
        assert isinstance(error_of(events, call), Cancelled)
        assert driver.seen.ran == []
        executor.stop(call)  # too late

    playing(test, Script())


def test_a_call_that_runs_is_stopped() -> None:
    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        call = call_of(flow_of())
        executor.send(call)
        await asyncio.sleep(0)
        assert len(driver.seen.ran) == 1
        executor.stop(call)
        await answered(events)
        assert isinstance(error_of(events, call), Cancelled)

    playing(test, Script(run_async=forever))


@pytest.mark.parametrize(("wall_s", "deadline_s"), [(0.01, 60.0), (60.0, 0.01)])
def test_a_call_ends_with_its_limit_or_its_invocation(wall_s: float, deadline_s: float) -> None:
    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        call = call_of(flow_of(wall_s=wall_s), deadline_s=deadline_s)
        executor.send(call)
        await answered(events)
        assert isinstance(error_of(events, call), TimedOut)

    playing(test, Script(run_async=forever))


def test_a_call_whose_time_is_over_before_it_begins_ends_at_once() -> None:
    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        call = call_of(flow_of(), deadline_s=-1.0)
        executor.send(call)
        await answered(events)
        assert isinstance(error_of(events, call), TimedOut)

    playing(test, Script(run_async=forever))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Raised("f", "ValueError", "no"), Raised),
        (ValueError("a bug"), InternalError),
        (SystemExit(1), InternalError),
        (TimeoutError("of its own"), InternalError),
    ],
)
def test_an_error_is_the_answer_of_its_call(
    error: BaseException, expected: type[Exception]
) -> None:
    async def fails(engine: object, call: Call) -> InstanceSets:
        raise error

    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        call = call_of(flow_of())
        executor.send(call)
        await answered(events)
        assert isinstance(error_of(events, call), expected)

    playing(test, Script(run_async=fails))


def test_closing_stops_all_calls_and_each_is_answered() -> None:
    log: list[str] = []

    async def test(executor: LoopExecutor, events: Loop, driver: ScriptedDriver) -> None:
        for _ in range(3):
            executor.send(call_of(flow_of()))
        await asyncio.sleep(0)
        executor.send(call_of(flow_of()))  # its first step never comes
        events.log = log

    playing(test, Script(run_async=forever))
    assert log == ["failed"] * 4


# --- calls that end where they begin --------------------------------------------------------------


def inline(driver: ScriptedDriver, events: Loop, arena: SharedDomain) -> InlineExecutor:
    def make() -> Engine:
        engine = driver.factory().engine("0")
        assert isinstance(engine, Engine)
        return engine

    info = StartedEngine("", "scripted", "0")
    return InlineExecutor(engine_state(), info, surroundings(events, arena), make)


def test_an_inline_engine_answers_as_it_is_sent_to() -> None:
    events, driver = Loop(), ScriptedDriver(hosting=Hosting.INLINE)
    driver.script.run = Failures(ValueError("a bug"), echo)
    with closing(SharedDomain(1 << 20)) as arena, closing(inline(driver, events, arena)) as one:
        one.start()
        bad, good = call_of(flow_of()), call_of(flow_of())
        one.send(bad)
        one.send(good)
    assert events.log == ["up", "failed", "done"]
    assert isinstance(events.failures[bad.id][0], InternalError)
    assert driver.seen.closed == ["scripted:0"]


def test_an_inline_engine_that_cannot_be_made_says_why() -> None:
    events, driver = Loop(), ScriptedDriver(hosting=Hosting.INLINE)
    driver.script.start = Failures(BackendUnavailable("scripted", "no"), list)
    with closing(SharedDomain(1 << 20)) as arena, closing(inline(driver, events, arena)) as one:
        one.start()
    assert isinstance(events.refused[0], BackendUnavailable)
