"""Attempts and caught failures in the scheduler: pauses, their limits and ends, refused calls."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.language import parse
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import CompositionPlan, Walk, compile_composition
from dandelion.driver import Capacity
from dandelion.errors import (
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    EngineDied,
    Faulted,
    Raised,
    TimedOut,
    root_of,
)
from dandelion.failures import CaughtFailure
from dandelion.function import CodeObject, FunctionSpec, Limits
from dandelion.policies import policy_of
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Quota,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import Send
from dandelion.testing.scheduler_invariants import check_invariants

SECOND = 1_000_000_000
RAISED = Raised("f", "ValueError: no")
DIED = EngineDied("e", "it died")
RETRY = "composition C(x) => (y) { f(x = all x) => (y = y) attempts 3 on (Raised) backoff 2; }"
EACH = "composition C(x) => (y, e) { f(x = each x) => (y = y) catch e; }"


@dataclass
class Node:
    """One engine that runs one call at a time.

    Attributes:
        queue_length: of function `f`; others have no limit.
        sent: calls in order.
    """

    queue_length: int = 1000
    sent: list[CallState] = field(default_factory=list)
    now_ns: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of("fifo"), 1 << 30, lambda flow: (0, 0))
        self.tenant = Tenant("t")
        self.scheduler.tenant_changed(self.tenant, 0)
        self.engine = EngineState(0, frozenset({"cpu"}), places=1)
        self.scheduler.fleet.added(self.engine)
        self.up()

    def up(self) -> None:
        self.scheduler.fleet.up(self.engine, "e", Capacity(), self.now_ns)
        self.act()

    def plan(self, text: str) -> CompositionPlan:
        targets: dict[str, FunctionSpec | CompositionPlan] = {
            name: FunctionSpec(
                name,
                (SetSpec("x"),),
                (SetSpec("y"),),
                code=(CodeObject("cpu"),),
                limits=Limits(queue_length=limit),
            )
            for name, limit in (("f", self.queue_length), ("g", 1000))
        }
        for composition in parse(text).compositions:
            targets[composition.name] = plan = compile_composition(composition, targets.__getitem__)
        return plan

    def submit(self, text: str, items: int = 1, deadline_s: float = 1e6) -> InvocationState:
        self.count += 1
        given = ItemSet("x", tuple(Item(str(n), n, b"data") for n in range(items)))
        invocation = InvocationState(
            str(self.count),
            self.tenant,
            Walk(self.plan(text), Partitioning("auto", 1, 1)),
            (given,),
            self.now_ns + int(deadline_s * SECOND),
            deadline_s,
            4 * items,
        )
        self.scheduler.submitted(invocation, self.now_ns)
        self.act()
        return invocation

    def act(self) -> None:
        check_invariants(self.scheduler)
        self.sent += [a.call for a in self.scheduler.take() if isinstance(a, Send)]

    def done(self) -> None:
        """End the first call that was sent."""
        call = self.sent.pop(0)
        self.now_ns += 1
        outputs = (ItemSet("y", (Item("a", 0, b"done"),)),)
        self.scheduler.calls.done(call, outputs, self.now_ns)
        self.act()

    def fail(self, error: DandelionError) -> None:
        """Fail the first call that was sent."""
        self.scheduler.calls.failed(self.sent.pop(0), error, self.now_ns)
        self.act()

    def tick(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.scheduler.tick(now_ns)
        self.act()

    def turns(self) -> int:
        """Give all walks their turns; return how many there were."""
        count = 0
        while self.scheduler.has_turns:
            self.scheduler.turn(self.now_ns)
            self.act()
            count += 1
        return count


def caught(invocation: InvocationState, position: int = 1) -> list[CaughtFailure]:
    assert invocation.ended
    assert invocation.outputs is not None, invocation.error
    errors = invocation.outputs[position]
    items = () if errors is None else errors.items
    return [msgspec.json.decode(item.data, type=CaughtFailure) for item in items]


def test_a_pause_takes_no_place_and_ends_in_time() -> None:
    node = Node()
    invocation = node.submit(RETRY)
    node.fail(RAISED)
    assert (node.tenant.paused, node.tenant.calls, node.tenant.waiting) == (1, 0, 0)
    assert invocation.calls == {}
    assert node.scheduler.next_tick_ns == 2 * SECOND
    other = node.submit(RETRY)
    node.done()
    assert other.outputs is not None
    node.tick(2 * SECOND - 1)
    assert not node.sent
    node.tick(2 * SECOND)
    assert [call.run.attempt for call in node.sent] == [2]
    node.fail(RAISED)
    assert node.scheduler.next_tick_ns == 6 * SECOND
    node.tick(6 * SECOND)
    node.done()
    assert invocation.outputs is not None
    (flow,) = node.scheduler.calls.flows.values()
    assert (flow.counts.retried, flow.counts.caught, flow.counts.failures) == (2, 0, 2)
    assert node.tenant.arena_bytes == 0


def test_the_last_failure_ends_the_invocation() -> None:
    node = Node()
    invocation = node.submit(RETRY)
    for at_ns in (2 * SECOND, 6 * SECOND):
        node.fail(RAISED)
        node.tick(at_ns)
    node.fail(RAISED)
    assert invocation.error is not None
    assert root_of(invocation.error) is RAISED


@pytest.mark.parametrize("how", ["caller", "deadline", "close"])
def test_an_invocation_may_end_in_a_pause(how: str) -> None:
    node = Node()
    invocation = node.submit(RETRY, deadline_s=1.0)
    node.fail(RAISED)
    if how == "caller":
        node.scheduler.cancelled(invocation, Cancelled("gone"), 1)
    elif how == "deadline":
        node.tick(node.scheduler.next_tick_ns or 0)
    else:
        node.scheduler.close(1)
    node.act()
    expected = DeadlineExceeded if how == "deadline" else Cancelled
    assert isinstance(invocation.error, expected)
    assert (node.tenant.paused, len(node.scheduler.pauses)) == (0, 0)
    assert node.scheduler.next_tick_ns is None
    node.tick(100 * SECOND)
    assert not node.sent


def test_a_call_that_the_deadline_of_its_invocation_ends_is_not_caught() -> None:
    node = Node()
    invocation = node.submit(EACH, deadline_s=1.0)
    node.now_ns = SECOND
    node.fail(TimedOut("f", "wall", 1.0))
    assert isinstance(invocation.error, DeadlineExceeded)


def test_if_too_many_pause_the_failure_stands() -> None:
    node = Node()
    node.tenant.quota = Quota(queue_length=2)
    text = EACH.replace("catch e", "attempts 9 on (Raised) backoff 1 catch e")
    invocations = []
    for _ in range(3):
        invocations.append(node.submit(text))
        node.fail(RAISED)
    assert [i.ended for i in invocations] == [False, False, True]
    (error,) = caught(invocations[2])
    assert (error.kind, error.attempts) == ("Raised", 1)
    (flow,) = node.scheduler.calls.flows.values()
    assert (flow.counts.retried, flow.counts.caught) == (2, 1)
    node.tick(SECOND)
    assert node.tenant.paused == 0
    assert node.tenant.waiting == 1


def test_pauses_that_ended_early_take_a_bounded_amount_of_memory() -> None:
    node = Node()
    for _ in range(500):
        invocation = node.submit(RETRY)
        node.fail(RAISED)
        node.scheduler.cancelled(invocation, Cancelled("gone"), node.now_ns)
        node.act()
    assert len(node.scheduler.pauses._heap) < 100


def test_the_schedulers_own_retry_comes_first() -> None:
    node = Node()
    text = "composition C(x) => (y) { f(x = all x) => (y = y) attempts 2 on (Faulted); }"
    invocation = node.submit(text)
    for attempt, own in ((1, 1), (1, 2), (2, 1), (2, 2)):
        (call,) = node.sent
        assert (call.run.attempt, call.attempt) == (attempt, own)
        node.sent.clear()
        node.scheduler.fleet.lost(node.engine, DIED, {call.id: DIED}, node.now_ns)
        node.act()
        node.up()
    assert invocation.error is not None
    assert isinstance(root_of(invocation.error), Faulted)


def test_a_later_attempt_is_not_run_in_a_batch() -> None:
    node = Node()
    node.submit(RETRY.replace(" backoff 2", ""))
    assert not node.sent[0].single
    node.fail(RAISED)
    assert node.sent[0].single


def test_many_calls_that_are_refused_at_once_neither_recurse_nor_block() -> None:
    node = Node(queue_length=1)
    count = 3000
    invocation = node.submit(EACH, items=count)
    turns = node.turns()
    assert turns > count / (4 * 64), "one event had all failures"
    node.done()
    node.done()
    assert len(node.sent) == 0
    errors = caught(invocation)
    assert len(errors) == count - 2
    assert {error.kind for error in errors} == {"Overloaded"}


def test_attempts_that_are_refused_at_once_are_bounded() -> None:
    node = Node(queue_length=1)
    text = EACH.replace("catch e", "attempts 50 catch e")
    invocation = node.submit(text, items=4)
    node.turns()
    node.done()
    node.done()
    node.turns()
    assert [(e.kind, e.attempts) for e in caught(invocation)] == [("Overloaded", 50)] * 2


def test_instances_of_a_composition_that_was_refused_are_not_started() -> None:
    node = Node(queue_length=1)
    text = """
    composition Inner(x) => (y, z) { f(x = all x) => (y = y); g(x = all x) => (z = y); }
    composition C(x) => (y, e) { Inner(x = all x) => (a = y) catch e; g(x = all x) => (y = y); }
    """
    for _ in range(2):  # one runs, one waits
        node.submit("composition D(x) => (y) { f(x = all x) => (y = y); }")
    invocation = node.submit(text)
    node.turns()
    assert [c.run.application.id for c in invocation.calls.values()] == ["g"]
    assert node.tenant.waiting == 2
    for _ in range(3):
        node.done()
    assert not node.sent
    (error,) = caught(invocation)
    assert error.message.startswith("Inner.f (instance 0): ")


def test_items_of_errors_sets_are_charged_to_the_tenant() -> None:
    node = Node()
    text = (
        "composition C(x) => (y, e) { f(x = each x) => (a = y) catch e; g(x = all a) => (y = y); }"
    )
    invocation = node.submit(text, items=2)
    before = node.tenant.arena_bytes
    node.fail(RAISED)
    assert node.tenant.arena_bytes - before == invocation.walk.caught_bytes > 50
    node.done()
    node.done()
    assert len(caught(invocation)) == 1
    assert node.tenant.arena_bytes == 0
