"""Which process copies constants, which ones map them, and when the node gives up their memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from dandelion.data import SetSpec
from dandelion.driver import SharedConstants
from dandelion.engine_process.messages import Run
from dandelion.executors import ConstantsExchange
from dandelion.function import FunctionSpec
from dandelion.scheduler import Flow, Tenant
from tests.executors import harness
from tests.executors.harness import Bench, call_of


class Process:
    """What a process is told."""

    def __init__(self) -> None:
        self.dropped: list[Flow] = []
        self.resumed = 0

    def drop_constants(self, flows: Iterable[Flow]) -> None:
        self.dropped += flows

    def resume(self) -> None:
        self.resumed += 1


class Now(Executor):
    """Does jobs at once."""

    def submit(self, job: Callable[..., Any], /, *args: Any, **given: Any) -> Future[Any]:
        job(*args, **given)
        return Future()


@pytest.fixture
def exchange() -> ConstantsExchange:
    return ConstantsExchange(Now())


@pytest.fixture
def processes(exchange: ConstantsExchange) -> list[Process]:
    made = [Process() for _ in range(3)]
    for process in made:
        exchange.join(process)
    return made


@pytest.fixture
def descriptor() -> Iterator[int]:
    read, write = os.pipe()
    yield read
    os.close(write)


def flow_of(name: str, content: str = "weights") -> Flow:
    return Flow(Tenant("t"), FunctionSpec(name, (SetSpec("x"),), ()), constants=content)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_one_copies_and_the_others_map(
    exchange: ConstantsExchange, processes: list[Process], descriptor: int
) -> None:
    first, second, third = processes
    f, g = flow_of("f"), flow_of("g")  # with equal constants
    assert exchange.kept(first, f) is None
    assert [exchange.is_copied_elsewhere(p, g) for p in processes] == [False, True, True]
    shared = SharedConstants("key", descriptor)
    exchange.copied(first, f, shared)
    assert [p.resumed for p in processes] == [0, 1, 1]
    assert not any(exchange.is_copied_elsewhere(p, f) for p in processes)
    assert exchange.kept(second, g) == shared
    assert exchange.kept(second, g) is None, "it has them"
    assert exchange.kept(first, g) is None, "it copied them"
    exchange.drop([f])
    assert (first.dropped, second.dropped, third.dropped) == ([f], [], [])
    assert is_open(descriptor)
    exchange.drop([g])
    assert (first.dropped, second.dropped, third.dropped) == ([f, g], [g], [])
    assert len(exchange) == 0
    assert not is_open(descriptor)


def test_another_one_copies_what_the_first_did_not(
    exchange: ConstantsExchange, processes: list[Process], descriptor: int
) -> None:
    first, second, _ = processes
    f = flow_of("f")
    exchange.kept(first, f)
    exchange.ended(second, f)
    assert exchange.is_copied_elsewhere(second, f), "another call has ended"
    exchange.ended(first, f)  # there was no room
    assert second.resumed == 1
    assert exchange.kept(first, f) is None
    assert not exchange.is_copied_elsewhere(second, f), "no call waits for it again"
    assert exchange.kept(second, f) is None
    assert exchange.is_copied_elsewhere(first, f)
    exchange.copied(second, f, SharedConstants("key", descriptor))
    assert exchange.kept(first, f) == SharedConstants("key", descriptor)
    exchange.drop([f])


def test_a_lost_process_leaves_what_others_map(
    exchange: ConstantsExchange, processes: list[Process], descriptor: int
) -> None:
    first, second, third = processes
    f = flow_of("f")
    exchange.kept(first, f)
    exchange.copied(first, f, SharedConstants("key", descriptor))
    exchange.kept(second, f)
    exchange.leave(first)
    assert exchange.kept(third, f) == SharedConstants("key", descriptor)
    exchange.leave(second)
    assert is_open(descriptor)
    exchange.leave(third)
    assert not is_open(descriptor)
    assert len(exchange) == 0


def test_a_process_lost_while_it_copies_is_replaced(
    exchange: ConstantsExchange, processes: list[Process]
) -> None:
    first, second, _ = processes
    f = flow_of("f")
    exchange.kept(first, f)
    exchange.leave(first)
    assert second.resumed == 1
    assert exchange.kept(second, f) is None
    assert exchange.is_copied_elsewhere(first, f)


def test_copies_that_are_not_wanted_any_more_are_closed(
    exchange: ConstantsExchange, processes: list[Process], descriptor: int
) -> None:
    first, second, _ = processes
    f = flow_of("f")
    exchange.kept(first, f)
    exchange.drop([f])
    exchange.copied(first, f, SharedConstants("key", descriptor))
    assert not is_open(descriptor)
    exchange.kept(second, f)
    exchange.forgot(second, f)
    assert len(exchange) == 0


def test_memory_that_could_not_be_mapped_is_replaced(
    exchange: ConstantsExchange, processes: list[Process], descriptor: int
) -> None:
    first, second, _ = processes
    f = flow_of("f")
    other, write = os.pipe()
    os.close(write)
    exchange.kept(first, f)
    exchange.copied(first, f, SharedConstants("key", descriptor))
    exchange.kept(second, f)
    exchange.copied(second, f, SharedConstants("key", other))
    assert not is_open(descriptor)
    assert exchange.kept(first, f) == SharedConstants("key", other)
    exchange.drop([f])
    assert not is_open(other)


def test_calls_that_waited_keep_nothing_that_was_evicted_meanwhile(
    exchange: ConstantsExchange, processes: list[Process]
) -> None:
    first, _, _ = processes
    bench = Bench()
    try:
        peer = bench.start()
        flow, other = harness.flow_of("f"), harness.flow_of("g")
        flow.constants = other.constants = "weights"
        bench.executor.exchange = exchange
        exchange.join(bench.executor)
        bench.executor.engine.held = {flow, other}
        exchange.kept(first, flow)
        for one in (flow, other):
            bench.executor.send(call_of(one), (), True)
        bench.executor.flush()
        assert peer.requests() == [], "they wait for what the other process copies"
        bench.executor.engine.held = {other}
        exchange.drop([flow])
        exchange.ended(first, flow)
        bench.executor.resume()
        bench.loop.turn()
        runs = [request for request in peer.requests() if isinstance(request, Run)]
        assert [run.keep for run in runs] == [False, True]
        peer.die()
        bench.lose()
    finally:
        bench.close()
    assert len(exchange) == 0
