"""Engines of other nodes: calls go there only if that pays, and never those of other nodes."""

from __future__ import annotations

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.errors import EngineDied, NodeLost, QuotaExceeded
from dandelion.function import CodeObject, FunctionSpec
from dandelion.policies import policy_of
from dandelion.scheduler import (
    CallState,
    EngineState,
    InvocationState,
    Scheduler,
    Tenant,
)
from dandelion.scheduler.actions import End, Send
from dandelion.testing.scheduler_invariants import check_invariants

MS = 1_000_000
SPECS = tuple(
    FunctionSpec(name, (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("cpu"),), version=1)
    for name in "fgh"
)
PLANS = tuple(direct_plan(spec) for spec in SPECS)


class OneNode:
    """A scheduler with one engine here, and one that stands for four of other nodes."""

    def __init__(self, policy: str = "fair", here: bool = True) -> None:
        self.scheduler = Scheduler(policy_of(policy), 1 << 30, lambda flow: (0, 0))
        self.tenant = Tenant("default")
        self.sent: list[CallState] = []
        self.ended: list[InvocationState] = []
        self.now_ns = 0
        self.engines = []
        if here:
            self.engines.append(EngineState(1, frozenset({"cpu"}), places=1))
        self.remote = EngineState(2, frozenset({"cpu"}), places=4, remote=True)
        self.remote.transfer_ns, self.remote.transfer_ns_per_byte = 1.0 * MS, 1.0
        self.engines.append(self.remote)
        for engine in self.engines:
            self.scheduler.fleet.added(engine)
            self.scheduler.fleet.up(engine, str(engine.id), Capacity(), 0)
        self.act()

    def act(self) -> None:
        check_invariants(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                self.sent.append(action.call)
            elif isinstance(action, End):
                self.ended.append(action.invocation)

    def submit(
        self, size_bytes: int = 4, served: bool = False, function: int = 0
    ) -> InvocationState:
        inputs = (ItemSet("x", (Item("a", 0, bytes(size_bytes)),)),)
        walk = Walk(PLANS[function], Partitioning("auto", 1, 2))
        name = str(len(self.sent) + self.scheduler.calls.lines.waiting + len(self.ended))
        invocation = InvocationState(name + str(self.now_ns), self.tenant, walk, inputs, 1 << 60, 1)
        invocation.input_bytes, invocation.served = size_bytes, served
        self.now_ns += 1
        self.scheduler.submitted(invocation, self.now_ns)
        self.act()
        return invocation

    def end(self, call: CallState, took_ns: int) -> None:
        self.now_ns += took_ns
        call.started_ns = self.now_ns - took_ns
        self.sent.remove(call)
        self.scheduler.calls.done(call, (call.run.inputs[0],), self.now_ns)
        self.act()

    def places(self) -> list[int]:
        return [call.engine.id for call in self.sent if call.engine is not None]


@pytest.mark.parametrize("policy", ["fair", "fifo", "balance", "affinity"])
def test_a_call_goes_elsewhere_only_once_it_is_known_to_take_longer(policy: str) -> None:
    node = OneNode(policy)
    for _ in range(6):
        node.submit()
    assert node.places() == [1]  # how long they take is not known yet
    node.end(node.sent[0], 20 * MS)
    assert sorted(node.places()) == [1, 2, 2, 2, 2]
    node.end(next(c for c in node.sent if c.engine is node.remote), 20 * MS)
    assert node.scheduler.calls.lines.waiting == 0


def test_short_calls_and_large_inputs_stay() -> None:
    node = OneNode()
    for _ in range(3):
        node.submit()
    node.end(node.sent[0], MS // 10)
    assert node.places() == [1]
    node.end(node.sent[0], MS // 10)
    node.end(node.sent[0], 20 * MS)  # now a call takes some milliseconds in the mean
    node.submit()
    node.submit(100 * MS)
    assert node.places() == [1]
    node.submit(10)
    assert node.places() == [1]  # it is behind the large one, which keeps its turn
    node.end(node.sent[0], 20 * MS)
    assert node.places() == [1, 2]


@pytest.mark.parametrize(
    ("took_ns", "waiting", "ahead"), [(20 * MS, 9, 2), (20 * MS, 1, 0), (900 * MS, 9, 0)]
)
def test_short_calls_are_sent_ahead_while_many_wait(took_ns: int, waiting: int, ahead: int) -> None:
    node = OneNode()
    node.scheduler.fleet.resized(node.remote, 1, 0)
    node.submit()
    node.end(node.sent[0], took_ns)
    for _ in range(2 + waiting):
        node.submit()
    assert sorted(node.places()) == [1, 2]
    node.remote.behind = 2
    node.scheduler.fleet.resized(node.remote, 3, node.now_ns)
    node.act()
    assert sorted(node.places()) == [1, 2] + [2] * ahead
    assert node.scheduler.calls.lines.waiting == waiting - ahead


def test_calls_of_other_functions_in_the_line_count() -> None:
    """Each of them has one call only, so none has a line of its own."""
    node = OneNode()
    node.scheduler.fleet.resized(node.remote, 1, 0)
    for function in range(3):
        node.submit(function=function)
        node.end(node.sent[0], 20 * MS)
    for function in range(3):
        node.submit(function=function)
    node.submit(function=1)
    assert sorted(node.places()) == [1, 2]
    node.remote.behind = 2
    node.scheduler.fleet.resized(node.remote, 3, node.now_ns)
    node.act()
    assert sorted(node.places()) == [1, 2, 2]
    assert node.scheduler.calls.lines.waiting == 1


def test_engines_here_that_take_no_calls_do_not_count() -> None:
    node = OneNode()
    for number in range(3, 9):
        engine = EngineState(number, frozenset({"cpu"}), places=1)
        node.scheduler.fleet.added(engine)
        node.scheduler.fleet.up(engine, str(number), Capacity(), 0)
        engine.active = False
    node.submit()
    node.end(node.sent[0], 2 * MS)
    node.submit()
    node.submit()  # 1 ms there; here it would wait for 2 ms, and not for a seventh of that
    assert node.places() == [1, 2]


def test_calls_of_unknown_duration_are_not_sent_ahead() -> None:
    node = OneNode(here=False)
    node.remote.behind = 3
    for _ in range(4):
        node.submit()
    assert len(node.sent) == 1
    node.end(node.sent[0], 20 * MS)
    assert len(node.sent) == 3


def test_a_free_engine_here_is_preferred() -> None:
    node = OneNode()
    for _ in range(4):
        node.submit()
        node.end(node.sent[0], 20 * MS)
    assert node.remote.calls == 0


def test_without_an_engine_here_all_go_elsewhere() -> None:
    node = OneNode(here=False)
    for _ in range(6):
        node.submit(1000)
    assert node.places() == [2, 2, 2, 2]
    node.scheduler.fleet.resized(node.remote, 6, node.now_ns)
    node.act()
    assert node.places() == [2] * 6


def test_calls_of_other_nodes_stay_here() -> None:
    node = OneNode()
    node.submit()
    node.end(node.sent[0], 20 * MS)
    for _ in range(3):
        node.submit(served=True)
    assert node.places() == [1]
    lonely = OneNode(here=False)
    failed = lonely.submit(served=True)
    assert failed.ended
    assert failed.error is not None
    assert failed.error.status == 501


def test_loss_of_nodes_is_not_the_functions_fault() -> None:
    node = OneNode(here=False)
    invocation = node.submit()
    for _ in range(3):
        call = node.sent.pop()
        node.scheduler.calls.failed(call, NodeLost("b", "it is gone"), node.now_ns)
        node.act()
        assert not invocation.ended
    node.scheduler.calls.failed(node.sent.pop(), NodeLost("b", "it is gone"), node.now_ns)
    node.act()
    assert isinstance(invocation.error, NodeLost)
    assert isinstance(invocation.error, EngineDied)


@pytest.mark.parametrize("begun", [False, True])
def test_io_is_run_again_only_if_its_node_has_refused_it(begun: bool) -> None:
    node = OneNode(here=False)
    spec = SPECS[0]
    io = FunctionSpec("g", spec.inputs, spec.outputs, code=spec.code, version=1, kind="io")
    walk = Walk(direct_plan(io), Partitioning("auto", 1, 2))
    inputs = (ItemSet("x", (Item("a", 0, b"data"),)),)
    invocation = InvocationState("io", node.tenant, walk, inputs, 1 << 60, 1, 4)
    node.scheduler.submitted(invocation, 1)
    node.act()
    node.scheduler.calls.failed(node.sent.pop(), NodeLost("b", "it is gone"), 2, begun)
    node.act()
    assert isinstance(invocation.error, NodeLost) is begun
    assert len(node.sent) == (not begun)


@pytest.mark.parametrize("here", [True, False])
def test_a_call_that_all_other_nodes_refused_runs_here_or_fails_with_their_error(
    here: bool,
) -> None:
    node = OneNode(here=here)
    node.submit()
    if here:
        node.end(node.sent[0], 20 * MS)
        node.submit()
        node.submit()
    call = next(c for c in node.sent if c.engine is node.remote)
    refusal = QuotaExceeded("tenant 'default'", "memory", 2, 1)
    call.refusals, call.barred = {"b": refusal}, (node.remote.id,)
    node.sent.remove(call)
    node.scheduler.calls.failed(call, NodeLost("b", "it took no call"), node.now_ns, begun=False)
    node.act()
    if here:
        assert node.places() == [1]
        node.end(node.sent[0], 20 * MS)
        assert node.sent == [call]
        assert node.places() == [1]
    else:
        assert node.ended[0].error is refusal
