"""Nodes with the real driver of the log, in virtual time: every order of events comes from a seed.

Messages are lost, delayed, doubled and reordered. Work of threads takes time; a node that crashes
loses the work that has not been done, so also what was to be stored, and what is in memory. The
disk is what the doubles of the files were given. Checked after every event: no two commands are
chosen for one place, no command for two places. At the end: all that was acknowledged is in all
catalogues, with its code.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from dandelion.catalog import MemoryCatalog
from dandelion.cluster.ballots import (
    NO_BALLOT,
    Command,
    Saved,
    SavedBase,
    SavedCommand,
    SavedVote,
    decode_saved,
    encode_saved,
)
from dandelion.cluster.catalog import REGISTER, ChangeResult, ClusterCatalog, Registration
from dandelion.cluster.log_driver import LogDriver
from dandelion.cluster.log_threads import Work
from dandelion.cluster.replication import Replica
from dandelion.cluster.rounds import MS
from dandelion.cluster.staged_blobs import StagedBlobs
from dandelion.data import Bytes
from dandelion.errors import DandelionError, NodeLost
from dandelion.function import CodeObject, Digest, FunctionSpec, digest_of


class Again(BaseException):
    """What a thread does cannot be done now; it is done again later."""


class Violated(AssertionError):
    """The nodes did what they must not."""


@dataclass
class Disk:
    """What a node keeps when it crashes."""

    catalog: MemoryCatalog = field(default_factory=MemoryCatalog)
    frames: list[bytes] = field(default_factory=list)
    applied: int = 0
    snapshot: tuple[int, bytes] | None = None
    blobs: dict[Digest, bytes] = field(default_factory=dict)


class File:
    """A double of `LogFile` on a disk; without durability it keeps nothing."""

    def __init__(self, disk: Disk, durable: bool, long: int) -> None:
        self._disk = disk
        self.is_durable = durable
        self._long = long
        self.saved: list[Saved] = [one for f in disk.frames for one in decode_saved(f)]
        self.applied = disk.applied
        self.snapshot = disk.snapshot
        self._check()

    def _check(self) -> None:
        base = length = 0
        for one in self.saved:
            if isinstance(one, SavedBase):
                base = length = one.place
            elif isinstance(one, SavedCommand):
                length = one.place + 1
        if self.snapshot is not None and self.snapshot[0] <= self.applied:
            self.snapshot = self._disk.snapshot = None
        if self.snapshot is not None:
            if self.snapshot[0] > length:
                self.saved = [SavedBase(self.snapshot[0])]
                self.saved.append(SavedVote(self.snapshot[0], NO_BALLOT, NO_BALLOT, None))
                self.rewrite(self.saved)
        elif not base <= self.applied <= length:
            raise Violated(f"{self.applied} applied, but the log has {base} to {length}")

    @property
    def is_long(self) -> bool:
        return self.is_durable and len(self._disk.frames) > self._long

    @property
    def pending(self) -> list[tuple[int, Command]]:
        first = self.applied if self.snapshot is None else self.snapshot[0]
        found = {s.place: s.command for s in self.saved if isinstance(s, SavedCommand)}
        return [(place, command) for place, command in sorted(found.items()) if place >= first]

    def append(self, records: list[Saved]) -> None:
        self._disk.frames.append(encode_saved(records))

    def rewrite(self, records: list[Saved]) -> None:
        self._disk.frames = [encode_saved(records)]

    def carried_out(self, place: int) -> None:
        self.applied = place
        if self.is_durable:
            self._disk.applied = place

    def keep_snapshot(self, place: int, content: bytes) -> None:
        if self.is_durable:
            self._disk.snapshot = (place, content)

    def drop_snapshot(self) -> None:
        self._disk.snapshot = None

    def close(self) -> None:
        pass


class Staged(StagedBlobs):
    """Blobs on the disk of a node."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(None)
        self._memory = disk.blobs
        self._sizes = {digest: len(data) for digest, data in disk.blobs.items()}


