"""A model of a cluster with a virtual clock: the real schedulers and the real placement.

Each node has the node's `Scheduler`, one engine with several places, the engine that stands for
those of other nodes, and a `Placement`. Messages take a fixed time. Callers are not spread evenly:
a tenth of the nodes get half of the invocations. Nodes can be lost; what other nodes ran there is
run again.

What is left out: bytes of messages, and heartbeats, of which there are four a second for each pair
of nodes whatever the calls are. A node says what it has in each answer, and to its partners after
each `REPORT_NS`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dandelion.cluster.call_messages import EngineGroup, Load
from dandelion.cluster.instance_walk import InstanceWalk
from dandelion.cluster.placement import PARTNERS, Placement, partners_of
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.errors import NodeLost
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
HOP_NS = MS // 4
REPORT_NS = 250 * MS
CALL_NS = 20 * MS
PLACES = 4
BACKEND = "cpu"
NEVER_NS = 1 << 62
SPEC = FunctionSpec("f", (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("cpu"),), version=1)
PLAN = direct_plan(SPEC)
INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)
POLICY = Partitioning("fixed", 1, 1)


@dataclass(slots=True, eq=False)
class ModelNode:
    """One node.

    Attributes:
        under_way: calls of this node that others run, by call, with their node.
        received: calls that each other node has sent.
        busy_ns: of its engine.
        messages: that it sent or received.
    """

    name: str
    model: Model
    scheduler: Scheduler
    placement: Placement
    here: EngineState
    remote: EngineState
    tenant: Tenant
    under_way: dict[CallState, str] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Callable[[InvocationState], None]] = field(default_factory=dict)
    is_lost: bool = False
    busy_ns: int = 0
    messages: int = 0
    served: int = 0

    def submit(self, name: str) -> None:
        """Begin an invocation of a caller."""
        now_ns = self.model.now_ns
        walk = Walk(PLAN, POLICY)
        invocation = InvocationState(name, self.tenant, walk, INPUTS, NEVER_NS, 1.0, 4)
        self.model.begun_ns[name] = now_ns
        self.scheduler.submitted(invocation, now_ns)
        self.act()

    def act(self) -> None:
        """Carry out the scheduler's actions."""
        while self.scheduler.has_actions:
            for action in self.scheduler.take():
                if isinstance(action, Send):
                    self._send(action.call)
                elif isinstance(action, End):
                    self._end(action.invocation)
        if self.model.checks:
            check_invariants(self.scheduler)

    def _send(self, call: CallState) -> None:
        model = self.model
        if call.engine is self.here:
            took_ns = max(1, int(model.random.expovariate(1 / CALL_NS)))
            call.started_ns = model.now_ns
            model.later(took_ns, partial(self._done_here, call, took_ns))
            return
        chosen = self.placement.choose(BACKEND, "f")
        assert chosen is not None, "there are partners"
        self.under_way[call] = chosen
        self.messages += 1
        model.later(HOP_NS, partial(model.nodes[chosen].serve, self, call))

    def _done_here(self, call: CallState, took_ns: int) -> None:
        if not self.is_lost:
            self.busy_ns += took_ns
            self.scheduler.calls.done(call, INPUTS, self.model.now_ns)
            self.act()

    def serve(self, owner: ModelNode, call: CallState) -> None:
        """Run a call of another node."""
        if self.is_lost:
            return
        self.messages += 1
        self.received[owner.name] = self.received.get(owner.name, 0) + 1
        self.served += 1
        name = f"{self.name} {self.served}"
        walk = InstanceWalk(PLAN, None, 1)
        invocation = InvocationState(name, self.tenant, walk, INPUTS, NEVER_NS, 1.0, 4)
        invocation.served = True
        self.answers[name] = lambda invocation: self._answer(owner, call)
        self.scheduler.submitted(invocation, self.model.now_ns)
        self.act()

    def _answer(self, owner: ModelNode, call: CallState) -> None:
        self.messages += 1
        load = self.load(owner.name)
        self.model.later(HOP_NS, partial(owner.answered, self.name, call, load))

    def answered(self, name: str, call: CallState, load: Load) -> None:
        """Another node ran a call."""
        if self.is_lost or self.under_way.pop(call, None) is None:
            return
        self.messages += 1
        self.placement.loaded(name, load)
        self.placement.ended(name, BACKEND)
        self.resize()
        call.started_ns = self.model.now_ns - CALL_NS
        self.scheduler.calls.done(call, INPUTS, self.model.now_ns)
        self.act()

    def _end(self, invocation: InvocationState) -> None:
        answer = self.answers.pop(invocation.id, None)
        if answer is not None:
            answer(invocation)
        else:
            self.model.ended(invocation)

    def load(self, reader: str) -> Load:
        """Tell what this node has."""
        free = max(0, self.here.free)
        group = EngineGroup(BACKEND, ("cpu",), PLACES, free)
        return Load((group,), self.received.get(reader, 0), self.scheduler.calls.lines.waiting)

    def resize(self) -> None:
        """Tell the scheduler how many places other nodes have."""
        placement = self.placement
        self.remote.behind = placement.ahead(BACKEND)
        places = placement.under_way(BACKEND) + placement.free(BACKEND) + self.remote.behind
        self.scheduler.fleet.resized(self.remote, places, self.model.now_ns)
        self.act()

    def report(self) -> None:
        """Learn from the partners what they have."""
        if self.is_lost:
            return
        for name in list(self.placement.views):
            self.placement.loaded(name, self.model.nodes[name].load(self.name))
        self.resize()
        if self.model.left:
            self.model.later(REPORT_NS, self.report)

    def lose(self, other: str) -> None:
        """Another node is gone."""
        if self.is_lost or other not in self.placement.views:
            return
        self.placement.left(other)
        gone = [call for call, name in self.under_way.items() if name == other]
        for call in gone:
            del self.under_way[call]
        self.resize()
        for call in gone:
            self.model.lost_calls += 1
            self.scheduler.calls.failed(call, NodeLost(other, "it is gone"), self.model.now_ns)
            self.act()


