"""Two calls that are out, and others who have to do with the process."""

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dandelion.errors import Cancelled, DandelionError, DeadlineExceeded
from dandelion.executors import processes
from dandelion.executors.staging import INLINE_COPY_BYTES, Order
from dandelion.function import FunctionSpec
from dandelion.node import Node
from dandelion.testing import FakeEngineProcess, wait_until
from tests.faults.fake_calls import SCRIPT, child_of, echoed, running
from tests.played_nodes import (
    executor_of,
    kill,
    register,
    standby,
)

LARGE = b"q" + bytes(INLINE_COPY_BYTES)
"""Inputs that a thread copies."""


@pytest.fixture
def fake(tmp_path: Path) -> FakeEngineProcess:
    return FakeEngineProcess(tmp_path, SCRIPT)


@pytest.fixture
def node(request: pytest.FixtureRequest, fake: FakeEngineProcess) -> Iterator[Node]:
    with running(fake, getattr(request, "param", 0)) as node:
        yield node


@contextmanager
def held(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """Block the thread that copies large calls to the arena; yield what waits until it has one."""
    copying, go_on = threading.Event(), threading.Event()
    pool = executor_of(node).around.pool
    submit = pool.submit

    def held(job: Callable[..., object], *given: object) -> Future[object]:
        def wait() -> object:
            copying.set()
            go_on.wait(20)
            return job(*given)

        return submit(wait if given and isinstance(given[0], Order) else partial(job, *given))

    with monkeypatch.context() as patch:
        patch.setattr(pool, "submit", held)
        yield lambda: copying.wait(20)
        go_on.set()


@pytest.mark.parametrize("dies", [False, True])
def test_a_call_that_is_being_copied_as_others_end_gets_its_own_answer(
    dies: bool, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def large() -> bytes:  # who waits on a loop leaves copying to the node
        return bytes((await node.invoke_async("F", a=LARGE)).b.bytes())

    for number in range(12):
        echoed(node, b"q%d" % number)
    executor = executor_of(node)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(echoed, node, b"W-first")
        wait_until(lambda: executor._out)
        sent = executor._out[0]
        with held(node, monkeypatch) as wait:
            second = pool.submit(asyncio.run, large())
            wait()
            if dies:
                kill(child_of(node))
            wait_until(lambda: sent not in executor._out)
        assert first.result(20) == b"W-first"
        assert second.result(20) == LARGE
    assert [echoed(node, b"q%d" % n) for n in range(3)] == [b"q0", b"q1", b"q2"]


def test_a_removal_finds_the_process_dead_before_who_waits_for_it(node: Node) -> None:
    register(node, "G", main=b"code")
    echoed(node, b"q", "G")
    executor = executor_of(node)

    def remove() -> None:  # in one turn of the loop, so nothing is read meanwhile
        kill(child_of(node))
        node.remove(FunctionSpec, "G")

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(echoed, node, b"W")
        wait_until(lambda: executor._out)
        node._parts.loop.call(remove)
        assert call.result(20) == b"W"


def test_a_process_that_dies_as_it_starts_is_started_once_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = executor_of(node)._processes
    start = engine._spawned
    spawned: list[int] = []

    def failed_start() -> processes.Process:
        process = start()
        spawned.append(process.child.pid)
        if len(spawned) == 1:
            kill(process.child.pid)
        return process

    echoed(node, b"q")
    kill(wait_until(lambda: standby(node)))
    monkeypatch.setattr(engine, "_spawned", failed_start)
    kill(child_of(node))
    assert echoed(node, b"q2") == b"q2"
    assert len(spawned) > 1


def test_a_small_call_does_not_wait_for_the_zeroing_of_much_memory(node: Node) -> None:
    echoed(node, b"q")
    with node._parts.arena._zeroing, ThreadPoolExecutor(1) as pool:
        node._parts.arena.acquire(4096)
        assert pool.submit(echoed, node, b"q2").result(20) == b"q2"


def test_thousands_of_calls_leave_nothing(fake: FakeEngineProcess) -> None:
    def calls(node: Node, number: int) -> None:
        for count in range(400):
            data = b"q%d.%d" % (number, count)
            assert echoed(node, data) == data

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    with running(fake) as node:
        echoed(node, b"q")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(calls, node), range(4)))
        pids = [child_of(node), wait_until(partial(standby, node))]
    del node
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert set(threading.enumerate()) <= threads
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_node_closes_under_callers_of_all_kinds(node: Node) -> None:
    def call(number: int) -> str:
        try:
            while True:
                assert echoed(node, b"W") == b"W"
        except DandelionError as error:
            return type(error).__name__

    async def calls() -> list[str]:
        async def one() -> str:
            try:
                while True:
                    await node.invoke_async("F", a=b"W")
            except DandelionError as error:
                return type(error).__name__

        return await asyncio.gather(*(one() for _ in range(4)))

    echoed(node, b"q")
    with ThreadPoolExecutor(5) as pool:
        ended = [pool.submit(call, number) for number in range(4)]
        on_loop = pool.submit(asyncio.run, calls())
        wait_until(lambda: node.info().running == 8)
        node._parts.loop.call(node._runtime.shut)
        assert {one.result(20) for one in ended} | set(on_loop.result(20)) == {Cancelled.__name__}


@pytest.mark.parametrize("spin_us", [0, 200])
def test_everybody_gets_the_answer_to_what_was_asked(spin_us: int, fake: FakeEngineProcess) -> None:
    """Threads and loops, small and large, good and bad calls, removals and deaths."""
    kinds = (b"q" * 60) + b"KFE"
    wrong: list[object] = []

    def made(chance: random.Random) -> tuple[bytes, str, float]:
        kind = bytes([chance.choice(kinds)])
        padding = bytes(chance.choice((0, 0, 1000, len(LARGE))))
        data = kind + b"%x" % chance.getrandbits(128) + padding
        return data, chance.choice("FGH"), chance.choice((0.002, 10, 10))

    def judge(data: bytes, outputs: bytes | None, error: DandelionError | None) -> None:
        expected = data[:1] in b"KFE" or isinstance(error, DeadlineExceeded)
        if outputs != data and not expected:
            wrong.append((data[:9], outputs and outputs[:9], error))

    def thread(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            data, name, deadline_s = made(chance)
            try:
                judge(data, echoed(many, data, name, deadline_s), None)
            except DandelionError as error:
                judge(data, None, error)

    async def task(chance: random.Random) -> None:
        for _ in range(20):
            data, name, deadline_s = made(chance)
            call = asyncio.ensure_future(many.invoke_async(name, a=data, deadline_s=deadline_s))
            if chance.random() < 0.1:
                await asyncio.sleep(0)
                call.cancel()
            try:
                judge(data, bytes((await call).b.bytes()), None)
            except asyncio.CancelledError:
                pass
            except DandelionError as error:
                judge(data, None, error)

    async def loop(seed: int) -> None:
        chance = random.Random(seed)
        await asyncio.gather(*(task(chance) for _ in range(4)))

    def change() -> None:
        for _ in range(10):
            time.sleep(0.01)
            many.remove(FunctionSpec, "I")
            register(many, "I")

    with running(fake, spin_us, engines=2) as many:
        for name in "GHI":
            register(many, name)
        with ThreadPoolExecutor(7) as pool:
            all_of_it = [pool.submit(thread, seed) for seed in range(4)]
            all_of_it += [pool.submit(asyncio.run, loop(seed)) for seed in (7, 8)]
            all_of_it.append(pool.submit(change))
            for one in all_of_it:
                one.result(60)
        assert wrong == []
