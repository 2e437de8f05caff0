"""The executor of an engine process, step by step; the test plays the process."""

import struct
from collections.abc import Iterator
from functools import partial

import pytest

from dandelion.driver import Demand
from dandelion.engine_process.messages import (
    Evict,
    Failed,
    Run,
    StopCall,
)
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    ContextFull,
    EngineDied,
    InvalidInput,
    Raised,
)
from dandelion.scheduler import CallState
from tests.executors.emptiness import LARGE, assert_empty
from tests.executors.harness import READY, Bench, call_of, flow_of, names, text_of


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


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
