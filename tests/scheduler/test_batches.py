"""Which calls are run as one, how long they wait for each other, and what follows from a fault."""

from __future__ import annotations

from dataclasses import dataclass, field

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity, Demand, InstanceSets
from dandelion.errors import EngineDied, Raised
from dandelion.function import Batching, CodeObject, FunctionSpec
from dandelion.policies import policy_of
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Quota,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import End, Send, Start
from dandelion.testing.scheduler_invariants import check_invariants

MS = 1_000_000
INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)
DIED = EngineDied("0", "it died")


@dataclass
class Node:
    """One engine, and what it was sent.

    Attributes:
        sent: calls in order.
        sizes: how many calls each of them stands for; 0 for a single one.
        ended: names of errors, and None for results.
    """

    places: int = 1
    calls: int = 2
    wait_s: float = 0.01
    rows: int | None = None
    sent: list[CallState] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ended: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of("fair"), 1 << 30, lambda flow: (0, 0))
        batching = Batching(("x",), self.calls, self.wait_s, self.rows)
        sets = (SetSpec("x"),), (SetSpec("y"),)
        spec = FunctionSpec("f", *sets, code=(CodeObject("cpu"),), batching=batching)
        self.plan = direct_plan(spec)
        self.tenant = Tenant("t")
        self.engine = EngineState(0, frozenset({"cpu"}), places=self.places, joins=True)
        self.scheduler.fleet.added(self.engine)
        self.up()

    def up(self, at_ns: int = 0) -> None:
        self.scheduler.fleet.up(self.engine, "0", Capacity(), at_ns)
        self.take()

    def take(self) -> None:
        check_invariants(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                self.sent.append(action.call)
                self.sizes.append(len(action.call.members))
            elif isinstance(action, End):
                error = action.invocation.error
                self.ended.append(None if error is None else type(error).__name__)
            else:
                assert isinstance(action, Start)

    def submit(self, at_ns: int, inputs: InstanceSets = INPUTS) -> InvocationState:
        walk = Walk(self.plan, Partitioning("auto", 1, 1))
        number = str(len(self.scheduler.invocations))
        invocation = InvocationState(
            f"{at_ns}-{number}", self.tenant, walk, inputs, 1 << 62, 1.0,
            sum(given.size_bytes for given in inputs if given is not None),
        )  # fmt: skip
        self.scheduler.submitted(invocation, at_ns)
        self.take()
        return invocation

    def tick(self, at_ns: int) -> None:
        self.scheduler.tick(at_ns)
        self.take()

    def lose(self, begun: list[CallState], at_ns: int) -> None:
        errors = {call.id: EngineDied("0", "it died") for call in begun}
        self.scheduler.fleet.lost(self.engine, DIED, errors, at_ns)
        self.take()

    def finish(self, call: CallState, at_ns: int) -> None:
        calls = self.scheduler.calls
        if call.members:
            calls.batch_done(call, [INPUTS] * len(call.members), at_ns)
        else:
            calls.done(call, INPUTS, at_ns)
        self.take()


def test_calls_wait_for_each_other_as_long_as_the_function_says() -> None:
    node = Node()
    node.submit(0)
    assert node.scheduler.next_tick_ns == 10 * MS
    node.tick(10 * MS - 1)
    assert not node.sent
    node.tick(10 * MS)
    assert node.sizes == [0]


def test_calls_that_are_enough_do_not_wait() -> None:
    node = Node()
    node.submit(0)
    node.submit(1 * MS)
    assert node.sizes == [2]


def test_a_batch_grows_instead_of_being_sent_far_ahead() -> None:
    node = Node(places=0, calls=4)
    node.engine.ahead, node.engine.mean_ns, node.engine.short_call_ns = 3, MS, 1000 * MS
    for number in range(4):
        node.submit(10 * number * MS)
        node.tick(10 * (number + 1) * MS)
    assert node.sizes == [0, 0]  # one runs, and one is ahead
    node.finish(node.sent[0], 41 * MS)
    assert node.sizes == [0, 0, 2]


def test_calls_are_joined_up_to_a_number_of_rows() -> None:
    node = Node(calls=8, rows=4)

    def rows(count: int) -> InstanceSets:
        return (ItemSet("x", (Item("a", 0, bytes(8 * count), "float32", (count, 2)),)),)

    for count in (1, 2, 3, 1, 5):
        node.submit(0, rows(count))
    node.tick(10 * MS)
    for call in node.sent:  # it grows
        node.finish(call, 11 * MS)
    # 1 + 2 + 1 rows together; 3 alone, since 5 more are too many; 5 alone
    assert node.sizes == [3, 0, 0]


def test_calls_that_exceed_a_quota_together_run_one_by_one() -> None:
    """None of them alone needs more than the tenant may have."""
    node = Node()
    node.tenant.quota = Quota(arena_bytes=1000)
    for number in range(2):  # the first two are a batch that keeps the engine busy
        node.submit(number)
    assert node.sizes == [2]
    for number in range(2):
        (call,) = node.submit(2 + number).calls.values()
        call.demand = Demand(output_bytes=600)
    while len(node.ended) < 4:
        node.finish(node.sent[len(node.sizes) - 1], 20 * MS)
    assert node.sizes == [2, 0, 0]
    assert node.ended == [None] * 4


def test_a_call_with_too_many_rows_by_itself_spoils_no_other() -> None:
    node = Node(calls=8, rows=4)

    def rows(count: int) -> InstanceSets:
        return (ItemSet("x", (Item("a", 0, bytes(8 * count), "float32", (count, 2)),)),)

    for count in (5, 1, 1):
        node.submit(0, rows(count))
    node.tick(10 * MS)
    for call in node.sent:  # it grows
        node.finish(call, 11 * MS)
    assert node.sizes == [0, 2]


def test_numbers_have_no_rows_to_join() -> None:
    node = Node(calls=8)
    for shape in ((), (1,), (), (1,)):
        node.submit(0, (ItemSet("x", (Item("a", 0, bytes(4), "float32", shape),)),))
    node.tick(10 * MS)
    for call in node.sent:  # it grows
        node.finish(call, 11 * MS)
    assert sorted(node.sizes) == [0, 0, 2]


def test_the_wait_of_earlier_calls_does_not_shorten_that_of_later_ones() -> None:
    node = Node(places=10)
    node.submit(0)
    node.submit(1 * MS)
    node.submit(2 * MS)
    assert node.sizes == [2]
    assert node.scheduler.next_tick_ns == 12 * MS
    node.tick(10 * MS)
    assert node.sizes == [2]
    node.tick(12 * MS)
    assert node.sizes == [2, 0]


def test_waits_that_are_over_are_not_kept() -> None:
    node = Node(places=1 << 30, wait_s=10.0)
    for number in range(300):
        node.submit(number)
    assert len(node.sent) == 150
    assert len(node.scheduler.calls.sending.batches.waits._heap) <= 100


def test_calls_that_may_have_killed_an_engine_are_run_one_by_one() -> None:
    node = Node(places=2, calls=8, wait_s=0.0)
    for at_ns in range(4):
        node.submit(at_ns)
        node.tick(at_ns)
    suspects = list(node.sent)
    assert node.sizes == [0, 0]
    node.lose(suspects, 4)
    node.up(5)
    assert all(call.attempt == 1 for call in node.sent[2:])
    for call in node.sent[2:4]:
        node.finish(call, 6)
    assert node.sizes == [0] * 6
    assert node.sent[4:] == suspects


def test_a_batch_that_killed_its_engine_is_run_call_by_call() -> None:
    node = Node()
    node.submit(0)
    node.submit(1)
    node.lose(node.sent, 2)
    node.up(3)
    node.finish(node.sent[1], 4)
    assert node.sizes == [2, 0, 0]
    node.scheduler.calls.failed(node.sent[2], EngineDied("0", ""), 5)
    node.take()
    assert node.ended == [None, "Faulted"]


def test_calls_of_a_batch_that_had_not_begun_are_not_blamed() -> None:
    node = Node()
    node.submit(0)
    node.submit(1)
    node.lose([], 2)
    node.up(3)
    node.finish(node.sent[1], 4)
    node.finish(node.sent[2], 5)
    assert node.ended == [None, None]
    assert not any(call.single or call.attempt > 1 for call in node.sent)


def test_calls_of_a_batch_that_failed_are_run_once_each() -> None:
    node = Node()
    node.submit(0)
    node.submit(1)
    node.scheduler.calls.failed(node.sent[0], Raised("f", "no", ""), 2)
    node.take()
    node.finish(node.sent[1], 3)
    node.scheduler.calls.failed(node.sent[2], Raised("f", "no", ""), 4)
    node.take()
    assert node.sizes == [2, 0, 0]
    assert node.ended == [None, "Raised"]
    assert not node.tenant.calls
    assert not node.engine.sent
