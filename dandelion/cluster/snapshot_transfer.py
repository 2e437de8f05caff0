"""Snapshots of the catalogue: made for nodes that are far behind, and taken over from others.

Taking one over: its parts are fetched, then the blobs that it names; it is stored
(`LogFile.keep_snapshot`); the replica goes on behind it, and that is stored; the catalogue is
replaced; `cluster.applied` says so; the stored snapshot is dropped. A node that is killed takes it
over after its start, as often as needed: replacing the catalogue twice has no further effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event

from dandelion.cluster.ballots import SnapshotAt
from dandelion.cluster.blob_source import BlobPeer, BlobSource
from dandelion.cluster.catalog import ClusterCatalog
from dandelion.cluster.log_file import LogFile
from dandelion.cluster.log_threads import Workers
from dandelion.cluster.snapshots import Snapshot, decode_snapshot, encode_snapshot, parts_of
from dandelion.errors import CatalogCorrupt, DandelionError
from dandelion.executors import to_dandelion_error
from dandelion.function import Digest

AGAIN_S = 0.5
KEEP_NS = 60_000_000_000
"""How long a snapshot is kept in memory after another node has asked for one."""
_ID = "snapshot"

log = logging.getLogger("dandelion.cluster")


class SnapshotTransfer:
    """Snapshots of one node. On the node's loop, unless said otherwise.

    Args:
        file, catalog, source, workers: of the node's log.
        post: has something done on the loop; from any thread.
        closing: is set when the node ends.

    Attributes:
        send: sends a message to another node.
        adopt: has the replica go on at a place; it calls `adopted` when that is stored.
        carried: gives the number of commands that the catalogue has; in the carrying thread.
        restored: told that number after a snapshot was taken over; in the carrying thread.
    """

    send: Callable[[str, SnapshotAt], None]
    adopt: Callable[[int], None]
    carried: Callable[[], int]
    restored: Callable[[int], None]

    def __init__(
        self,
        file: LogFile,
        catalog: ClusterCatalog,
        source: BlobSource,
        workers: Workers,
        post: Callable[[Callable[[], None]], None],
        closing: Event,
    ) -> None:
        self._file = file
        self._catalog = catalog
        self._source = source
        self._workers = workers
        self._post = post
        self._closing = closing
        self._wanted: set[str] = set()
        self._making = False
        self._made: SnapshotAt | None = None
        self._made_ns = 0
        self._peer: BlobPeer | None = None
        self._taken: Snapshot | None = None  # from when it is stored until it is taken over
        self._fetching = False

    # --- for others -------------------------------------------------------------------------------

    def wanted(self, name: str, base: int) -> None:
        """Another node needs one, to go on at the base of this node's log or later."""
        if self._made is not None and self._made.place >= base:
            self.send(name, self._made)
            return
        self._wanted.add(name)
        if not self._making:
            self._making = True
            self._workers.carry(self._make)

    def _make(self) -> None:
        """Write the catalogue; in the thread that changes it."""
        try:
            parts = parts_of(encode_snapshot(self._catalog.own))
        except DandelionError as error:
            log.error("no snapshot of the catalogue can be made: %s", error)
            self._post(self._not_made)
            return
        sizes = tuple((str(digest), len(part)) for digest, part in parts.items())
        self._post(partial(self._offer, SnapshotAt(self.carried(), sizes), parts))

    def _not_made(self) -> None:
        self._making = False
        self._wanted.clear()

    def _offer(self, made: SnapshotAt, parts: Mapping[Digest, bytes]) -> None:
        self._making = False
        self._made, self._catalog.offered = made, parts
        self._made_ns = 0
        names, self._wanted = self._wanted, set()
        for name in sorted(names):
            self.send(name, made)

    def tick(self, now_ns: int) -> None:
        """Keep none that is not asked for any more."""
        if self._made is None:
            return
        self._made_ns = self._made_ns or now_ns
        if now_ns - self._made_ns > KEEP_NS:
            self._made, self._catalog.offered = None, {}

    # --- of others --------------------------------------------------------------------------------

    def announced(self, message: SnapshotAt, peer: BlobPeer) -> None:
        """Another node has one."""
        if not self._fetching:
            self._peer = peer
        self._source.announced({Digest(digest): size for digest, size in message.parts}, peer)

    def linked(self, peer: BlobPeer) -> None:
        """There is another node that may have blobs of the one that is being taken over."""
        if self._taken is not None:
            self._source.announced(self._taken.blobs, peer)

    def fetch(self, message: SnapshotAt) -> None:
        """Get one that the replica needs."""
        if not self._fetching:
            self._fetching = True
            self._workers.stage(partial(self._fetch, message))

    def _fetch(self, message: SnapshotAt) -> None:
        """Fetch the parts; in a thread."""
        try:
            parts = [bytes(self._source.blob(Digest(digest))) for digest, _ in message.parts]
            content = b"".join(parts)
            snapshot = decode_snapshot(content)
        except DandelionError as error:
            self._give_up(error)
            return
        self._post(partial(self._fetched, message.place, content, snapshot))

    def _give_up(self, error: Exception) -> None:
        if not self._closing.is_set():
            log.warning("a snapshot of the catalogue cannot be had: %s", error)
            self._post(self._ended)

    def _ended(self) -> None:
        self._fetching = False
        self._taken = None

    def _fetched(self, place: int, content: bytes, snapshot: Snapshot) -> None:
        if self._peer is not None:
            self._source.announced(snapshot.blobs, self._peer)
        self._workers.stage(partial(self._keep, place, content, snapshot))

    def _keep(self, place: int, content: bytes, snapshot: Snapshot) -> None:
        """Store it with its blobs; in a thread."""
        try:
            self._stage(place, snapshot)
            self._file.keep_snapshot(place, content)
        except (DandelionError, OSError) as error:
            self._give_up(error)
            return
        self._post(partial(self._kept, place, snapshot))

    def _stage(self, place: int, snapshot: Snapshot) -> None:
        missing = [str(d) for d in snapshot.blobs if not self._catalog.own.has_blob(d)]
        self._catalog.stage(place - 1, _ID, missing)

    def _kept(self, place: int, snapshot: Snapshot) -> None:
        self._taken = snapshot
        self.adopt(place)

    def adopted(self, place: int) -> None:
        """It is stored that the replica goes on at this place."""
        if self._taken is not None:
            self._workers.carry(partial(self._take_over, place, self._taken))

    def unneeded(self) -> None:
        """The replica has learned the commands meanwhile."""
        self._workers.stage(self._drop)

    def _drop(self) -> None:
        self._file.drop_snapshot()
        self._post(self._ended)

    def resume(self, place: int, content: bytes) -> None:
        """Go on with the one that was stored before the start.

        Raises:
            CatalogCorrupt: it cannot be read.
        """
        try:
            snapshot = decode_snapshot(content)
        except DandelionError as error:
            raise CatalogCorrupt("cluster.snapshot", str(error)) from None
        self._taken, self._fetching = snapshot, True
        self._catalog.staged.use(place - 1, _ID, snapshot.blobs)
        self._workers.carry(partial(self._take_over, place, snapshot))

    def _take_over(self, place: int, snapshot: Snapshot) -> None:
        """Replace the catalogue; in the thread that changes it."""
        while not self._closing.is_set():
            try:
                self._stage(place, snapshot)  # what was removed meanwhile
                self._catalog.take_over(snapshot)
                self._file.carried_out(place)
                self._file.drop_snapshot()
            except Exception as error:
                failure = to_dandelion_error(error, "the catalogue")
                log.error("a snapshot of the catalogue is taken over again: %s", failure)
                self._closing.wait(AGAIN_S)
                continue
            self._catalog.staged.carried_out(place)
            self.restored(place)
            self._post(self._ended)
            return
