"""The executor of an engine process, step by step; the test plays the process."""

import gc
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from dandelion.driver import Demand
from dandelion.engine_process.messages import (
    Done,
    Evict,
    Failed,
    Ready,
    Run,
    StopCall,
    WireItem,
    WireSet,
)
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    ContextFull,
    EngineDied,
    Faulted,
    InternalError,
    InvalidInput,
    Raised,
    TimedOut,
)
from dandelion.executors.process import GRACE_NS
from dandelion.executors.staging import INLINE_COPY_BYTES
from dandelion.scheduler import CallState
from tests.executors.harness import READY, Bench, call_of, flow_of, names, text_of

LARGE = bytes(INLINE_COPY_BYTES + 1)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def assert_empty(bench: Bench) -> None:
    """Assert that neither the executor nor the arena keeps data of calls."""
    executor = bench.executor
    assert [*executor._waiting, *executor._out, *executor._plans] == []
    assert not executor._preparing
    bench.loop.outputs.clear()
    gc.collect()
    assert bench.arena.stats().contexts == 0


# --- coming up ----------------------------------------------------------------------------------


def test_an_engine_comes_up_with_what_its_process_says(bench: Bench) -> None:
    seen: list[str] = []
    bench.executor.ready = lambda executor: seen.extend(bench.loop.log)
    bench.start()
    assert bench.loop.log == ["up"]
    assert seen == []  # before the event
    assert bench.loop.infos[0].name == "played:0"
    assert bench.executor.answer == READY


def test_a_process_that_dies_before_it_is_up_has_failed_to_start(bench: Bench) -> None:
    bench.processes.greetings = [None]
    bench.executor.start()
    bench.loop.until(lambda: bench.processes.peers)
    bench.peer.die(3)
    bench.loop.until(lambda: bench.loop.refused)
    assert isinstance(bench.loop.refused[0], EngineDied)
    assert "code 3" in str(bench.loop.refused[0])
    bench.start()
    assert bench.loop.log == ["start_failed", "up"]


def test_a_process_that_cannot_work_says_why(bench: Bench) -> None:
    bench.processes.greetings = [Failed(-1, BackendUnavailable("played", "no device").record())]
    bench.executor.start()
    bench.loop.until(lambda: bench.loop.refused)
    assert isinstance(bench.loop.refused[0], BackendUnavailable)


# --- calls --------------------------------------------------------------------------------------


