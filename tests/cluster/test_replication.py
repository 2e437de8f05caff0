"""The log of the catalogue: all nodes agree, and what was acknowledged is not lost.

Nodes with a virtual clock exchange messages that are delayed, lost, doubled and reordered, while
nodes are cut off, stopped and started again, with and without their stored votes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from dandelion.cluster.ballots import (
    NO_BALLOT,
    NOTHING,
    BallotMessage,
    CatchUp,
    Chosen,
    Command,
    Prepare,
    Saved,
    SavedBase,
    SavedVote,
    SnapshotAt,
    decode_ballot,
    decode_saved,
    encode_ballot,
    encode_saved,
)
from dandelion.cluster.log_tail import CATCH_UP_BYTES
from dandelion.cluster.replication import Replica
from dandelion.cluster.rounds import MS


@dataclass
class Network:
    """Nodes and messages; everything random comes from the seed."""

    seed: int
    size: int = 3
    durable: bool = True
    loss: float = 0.1
    now_ns: int = 0
    replicas: dict[str, Replica] = field(default_factory=dict)
    stored: dict[str, list[bytes]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.names = [f"n{i}" for i in range(self.size)]
        self.flying: list[tuple[int, int, str, str, int, BallotMessage]] = []
        self.lives = dict.fromkeys(self.names, 0)
        self.count = 0
        for name in self.names:
            self.stored[name] = []
            self.start(name)

    def start(self, name: str) -> None:
        self.lives[name] += 1
        if not self.durable:
            self.stored[name] = []
        saved: list[Saved] = [one for d in self.stored[name] for one in decode_saved(d)]
        self.replicas[name] = Replica(name, self.names, self.lives[name] * 1000, saved)

    def stop(self, name: str) -> None:
        del self.replicas[name]

    def carry_out(self, name: str) -> None:
        replica = self.replicas[name]
        while True:
            changes = replica.take()
            self.stored[name].append(encode_saved(changes.saved))
            self.acknowledged.update(i for i in changes.acknowledged if " " not in i)
            self.failed.update(i for i in changes.failed if " " not in i)
            own = False
            for receiver, message in changes.sent:
                message = decode_ballot(encode_ballot(message))
                if receiver == name:
                    replica.received(name, message, self.now_ns)
                    own = True
                else:
                    self.fly(name, receiver, message)
            if not own:
                return

    def fly(self, sender: str, receiver: str, message: BallotMessage) -> None:
        copies = 0 if self.random.random() < self.loss else 1 + (self.random.random() < self.loss)
        for _ in range(copies):
            self.count += 1
            at_ns = self.now_ns + self.random.randrange(1, 60) * MS
            life = self.lives[receiver]
            self.flying.append((at_ns, self.count, sender, receiver, life, message))

    def propose(self, name: str, id_: str) -> None:
        if name in self.replicas:
            self.replicas[name].propose(Command(id_, "register", id_.encode()), self.now_ns)
            self.carry_out(name)

    def step(self) -> None:
        """Let 20 ms pass."""
        self.now_ns += 20 * MS
        due = sorted(f for f in self.flying if f[0] <= self.now_ns)
        self.flying = [f for f in self.flying if f[0] > self.now_ns]
        for _, _, sender, receiver, life, message in due:
            alive = receiver in self.replicas and self.lives[receiver] == life
            if alive and not {sender, receiver} & self.cut:
                self.replicas[receiver].received(sender, message, self.now_ns)
                self.carry_out(receiver)
        for name, replica in list(self.replicas.items()):
            replica.tick(self.now_ns)
            self.carry_out(name)
            other = self.random.choice(self.names)
            if other in self.replicas and not {name, other} & self.cut:
                replica.heard_length(other, self.replicas[other].length)
                self.carry_out(name)
        self.check()

    def check(self) -> None:
        logs = [[c.id for c in r.tail.commands] for r in self.replicas.values()]
        longest = max(logs, key=len, default=[])
        for log in logs:
            assert log == longest[: len(log)], "two nodes have different logs"

    def run_until_quiet(self, limit: int = 2000) -> list[str]:
        """Let all come back and agree; return the ids of the log."""
        self.cut.clear()
        self.loss = 0.0
        for name in self.names:
            if name not in self.replicas:
                self.start(name)
        for _ in range(limit):
            self.step()
            logs = {r.length for r in self.replicas.values()}
            busy = any(r._proposals or r.lost for r in self.replicas.values())
            if len(logs) == 1 and not busy and not self.flying:
                break
        else:
            raise AssertionError("they do not agree in the end")
        return [c.id for c in self.replicas["n0"].tail.commands if c.kind != NOTHING]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("size", "durable"), [(3, True), (5, True), (3, False), (5, False)])
def test_all_agree_whatever_happens(seed: int, size: int, durable: bool) -> None:
    network = Network(seed, size, durable)
    dice = network.random
    down_until: dict[str, int] = {}
    for step in range(400):
        if dice.random() < 0.2:
            network.propose(dice.choice(network.names), f"c{step}")
        if dice.random() < 0.02:
            network.cut = set(dice.sample(network.names, dice.randrange(size)))
        lost = sum(r.lost for r in network.replicas.values()) + len(down_until)
        if dice.random() < 0.03 and lost < (size - 1) // 2 and step > 40:
            name = dice.choice([n for n, r in network.replicas.items() if not r.lost] or ["n0"])
            if name in network.replicas:
                network.stop(name)
                down_until[name] = step + dice.randrange(1, 40)
        for name, until in list(down_until.items()):
            if step >= until:
                network.start(name)
                del down_until[name]
        network.step()
    log = network.run_until_quiet()
    assert network.acknowledged <= set(log)
    assert len(set(log)) > 3
    assert len(network.acknowledged) > 2


def test_a_minority_acknowledges_nothing() -> None:
    network = Network(1, 3)
    for _ in range(30):
        network.step()
    network.cut = {"n0"}
    network.propose("n0", "alone")
    for _ in range(300):
        network.step()
    assert network.acknowledged == set()
    assert network.failed == {"alone"}
    network.propose("n1", "together")
    for _ in range(50):
        network.step()
    assert network.acknowledged == {"together"}
    assert network.replicas["n0"].length == 0
    assert network.run_until_quiet()[0] == "together"


def test_one_node_needs_no_others() -> None:
    network = Network(1, 1)
    network.propose("n0", "a")
    network.propose("n0", "b")
    assert network.acknowledged == {"a", "b"}


def test_a_voter_that_lost_its_memory_votes_only_about_new_places() -> None:
    network = Network(1, 3, durable=False, loss=0.0)
    for _ in range(30):
        network.step()
    network.propose("n0", "a")
    for _ in range(30):
        network.step()
    network.stop("n1")
    network.start("n1")
    assert network.replicas["n1"].lost
    for _ in range(100):
        network.step()
    replica = network.replicas["n1"]
    assert not replica.lost
    assert replica.tail.commands[0].id == "a"
    assert replica.length >= 3


def test_of_a_node_that_is_no_voter_the_commands_count_and_not_the_votes() -> None:
    voters = ["n0", "n1"]
    network = Network(1, 2, loss=0.0)
    guest = Replica("guest", voters, 1)
    assert not guest.lost
    guest.propose(Command("g", "register", b""), 0)
    sent = guest.take().sent
    assert {name for name, _ in sent} == set(voters)
    network.check()


def test_stored_votes_come_back() -> None:
    network = Network(1, 3)
    for _ in range(30):
        network.step()
    network.propose("n0", "a")
    for _ in range(20):
        network.step()
    assert any(isinstance(s, SavedVote) for d in network.stored["n1"] for s in decode_saved(d))
    network.stop("n1")
    network.start("n1")
    assert not network.replicas["n1"].lost
    assert [c.id for c in network.replicas["n1"].tail.commands] == ["a"]


def test_ballots_of_a_proposer_that_is_started_again_are_new_ones() -> None:
    nodes = {name: Replica(name, "abc", 1, [EMPTY]) for name in "abc"}

    nodes["guest"] = Replica("guest", "abc", 1)
    nodes["guest"].propose(Command("lost", "register", b""), 0)
    for name, prepare in nodes["guest"].take().sent:
        nodes[name].received("guest", prepare, 0)
        for _, promise in nodes[name].take().sent:
            nodes["guest"].received(name, promise, 0)
    accepts = dict(nodes["guest"].take().sent)
    nodes["a"].received("guest", accepts["a"], 0)  # and the guest is killed
    nodes["a"].take()

    nodes["guest"] = Replica("guest", "abc", 2)
    nodes["guest"].propose(Command("kept", "register", b""), 0)
    for _ in range(2):  # `Prepare` and `Accept`; "a" is cut off
        for name, message in nodes["guest"].take().sent:
            if name in "bc":
                nodes[name].received("guest", message, 0)
                for _, answer in nodes[name].take().sent:
                    nodes["guest"].received(name, answer, 0)
    accepted = [nodes[name]._command for name in "bc"]
    assert [c.id for c in accepted if c is not None] == ["kept", "kept"]

    nodes["a"].propose(Command("next", "register", b""), 0)
    run(nodes, "a", "b")
    assert nodes["a"].tail.commands[0].id == "kept"


def test_large_commands_are_sent_in_parts_to_a_node_that_lacks_them() -> None:
    voter = Replica("a", ["a"], 1)
    for number in range(10):
        voter.tail.append(Command(str(number), "register", bytes(CATCH_UP_BYTES // 3)))
    voter.tail.append(Command("10", "register", bytes(CATCH_UP_BYTES + 1)))
    late = Replica("b", ["a"], 1)
    while late.length < voter.length:
        voter.received("b", CatchUp(late.length), 0)
        ((_, message),) = voter.take().sent
        assert isinstance(message, Chosen)
        assert len(message.commands) in (1, 3)
        late.received("a", message, 0)
    for place in (-1, 11, 1 << 62):
        voter.received("b", CatchUp(place), 0)
    assert not voter.take().sent


EMPTY = SavedVote(0, NO_BALLOT, NO_BALLOT, None)


def run(nodes: dict[str, Replica], *names: str) -> None:
    """Let nodes talk until they are silent; what others are sent is lost."""
    queue = [(name, *one) for name in names for one in nodes[name].take().sent]
    while queue:
        sender, receiver, message = queue.pop(0)
        if receiver in names:
            nodes[receiver].received(sender, message, 0)
            queue += [(receiver, *one) for one in nodes[receiver].take().sent]


def test_a_node_that_takes_over_a_snapshot_gives_up_its_proposals() -> None:
    """One of them may have been chosen at a place that it never learns."""
    nodes = {name: Replica(name, "abc", 1, [SavedBase(0), EMPTY]) for name in "abc"}
    nodes["a"].propose(Command("mine", "register", b""), 0)
    for _ in range(2):  # `Prepare` and `Accept`; then "a" is cut off
        for name, message in nodes["a"].take().sent:
            if name in "bc":
                nodes[name].received("a", message, 0)
                for _, answer in nodes[name].take().sent:
                    if isinstance(message, Prepare):
                        nodes["a"].received(name, answer, 0)
    nodes["b"].propose(Command("next", "register", b""), 0)
    run(nodes, "b", "c")
    assert [c.id for c in nodes["b"].tail.commands] == ["mine", "next"]
    nodes["b"].tail.begin_at(2)  # it has carried them out

    nodes["b"].received("a", CatchUp(0), 0)
    assert nodes["b"].take().behind == ["a"]
    nodes["a"].received("b", SnapshotAt(2, ()), 0)
    assert nodes["a"].take().offered == SnapshotAt(2, ())
    nodes["a"].restored(2)
    changes = nodes["a"].take()
    assert changes.adopted == 2
    assert changes.failed == ["mine"]
    assert changes.anew
    assert changes.saved == [SavedBase(2), SavedVote(2, NO_BALLOT, NO_BALLOT, None)]
    nodes["a"].tick(10**10)
    assert not nodes["a"].take().sent
    nodes["a"].received("b", SnapshotAt(1, ()), 0)  # an old one
    assert nodes["a"].take().offered is None
    assert nodes["a"].length == 2
