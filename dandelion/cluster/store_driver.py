"""Drives a log of the catalogue that lies in a log store; `LogDriver` does it for voters.

One thread does all: it reads the head now and then, carries out new commands, and adds those of
this node. A command of this node is chosen when a head that names it is stored; its blobs and
itself are stored before. If the store does not answer, it is not known whether the head was
replaced. The proposal fails then, and may take effect nevertheless, as with voters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from dandelion.cluster import log_tail
from dandelion.cluster.ballots import Command
from dandelion.cluster.blob_source import BlobPeer, BlobSource
from dandelion.cluster.catalog import ClusterCatalog, Unreadable, unacknowledged
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.log_store import LogStore, Outdated
from dandelion.cluster.rounds import GIVE_UP_NS, PROPOSALS_LIMIT
from dandelion.cluster.snapshots import encode_snapshot
from dandelion.cluster.stored_log import Empty, Head, Missing, StoredLog
from dandelion.cluster.stored_place import StoredPlace
from dandelion.cluster.timed_store import TimedStore
from dandelion.errors import CatalogCorrupt, CatalogUnavailable, Conflict, DandelionError
from dandelion.executors import to_dandelion_error
from dandelion.function import Digest

POLL_S = 0.5
"""How often the head is read, if no other node says that there is more."""
CLOSE_S = 10.0

log = logging.getLogger("dandelion.cluster")


class StoreDriver:
    """One node's part of a log in a store. From any thread.

    Args:
        store: where it is.
        place: what this node's catalogue has of it.
        catalog: carries out commands.
        source: gets blobs; it is told to look into the store.
    """

    def __init__(
        self,
        store: LogStore,
        place: StoredPlace,
        catalog: ClusterCatalog,
        source: BlobSource,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._store = TimedStore(store, clock)
        self._log = StoredLog(self._store)
        self._place = place
        self._catalog = catalog
        self._source = source
        self._clock = clock
        self._proposals: deque[tuple[Command, int]] = deque()
        self._attempted: set[str] = set()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._heard = 0
        reason = "it has not been reached yet"
        self._problem: DandelionError | None = CatalogUnavailable(store.name, reason, "try again")
        source.stored = self._log.blob
        self._thread = threading.Thread(target=self._run, name="dandelion-store", daemon=True)
        self._thread.start()

    @property
    def length(self) -> int:
        """How many commands this node's catalogue has."""
        return self._place.now.place

    carried = length
    """The same: a command is known when it is carried out."""

    @property
    def problem(self) -> DandelionError | None:
        """Why the store cannot be used now; None if it can."""
        return self._problem or self._store.problem()

    def check(self) -> None:
        """Refuse to promise anything while the store cannot be used.

        Raises:
            DandelionError: why not.
        """
        problem = self.problem
        if problem is not None:
            raise problem.with_traceback(None)

    def close(self) -> None:
        """Wait for what is under way."""
        self._closing.set()
        self._wake.set()
        self._source.close()
        self._store.close()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("%s does not answer; its thread is left", self._store.name)

    def propose(self, command: Command) -> None:
        """Have a command chosen."""
        with self._lock:
            full = len(self._proposals) >= PROPOSALS_LIMIT
            if not full:
                self._proposals.append((command, self._clock() + GIVE_UP_NS))
        if full:
            self._catalog.failed(command.id, self._unacknowledged("too many changes wait"))
        self._wake.set()

    def heard_length(self, name: str, length: int) -> None:
        """Another node has so many commands."""
        if length > max(self.length, self._heard):
            self._heard = length  # once; else it is read as often as usual
            self._wake.set()

    def tick(self) -> None:
        """Time has passed; the thread has its own clock."""

    def linked(self, name: str, peer: BlobPeer) -> None:
        """There is a new link to another node; everything comes from the store."""

    def received(self, name: str, content: bytes, peer: BlobPeer | None) -> None:
        """A message came, which only voters send.

        Raises:
            BadPeer: always.
        """
        raise BadPeer("it votes about changes, which lie in a store")

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            try:
                self._round()
                self._report(None)
            except Unreadable as unreadable:
                log.critical("%s", unreadable.error)
                self._catalog.block(unreadable.error)
                self._report(unreadable.error)
                return
            except (CatalogUnavailable, CatalogCorrupt, Conflict) as error:
                self._report(error)
            except Exception as error:
                self._report(to_dandelion_error(error, "the log of the catalogue"))
            self._wake.wait(POLL_S)

    def _report(self, problem: DandelionError | None) -> None:
        """Remember why nothing goes on, and let proposals fail with that."""
        if problem is not None and str(problem) != str(self._problem):
            log.error("the catalogue cannot follow its log: %s", problem)
        self._problem = problem
        if problem is None:
            return
        with self._lock:
            waiting = [command for command, _ in self._proposals]
            self._proposals.clear()
        for command in waiting:
            self._fail(command.id, problem)

    def _fail(self, id_: str, problem: DandelionError) -> None:
        if id_ in self._attempted:
            self._attempted.discard(id_)
            problem = self._unacknowledged(str(problem).removeprefix(f"{self._store.name}: "))
        self._catalog.failed(id_, problem)

    def _unacknowledged(self, reason: str) -> CatalogUnavailable:
        return unacknowledged(reason, self._store.name)

    def _round(self) -> None:
        """Follow the log, then add what this node has to add."""
        head = self._read()
        self._follow(head)
        while not self._closing.is_set() and (commands := self._current_proposals()):
            try:
                self._add(head, commands)
            except Outdated:
                self._read()
            known, head = head.length, self._log.head or self._read()
            self._sort_out(head, known)
            self._follow(head)

    def _read(self) -> Head:
        """Read the head; write the first one of a new cluster if nothing is known of any.

        Raises:
            DandelionError: this node must not use this log; see `StoredPlace`.
        """
        try:
            head = self._log.read()
        except Empty:
            self._place.check_empty(self._store.name)
            head = self._log.begin()
        self._place.check(self._store.name, head)
        return head

    def _sort_out(self, head: Head, known: int) -> None:
        """Find out which proposals were chosen; before, the log was known up to a place."""
        named = {id_ for id_, _ in head.commands}
        self._dropped(named)
        if head.base > known:  # a proposal may be among commands that are not named any more
            for command in self._dropped(set(self._attempted)):
                self._fail(command.id, self._unacknowledged("this node was too far behind"))
        self._attempted -= named

    def _dropped(self, ids: set[str]) -> list[Command]:
        """Take proposals off the queue."""
        with self._lock:
            gone = [command for command, _ in self._proposals if command.id in ids]
            self._proposals = deque(one for one in self._proposals if one[0].id not in ids)
        return gone

    def _current_proposals(self) -> list[Command]:
        """Return what is to be added. What has waited for too long fails; its blobs may be gone."""
        now_ns = self._clock()
        with self._lock:
            late = {command.id for command, until_ns in self._proposals if until_ns <= now_ns}
        for command in self._dropped(late):
            self._fail(command.id, self._unacknowledged("it was not added in time"))
        with self._lock:
            return [command for command, _ in self._proposals]

    def _add(self, head: Head, commands: list[Command]) -> None:
        """Store proposals and a head that names them. One whose blobs cannot be read fails.

        Raises:
            Outdated: another node was faster.
        """
        added = []
        for command in commands:
            for digest in map(Digest, command.blobs):
                try:
                    blob = self._catalog.blob(digest)
                except DandelionError as error:
                    self._dropped({command.id})
                    self._fail(command.id, error)
                    break
                self._log.put_blob(digest, blob)
            else:
                added.append((command.id, self._log.put_command(command)))
        if not added:
            return
        self._attempted.update(id_ for id_, _ in added)
        new = msgspec.structs.replace(head, commands=(*head.commands, *added))
        self._log.replace(new)
        self._dropped({id_ for id_, _ in added})
        if len(new.commands) > 2 * log_tail.KEPT:
            self._follow(new)
            self._compact(new)

    def _follow(self, head: Head) -> None:
        """Carry out what this node lacks.

        Raises:
            Unreadable: this version cannot carry it out.
            DandelionError: this node cannot now.
        """
        place = self._place.now.place
        try:
            if head.base and place <= head.base:  # the head does not name the last one done
                self._take_over(head)
                place = self._place.now.place
            for _, digest in head.commands[place - head.base :]:
                self._carry_out(head, self._log.command(digest))
        except Missing as missing:
            if self._read() == head:
                raise CatalogCorrupt(self._store.name, f"{missing} is missing") from None
            self._wake.set()

    def _take_over(self, head: Head) -> None:
        snapshot = self._log.snapshot(head.snapshot)
        missing = [d for d in snapshot.blobs if not self._catalog.own.has_blob(d)]
        self._catalog.stage(head.snapshot_place, "snapshot", missing)
        self._catalog.take_over(snapshot)
        self._place.move(head, head.snapshot_place)
        self._catalog.staged.carried_out(head.snapshot_place + 1)

    def _carry_out(self, head: Head, command: Command) -> None:
        place = self._place.now.place
        self._catalog.carry_out(place, command)
        self._place.move(head, place + 1)

    def _compact(self, head: Head) -> None:
        """Replace all but the last commands by a snapshot; this node has carried out all."""
        if self._place.now.place != head.length:
            return
        parts = self._log.put_snapshot(encode_snapshot(self._catalog.own))
        kept = head.commands[-log_tail.KEPT :]
        base = head.length - len(kept)
        new = msgspec.structs.replace(
            head, base=base, commands=kept, snapshot_place=head.length, snapshot=parts
        )
        self._log.replace(new)
        self._log.delete_unnamed(head, new)
