"""Shares of tenants over all nodes of a cluster, with the real schedulers and a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from dandelion.bench.cluster_model import INPUTS, MS, NEVER_NS, PLAN, POLICY

from dandelion.cluster import shares
from dandelion.cluster.placement import Placement
from dandelion.cluster.shares import ToldShares, UsedElsewhere
from dandelion.dispatcher import Walk
from dandelion.driver import Capacity
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

WEIGHTS = {"light": 1.0, "middle": 2.0, "heavy": 4.0}
WHERE = {"light": (0,), "middle": (0, 1), "heavy": (0, 1, 2)}
BACKLOG = 6


class SharedNodes:
    """Three nodes with four places each; each tenant always has calls waiting at its nodes."""

    def __init__(self, told: bool) -> None:
        self.now_ns = 0
        self.random = random.Random(7)
        self.count = itertools.count()
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.used: Counter[str] = Counter()
        self.schedulers: list[Scheduler] = []
        self.tenants: list[dict[str, Tenant]] = []
        self.heard = [UsedElsewhere() for _ in range(3)]
        self.told_shares: dict[tuple[int, int], ToldShares] = {}
        self.told = told
        for number in range(3):
            scheduler = Scheduler(policy_of("fair"), 1 << 30, lambda flow: (0, 0), 1 << 30)
            engine = EngineState(1, frozenset({"cpu"}), ("cpu", ""), places=4)
            scheduler.fleet.added(engine)
            scheduler.fleet.up(engine, "cpu", Capacity(), 0)
            self.schedulers.append(scheduler)
            self.tenants.append({n: Tenant(n, weight=w) for n, w in WEIGHTS.items()})
            for name, nodes in WHERE.items():
                for _ in range(BACKLOG if number in nodes else 0):
                    self.submit(number, name)
            self.later(self.random.randrange(250 * MS), partial(self.beat, number))

    def later(self, delay_ns: int, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_ns + delay_ns, next(self.count), event))

    def submit(self, number: int, name: str) -> None:
        tenant = self.tenants[number][name]
        id_ = f"{number} {next(self.count)}"
        walk = Walk(PLAN, POLICY)
        invocation = InvocationState(id_, tenant, walk, INPUTS, NEVER_NS, 1.0, 4)
        self.schedulers[number].submitted(invocation, self.now_ns)
        self.act(number)

    def act(self, number: int) -> None:
        scheduler = self.schedulers[number]
        while scheduler.has_actions:
            for action in scheduler.take():
                if isinstance(action, Send):
                    took_ns = max(MS, int(self.random.expovariate(1 / (50 * MS))))
                    action.call.started_ns = self.now_ns
                    self.later(took_ns, partial(self.done, number, action.call, took_ns))
                elif isinstance(action, End):
                    name = action.invocation.tenant.name
                    self.later(0, partial(self.submit, number, name))
        if not next(self.count) % 50:
            check_invariants(scheduler)

    def done(self, number: int, call: object, took_ns: int) -> None:
        self.used[call.invocation.tenant.name] += took_ns  # type: ignore[attr-defined]
        self.schedulers[number].calls.done(call, INPUTS, self.now_ns)  # type: ignore[arg-type]
        self.act(number)

    def beat(self, number: int) -> None:
        """Every node gets the counters of this one."""
        for other in range(3):
            if self.told and other != number:
                tenants = self.tenants[number].values()
                told = self.told_shares.setdefault((number, other), ToldShares(tenants))
                used = told.next(tenants)
                for name, backend, used_ns in self.heard[other].heard(str(number), *used):
                    self.schedulers[other].used_elsewhere(name, backend, used_ns)
                self.act(other)
        self.later(250 * MS, partial(self.beat, number))

    def shares(self) -> dict[str, float]:
        """Run for 30 s; return the part of all engine time that each tenant got after 6 s."""
        began: Counter[str] = Counter()
        while self.now_ns < 30_000 * MS:
            self.now_ns, _, event = heapq.heappop(self.events)
            event()
            if not began and self.now_ns > 6_000 * MS:
                began = self.used.copy()
        used = self.used - began
        return {name: used[name] / used.total() for name in WEIGHTS}


def test_shares_hold_over_all_nodes() -> None:
    shares = SharedNodes(told=True).shares()
    for name, weight in WEIGHTS.items():
        assert shares[name] == pytest.approx(weight / 7, rel=0.05), shares
    apart = SharedNodes(told=False).shares()  # each node by itself: 1/21, 13/63, 47/63
    assert apart["light"] < 0.06


def test_a_tenant_that_had_other_nodes_for_itself_is_not_kept_away() -> None:
    """What it may be ahead is bounded."""
    scheduler = Scheduler(policy_of("fair"), 1 << 30, lambda flow: (0, 0), 1 << 30)
    engine = EngineState(1, frozenset({"cpu"}), ("cpu", ""), places=1)
    scheduler.fleet.added(engine)
    scheduler.fleet.up(engine, "cpu", Capacity(), 0)
    sent: Counter[str] = Counter()
    now_ns, calls = 0, list[CallState]()
    tenants = [Tenant("rich"), Tenant("poor")]
    for number, tenant in enumerate(tenants * 2000):
        walk = Walk(PLAN, POLICY)
        made = InvocationState(str(number), tenant, walk, INPUTS, NEVER_NS, 1.0, 4)
        scheduler.submitted(made, now_ns)
    for _ in range(3):
        scheduler.used_elsewhere("rich", "cpu", 3_600_000 * MS)
    scheduler.used_elsewhere("rich", "gpu", 3_600_000 * MS)
    scheduler.used_elsewhere("nobody", "cpu", 3_600_000 * MS)
    while sent.total() < 1600:
        calls += [action.call for action in scheduler.take() if isinstance(action, Send)]
        call = calls.pop()
        call.started_ns = now_ns
        now_ns += 20 * MS
        sent[call.flow.tenant.name] += 1
        scheduler.calls.done(call, INPUTS, now_ns)
    assert sent["poor"] - sent["rich"] == pytest.approx(500, abs=5)  # 10 s of 20 ms


def test_counters_become_what_is_new() -> None:
    heard = UsedElsewhere()
    heard.joined("a")
    assert heard.heard("a", {"t": {"cpu": 5}}, {"t": {"cpu": 3}}) == [("t", "cpu", 2)]
    totals = {"t": {"cpu": 7, "gpu": 1}, "u": {"cpu": 2}}
    uncharged = {"t": {"cpu": 3}, "u": {"cpu": 2}}
    assert heard.heard("a", totals, uncharged) == [("t", "cpu", 2), ("t", "gpu", 1)]
    assert heard.heard("a", totals, uncharged) == []
    heard.joined("a")
    assert heard.heard("a", {"t": {"cpu": 100}}, {"t": {"cpu": 100}}) == []
    assert heard.heard("a", {"t": {"cpu": 101}}, {"t": {"cpu": 100}}) == [("t", "cpu", 1)]
    heard.left("a")
    assert not heard._known


def test_what_was_used_before_a_link_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a tenant is told of late, or was not told of for a while, as others used more."""
    monkeypatch.setattr(shares, "TENANTS", 2)
    tenants = [Tenant(str(number), used_ns={"cpu": 1000 * number}) for number in range(1, 6)]
    told, heard = ToldShares(tenants), UsedElsewhere()
    heard.joined("a")
    charged: Counter[str] = Counter()

    def beat() -> int:
        used, uncharged = told.next(tenants)
        assert len(used) <= 2
        for name, backend, used_ns in heard.heard("a", used, uncharged):
            assert backend == "cpu"
            charged[name] += used_ns
        return len(used)

    for number in (1, 2, 3, 4, 5, 1, 1, 5):
        tenants[number - 1].used_ns["cpu"] += number
        beat()
        tenants[4].used_ns["cpu"] += 100  # it is among those that used most, each time
    tenants.append(Tenant("new", used_ns={"cpu": 7}))
    tenants.append(Tenant("idle"))
    told.uncharged.setdefault("new", {})["cpu"] = 5  # of the reader's own calls
    while beat():
        pass
    assert charged == {"1": 3, "2": 2, "3": 3, "4": 4, "5": 810, "new": 2}


def test_counters_of_tenants_that_used_no_engines_lately_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "TENANTS", 3)
    placement = Placement("me")
    placement.joined("other")
    recent = placement.views["other"].recent_use
    update = partial(placement.used, "other")
    update({"a": {"cpu": 1}, "b": {"cpu": 1}, "c": {"cpu": 1}})
    update({"a": {"cpu": 2}, "d": {"cpu": 1}})
    assert recent.used_ns == {"c": {"cpu": 1}, "a": {"cpu": 2}, "d": {"cpu": 1}}
    update({"b": {"cpu": 5, "gpu": 1}})  # its counters go on
    assert list(recent.used_ns) == ["a", "d", "b"]
    for number in range(1000):
        update({f"t{number}": {"cpu": 1}})
    assert list(recent.used_ns) == ["t997", "t998", "t999"]
