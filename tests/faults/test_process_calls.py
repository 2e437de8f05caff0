"""Calls to engine processes among deaths, deadlines and leaving callers: each gets its own answer.

The program of the process gives back what it was given, after what the first letter says. Whatever
happened, afterwards nobody is busy, nothing runs and nothing lies in the arena.
"""

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from dandelion.node.hosts import State
from dandelion.node.process_host import ProcessHost
from dandelion.node.replies import Replies

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Demand, Hosting
from dandelion.errors import Cancelled, DandelionError, DeadlineExceeded
from dandelion.function import Function, FunctionSpec, Limits
from dandelion.memory import Context
from dandelion.node import Node, Settings, processes
from dandelion.node.invocation import Invocation
from dandelion.testing import Script, ScriptedDriver

PROGRAM = """#!{python}
import mmap, os, signal, socket, sys, time
sys.path.insert(0, {root!r})
from dandelion.engine_process.messages import *
from dandelion.errors import EngineDied, InvalidInput
node = request_channel(socket.socket(fileno=int(sys.argv[3])))
arena = mmap.mmap(int(sys.argv[4]), int(sys.argv[5]))
try:
    node.receive()
    node.send(Ready("echo", "echo:0", ("0",), "gives back", standby=True))
    while True:
        run = node.receive()
        if not isinstance(run, Run):
            continue
        item = run.inputs[0].items[0]
        data = arena[item.offset : item.offset + item.size]
        kind = data[:1]
        if kind == b"K":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == b"S":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == b"W":
            time.sleep(0.3)
        if kind in b"FE":
            error = EngineDied("echo:0", "as told") if kind == b"F" else InvalidInput("a", "no")
            node.send(Failed(run.call, error.record(), {{}}, kind == b"F"))
            if kind == b"F":
                break
            continue
        arena[run.result_offset : run.result_offset + len(data)] = data
        output = WireSet("b", (WireItem("b", 0, run.result_offset, len(data)),))
        node.send(Done(run.call, (output,), {{}}))
        if kind == b"A":
            break
except (Ended, OSError):
    pass
"""


def echo() -> ScriptedDriver:
    """A backend whose engine process is replaced."""
    script = Script(demand=lambda function, inputs: Demand(output_bytes=400_000))
    return ScriptedDriver("echo", script, Hosting.PROCESS)


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engine processes run the program above."""
    path = tmp_path / "python"
    root = str(Path(__file__).parents[2])
    path.write_text(PROGRAM.format(python=sys.executable, root=root))
    path.chmod(0o700)
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(path)))


def register(node: Node, name: str, wall_s: float = 20) -> None:
    code = (CodeDocument("echo"),)
    limits = Limits(wall_s=wall_s)
    node.register(FunctionDocument(name, ("a",), ("b",), code=code, limits=limits))


@contextmanager
def running(spin_us: int = 0, engines: int = 1) -> Iterator[Node]:
    """Give a node; what was asked of it must leave nothing."""
    settings = Settings(
        backends=(),
        arena_bytes=64 << 20,
        spin_us=spin_us,
        engine_spin_us=spin_us,
        max_wall_s=1e9,
    )
    with Node(settings, [echo() for _ in range(engines)]) as node:
        assert node.wait_ready()
        register(node, "F")
        yield node
        wait_until(lambda: not any(host.busy for host in node._pump.hosts))
        gc.collect()
        assert [host.busy for host in node._pump.hosts] == [0] * engines
        assert (len(node._pump.running), node._pump.waiting) == (0, 0)
        wait_until(lambda: not node.info().arena.contexts)  # processes that end keep some
        assert node.info().arena.contexts == 0


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with running(getattr(request, "param", 0)) as node:
        yield node


both = pytest.mark.parametrize("node", [0, 200], indirect=True, ids=["asleep", "spinning"])


def wait_until(condition: Callable[[], object], limit_s: float = 10) -> None:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def host_of(node: Node) -> ProcessHost:
    host = node._pump.hosts[0]
    assert isinstance(host, ProcessHost)
    return host


def child_of(node: Node) -> int:
    process = host_of(node)._remote._processes.current
    assert process is not None
    return process.child.pid


def kill(pid: int) -> None:
    """Kill a child and wait until it is dead; who started it reaps it."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the node was faster
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def echoed(node: Node, data: bytes, name: str = "F", deadline_s: float = 20) -> bytes:
    return bytes(node.invoke(name, a=data, deadline_s=deadline_s).b.bytes())


