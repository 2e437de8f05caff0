"""Drives the log of the catalogue: stores votes, sends messages, carries out commands.

`Replica` decides; this does what takes time, in the right order. Votes are stored in one thread
before the messages that follow from them leave. Commands are carried out in another thread, one
after the other; one that fails for a reason of this node alone, such as a full disk, is tried again
until it succeeds, since the next ones build on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from dandelion.cluster.ballots import (
    Accept,
    BallotMessage,
    Chosen,
    Command,
    decode_ballot,
    encode_ballot,
)
from dandelion.cluster.blob_source import BlobPeer, BlobSource
from dandelion.cluster.catalog import ClusterCatalog, unacknowledged
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.log_file import LogFile
from dandelion.cluster.replication import Changes, Replica
from dandelion.errors import DandelionError
from dandelion.executors import to_dandelion_error
from dandelion.function import Digest

AGAIN_S = 0.5

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
    """

    def __init__(
        self,
        replica: Replica,
        file: LogFile,
        catalog: ClusterCatalog,
        source: BlobSource,
        post: Callable[[Callable[[], None]], None],
        send: Callable[[str, bytes], None],
    ) -> None:
        self.replica = replica
        self._file = file
        self._catalog = catalog
        self._source = source
        self._post = post
        self._send = send
        self._changes: deque[Changes] = deque()
        self._storing = self._stepping = False
        self._store = ThreadPoolExecutor(1, "dandelion-log")
        self._carry = ThreadPoolExecutor(1, "dandelion-catalogue")
        self._stage = ThreadPoolExecutor(2, "dandelion-blobs")
        self._closing = threading.Event()
        self._carried = file.applied
        self._pending: dict[str, Command] = {}  # chosen, and not carried out here
        for command in file.commands[file.applied :]:
            self._submit(command)

    def close(self) -> None:
        """Wait for what is being stored and carried out. Not on the loop."""
        self._closing.set()
        for pool in (self._stage, self._store, self._carry):
            pool.shutdown(cancel_futures=True)
        self._file.close()

    def propose(self, command: Command) -> None:
        """Have a command chosen."""
        if not self.replica.propose(command, time.monotonic_ns()):
            self._catalog.failed(command.id, unacknowledged("too many changes wait"))
        self._step()

    def tick(self) -> None:
        """Time has passed."""
        self.replica.tick(time.monotonic_ns())
        self._step()

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
        if isinstance(message, Accept) and any(
            self._catalog.lacks(Digest(digest)) for digest in message.command.blobs
        ):
            self._stage.submit(self._staged, name, message)
        else:
            self._take(name, message)

    def _staged(self, name: str, message: Accept) -> None:
        """Fetch the blobs of a command, then vote; without them there is no vote. In a thread."""
        try:
            self._catalog.stage(message.command)
        except DandelionError as error:
            if not self._closing.is_set():
                log.warning("blobs of a registration cannot be had: %s", error)
            return
        self._post(partial(self._take, name, message))

    def _take(self, name: str, message: BallotMessage) -> None:
        self.replica.received(name, message, time.monotonic_ns())
        self._step()

    def _step(self) -> None:
        self._changes.append(self.replica.take())
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
                self._store.submit(self._save, changes)
            else:
                self._follow(changes)

    def _save(self, changes: Changes) -> None:
        """Store votes; in a thread."""
        while not self._closing.is_set():
            try:
                self._file.append(changes.saved)
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
        for command in changes.chosen:
            self._submit(command)
        for id_ in changes.failed:
            self._catalog.failed(id_, unacknowledged("no majority answered in time"))
        for name, message in changes.sent:
            if name == self.replica.me:
                self.replica.received(name, message, time.monotonic_ns())
                self._changes.append(self.replica.take())
            else:
                self._send(name, encode_ballot(message))

    def _submit(self, command: Command) -> None:
        if not self._closing.is_set():
            self._pending[command.id] = command
            self._carry.submit(self._carry_out, command)

    def _carry_out(self, command: Command) -> None:
        """Carry out a command; in a thread."""
        while not self._closing.is_set():
            try:
                self._catalog.carry_out(command)
            except Exception as error:
                failure = to_dandelion_error(error, "the catalogue")
                log.error("a change of the catalogue is tried again: %s", failure)
                self._closing.wait(AGAIN_S)
                continue
            self._pending.pop(command.id, None)
            self._carried += 1
            self._file.carried_out(self._carried)
            return
