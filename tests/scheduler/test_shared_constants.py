"""Engines of one device that share the memory for constants."""

from __future__ import annotations

from dandelion.data import SetSpec
from dandelion.driver import Capacity
from dandelion.function import FunctionSpec
from dandelion.scheduler.actions import Action
from dandelion.scheduler.engine import LARGE_CONSTANTS_BYTES, EnginePhase, EngineState
from dandelion.scheduler.placement import best_free
from dandelion.scheduler.records import Flow, Tenant
from dandelion.scheduler.residency import Residency
from tests.scheduler.made_calls import call_of

SIZE = LARGE_CONSTANTS_BYTES
CAPACITY = Capacity(constants_bytes=2 * SIZE, constants_shared=True)


class Node:
    """Engines whose constants are decided about."""

    def __init__(self, count: int, capacity: Capacity = CAPACITY) -> None:
        self.actions: list[Action] = []
        self.residency = Residency(100 * SIZE, self.actions.append)
        self.engines = [
            EngineState(
                number, frozenset({"gpu"}), ("gpu", "0"), 2, capacity=capacity,
                phase=EnginePhase.READY,
            )
            for number in range(count)
        ]  # fmt: skip
        for engine in self.engines:
            self.residency.add_device(engine, capacity)


def flow_of(name: str) -> Flow:
    spec = FunctionSpec(name, (SetSpec("x"),), (SetSpec("y"),))
    return Flow(Tenant("t"), spec, constants_bytes=SIZE, constants=f"content of {name}")


def test_what_one_copies_counts_once_and_is_there_for_all() -> None:
    node, flow = Node(3), flow_of("f")
    first, second, third = node.engines
    assert all(engine.lacks(flow) for engine in node.engines)
    assert node.residency.keep_on_device(first, flow) == ((), True)
    assert [engine.lacks(flow) for engine in node.engines] == [False, True, True]
    node.residency.loaded(second, flow)
    assert second.lacks(flow), "another engine's call has ended"
    node.residency.loaded(first, flow)
    assert not any(engine.lacks(flow) for engine in node.engines)
    assert node.residency.keep_on_device(third, flow) == ((), True)
    assert node.residency.counts.copies == 1
    assert node.residency.devices[third].used_bytes == SIZE


def test_one_decision_evicts_for_all() -> None:
    node = Node(2)
    flows = [flow_of(name) for name in "abc"]
    for flow in flows[:2]:
        node.residency.keep_on_device(node.engines[0], flow)
        node.residency.loaded(node.engines[0], flow)
    evicted, keeps = node.residency.keep_on_device(node.engines[1], flows[2])
    assert (len(evicted), keeps) == (1, True)
    assert node.engines[0].lacks(evicted[0]), "it was evicted there, too"


def test_an_engine_that_is_lost_leaves_constants_to_the_others() -> None:
    node = Node(2)
    copied, copying = flow_of("copied"), flow_of("copying")
    first, second = node.engines
    node.residency.keep_on_device(first, copied)
    node.residency.loaded(first, copied)
    node.residency.keep_on_device(first, copying)
    node.residency.drop_device(first)
    assert not second.lacks(copied)
    assert not second.lacks(copying), "no engine copies it now: the next call does"
    node.residency.drop_device(second)
    node.residency.add_device(second, CAPACITY)
    assert second.lacks(copied), "no engine was left"


def test_engines_of_other_devices_share_nothing() -> None:
    node, flow = Node(1), flow_of("f")
    other = EngineState(7, frozenset({"gpu"}), ("gpu", "1"), capacity=CAPACITY)
    node.residency.add_device(other, CAPACITY)
    node.residency.keep_on_device(node.engines[0], flow)
    assert other.lacks(flow)


def test_the_engine_that_copies_is_preferred_to_an_idle_one() -> None:
    node, flow = Node(3), flow_of("f")
    copies = node.engines[1]
    node.residency.keep_on_device(copies, flow)
    copies.sent[1] = call_of(flow)
    assert best_free(node.engines, flow) is copies
    node.residency.loaded(copies, flow)
    assert best_free(node.engines, flow) is node.engines[0], "an idle one"


def test_engines_that_share_nothing_copy_at_the_same_time() -> None:
    node, flow = Node(2, Capacity(constants_bytes=2 * SIZE)), flow_of("f")
    copies, idle = node.engines
    node.residency.keep_on_device(copies, flow)
    copies.sent[1] = call_of(flow)
    assert best_free(node.engines, flow) is idle
    assert node.residency.keep_on_device(idle, flow) == ((), True)
    assert node.residency.counts.copies == 2