class Node:
    """One node between two crashes."""

    def __init__(self, world: World, name: str, life: int) -> None:
        self.world, self.name, self.alive = world, name, True
        self.queue: list[Work] = []
        self.carrying = False
        disk = world.disks[name]
        file: Any = File(disk, world.durable, world.long)
        source: Any = self
        self.catalog = Catalog(self, disk, source)
        replica = Replica(name, world.voters, life, file.saved)
        self.driver = LogDriver(
            replica,
            file,
            self.catalog,
            source,
            partial(self.later, 1),
            partial(world.send, name),
            self,
            lambda: world.now_ns,
        )

    # what takes time; `LogThreads`

    def later(self, most_ms: int, work: Work) -> None:
        self.world.at(self.world.random.randrange(most_ms * MS), partial(self.run, work))

    def run(self, work: Work) -> None:
        if self.alive:
            work()

    def store(self, work: Work) -> None:
        self.later(8, work)

    def stage(self, work: Work) -> None:
        self.later(30, work)

    def carry(self, work: Work) -> None:
        self.queue.append(work)
        if len(self.queue) == 1:
            self.later(self.carry_ms, self.carry_next)

    @property
    def carry_ms(self) -> int:
        """How long a change of the catalogue takes; some take long."""
        return 3000 if self.world.random.random() < 0.05 else 10

    def carry_next(self) -> None:
        self.carrying = True
        try:
            self.queue[0]()
        except Again:
            self.later(100, self.carry_next)
            return
        finally:
            self.carrying = False
        self.queue.pop(0)
        if self.queue and self.alive:
            self.later(self.carry_ms, self.carry_next)

    def shutdown(self) -> None:
        pass

    # blobs of other nodes; `BlobSource`

    def announced(self, blobs: object, peer: object) -> None:
        pass

    def blob(self, digest: Digest) -> Bytes:
        for name, other in self.world.nodes.items():
            if not self.world.cut & {name, self.name} and other is not self:
                found = other.catalog.local_blob(digest)
                if found is not None and self.world.random.random() > self.world.loss:
                    return found
        raise NodeLost("cluster", "no node gives it")


class Catalog(ClusterCatalog):
    """Tells the world what it does."""

    def __init__(self, node: Node, disk: Disk, source: Any) -> None:
        super().__init__(disk.catalog, node.name, source, Staged(disk))
        self.node = node

    def carry_out(self, place: int, command: Command) -> None:
        self.node.world.chosen(place, command)
        try:
            super().carry_out(place, command)
        except NodeLost:
            raise Again from None
        self.perhaps_crash(1)  # before it is stored that it was carried out

    def perhaps_crash(self, times: int) -> None:
        if self.node.world.random.random() < times * self.node.world.crashes:
            self.node.world.crash(self.node.name)
            raise Again

    def take_over(self, snapshot: Any) -> None:
        missing = [d for d in snapshot.blobs if not self.own.has_blob(d) and d not in self.staged]
        if missing:
            raise Again
        self.perhaps_crash(20)
        super().take_over(snapshot)
        self.perhaps_crash(20)

    def stage(self, place: int, id_: str, blobs: Any) -> None:
        try:
            super().stage(place, id_, blobs)
        except NodeLost:
            if self.node.carrying:
                raise Again from None
            raise

    def _complete(self, id_: str, outcome: ChangeResult) -> None:
        if id_.startswith(f"{self.node.name}:") and not isinstance(outcome, DandelionError):
            self.node.world.acknowledged.add(id_)
        self._blobs.pop(id_, None)

    def hold(self, id_: str, data: bytes) -> None:
        self._blobs[id_] = {digest_of(data): data}
        self._waiting[id_] = Future()


