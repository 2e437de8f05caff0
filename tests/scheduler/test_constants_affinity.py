"""Flows keep to engines whose devices have their constants, within a bound."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import repeat

import pytest

from dandelion.driver import Capacity
from dandelion.function import FunctionSpec
from dandelion.policies import POLICIES
from dandelion.policies.fair import COPIED_BYTES_PER_NS, STICKY_NS, Fair
from dandelion.scheduler import EngineState, Quota, Tenant, engine
from dandelion.scheduler.engine import LARGE_CONSTANTS_BYTES, EnginePhase
from dandelion.scheduler.placement import best_free
from dandelion.scheduler.records import Flow
from dandelion.scheduler.residency import Residency
from dandelion.testing.scheduler_invariants import check_invariants
from tests.scheduler.simulation import Simulation
from tests.scheduler.virtual_node import MS, Caller, VirtualNode

LARGE_BYTES = 64 << 20
LEAD_NS = STICKY_NS + LARGE_BYTES / COPIED_BYTES_PER_NS
FLOWS, ENGINES, ROOM = 12, 4, 4


def durations(seed: int) -> Iterator[int]:
    source = random.Random(seed)
    while True:
        yield source.randrange(MS, 3 * MS)


def loaded(constants_bytes: int, room: int = ROOM) -> VirtualNode:
    """Run flows that always wait, on engines with room for the constants of some."""
    capacity = Capacity(constants_bytes=room * constants_bytes)
    node = VirtualNode("fair", ("gpu",) * ENGINES, 1, check_invariants, capacity, constants_bytes)
    for number in range(FLOWS):
        tenant = node.tenant(f"t{number}")
        for at in range(3):
            caller = Caller(tenant, "f", durations(10 * number + at))
            node.caller(caller, number * MS // 10 + at, "gpu")
    node.run(1000 * MS)
    return node


def spread(node: VirtualNode) -> float:
    """Return on how many engines a flow runs, on average, after the first half."""
    engines = defaultdict(set)
    for one in node.sent[len(node.sent) // 2 :]:
        engines[one.tenant].add(one.engine)
    assert len(engines) == FLOWS
    return sum(map(len, engines.values())) / FLOWS


def copies(node: VirtualNode) -> int:
    return node.scheduler.calls.residency.counts.copies


class WithoutLead(Fair):
    def lead(self, flow: Flow) -> float:
        return 0.0


class LargeLead(Fair):
    def lead(self, flow: Flow) -> float:
        return 20 * STICKY_NS


@pytest.fixture(scope="module")
def node() -> VirtualNode:
    return loaded(LARGE_BYTES)


@pytest.fixture(scope="module")
def other() -> VirtualNode:
    """A node whose flows have no lead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, "fair", WithoutLead)
        return loaded(LARGE_BYTES)


def test_flows_keep_to_engines_that_have_their_constants(
    node: VirtualNode, other: VirtualNode
) -> None:
    assert copies(node) <= copies(other) / 3, f"{copies(node)} copies, {copies(other)} without"
    assert len(node.sent) > 0.99 * len(other.sent), "engines were idle"


def test_flows_run_on_few_engines(node: VirtualNode, other: VirtualNode) -> None:
    assert spread(node) <= spread(other) - 0.5


def test_shares_are_kept(node: VirtualNode) -> None:
    used = node.used_ns(100 * MS, 1000 * MS)
    assert max(used.values()) - min(used.values()) <= 2 * (LEAD_NS + ENGINES * 3 * MS)


def test_small_constants_change_nothing() -> None:
    def order(node: VirtualNode) -> list[tuple[int, int, str]]:
        return [(one.began_ns, one.engine, one.tenant) for one in node.sent]

    assert order(loaded(LARGE_CONSTANTS_BYTES - 1)) == order(loaded(0))


def test_constants_that_cannot_stay_are_not_missing() -> None:
    engine = EngineState(0, frozenset({"gpu"}), capacity=Capacity(constants_bytes=LARGE_BYTES))
    spec = FunctionSpec("f", (), ())
    assert engine.lacks(Flow(Tenant("t"), spec, constants_bytes=LARGE_BYTES))
    assert not engine.lacks(Flow(Tenant("t"), spec, constants_bytes=LARGE_BYTES + 1))


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_a_flow_whose_constants_are_never_there_has_its_share(weight: float) -> None:
    """Each other flow is at most so far ahead of it, and its calls wait for no longer."""
    capacity = Capacity(constants_bytes=4 * LARGE_BYTES)
    node = VirtualNode("fair", ("gpu",), 1, check_invariants, capacity, LARGE_BYTES)
    missing = node.tenant("missing", weight)
    missing.quota = Quota(device_bytes=1)
    call_ns, others = 2 * MS, 3
    for number in range(others):
        tenant = node.tenant(f"t{number}")
        for _ in range(4):
            node.caller(Caller(tenant, "f", repeat(call_ns)), format_name="gpu")
    for _ in range(4):
        node.caller(Caller(missing, "f", repeat(call_ns)), 50 * MS, "gpu")
    node.run(2000 * MS)
    used = node.used_ns(100 * MS, 2000 * MS)
    bound_ns = 2 * (LEAD_NS + call_ns)
    for number in range(others):
        assert abs(used["missing"] / weight - used[f"t{number}"]) <= bound_ns
    times = [one.began_ns for one in node.sent if one.tenant == "missing"]
    gaps = [after - before for before, after in zip(times, [*times[1:], 2000 * MS], strict=True)]
    assert max(gaps) <= others * bound_ns, f"it waited {max(gaps) / MS} ms"


def test_an_engine_that_has_the_constants_is_preferred() -> None:
    residency = Residency(1 << 40, lambda action: None)
    capacity = Capacity(constants_bytes=4 * LARGE_BYTES)
    engines = [EngineState(n, frozenset({"gpu"}), capacity=capacity, places=2) for n in range(3)]
    for one in engines:
        one.phase = EnginePhase.READY
        residency.add_device(one, capacity)
    spec = FunctionSpec("f", (), ())
    one, equal, other = (
        Flow(Tenant(name), spec, constants_bytes=LARGE_BYTES, constants=content)
        for name, content in (("one", "model"), ("equal", "model"), ("other", "of its own"))
    )
    residency.keep_on_device(engines[2], one)
    assert best_free(engines, one) is engines[2]
    assert best_free(engines, equal) is engines[2], "it shares them"
    assert best_free(engines, other) is engines[0]
    engines[0].last = one
    assert best_free(engines, one) is engines[2]
    residency.drop_device(engines[2])
    assert best_free(engines, one) is engines[0]


def simulate(patch: pytest.MonkeyPatch, first_seed: int = 0) -> None:
    patch.setattr(engine, "LARGE_CONSTANTS_BYTES", 51)
    for seed in range(first_seed, first_seed + 30):
        Simulation(seed, "fair").run(600)


def test_the_lead_is_bounded_in_random_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


def test_too_large_a_lead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "fair", LargeLead)
    with pytest.raises(AssertionError, match="is before"):
        simulate(monkeypatch, 60)
