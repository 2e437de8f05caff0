"""The log of the catalogue under faults, in virtual time; see `simulated_log`.

Mistakes that are planted on purpose are found: a simulation that finds none shows nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from dandelion.cluster import log_tail
from dandelion.cluster.ballots import Promise
from dandelion.cluster.log_driver import LogDriver
from dandelion.cluster.replication import Replica
from dandelion.cluster.snapshot_transfer import SnapshotTransfer
from tests.cluster.simulated_log import Violated, World

FEW = 2


@contextlib.contextmanager
def short_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have logs be compacted after a few commands, so that snapshots are needed often."""
    with monkeypatch.context() as patch:
        patch.setattr(log_tail, "KEPT", FEW)
        yield


def live(seed: int, size: int, durable: bool = True, steps: int = 60) -> World:
    """Let nodes live with faults, then heal; raises `Violated`."""
    world = World(seed, size, durable=durable)
    dice = world.random
    world.run(1500)  # the log begins
    world.crashes = 0.01 if durable else 0.0
    for _ in range(steps):
        for _ in range(dice.randrange(3)):
            world.propose(dice.choice(world.names))
        if dice.random() < 0.1:
            world.cut = set(dice.sample(world.names, dice.randrange(len(world.names))))
        elif dice.random() < 0.2:
            world.cut = set()
        fate = dice.random()
        if durable and fate < 0.02:
            for name in list(world.nodes):  # the power is lost
                world.crash(name)
        elif durable and fate < 0.15:
            world.crash(dice.choice(world.names))
        elif not durable and fate < 0.1:
            up = [name for name, node in world.nodes.items() if not node.driver.replica.lost]
            if len([name for name in up if name in world.voters]) > size // 2 + 1:
                world.crash(dice.choice(up))
        world.run(dice.randrange(20, 300))
    world.heal()
    return world


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("size", "durable"), [(3, True), (5, True), (3, False), (5, False)])
def test_nothing_acknowledged_is_lost_and_all_agree(
    seed: int, size: int, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_logs(monkeypatch):
        world = live(seed, size, durable)
    assert len(world.acknowledged) > 8
    assert any(node.driver.replica.tail.base for node in world.nodes.values())


def test_a_node_that_was_away_for_long_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    adopted = SnapshotTransfer.adopted

    def counted(transfer: SnapshotTransfer, place: int) -> None:
        taken.append(place)
        adopted(transfer, place)

    monkeypatch.setattr(SnapshotTransfer, "adopted", counted)
    with short_logs(monkeypatch):
        world = World(1, 3)
        world.loss = 0.0
        world.run(1000)
        world.cut = {"n2"}
        for _ in range(30):
            world.propose("n0")
            world.run(400)
        world.run(5000)
        assert world.nodes["n2"].driver.length == 0
        tail = world.nodes["n0"].driver.replica.tail
        assert tail.base > 15
        assert len(tail.commands) <= 2 * FEW + 2
        world.heal()
    assert taken


# --- planted mistakes -----------------------------------------------------------------------------


def votes_leave_before_they_are_stored(patch: pytest.MonkeyPatch) -> None:
    def go_on(driver: LogDriver) -> None:
        while driver._changes:
            changes = driver._changes.popleft()
            if changes.saved:
                store = driver._file.rewrite if changes.anew else driver._file.append
                driver._threads.store(lambda store=store, changes=changes: store(changes.saved))  # type: ignore[misc]
            driver._follow(changes)

    patch.setattr(LogDriver, "_go_on", go_on)


def what_others_accepted_is_ignored(patch: pytest.MonkeyPatch) -> None:
    promise = Replica._promise

    def ignoring(replica: Replica, name: str, message: Promise) -> None:
        promise(replica, name, Promise(message.place, message.ballot))

    patch.setattr(Replica, "_promise", ignoring)


def half_of_the_voters_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "majority", property(lambda replica: len(replica.voters) // 2))


def promises_are_broken(patch: pytest.MonkeyPatch) -> None:
    accept = Replica._accept

    def breaking(replica: Replica, name: str, message: object) -> None:
        replica._promised = (0, "")
        accept(replica, name, message)  # type: ignore[arg-type]

    patch.setattr(Replica, "_accept", breaking)


def blobs_are_not_stored_before_the_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDriver, "_is_staged", lambda *given: True)


def commands_are_dropped_that_are_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    compact = Replica.compact
    patch.setattr(Replica, "compact", lambda replica, _: compact(replica, replica.length))


def a_snapshot_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    from tests.cluster.simulated_log import File

    patch.setattr(File, "keep_snapshot", lambda *given: None)


@pytest.mark.parametrize(
    "plant",
    [
        votes_leave_before_they_are_stored,
        what_others_accepted_is_ignored,
        half_of_the_voters_is_enough,
        promises_are_broken,
        blobs_are_not_stored_before_the_vote,
        commands_are_dropped_that_are_not_carried_out,
        a_snapshot_is_not_stored,
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with short_logs(monkeypatch), pytest.raises(Violated):
        for seed in range(40):
            live(seed, 3 + 2 * (seed % 2))