class World:
    """Nodes, their disks, and the network between them."""

    def __init__(
        self, seed: int, size: int, guests: int = 1, durable: bool = True, long: int = 25
    ) -> None:
        self.random = random.Random(seed)
        self.voters = [f"n{i}" for i in range(size)]
        self.names = self.voters + [f"g{i}" for i in range(guests)]
        self.durable, self.long = durable, long
        self.loss, self.crashes = 0.1, 0.0
        self.now_ns = self.count = self.lives = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.disks = {name: Disk() for name in self.names}
        self.nodes: dict[str, Node] = {}
        self.cut: set[str] = set()
        self.places: dict[int, str] = {}
        self.ids: dict[str, int] = {}
        self.proposed: dict[str, Digest] = {}
        self.acknowledged: set[str] = set()
        for name in self.names:
            self.start(name)

    # --- events -----------------------------------------------------------------------------------

    def at(self, in_ns: int, work: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now_ns + in_ns, self.count, work))

    def run(self, for_ms: int) -> None:
        """Let time pass."""
        end_ns = self.now_ns + for_ms * MS
        while self.events and self.events[0][0] <= end_ns:
            self.now_ns, _, work = heapq.heappop(self.events)
            work()
            self.check()
        self.now_ns = end_ns

    def start(self, name: str) -> None:
        if not self.durable:
            self.disks[name] = Disk()
        self.lives += 1
        node = self.nodes[name] = Node(self, name, self.lives)
        self.at(self.random.randrange(50 * MS), partial(self.tick, node))
        for other in self.nodes.values():
            if other is not node:
                other.driver.linked(name, node)  # type: ignore[arg-type]  # a double

    def tick(self, node: Node) -> None:
        if not node.alive:
            return
        node.driver.tick()
        other = self.nodes.get(self.random.choice(self.names))
        if node.alive and other is not None and not {node.name, other.name} & self.cut:
            node.driver.heard_length(other.name, other.driver.length)
        self.at(50 * MS, partial(self.tick, node))

    def crash(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None:
            node.alive = False
            away_ms = 800 if self.random.random() < 0.7 else 6000
            self.at(self.random.randrange(1, away_ms) * MS, partial(self.start, name))

    def send(self, sender: str, receiver: str, content: bytes) -> None:
        dice = self.random
        copies = 0 if dice.random() < self.loss else 1 + (dice.random() < self.loss)
        receiving = self.nodes.get(receiver)
        for _ in range(copies):
            delay_ns = dice.randrange(1, 60 if dice.random() < 0.9 else 900) * MS
            self.at(delay_ns, partial(self.deliver, sender, receiver, receiving, content))

    def deliver(self, sender: str, receiver: str, node: Node | None, content: bytes) -> None:
        if node is not None and node.alive and not {sender, receiver} & self.cut:
            peer: Any = self.nodes.get(sender)
            node.driver.received(sender, content, peer)

    def propose(self, name: str) -> str | None:
        """Have a function registered by a node; return the id."""
        node = self.nodes.get(name)
        if node is None:
            return None
        id_ = f"{name}:{len(self.proposed)}"
        code = f"code {id_}".encode()
        digest = self.proposed[id_] = digest_of(code)
        spec = FunctionSpec(f"f{len(self.proposed) % 7}", code=(CodeObject("null", digest),))
        content = msgspec.msgpack.encode(Registration((spec,), (), ()))
        node.catalog.hold(id_, code)
        node.driver.propose(Command(id_, REGISTER, content, {digest: len(code)}, name))
        return id_

    # --- what holds -------------------------------------------------------------------------------

    def chosen(self, place: int, command: Command) -> None:
        if self.places.setdefault(place, command.id) != command.id:
            raise Violated(f"{self.places[place]} and {command.id} at place {place}")
        if self.ids.setdefault(command.id, place) != place:
            raise Violated(f"{command.id} at places {self.ids[command.id]} and {place}")

    def check(self) -> None:
        for node in self.nodes.values():
            tail = node.driver.replica.tail
            if tail.commands:
                self.chosen(tail.length - 1, tail.commands[-1])

    def heal(self) -> None:
        """End all faults, and let all nodes agree; then check what they have."""
        self.cut.clear()
        self.loss = self.crashes = 0.0
        self.run(7000)
        waiting = set(self.names)
        last: dict[str, str | None] = {}
        for turn in range(200):
            if turn % 30 == 0:  # one that was not acknowledged is repeated
                last.update({name: self.propose(name) for name in waiting})
            self.run(200)
            waiting -= {name for name in waiting if last[name] in self.acknowledged}
            if not waiting and self.agree():
                break
        else:
            raise Violated("a majority is there, and nothing goes on")
        self.check_end()

    def agree(self) -> bool:
        drivers = [node.driver for node in self.nodes.values()]
        states = {(d.length, d._carried) for d in drivers}
        return len(drivers) == len(self.names) and len(states) == 1 and drivers[0]._carried > 0

    def check_end(self) -> None:
        first = self.nodes[self.voters[0]].catalog.own.state()
        specs = {code.main for spec in first.functions for code in spec.code}
        for node in self.nodes.values():
            if sorted(node.catalog.own.state().functions, key=str) != sorted(
                first.functions, key=str
            ):
                raise Violated(f"{node.name} has other records than {self.voters[0]}")
            for id_ in self.acknowledged:
                if self.proposed[id_] not in specs:
                    raise Violated(f"{id_} was acknowledged and is lost")
                if not node.catalog.own.has_blob(self.proposed[id_]):
                    raise Violated(f"{node.name} lacks the code of {id_}, which was acknowledged")
