"""Drives the log of the catalogue: stores votes, sends messages, carries out commands.

`Replica` decides; this does what takes time, in the right order. Blobs of a command are stored
before the vote for it, and votes in one thread before the messages that follow from them leave.
Commands are carried out in another thread, one after the other; one that fails for a reason of this
node alone, such as a full disk, is tried again until it succeeds, since the next ones build on it.

When much of the log is carried out, what is stored of it is written anew without that. A node that
lacks commands then gets a snapshot, which is made by the thread that carries out, and is fetched in
parts like blobs. The node that gets it stores it, then goes on at its place of the log, then
replaces its catalogue, in this order: after a kill between any two of these it goes on with what
is stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from dandelion.cluster.ballots import (
    Accept,
    BallotMessage,
    Chosen,
    Command,
    SnapshotAt,
    decode_ballot,
    encode_ballot,
)
from dandelion.cluster.blob_source import BlobPeer, BlobSource
from dandelion.cluster.catalog import ClusterCatalog, Unreadable, unacknowledged
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.log_file import LogFile
from dandelion.cluster.log_threads import LogThreads, Workers
from dandelion.cluster.replication import Replica
from dandelion.cluster.rounds import NOTHING_NEW, Changes
from dandelion.cluster.snapshot_transfer import AGAIN_S, SnapshotTransfer
from dandelion.errors import DandelionError
from dandelion.executors import to_dandelion_error
from dandelion.function import Digest

log = logging.getLogger("dandelion.cluster")


class LogDriver:
    """One node's part of the log. On the node's loop, unless said otherwise.

    Args:
        replica: decides.
        file: stores.
        catalog: carries out commands.
        source: fetches blobs.
        post: has something done on the loop; from any thread.
        send: sends an encoded message to another node, if there is a link.
        threads: what takes time.
        clock: gives nanoseconds.
    """

    def __init__(
        self,
        replica: Replica,
        file: LogFile,
        catalog: ClusterCatalog,
        source: BlobSource,
        post: Callable[[Callable[[], None]], None],
        send: Callable[[str, bytes], None],
        threads: Workers | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.replica = replica
        self._file = file
        self._catalog = catalog
        self._source = source
        self._post = post
        self._send = send
        self._clock = clock
        self._changes: deque[Changes] = deque()
        self._storing = self._stepping = False
        self._threads = LogThreads() if threads is None else threads
        self._closing = threading.Event()
        self._carried = file.applied  # written by one thread, read by all
        self._pending: dict[str, Command] = {}  # chosen, and not carried out here
        self._snapshots = SnapshotTransfer(
            file, catalog, source, self._threads, post, self._closing
        )
        self._snapshots.send = self._send_snapshot
        self._snapshots.adopt = self._adopt
        self._snapshots.carried = lambda: self._carried
        self._snapshots.restored = self._restored
        self._next = replica.length
        self._resume()

    def _resume(self) -> None:
        """Carry out what was stored and not carried out."""
        staged = self._catalog.staged
        accepted = self.replica.accepted
        if accepted is not None:
            staged.use(self.replica.length, accepted.id, map(Digest, accepted.blobs))
        if self._file.snapshot is not None:
            place, content = self._file.snapshot
            self._snapshots.resume(place, content)
        for place, command in self._file.pending:
            staged.use(place, command.id, map(Digest, command.blobs))
            self._submit(place, command)
        staged.sweep()

    @property
    def length(self) -> int:
        """Number of the commands that were chosen and that this node knows."""
        return self.replica.length

    @property
    def carried(self) -> int:
        """Number of the commands that this node's catalogue has carried out."""
        return self._carried

    def close(self) -> None:
        """Wait for what is being stored and carried out. Not on the loop."""
        self._closing.set()
        self._source.close()
        self._threads.shutdown()
        self._file.close()

    def propose(self, command: Command) -> None:
        """Have a command chosen."""
        if not self.replica.propose(command, self._clock()):
            self._catalog.failed(command.id, unacknowledged("too many changes wait"))
        self._step()

    def tick(self) -> None:
        """Time has passed."""
        now_ns = self._clock()
        self.replica.tick(now_ns)
        self._snapshots.tick(now_ns)
        if self._file.is_long or self.replica.tail.is_long:
            self._compact()
        self._step()

    def _compact(self) -> None:
        """Keep less of the log, if the catalogue has carried out enough of it."""
        carried, base = self._carried, self.replica.tail.base
        if not self._storing and not self._changes and (carried > base or self._file.is_long):
            self.replica.compact(carried)

    def heard_length(self, name: str, length: int) -> None:
        """Another node has so many commands."""
        self.replica.heard_length(name, length)
        self._step()

    def linked(self, name: str, peer: BlobPeer) -> None:
        """There is a new link to another node, which may have been started again.

        It may have blobs that commands wait for here.
        """
        self.replica.restarted(name)
        for command in list(self._pending.values()):
            self._announced(command, peer)
        self._snapshots.linked(peer)

    def _announced(self, command: Command, peer: BlobPeer) -> None:
        self._source.announced({Digest(d): size for d, size in command.blobs.items()}, peer)

    def received(self, name: str, content: bytes, peer: BlobPeer | None) -> None:
        """A message came.

        Args:
            name: of the sender.
            content: the message.
            peer: where its blobs can be fetched.

        Raises:
            BadPeer: it cannot be read.
        """
        try:
            message = decode_ballot(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadPeer(f"a message of the log cannot be read: {error}") from None
        commands = (
            message.commands
            if isinstance(message, Chosen)
            else (message.command,)
            if isinstance(message, Accept)
            else ()
        )
        if peer is not None:
            for command in commands:
                self._announced(command, peer)
            if isinstance(message, SnapshotAt):
                self._snapshots.announced(message, peer)
        self._take(name, message)

    def _take(self, name: str, message: BallotMessage) -> None:
        if self._is_staged(name, message):
            self.replica.received(name, message, self._clock())
            self._step()

    def _take_own(self, message: BallotMessage) -> None:
        if self._is_staged(self.replica.me, message):
            self.replica.received(self.replica.me, message, self._clock())
            self._changes.append(self.replica.take())

    def _is_staged(self, name: str, message: BallotMessage) -> bool:
        """Tell whether a message can be taken now; else it is when blobs are stored here."""
        if not isinstance(message, Accept) or not message.command.blobs:
            return True
        place, command = message.place, message.command
        if place != self.replica.length or self._catalog.keeps_blobs(
            place, command, self._carried == place
        ):
            return True
        self._threads.stage(partial(self._stage, name, message))
        return False

    def _stage(self, name: str, message: Accept) -> None:
        """Store the blobs of a command, then vote; without them there is no vote. In a thread."""
        try:
            accepted = self.replica.accepted
            keep = [message.command.id, "" if accepted is None else accepted.id]
            self._catalog.staged.make_room(message.place, keep)
            self._catalog.stage(message.place, message.command.id, message.command.blobs)
        except (DandelionError, OSError) as error:
            if not self._closing.is_set():
                log.warning("blobs of a registration cannot be had: %s", error)
            return
        self._post(partial(self._take, name, message))

    def _step(self) -> None:
        changes = self.replica.take()
        if changes != NOTHING_NEW:  # while votes cannot be stored, time passes all the same
            self._changes.append(changes)
        if self._stepping:
            return
        self._stepping = True
        try:
            self._go_on()
        finally:
            self._stepping = False

    def _go_on(self) -> None:
        while self._changes and not self._storing:
            changes = self._changes.popleft()
            if changes.saved and self._file.is_durable:
                self._storing = True
                self._threads.store(partial(self._save, changes))
            else:
                self._follow(changes)

    def _save(self, changes: Changes) -> None:
        """Store votes; in a thread."""
        while not self._closing.is_set():
            try:
                (self._file.rewrite if changes.anew else self._file.append)(changes.saved)
            except OSError as error:
                log.error("votes cannot be stored: %s", error)
                self._closing.wait(AGAIN_S)
                continue
            self._post(partial(self._saved, changes))
            return

    def _saved(self, changes: Changes) -> None:
        self._storing = False
        self._follow(changes)
        self._step()

    def _follow(self, changes: Changes) -> None:
        """Do what follows from votes that are stored."""
        if changes.adopted is not None:
            self._next = changes.adopted
            self._snapshots.adopted(changes.adopted)
        for command in changes.chosen:
            self._submit(self._next, command)
            self._next += 1
        for id_ in changes.failed:
            self._catalog.failed(id_, unacknowledged("no majority answered in time"))
        for name in changes.behind:
            self._snapshots.wanted(name, self.replica.tail.base)
        if changes.offered is not None:
            self._snapshots.fetch(changes.offered)
        for name, message in changes.sent:
            if name == self.replica.me:
                self._take_own(message)
            else:
                self._send(name, encode_ballot(message))

    def _submit(self, place: int, command: Command) -> None:
        if not self._closing.is_set():
            self._pending[command.id] = command
            self._threads.carry(partial(self._carry_out, place, command))

    def _carry_out(self, place: int, command: Command) -> None:
        """Carry out a command; in a thread."""
        while not self._closing.is_set() and self._catalog.blocked is None:
            try:
                self._catalog.carry_out(place, command)
                self._file.carried_out(place + 1)
            except Unreadable as unreadable:
                log.critical("%s", unreadable.error)
                self._catalog.block(unreadable.error)
                return
            except Exception as error:
                failure = to_dandelion_error(error, "the catalogue")
                log.error("a change of the catalogue is tried again: %s", failure)
                self._closing.wait(AGAIN_S)
                continue
            self._pending.pop(command.id, None)
            self._catalog.staged.carried_out(place + 1)
            self._carried = place + 1
            return

    def _adopt(self, place: int) -> None:
        """Go on behind a snapshot, if it is still ahead."""
        if place > self.replica.length:
            self.replica.restored(place)
            self._step()
        else:
            self._snapshots.unneeded()

    def _restored(self, place: int) -> None:
        """A snapshot is taken over; in the thread that carries out."""
        self._carried = place

    def _send_snapshot(self, name: str, message: SnapshotAt) -> None:
        self._send(name, encode_ballot(message))
