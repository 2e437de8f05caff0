"""Executors of engine processes that are closed at any time."""

import threading
from collections.abc import Iterator

import pytest

from dandelion.engine_process.messages import (
    Ready,
)
from tests.executors.emptiness import LARGE
from tests.executors.harness import Bench, call_of, flow_of
from tests.executors.wide_calls import wide_call


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_closing_before_the_start(bench: Bench) -> None:
    assert bench.processes.peers == []


def test_closing_while_the_process_starts(bench: Bench) -> None:
    bench.processes.greetings = [None]
    bench.executor.start()
    bench.loop.until(lambda: bench.processes.peers)


def test_closing_before_the_loop_knows_that_it_is_up(bench: Bench) -> None:
    bench.executor.start()
    bench.loop.until(lambda: bench.processes.current is not None)


def test_closing_with_a_standby(bench: Bench) -> None:
    bench.processes.greetings = [Ready("played", "played:0", ("0",), "", standby=True)]
    bench.start()
    bench.loop.until(lambda: bench.processes.standby is not None)


def test_closing_while_calls_are_out(bench: Bench) -> None:
    bench.start()
    flow = flow_of()
    bench.send(call_of(flow), call_of(flow))
    bench.executor.plan(call_of(flow, b"size"))
    bench.executor.flush()


def test_closing_while_a_call_is_copied(bench: Bench) -> None:
    bench.start()
    bench.send(call_of(flow_of(), LARGE))
    assert bench.pool.jobs


def test_closing_while_a_call_is_pushed(bench: Bench) -> None:
    bench.processes.send_bytes = 4096
    bench.start()
    bench.send(wide_call())
    pushing = threading.Thread(target=bench.pool.run)
    pushing.start()
    bench.executor.close()
    pushing.join()


def test_closing_when_the_process_has_died_unseen(bench: Bench) -> None:
    bench.start().die()


def test_closing_before_the_loss_of_the_process_is_detected(bench: Bench) -> None:
    peer = bench.start()
    bench.send(call_of(flow_of()))
    peer.die()
    bench.loop.until(lambda: bench.executor._process is None)


def test_the_end_of_the_stream_that_closing_causes_is_no_loss(bench: Bench) -> None:
    """The loop goes on while a thread closes the executor."""
    bench.start()
    bench.send(call_of(flow_of()))
    bench.processes.abandon()
    bench.executor._worker.close()
    bench.loop.look()  # it finds the end before `close` went on
    bench.executor.close()
    assert bench.processes.peers[0].child.ended


def test_closing_with_a_process_that_does_not_leave(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.executors.process.LEAVE_LIMIT_S", 0.01)
    peer = bench.start()
    peer.child.code = None
    bench.executor.close()
    assert peer.child.killed
