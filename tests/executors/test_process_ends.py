"""Engine processes that end, and calls that are out then."""

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from dandelion.driver import Demand
from dandelion.engine_process.messages import (
    Done,
    Run,
    WireItem,
    WireSet,
)
from dandelion.errors import (
    EngineDied,
    Faulted,
    InternalError,
    TimedOut,
)
from dandelion.executors.process import GRACE_NS
from tests.executors.emptiness import LARGE, assert_empty
from tests.executors.harness import READY, Bench, call_of, flow_of, names
from tests.executors.wide_calls import wide_call


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_process_that_dies_idle_is_lost_with_nothing(bench: Bench) -> None:
    bench.start().die(4)
    error, begun = bench.lose()
    assert begun == {}
    assert "code 4" in str(error)
    peer = bench.start()
    call = call_of(flow_of())
    bench.executor.send(call)
    bench.executor.flush()
    requests = peer.requests()
    assert names(requests) == ["Load", "Run"]  # the new process knows nothing yet
    peer.done(requests[-1])
    bench.loop.until(lambda: call.id in bench.loop.outputs)


def test_of_two_calls_that_are_out_the_first_had_begun(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    first, second = call_of(flow), call_of(flow)
    bench.send(first, second)
    peer.die()
    error, begun = bench.lose()
    assert list(begun) == [first.id]
    assert isinstance(begun[first.id], EngineDied)
    assert str(begun[first.id]) == str(error)
    del first, second
    assert_empty(bench)


def test_an_answer_that_came_before_the_end_counts(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    first, second = call_of(flow), call_of(flow)
    run, _ = bench.send(first, second)
    peer.done(run)
    peer.die()
    _, begun = bench.lose()
    assert first.id in bench.loop.outputs
    assert list(begun) == [second.id]


@pytest.mark.parametrize("run_first", [False, True])
def test_a_process_that_dies_is_told_apart_by_what_it_came_to_first(
    run_first: bool, bench: Bench
) -> None:
    peer = bench.start()
    flow = flow_of()
    planned, later, running = (call_of(flow, b"1" * size) for size in (2, 3, 1))
    running.demand = Demand(1)
    if run_first:
        bench.executor.send(running)
    bench.executor.plan(planned)
    if not run_first:
        bench.executor.send(running)
    bench.executor.plan(later)
    bench.executor.flush()
    peer.die()
    _, begun = bench.lose()
    bench.loop.until(lambda: len(bench.loop.failures) == 2)
    assert bench.loop.log == ["up", "lost", "failed", "failed"]
    assert list(begun) == ([running.id] if run_first else [])
    for call, harm in ((planned, not run_first), (later, False)):
        error, begun_with = bench.loop.failures[call.id]
        assert isinstance(error, EngineDied)
        assert begun_with is harm


def test_a_fatal_error_is_that_of_its_call(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    first, second = call_of(flow), call_of(flow)
    bench.send(first, second)
    peer.fail(first.id, Faulted("f", "illegal address"), fatal=True)
    _, begun = bench.lose()
    assert list(begun) == [first.id]
    assert isinstance(begun[first.id], Faulted)


def test_calls_that_come_while_the_process_ends_have_not_begun(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    first, late, unplanned = call_of(flow), call_of(flow), call_of(flow, b"other")
    bench.send(first)
    peer.die()
    bench.loop.until(lambda: bench.executor._process is None)
    bench.executor.send(late)
    bench.executor.plan(unplanned)
    bench.executor.stop(late)
    bench.executor.flush()
    _, begun = bench.lose()
    assert list(begun) == [first.id]
    assert isinstance(bench.loop.failures[unplanned.id][0], EngineDied)
    assert not bench.loop.failures[unplanned.id][1]
    assert not bench.executor._waiting
    peer = bench.start()
    assert peer.requests() == []  # what the scheduler took back is not sent
    del first, late, unplanned
    assert_empty(bench)


def test_a_call_that_is_copied_while_the_process_dies_is_sent_once(bench: Bench) -> None:
    bench.start().die()
    call = call_of(flow_of(), LARGE)
    bench.executor.send(call)
    bench.executor.flush()
    _, begun = bench.lose()
    assert begun == {}
    peer = bench.start()
    bench.executor.send(call)  # the scheduler gives it again
    bench.pool.run()
    bench.loop.turn()
    while bench.pool.jobs:
        bench.pool.run()
        bench.loop.turn()
    [run] = [request for request in peer.requests() if isinstance(request, Run)]
    peer.done(run)
    bench.loop.until(partial(bench.loop.has_answers, 1))
    del call
    assert_empty(bench)


def test_the_end_is_noticed_by_what_sends(bench: Bench) -> None:
    peer = bench.start()
    peer.die()
    call = call_of(flow_of())
    bench.executor.send(call)
    bench.executor.flush()
    assert bench.executor._process is None
    _, begun = bench.lose()
    assert list(begun) in ([], [call.id])


@pytest.mark.parametrize("busy", [False, True])
def test_only_an_idle_process_is_replaced_on_suspicion(busy: bool, bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of())
    if busy:
        bench.send(call)
    bench.executor.check()
    if not busy:
        _, begun = bench.lose()
        assert begun == {}
        assert peer.child.killed
    else:
        assert bench.executor._process is not None
        peer.die()
        bench.lose()


def test_a_call_that_is_not_answered_costs_the_process(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of(wall_s=10.0)
    first, second = call_of(flow), call_of(flow)
    bench.send(first, second)
    deadline_ns = first.started_ns + 10 * 10**9
    bench.executor.late(deadline_ns + GRACE_NS - 10**6)
    assert bench.executor._process is not None
    bench.executor.late(deadline_ns + GRACE_NS + 10**6)
    _, begun = bench.lose()
    assert list(begun) == [first.id]
    assert isinstance(begun[first.id], TimedOut)
    bench.loop.until(lambda: peer.child.killed)


def test_the_time_of_a_call_counts_from_the_answer_before(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of(wall_s=10.0)
    first, second = call_of(flow), call_of(flow)
    run, _ = bench.send(first, second)
    assert second.started_ns == 0
    before_ns = time.monotonic_ns()
    peer.done(run)
    bench.loop.until(lambda: bench.loop.outputs)
    assert second.started_ns >= before_ns
    bench.executor.late(before_ns + 10 * 10**9 + GRACE_NS - 10**6)
    assert bench.executor._process is not None
    peer.die()
    bench.lose()


def test_the_time_of_a_call_counts_from_when_the_process_begins(bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of(wall_s=10.0))
    [run] = bench.send(call)
    sent_ns = call.started_ns
    peer.begun(run)
    bench.loop.until(lambda: call.started_ns > sent_ns)
    bench.executor.late(sent_ns + 10 * 10**9 + GRACE_NS)
    assert bench.executor._process is not None
    peer.die()
    bench.lose()


def test_no_call_lasts_longer_than_its_invocation(bench: Bench) -> None:
    bench.start()
    call = call_of(flow_of(wall_s=100.0), deadline_s=1.0)
    bench.send(call)
    bench.executor.late(call.invocation.deadline_ns + GRACE_NS + 1)
    _, begun = bench.lose()
    assert isinstance(begun[call.id], TimedOut)


def test_an_answer_for_another_call_ends_the_process(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    first, second = call_of(flow), call_of(flow)
    _, run = bench.send(first, second)
    peer.done(run)
    _, begun = bench.lose()
    assert list(begun) == [first.id]
    assert isinstance(begun[first.id], InternalError)
    assert bench.loop.outputs == {}


def test_an_answer_without_a_question_ends_the_process(bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of())
    [run] = bench.send(call)
    peer.done(run)
    peer.done(run)
    _, begun = bench.lose()
    assert begun == {}
    assert call.id in bench.loop.outputs


def test_a_second_greeting_ends_the_process(bench: Bench) -> None:
    bench.start().say(READY)
    assert bench.lose()[1] == {}


def test_a_plan_that_was_not_requested_is_dropped(bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of())
    peer.planned(77, Demand(1))
    [run] = bench.send(call)
    peer.done(run)
    bench.loop.until(lambda: bench.loop.outputs)
    assert bench.loop.log == ["up", "done"]


def test_an_output_outside_of_the_arena_ends_no_more_than_the_process(bench: Bench) -> None:
    """It is trusted; a bug in it must not stop the loop."""
    peer = bench.start()
    call = call_of(flow_of())
    [run] = bench.send(call)
    peer.say(Done(run.call, (WireSet("b", (WireItem("b", 0, 1 << 40, 8),)),), {}))
    _, begun = bench.lose()
    assert isinstance(begun[call.id], InternalError)
    assert bench.loop.outputs == {}


def test_what_finds_no_room_in_the_socket_is_pushed_by_a_thread_in_order(bench: Bench) -> None:
    bench.processes.send_bytes = 4096
    peer = bench.start()
    wide, second = wide_call(), call_of(flow_of())
    bench.executor.send(wide)
    bench.executor.flush()
    assert len(bench.pool.jobs) == 1
    bench.executor.send(second)
    bench.executor.flush()
    runs: list[Run] = []
    over = threading.Event()

    def push() -> None:
        while not over.wait(0.001):
            while bench.pool.jobs:  # there may be no room for the second call, either
                bench.pool.run()

    def read() -> bool:
        runs.extend(request for request in peer.requests() if isinstance(request, Run))
        return len(runs) == 2

    pushing = threading.Thread(target=push)
    pushing.start()
    bench.loop.until(read)
    over.set()
    pushing.join()
    assert [run.call for run in runs] == [wide.id, second.id]
    for run in runs:
        peer.done(run)
    bench.loop.until(lambda: len(bench.loop.outputs) == 2)
    del wide, second
    assert_empty(bench)


@pytest.mark.parametrize("begun", [False, True])
def test_a_process_that_dies_while_it_is_sent_to_is_replaced(begun: bool, bench: Bench) -> None:
    """The thread that pushes may come to a socket that is closed."""
    bench.processes.send_bytes = 4096
    peer = bench.start()
    bench.executor.send(wide_call())
    bench.executor.flush()
    if begun:
        pushing = threading.Thread(target=bench.pool.run)
        pushing.start()
    peer.die()
    bench.lose()
    if begun:
        pushing.join()
    else:
        bench.pool.run()
    bench.processes.send_bytes = 0
    peer = bench.start()
    bench.loop.turn()
    call = call_of(flow_of())
    [run] = bench.send(call)
    peer.done(run)
    bench.loop.until(partial(bench.loop.has_answers, 1))
    del call
    assert_empty(bench)
