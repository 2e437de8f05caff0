"""Calls to engine processes among deaths, deadlines and leaving callers: each gets its own answer.

The program of the process gives back what it was given, after what the first letter says. Whatever
happened, afterwards no engine is busy, nothing runs and nothing lies in the arena.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dandelion.errors import DandelionError, DeadlineExceeded
from dandelion.executors import processes
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings
from dandelion.testing import FakeEngineProcess, wait_until
from tests.faults.fake_calls import SCRIPT, child_of, echoed, running
from tests.played_nodes import (
    assert_idle,
    kill,
    played_driver,
    register,
    standby,
)


@pytest.fixture
def fake(tmp_path: Path) -> FakeEngineProcess:
    return FakeEngineProcess(tmp_path, SCRIPT)


@pytest.fixture
def node(request: pytest.FixtureRequest, fake: FakeEngineProcess) -> Iterator[Node]:
    with running(fake, getattr(request, "param", 0)) as node:
        yield node


both = pytest.mark.parametrize("node", [0, 200], indirect=True, ids=["asleep", "spinning"])


@both
def test_a_process_that_dies_between_calls_is_replaced(node: Node) -> None:
    for number in range(3):
        data = b"q%d" % number
        assert echoed(node, data) == data
        kill(child_of(node))
    assert echoed(node, b"q") == b"q"


def test_a_process_that_dies_after_its_answer_has_answered(node: Node) -> None:
    for number in range(5):
        data = b"A%d" % number
        assert echoed(node, data) == data


@both
@pytest.mark.parametrize("kind", [b"K", b"F"])
def test_a_call_that_ends_processes_ends_no_other_call(kind: bytes, node: Node) -> None:
    echoed(node, b"q")
    with ThreadPoolExecutor(4) as pool:
        bad = pool.submit(echoed, node, kind)
        good = [pool.submit(echoed, node, b"q%d" % number) for number in range(12)]
        assert [call.result() for call in good] == [b"q%d" % number for number in range(12)]
        assert isinstance(bad.exception(), DandelionError)


def test_the_end_of_an_idle_process_is_found_by_who_forgets_or_calls(node: Node) -> None:
    register(node, "G", main=b"code")
    register(node, "H", main=b"other code")
    echoed(node, b"q", "G")
    echoed(node, b"q", "H")
    kill(child_of(node))
    node.remove(FunctionSpec, "G")
    assert echoed(node, b"q2", "H") == b"q2"
    node.remove(FunctionSpec, "H")


def test_a_standby_that_dies_affects_no_call(node: Node) -> None:
    for number in range(3):
        kill(wait_until(lambda: standby(node)))
        kill(child_of(node))
        assert echoed(node, b"q%d" % number) == b"q%d" % number


@both
def test_a_stopped_process_costs_its_call_alone(node: Node) -> None:
    echoed(node, b"q")
    with pytest.raises(DeadlineExceeded):
        echoed(node, b"S", deadline_s=0.1)
    assert echoed(node, b"q2") == b"q2"


def test_a_stopped_process_is_found_where_only_the_loop_looks(node: Node) -> None:
    async def stopped() -> None:
        with pytest.raises(DeadlineExceeded):
            await node.invoke_async("F", a=b"S", deadline_s=0.1)
        assert (await node.invoke_async("F", a=b"q2")).b.bytes() == b"q2"

    echoed(node, b"q")
    asyncio.run(stopped())


@both
def test_the_answer_of_a_cancelled_call_goes_to_no_other_call(node: Node) -> None:
    async def cancelled() -> None:
        for number in range(20):
            kind = b"W" if number == 10 else b"q"
            task = asyncio.ensure_future(node.invoke_async("F", a=kind + b"old%d" % number))
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            data = b"qnew%d" % number
            assert (await node.invoke_async("F", a=data)).b.bytes() == data

    echoed(node, b"q")
    asyncio.run(cancelled())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have interrupts raise also where a shell runs this in the background, which ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@both
@pytest.mark.usefixtures("interruptible")
def test_a_caller_who_is_interrupted_takes_its_invocation_along(node: Node) -> None:
    def interrupt() -> None:
        wait_until(lambda: any(engine.busy for engine in node.engines()))
        os.kill(os.getpid(), signal.SIGINT)

    echoed(node, b"q")
    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            echoed(node, b"S")  # however late the interrupt is, the call has not ended by itself
        interrupted.result(20)
    wait_until(lambda: not node.info().running)
    kill(child_of(node))
    assert echoed(node, b"q2") == b"q2"


def test_a_deadline_may_be_years_away(node: Node) -> None:
    register(node, "G", wall_s=1e8)
    echoed(node, b"q", "G")
    assert echoed(node, b"W", "G", deadline_s=1e8) == b"W"


async def own_loop(node: Node) -> None:
    """Have a node that runs on this loop come up, and register its function."""
    while not node.ready():
        await asyncio.sleep(0.01)
    await asyncio.to_thread(register, node, "F")
    await node.invoke_async("F", a=b"q")


def test_the_thread_of_the_loop_may_wait_for_what_the_loop_has_sent(
    fake: FakeEngineProcess,
) -> None:
    async def calls() -> None:
        settings = Settings(backends=(), arena_bytes=8 << 20)
        async with Node(settings, [played_driver()]) as node:
            await own_loop(node)
            sent = asyncio.ensure_future(node.invoke_async("F", a=b"W"))
            await asyncio.sleep(0)
            assert echoed(node, b"q2", deadline_s=20) == b"q2"
            assert (await sent).b.bytes() == b"W"
            del sent
            await asyncio.to_thread(assert_idle, node)

    with fake.replaces(processes):
        asyncio.run(calls())


def test_the_thread_of_the_loop_waits_no_longer_than_its_deadline(fake: FakeEngineProcess) -> None:
    """Also while answers to others come all the time."""

    async def calls() -> None:
        settings = Settings(backends=(), arena_bytes=8 << 20)
        async with Node(settings, [played_driver(), played_driver()]) as node:
            await own_loop(node)
            stopped = asyncio.ensure_future(node.invoke_async("F", a=b"S", deadline_s=0.5))
            await asyncio.sleep(0)
            others = [asyncio.ensure_future(node.invoke_async("F", a=b"W")) for _ in range(3)]
            await asyncio.sleep(0)
            begin_s = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                echoed(node, b"W", deadline_s=0.1)
            assert time.monotonic() - begin_s < 20
            with pytest.raises(DeadlineExceeded):
                await stopped
            assert [(await other).b.bytes() for other in others] == [b"W"] * 3
            del stopped, others
            await asyncio.to_thread(assert_idle, node)

    with fake.replaces(processes):
        asyncio.run(calls())
