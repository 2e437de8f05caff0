"""Which nodes are alive: a virtual network in which nodes stop, restart and are cut off."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from dandelion.cluster.membership import (
    DEAD_NS,
    FORGET_FAILURES,
    LIMIT,
    MS,
    Beat,
    Connect,
    Lost,
    Membership,
    MemberState,
    Renew,
)

STEP_NS = 50 * MS
NOTICED_NS = 2000 * MS


@dataclass
class Network:
    """Nodes that see each other only by links and heartbeats.

    Attributes:
        links: incarnation of the opener and of the other end when each link was opened.
        down, paused: nodes that are killed, and that are stopped for a while.
        cut: pairs of nodes that cannot reach each other; connections stay open and silent.
    """

    seed: int
    size: int = 4
    now_ns: int = 0
    views: dict[str, Membership] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    cut: set[frozenset[str]] = field(default_factory=set)
    losses: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.names = [f"n{i}" for i in range(self.size)]
        self.lives = dict.fromkeys(self.names, 0)
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        self.lives[name] += 1
        self.down.discard(name)
        self.views[name] = Membership(name, self.names, self.names)

    def kill(self, name: str) -> None:
        self.down.add(name)
        for opener, other in list(self.links):
            if name in (opener, other):
                del self.links[opener, other]
                if opener != name and opener not in self.paused:
                    self.views[opener].ended(other, self.now_ns)

    def reaches(self, one: str, other: str) -> bool:
        away = self.down | self.paused
        return not {one, other} & away and frozenset((one, other)) not in self.cut

    def step(self) -> None:
        self.now_ns += STEP_NS
        for name in self.names:
            if name not in self.down and name not in self.paused:
                self.views[name].tick(self.now_ns)
                self.carry_out(name)

    def carry_out(self, name: str) -> None:
        view = self.views[name]
        for action in view.take():
            if isinstance(action, Connect):
                self.connect(name, action.name)
            elif isinstance(action, Beat):
                known = self.links.get((name, action.name))
                assert known is not None, "a heartbeat needs a link"
                fresh = known == (self.lives[name], self.lives[action.name])
                if self.reaches(name, action.name) and fresh:
                    view.heard(action.name, False, self.now_ns)
            elif isinstance(action, Lost):
                assert self.links.pop((name, action.name), None) or action.name in self.down
                self.losses.append((name, action.name))
            elif isinstance(action, Renew):
                self.lives[name] += 1

    def connect(self, name: str, other: str) -> None:
        view = self.views[name]
        if not self.reaches(name, other):
            view.failed(other, self.now_ns)
            return
        if not self.views[other].joined(name, self.lives[name], self.now_ns):
            view.failed(other, self.now_ns)
            return
        self.links[name, other] = (self.lives[name], self.lives[other])
        assert view.connected(other, self.lives[other], self.now_ns)

    def run(self, ns: int) -> None:
        for _ in range(ns // STEP_NS):
            self.step()

    def sees(self, name: str) -> set[str]:
        return {n for n, member in self.views[name].members.items() if member.is_up}


def others(network: Network, name: str) -> set[str]:
    return set(network.names) - {name}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_gone_is_noticed_and_what_comes_back_too(seed: int) -> None:
    network = Network(seed, size=2 + seed % 4)
    network.run(1000 * MS)
    for _ in range(4):
        for name in network.names:
            assert network.sees(name) == others(network, name)
        victim = network.random.choice(network.names)
        kind = network.random.choice(["kill", "pause", "cut"])
        if kind == "kill":
            network.kill(victim)
        elif kind == "pause":
            network.paused.add(victim)
        else:
            network.cut |= {frozenset((victim, n)) for n in others(network, victim)}
        network.losses.clear()
        network.run(NOTICED_NS)
        if kind != "kill":
            for name in others(network, victim):
                assert (name, victim) in network.losses, "its calls are not given up"
        for name in others(network, victim):
            assert network.sees(name) == others(network, name) - {victim}, kind
            rest = len(network.names) - 1
            assert network.views[name].has_majority == (2 * rest > len(network.names))
        if kind == "cut":
            assert network.sees(victim) == set()
            assert not network.views[victim].has_majority
        if kind == "kill":
            network.start(victim)
        network.paused.discard(victim)
        network.cut.clear()
        network.run(3000 * MS)


def test_calls_are_given_up_once_for_each_link() -> None:
    network = Network(1, size=2)
    network.run(500 * MS)
    network.cut = {frozenset(("n0", "n1"))}
    network.run(5000 * MS)
    assert sorted(network.losses) == [("n0", "n1"), ("n1", "n0")]


def test_a_node_that_was_stopped_takes_a_new_incarnation() -> None:
    network = Network(1, size=2)
    network.run(500 * MS)
    network.paused.add("n0")
    network.run(2 * DEAD_NS)
    network.paused.clear()
    network.run(500 * MS)
    assert network.lives["n0"] == 2
    assert ("n0", "n1") in network.losses


def test_an_old_incarnation_is_refused() -> None:
    view = Membership("a", ["b"], ["a", "b"])
    assert view.connected("b", 5, 0)
    assert view.joined("b", 6, 0)
    assert [type(one) for one in view.take()] == [Connect, Lost, Connect]
    assert not view.joined("b", 5, 0)
    assert not view.connected("b", 5, 0)
    assert view.connected("b", 6, 0)


def test_a_node_that_leaves_is_forgotten_unless_its_vote_counts() -> None:
    view = Membership("a", ["b"], ["a", "b"])
    view.learned("guest")
    for name in ("b", "guest"):
        assert view.connected(name, 1, 0)
        view.left(name)
    assert list(view.members) == ["b"]
    assert view.members["b"].state is MemberState.DEAD
    assert not view.has_majority


def test_a_silent_node_gets_no_calls_before_it_is_given_up() -> None:
    view = Membership("a", ["b"], ["a", "b"])
    assert view.connected("b", 1, 0)
    for at in range(0, 1000 * MS, STEP_NS):
        view.tick(at)
    assert view.members["b"].state is MemberState.SUSPECT
    assert not [one for one in view.take() if isinstance(one, Lost)]
    view.heard("b", True, 1000 * MS)
    assert view.members["b"].state is MemberState.DRAINING


def test_nodes_that_never_come_back_are_forgotten_and_voters_are_not() -> None:
    view = Membership("a", ["b"], ["a", "b"])
    for number in range(LIMIT):
        view.learned(f"guest {number}")
    for name in ("b", "guest 1"):
        for _ in range(FORGET_FAILURES):
            view.failed(name, 0)
    assert "b" in view.members
    assert "guest 1" not in view.members
    assert view.joined("new", 1, 0)