# --- deaths -------------------------------------------------------------------------------------


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
    register(node, "G")
    echoed(node, b"q")
    echoed(node, b"q", "G")
    kill(child_of(node))
    node.remove(FunctionSpec, "F")
    assert echoed(node, b"q2", "G") == b"q2"
    register(node, "F")


def test_a_spare_that_dies_is_missed_by_nobody(node: Node) -> None:
    for number in range(3):
        spare = host_of(node)._remote._processes.spare
        assert spare is not None
        kill(spare.child.pid)
        kill(child_of(node))
        assert echoed(node, b"q%d" % number) == b"q%d" % number
        wait_until(lambda: host_of(node)._remote._processes.spare)


# --- deadlines and callers who leave ------------------------------------------------------------


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
def test_a_cancelled_call_leaves_its_answer_to_nobody_else(node: Node) -> None:
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


@both
def test_a_caller_who_is_interrupted_as_it_looks_takes_its_invocation_along(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    echoed(node, b"q")
    with monkeypatch.context() as patch:
        patch.setattr(node._replies, "_meanwhile", interrupt)
        with pytest.raises(KeyboardInterrupt):
            echoed(node, b"W")
    assert not node._pump.running
    assert echoed(node, b"q2") == b"q2"


def test_a_deadline_may_be_years_away(node: Node) -> None:
    register(node, "G", wall_s=1e8)
    echoed(node, b"q", "G")
    assert echoed(node, b"W", "G", deadline_s=1e8) == b"W"


def test_who_takes_the_answers_of_others_keeps_its_own_deadline() -> None:
    replies = Replies(1_000_000, lambda: None)

    class Busy:
        """A host that has another call out whenever one is answered."""

        answers = 0

        def fileno(self) -> int:
            return -1

        def receive(self) -> bool:
            self.answers += 1
            if self.answers < 1_000_000:
                replies.expect(self)
            return True

        def check(self, now_ns: int) -> None:
            pass

    host = Busy()
    hosts = replies.begin()
    replies.expect(host)
    late = SimpleNamespace(done=False, deadline_ns=time.monotonic_ns() + 1_000_000)
    replies.spin(hosts, cast(Invocation, late))
    replies.close()
    assert host.answers < 1_000_000


def test_a_late_wake_up_is_taken_for_what_it_is() -> None:
    """Who wakes a thread may come after it has woken: in its next sleep, or after its end."""
    replies = Replies(0, lambda: None)
    host = SimpleNamespace(fileno=lambda: -1, receive=lambda: False, check=lambda now_ns: None)
    sleeper = replies.sleeper([host])
    event = replies._thread.event()
    os.eventfd_write(event.fd, 1)
    assert not sleeper.sleep(0.01)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(event.fd)
    sleepers = []
    thread = threading.Thread(target=lambda: sleepers.append(replies.sleeper([host])))
    thread.start()
    thread.join()
    sleepers[0].wake()
    assert sleepers[0].sleep(0.01)
    replies.close()


# --- two calls out, and others who have to do with the process -----------------------------------


@contextmanager
def held(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """Hold the next call up as it is being sent; gives what waits until it is."""
    sending, go_on = threading.Event(), threading.Event()
    acquire = node._arena.acquire_clean

    def acquire_clean(size_bytes: int) -> Context | None:
        if not sending.is_set():
            sending.set()
            go_on.wait(10)
        return acquire(size_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(node._arena, "acquire_clean", acquire_clean)
        yield lambda: sending.wait(10)
        go_on.set()


@pytest.mark.parametrize("dies", [False, True])
def test_a_call_that_is_being_sent_as_others_end_gets_its_own_answer(
    dies: bool, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        echoed(node, b"q%d" % number)
    host = host_of(node)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(echoed, node, b"W-first")
        wait_until(lambda: host._out)
        with held(node, monkeypatch) as wait:
            second = pool.submit(echoed, node, b"q-second")
            wait()
            sent = host._out[0]
            if dies:
                kill(child_of(node))
            else:
                host.check(time.monotonic_ns() + 10**12)
            wait_until(lambda: sent not in host._out and not host._slow)
        assert first.result(10) == b"W-first"
        assert second.result(10) == b"q-second"
    assert [echoed(node, b"q%d" % n) for n in range(3)] == [b"q0", b"q1", b"q2"]


def test_a_removal_finds_the_process_dead_before_who_waits_for_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(node, "G")
    echoed(node, b"q")
    echoed(node, b"q", "G")
    host = host_of(node)
    looked, looks = host.receive, threading.Event()
    monkeypatch.setattr(host, "receive", lambda: looks.is_set() and looked())
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(echoed, node, b"W", "G")
        wait_until(lambda: host.busy)
        kill(child_of(node))
        node.remove(FunctionSpec, "F")
        wait_until(host._inbox.empty)
        looks.set()
        assert call.result(10) == b"W"
    register(node, "F")


def test_the_thread_of_the_loop_may_wait_for_what_the_loop_has_sent() -> None:
    async def calls() -> None:
        settings = Settings(backends=(), arena_bytes=8 << 20)
        async with Node(settings, [echo()]) as node:
            while not node.ready():
                await asyncio.sleep(0.01)
            register(node, "F")
            await node.invoke_async("F", a=b"q")
            sent = asyncio.ensure_future(node.invoke_async("F", a=b"W"))
            await asyncio.sleep(0)
            assert echoed(node, b"q2", deadline_s=5) == b"q2"
            assert (await sent).b.bytes() == b"W"

    asyncio.run(calls())


def test_a_process_that_dies_as_it_starts_is_started_once_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = host_of(node)._remote._processes
    start = engine._spawned
    spawned: list[int] = []

    def stillborn() -> processes.Process:
        process = start()
        spawned.append(process.child.pid)
        if len(spawned) == 1:
            kill(process.child.pid)
        return process

    echoed(node, b"q")
    spare = engine.spare
    assert spare is not None
    kill(spare.child.pid)
    monkeypatch.setattr(engine, "_spawned", stillborn)
    kill(child_of(node))
    assert echoed(node, b"q2") == b"q2"
    assert len(spawned) > 1


# --- memory and places --------------------------------------------------------------------------


def test_a_small_call_does_not_wait_for_the_zeroing_of_much_memory(node: Node) -> None:
    echoed(node, b"q")
    with node._arena._zeroing, ThreadPoolExecutor(1) as pool:
        node._arena.acquire(4096)
        assert pool.submit(echoed, node, b"q2").result(10) == b"q2"


def test_a_call_is_taken_by_a_host_that_was_lost_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(node)
    found = node._library.function
    looked: list[str] = []

    def function(spec: FunctionSpec, code_format: str) -> Function:
        looked.append(spec.name)
        if len(looked) == 2:  # first its demand is asked, then it is submitted
            host.state = State.STARTING
        return found(spec, code_format)

    with monkeypatch.context() as patch:
        patch.setattr(node._library, "function", function)
        assert echoed(node, b"q2") == b"q2"
    assert len(looked) == 2
    host.state = State.READY


def test_thousands_of_calls_leave_nothing() -> None:
    def calls(node: Node, number: int) -> None:
        for count in range(400):
            data = b"q%d.%d" % (number, count)
            assert echoed(node, data) == data

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    with running() as node:
        echoed(node, b"q")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(calls, node), range(4)))
        pids = [child_of(node)]
        spare = host_of(node)._remote._processes.spare
        assert spare is not None
        pids.append(spare.child.pid)
    del node, spare
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert threading.active_count() <= threads
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
        wait_until(lambda: len(node._pump.running) == 8)
        node._settle(node._pump.shut)
        assert {one.result(10) for one in ended} | set(on_loop.result(10)) == {Cancelled.__name__}


# --- all at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("spin_us", [0, 200])
def test_everybody_gets_the_answer_to_what_was_asked(spin_us: int) -> None:
    """Threads and loops, small and large, good and bad calls, removals and deaths."""
    kinds = (b"q" * 60) + b"KFE"
    wrong: list[object] = []

    def made(chance: random.Random) -> tuple[bytes, str, float]:
        kind = bytes([chance.choice(kinds)])
        padding = bytes(chance.choice((0, 0, 1000, 300_000)))
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

    with running(spin_us, engines=2) as many:
        for name in "GHI":
            register(many, name)
        with ThreadPoolExecutor(7) as pool:
            all_of_it = [pool.submit(thread, seed) for seed in range(4)]
            all_of_it += [pool.submit(asyncio.run, loop(seed)) for seed in (7, 8)]
            all_of_it.append(pool.submit(change))
            for one in all_of_it:
                one.result(60)
        assert wrong == []