def test_calls_leave_together_when_they_are_flushed(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    calls = [call_of(flow, b"%d" % number) for number in range(3)]
    for call in calls:
        bench.executor.send(call)
    assert peer.requests() == []
    bench.executor.flush()
    data = peer.node.peer.recv(1 << 16)  # one packet, so one system call on the other side
    sizes = []
    while data:
        [size] = struct.unpack_from("<I", data)
        sizes.append(size)
        data = data[4 + size :]
    assert len(sizes) == 4  # a function and its three calls
    bench.executor.flush()
    assert peer.requests() == []
    peer.die()
    bench.lose()


def test_each_call_gets_its_own_answer(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    calls = [call_of(flow, b"%d" % number) for number in range(3)]
    runs = bench.send(*calls)
    assert [run.call for run in runs] == [call.id for call in calls]
    for number, run in enumerate(runs):
        peer.done(run, b"result %d" % number)
    bench.loop.until(lambda: len(bench.loop.outputs) == 3)
    for number, call in enumerate(calls):
        assert text_of(bench.loop.outputs[call.id]) == b"result %d" % number
        assert call.stages == {"run": 7}
    starts = [call.started_ns for call in calls]
    assert starts == sorted(starts)
    assert all(call.ended_ns >= call.started_ns > 0 for call in calls)
    del calls, call
    assert_empty(bench)


def test_a_call_that_fails_does_not_affect_others(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    bad, good = call_of(flow), call_of(flow)
    runs = bench.send(bad, good)
    peer.fail(bad.id, Raised("f", "ValueError", "no"))
    peer.done(runs[1])
    bench.loop.until(lambda: bench.loop.outputs)
    error, begun = bench.loop.failures[bad.id]
    assert isinstance(error, Raised)
    assert begun
    assert "lost" not in bench.loop.log
    assert good.id in bench.loop.outputs


def test_a_function_is_loaded_once_and_again_after_it_was_forgotten(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    sent: list[str] = []
    for count in (1, 2):
        bench.executor.send(call_of(flow))
        bench.executor.flush()
        requests = peer.requests()
        sent += names(requests)
        peer.done(requests[-1])
        bench.loop.until(partial(bench.loop.has_answers, count))
    assert sent == ["Load", "Run", "Run"]
    bench.executor.forget(flow)
    bench.executor.forget(flow_of("never loaded"))
    bench.executor.send(call_of(flow))
    bench.executor.flush()
    assert names(peer.requests()) == ["Forget", "Load", "Run"]
    peer.die()
    bench.lose()


def test_a_function_that_two_tenants_have_is_kept_for_the_other(bench: Bench) -> None:
    peer = bench.start()
    ours, theirs = flow_of(tenant="a"), flow_of(tenant="b")
    runs = bench.send(call_of(ours), call_of(theirs))
    for run in runs:
        peer.done(run)
    bench.loop.until(lambda: len(bench.loop.outputs) == 2)
    bench.executor.forget(ours)
    bench.executor.flush()
    assert peer.requests() == []
    bench.executor.forget(theirs)
    bench.executor.flush()
    assert names(peer.requests()) == ["Forget"]


# --- constants on the device ----------------------------------------------------------------------


def test_constants_are_kept_and_evicted_before_the_call_that_needs_the_room(
    bench: Bench,
) -> None:
    peer = bench.start()
    old, new = flow_of("old"), flow_of("new")
    bench.executor.send(call_of(old), (), True)
    bench.executor.send(call_of(new), (old,), False)
    bench.executor.flush()
    requests = peer.requests()
    assert names(requests) == ["Load", "Run", "Load", "Evict", "Run"]
    evict = requests[3]
    assert isinstance(evict, Evict)
    assert evict.identity == peer.loads["old"]
    assert [run.keep for run in requests if isinstance(run, Run)] == [True, False]
    peer.die()
    bench.lose()


def test_what_the_process_never_got_is_not_evicted(bench: Bench) -> None:
    peer = bench.start()
    cancelled, old = call_of(flow_of("old")), flow_of("old")
    cancelled.flow = old
    cancelled.cancelled = True
    bench.executor.send(cancelled, (), True)
    bench.executor.send(call_of(flow_of("new")), (old,))
    bench.executor.flush()
    assert names(peer.requests()) == ["Load", "Run"]
    peer.die()
    bench.lose()


def test_a_call_that_is_not_sent_evicts_all_the_same(bench: Bench) -> None:
    """The scheduler counts on it from the moment it said so."""
    peer = bench.start()
    old = flow_of("old")
    bench.executor.send(call_of(old), (), True)
    cancelled = call_of(flow_of("new"))
    cancelled.cancelled = True
    bench.executor.send(cancelled, (old,))
    bench.executor.flush()
    assert names(peer.requests()) == ["Load", "Run", "Evict"]
    peer.die()
    bench.lose()


# --- plans --------------------------------------------------------------------------------------


def plan(bench: Bench, call: CallState) -> bool:
    """Ask what a call needs. True if the process was asked."""
    bench.executor.plan(call)
    bench.executor.flush()
    return "Plan" in names(bench.peer.requests())


def test_a_call_is_planned_by_the_process_and_its_like_from_memory(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    first = call_of(flow, b"1234")
    bench.executor.plan(first)
    bench.executor.flush()
    assert names(peer.requests()) == ["Load", "Plan"]
    assert bench.loop.demands == {}
    peer.planned(first.id, Demand(100))
    bench.loop.until(lambda: bench.loop.demands)
    assert bench.loop.demands == {first.id: Demand(100)}
    alike, longer = call_of(flow, b"abcd"), call_of(flow, b"12345")
    assert not plan(bench, alike)
    assert alike.demand == Demand(100)
    assert plan(bench, longer)
    assert longer.id not in bench.loop.demands
    [run] = bench.send(alike)
    assert run.result_bytes == 100
    peer.die()
    bench.lose()


def test_integers_that_a_plan_depends_on_are_compared(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()

    def data(read: int, other: int) -> bytes:
        return struct.pack("<qq", other, read)

    first = call_of(flow, data(5, 1))
    assert plan(bench, first)
    peer.planned(first.id, Demand(5), [(0, 8)])
    bench.loop.until(lambda: bench.loop.demands)
    assert not plan(bench, call_of(flow, data(5, 2)))
    other = call_of(flow, data(6, 1))
    assert plan(bench, other)
    peer.planned(other.id, Demand(6), [(0, 8)])
    bench.loop.until(lambda: other.id in bench.loop.demands)
    assert not plan(bench, call_of(flow, data(6, 3)))
    assert not plan(bench, call_of(flow, data(5, 3)))
    assert plan(bench, call_of(flow, b"short"))  # the integer is not inside
    peer.die()
    bench.lose()


def test_calls_with_several_items_are_planned_each(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    for count in (1, 2):
        call = call_of(flow, b"1", b"2")
        assert plan(bench, call)
        peer.planned(call.id, Demand(count))
        bench.loop.until(partial(bench.loop.has_plans, count))
        assert call.demand == Demand(count)


def test_a_plan_that_fails_fails_its_call(bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of())
    assert plan(bench, call)
    peer.fail(call.id, InvalidInput("a", "no"))
    bench.loop.until(lambda: bench.loop.failures)
    assert isinstance(bench.loop.failures[call.id][0], InvalidInput)
    assert bench.loop.log == ["up", "failed"]
    del call
    assert_empty(bench)


def test_plans_are_answered_among_calls(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    running, planned = call_of(flow), call_of(flow, b"other size")
    [run] = bench.send(running)
    assert plan(bench, planned)
    peer.planned(planned.id, Demand(1))
    peer.done(run)
    bench.loop.until(lambda: bench.loop.outputs)
    assert bench.loop.log == ["up", "planned", "done"]


# --- calls that are not wanted any more ---------------------------------------------------------


def test_a_call_that_is_out_is_stopped_by_the_process(bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of())
    [run] = bench.send(call)
    call.cancelled = True
    bench.executor.stop(call)
    bench.executor.flush()
    [stop] = peer.requests()
    assert isinstance(stop, StopCall)
    assert stop.call == call.id
    peer.fail(run.call, Cancelled("as told"))
    bench.loop.until(lambda: bench.loop.failures)
    assert isinstance(bench.loop.failures[call.id][0], Cancelled)
    bench.executor.stop(call)  # too late
    bench.executor.flush()
    assert peer.requests() == []
    del call
    assert_empty(bench)


def test_calls_that_wait_for_another_one_to_be_copied_are_given_up(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    large, second, third = call_of(flow, LARGE), call_of(flow), call_of(flow)
    assert bench.send(large, second, third) == []
    second.cancelled = True
    bench.executor.stop(second)
    bench.pool.run()
    bench.loop.until(lambda: not bench.executor._preparing)
    assert [run.call for run in peer.requests() if isinstance(run, Run)] == [large.id, third.id]
    error, begun = bench.loop.failures[second.id]
    assert isinstance(error, Cancelled)
    assert not begun
    peer.die()
    bench.lose()


def test_a_call_that_is_cancelled_while_it_is_copied_is_not_sent(bench: Bench) -> None:
    peer = bench.start()
    call = call_of(flow_of(), LARGE)
    assert bench.send(call) == []
    call.cancelled = True
    bench.executor.stop(call)
    bench.pool.run()
    bench.loop.until(lambda: bench.loop.failures)
    assert peer.requests() == []
    assert isinstance(bench.loop.failures[call.id][0], Cancelled)
    del call
    bench.loop.failures.clear()
    assert_empty(bench)


# --- memory -------------------------------------------------------------------------------------


def test_large_inputs_are_copied_in_a_thread_and_sent_at_once(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    large, small = call_of(flow, LARGE), call_of(flow)
    assert bench.send(large, small) == []  # calls stay in order
    bench.pool.run()
    assert peer.requests() == []  # only the loop sends
    bench.loop.turn()
    assert names(peer.requests()) == ["Load", "Run", "Run"]
    peer.die()
    bench.lose()


def test_a_call_without_room_fails_and_the_next_one_goes_on(bench: Bench) -> None:
    peer = bench.start()
    flow = flow_of()
    held = bench.arena.acquire(5 << 20)
    large, small = call_of(flow, bytes(4 << 20)), call_of(flow)
    assert bench.send(large, small) == []
    bench.pool.run()
    bench.loop.until(lambda: bench.loop.failures)
    error, begun = bench.loop.failures[large.id]
    assert isinstance(error, ContextFull)
    assert not begun
    [run] = [request for request in peer.requests() if isinstance(request, Run)]
    assert run.call == small.id
    peer.done(run)
    bench.loop.until(partial(bench.loop.has_answers, 1))
    del held, large, small
    assert_empty(bench)


# --- deaths -------------------------------------------------------------------------------------


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


# --- time ---------------------------------------------------------------------------------------


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


# --- wrong answers --------------------------------------------------------------------------------


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


# --- a socket that is full ------------------------------------------------------------------------


def wide_call() -> CallState:
    """A call whose description is larger than a socket that is small."""
    return call_of(flow_of("wide"), *(b"%d" % number for number in range(1000)))


def test_what_finds_no_room_in_the_socket_is_pushed_by_a_thread_in_order(bench: Bench) -> None:
    bench.processes.send_bytes = 4096
    peer = bench.start()
    wide, second = wide_call(), call_of(flow_of())
    bench.executor.send(wide)
    bench.executor.flush()
    assert len(bench.pool.jobs) == 1
    bench.executor.send(second)
    bench.executor.flush()
    pushing = threading.Thread(target=bench.pool.run)
    pushing.start()
    runs: list[Run] = []

    def read() -> bool:
        runs.extend(request for request in peer.requests() if isinstance(request, Run))
        return len(runs) == 2

    bench.loop.until(read)
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


# --- closing; the fixture holds that nothing is left --------------------------------------------


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
