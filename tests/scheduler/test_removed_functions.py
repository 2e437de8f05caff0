"""Functions that are removed leave the node's memory with their last call, however that ends."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.driver import Capacity
from dandelion.errors import Cancelled
from dandelion.policies import policy_of
from dandelion.scheduler import EngineState, Scheduler
from dandelion.scheduler.actions import Fetch, Send
from dandelion.testing.scheduler_invariants import check_invariants
from tests.scheduler.test_limits import Node, function

SIZES = {"f": 50, "h": 50, "g": 100}
F, H, G = (function(name) for name in SIZES)


@dataclass
class SmallNode(Node):
    """One with memory for 100 bytes of functions, which are fetched at once."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(policy_of("fifo"), 100, lambda f: (SIZES[f.spec.name], 0))
        engine = EngineState(0, frozenset({"cpu"}), places=4)
        self.scheduler.fleet.added(engine)
        self.scheduler.fleet.up(engine, "e", Capacity(), 0)
        self.limit(self.tenant)

    def act(self) -> None:
        check_invariants(self.scheduler)
        for action in self.scheduler.take():
            if isinstance(action, Send):
                self.sent.append(action.call)
            elif isinstance(action, Fetch):
                self.scheduler.calls.fetched(action.flow, self.now_ns)
                self.act()

    def present(self) -> list[str]:
        return [flow.spec.name for flow in self.scheduler.calls.residency.node.flows]

    def remove(self, name: str) -> None:
        self.scheduler.calls.removed(self.tenant, name, 0)
        self.act()


def test_with_the_last_call_that_runs() -> None:
    node = SmallNode()
    node.submit(F)
    node.submit(F)
    node.remove("f")
    assert node.present() == ["f"]
    node.done()
    assert node.present() == ["f"]
    node.done()
    assert node.present() == []


def test_with_the_last_call_that_waits_for_room_and_is_cancelled() -> None:
    node = SmallNode()
    node.submit(F)
    node.submit(H)
    node.submit(G)  # has no room, so new calls of the others wait
    waiting = node.submit(F)
    node.remove("f")
    node.done()
    assert node.present() == ["f", "h"]
    node.scheduler.cancelled(waiting, Cancelled("its caller left"), node.now_ns)
    node.act()
    assert node.present() == ["h"]