@dataclass
class Model:
    """A cluster.

    Args:
        size: how many nodes.
        calls: how many invocations, of one call each.
        use: part of all engines' time that the calls need.
        seed: of everything that is random.
        checks: check the schedulers' invariants after each event.

    Attributes:
        took_ns: from the beginning to the end of each invocation.
        left: invocations that have not ended, of nodes that are there.
    """

    size: int
    calls: int
    use: float = 0.7
    seed: int = 1
    checks: bool = False
    now_ns: int = 0
    lost_calls: int = 0
    failed: int = 0
    took_ns: list[int] = field(default_factory=list)
    begun_ns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.left = self.calls
        self._owners: dict[str, list[str]] = {}
        names = [f"n{number}" for number in range(self.size)]
        self.nodes = {name: self._made(name) for name in names}
        for name, node in self.nodes.items():
            for other in _partners(name, names):
                node.placement.joined(other)
                node.placement.loaded(other, self.nodes[other].load(name))
            node.resize()
            self.later(self.random.randrange(REPORT_NS), node.report)
        self._arrivals(names)

    def _made(self, name: str) -> ModelNode:
        scheduler = Scheduler(policy_of("fair"), 1 << 30, lambda flow: (0, 0), 1 << 30)
        here = EngineState(1, frozenset({"cpu"}), places=PLACES)
        remote = EngineState(2, frozenset({"cpu"}), ("cluster", BACKEND), places=-1, remote=True)
        remote.transfer_ns = 2.0 * HOP_NS
        for engine in (here, remote):
            scheduler.fleet.added(engine)
            scheduler.fleet.up(engine, str(engine.id), Capacity(), 0)
        scheduler.take()
        return ModelNode(name, self, scheduler, Placement(name), here, remote, Tenant("default"))

    def _arrivals(self, names: list[str]) -> None:
        """A tenth of the nodes get half of the invocations."""
        busy = names[: max(1, self.size // 10)]
        rest = names[len(busy) :] or busy
        mean_ns = CALL_NS / (self.size * PLACES * self.use)
        at_ns = 0.0
        for number in range(self.calls):
            at_ns += self.random.expovariate(1 / mean_ns)
            owner = self.random.choice(busy if self.random.random() < 0.5 else rest)
            self.later(int(at_ns), partial(self._arrive, owner, f"i{number}"))

    def _arrive(self, owner: str, name: str) -> None:
        node = self.nodes[owner]
        if node.is_lost:
            self.left -= 1
            return
        self._owners.setdefault(owner, []).append(name)
        node.submit(name)

    def later(self, delay_ns: int, event: Callable[[], None]) -> None:
        """Have something happen after a time."""
        self._count += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._count, event))

    def ended(self, invocation: InvocationState) -> None:
        """An invocation of a caller has ended; once."""
        self.took_ns.append(self.now_ns - self.begun_ns.pop(invocation.id))
        self.left -= 1
        self.failed += invocation.error is not None

    def lose(self, part: float, at_ns: int) -> None:
        """Lose a part of the nodes at a time; others notice it 1.5 s later."""

        def happen() -> None:
            gone = self.random.sample(sorted(self.nodes), int(part * self.size))
            for name in gone:
                self.nodes[name].is_lost = True
                for call in self._owners.get(name, ()):
                    self.left -= self.begun_ns.pop(call, None) is not None
                for other in self.nodes.values():
                    if name in other.placement.views:
                        self.later(1500 * MS, partial(other.lose, name))

        self.later(at_ns, happen)

    def run(self) -> Model:
        """Run until all invocations have ended."""
        while self._events and self.left:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
        return self

    # --- results ---------------------------------------------------------------------------------

    @property
    def loads(self) -> list[float]:
        """Engine time of each node that is there, relative to the mean."""
        busy = [node.busy_ns for node in self.nodes.values() if not node.is_lost]
        mean = sum(busy) / len(busy)
        return sorted(one / mean for one in busy)

    @property
    def messages_per_call(self) -> float:
        """Messages that were sent for calls, by the number of calls."""
        return sum([node.messages for node in self.nodes.values()]) / 2 / max(1, len(self.took_ns))


def _partners(name: str, names: list[str]) -> list[str]:
    return partners_of(name, [other for other in names if other != name], PARTNERS)
