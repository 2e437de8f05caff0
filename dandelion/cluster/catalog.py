"""The catalogue of a node in a cluster: changes go through the log that all nodes have.

`register` and `remove_together` propose a command and wait until it is chosen and carried out here.
Every node carries out all commands in the order of the log, on a catalogue of its own, so all have
the same records with the same versions: a command that is refused is refused by all. `generation`
increases with each change as on a single node, so what is derived from the catalogue is made anew.

A voter has the blobs of a command before it accepts it (`StagedBlobs`), so with the command a
majority also has its code. Blobs that are missing all the same are fetched when they are first used
(`BlobSource`).

A chosen command that this node cannot read was proposed by a newer version. It can neither be
skipped, since versions of records would then differ between nodes, nor be tried again. So this node
carries out nothing from there on (`blocked`): it goes on with what it has, votes, and refuses
changes and what needs a current catalogue, until it is started with that version.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from dandelion.catalog import (
    Batch,
    Catalog,
    CatalogView,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    used_blobs,
)
from dandelion.cluster.ballots import NOTHING, Command
from dandelion.cluster.blob_source import BlobSource
from dandelion.cluster.rounds import GIVE_UP_NS
from dandelion.cluster.snapshots import Snapshot
from dandelion.cluster.staged_blobs import StagedBlobs
from dandelion.data import Bytes
from dandelion.errors import (
    CatalogUnavailable,
    DandelionError,
    InvalidInput,
    NodeLost,
    TooLarge,
    Unknown,
)
from dandelion.function import Digest, FunctionSpec

REGISTER, REMOVE = "register", "remove-together"
REMOVE_ONE = "remove"
"""Of older versions: kind, name and version. Logs may have it."""
CHANGE_LIMIT_BYTES = 32 << 20
"""Of the records of one registration; it is a message to other nodes and a record of the log."""
BLOBS_LIMIT_BYTES = 4 << 30
"""Of blobs of registrations that are not carried out yet."""
_MARGIN_S = 25.0
"""How much longer than the vote it may take to carry out a command."""


class Unreadable(Exception):
    """A command of the log that this version cannot carry out; `error` says so to callers."""

    def __init__(self, place: int, command: Command, reason: str) -> None:
        super().__init__(reason)
        self.error = CatalogUnavailable(
            "cluster",
            f"change {place} of the catalogue ('{command.kind[:80]}' by {command.origin[:255]}) "
            f"cannot be read by this version, so this node does not follow: {reason[:500]}",
            "install the newest version that a node of the cluster has, and start this node again",
        )


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """The content of a command `REGISTER`: a batch without its blobs."""

    functions: tuple[FunctionSpec, ...]
    compositions: tuple[CompositionRecord, ...]
    libraries: tuple[LibraryRecord, ...]


ChangeResult = list[Record] | DandelionError


class ClusterCatalog(Catalog):
    """The catalogue of one node.

    Args:
        own: where this node keeps records and blobs; it is closed with this.
        me: name of the node.
        source: blobs of other nodes.
        staged: blobs of commands that are not carried out yet.
        store: name of the log store; empty with voters.

    Attributes:
        propose: called from any thread with a command to be chosen; the cluster sets it.
        refuse_on_loop: raises if the calling thread must not wait; the cluster sets it.
        removed: called in a thread with records that were removed.
        blocked: why this node carries out no more commands.
        offered: parts of a snapshot, for other nodes.
    """

    def __init__(
        self,
        own: Catalog,
        me: str,
        source: BlobSource,
        staged: StagedBlobs | None = None,
        store: str = "",
    ) -> None:
        self.own = own
        self.propose: Callable[[Command], None] | None = None
        self.refuse_on_loop: Callable[[], None] = lambda: None
        self.removed: Callable[[list[Record]], None] = lambda records: None
        self._me = me
        self._source = source
        self._store = store
        self._prefix = os.urandom(6).hex()
        self._count = itertools.count(1)
        self._waiting: dict[str, Future[ChangeResult]] = {}
        self._blobs: dict[str, Mapping[Digest, Bytes]] = {}  # of registrations of this node
        self.staged = StagedBlobs(None) if staged is None else staged
        self.blocked: CatalogUnavailable | None = None
        self.offered: Mapping[Digest, Bytes] = {}
        self._lock = threading.Lock()

    @property
    def generation(self) -> int:  # type: ignore[override]  # it is that of the node's own
        return self.own.generation

    def changed_since(self, generation: int) -> Iterable[Slot] | None:
        return self.own.changed_since(generation)

    # --- changes ----------------------------------------------------------------------------------

    def _register(self, batch: Batch) -> list[Record]:
        records = Registration(
            tuple(batch.functions), tuple(batch.compositions), tuple(batch.libraries)
        )
        missing = [
            digest
            for digest in used_blobs(batch.records())
            if digest not in batch.blobs and not self.own.has_blob(digest)
        ]
        if missing:
            raise Unknown("blob", sorted(missing)[0])
        needed = used_blobs(batch.records())
        blobs = {d: batch.blobs[d] for d in needed if d in batch.blobs}
        sizes: dict[str, int] = {}
        for digest in needed:
            sizes[digest] = _size(blobs[digest]) if digest in blobs else self.blob_bytes(digest)
        return self._change(REGISTER, msgspec.msgpack.encode(records), sizes, blobs)

    def remove_together(self, removals: Sequence[Removal]) -> list[Record]:
        return self._change(REMOVE, msgspec.msgpack.encode(removals), {}, {})

    def _change(
        self, kind: str, content: bytes, sizes: dict[str, int], blobs: Mapping[Digest, Bytes]
    ) -> list[Record]:
        """Have a command chosen, and wait until it is carried out.

        Raises:
            CatalogUnavailable: it was not acknowledged by a majority, or not by the store.
            TooLarge: it exceeds `CHANGE_LIMIT_BYTES`.
            DandelionError: it was refused.
        """
        self.refuse_on_loop()
        self.check_current()
        if len(content) > CHANGE_LIMIT_BYTES:
            raise TooLarge("the records of a registration", len(content), CHANGE_LIMIT_BYTES)
        propose = self.propose
        if propose is None:
            raise CatalogUnavailable("cluster", "this node has not joined it", "start the node")
        id_ = f"{self._me} {self._prefix} {next(self._count)}"
        outcome: Future[ChangeResult] = Future()
        with self._lock:
            if _total(self._blobs) + sum(map(_size, blobs.values())) > BLOBS_LIMIT_BYTES:
                raise CatalogUnavailable("cluster", "too many registrations wait", "try again")
            self._waiting[id_] = outcome
            self._blobs[id_] = blobs
        try:
            propose(Command(id_, kind, content, sizes, self._me))
            found = outcome.result(GIVE_UP_NS / 1e9 + _MARGIN_S)
        except TimeoutError:
            found = unacknowledged("it took too long", self._store)
        finally:
            with self._lock:
                del self._waiting[id_]
                self._blobs.pop(id_, None)
        if isinstance(found, DandelionError):
            raise found
        return found

    def check_current(self) -> None:
        """Refuse what needs a catalogue that is not behind for ever.

        Raises:
            CatalogUnavailable: this node cannot carry out what was chosen.
        """
        if self.blocked is not None:
            raise self.blocked.with_traceback(None)

    def block(self, error: CatalogUnavailable) -> None:
        """Carry out nothing any more. From any thread."""
        self.blocked = error
        with self._lock:
            waiting = list(self._waiting)
        for id_ in waiting:
            self._complete(id_, error)

    def keeps_blobs(self, place: int, command: Command, is_current: bool) -> bool:
        """Keep the blobs of a command that are here, until one at its place is carried out.

        Args:
            place: of the command, the next one.
            command: that this node is to vote for.
            is_current: all commands before it are carried out. Else one of them may remove a blob
                that is in the catalogue now.

        Returns:
            Whether these are all that it needs; else `stage` is to be called.
        """
        digests = [Digest(digest) for digest in command.blobs]
        self.staged.use(place, command.id, digests)
        return all(d in self.staged or (is_current and self.own.has_blob(d)) for d in digests)

    def stage(self, place: int, id_: str, blobs: Iterable[str]) -> None:
        """Store blobs of a command before it is accepted here; in a thread.

        Raises:
            NodeLost: a blob cannot be had.
            OSError: it cannot be stored.
        """
        digests = [Digest(digest) for digest in blobs]
        self.staged.use(place, id_, digests)
        for digest in digests:
            if digest not in self.staged:
                self.staged.add(digest, self.blob(digest))

    def failed(self, id_: str, error: DandelionError) -> None:
        """A command of this node was not acknowledged. From any thread."""
        self._complete(id_, error)

    def _complete(self, id_: str, outcome: ChangeResult) -> None:
        with self._lock:
            waiting = self._waiting.get(id_)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    def carry_out(self, place: int, command: Command) -> None:
        """Carry out a command that was chosen; in a thread, one after the other.

        Raises:
            Unreadable: it is of a newer version.
            DandelionError: this node cannot, for another reason than that it is refused.
        """
        outcome: ChangeResult
        try:
            if command.kind == REGISTER:
                outcome = self._carry_out_registration(place, command)
            elif command.kind in (REMOVE, REMOVE_ONE):
                outcome = self.own.remove_together(_removals(place, command))
                self.removed(outcome)
            elif command.kind == NOTHING:
                outcome = []
            else:
                raise Unreadable(place, command, "unknown change")
        except DandelionError as error:
            if error.status >= 500:
                self._complete(command.id, error)
                raise
            outcome = error
        with self._lock:
            self._blobs.pop(command.id, None)
        self._complete(command.id, outcome)

    def take_over(self, snapshot: Snapshot) -> None:
        """Replace everything by the state of another node; its blobs are here or staged.

        Raises:
            DandelionError: this node cannot.
        """
        self.removed(self.own.restore(snapshot.state, self.staged))

    def _carry_out_registration(self, place: int, command: Command) -> list[Record]:
        records = _read(place, command, Registration)
        missing = [d for d in map(Digest, command.blobs) if not self.own.has_blob(d)]
        try:
            blobs = {digest: self.blob(digest) for digest in missing}
        except Unknown as error:  # others have carried it out, so it is not refused here
            raise NodeLost("cluster", f"no node has given code that is missing: {error}") from None
        batch = Batch(
            list(records.functions), list(records.compositions), list(records.libraries), blobs
        )
        return self.own.register(batch)

    # --- reading ----------------------------------------------------------------------------------

    def view(self) -> CatalogView:
        return self.own.view()

    def next_version(self, kind: type[Record], name: str) -> int:
        return self.own.next_version(kind, name)

    def has_blob(self, digest: Digest) -> bool:
        return self.own.has_blob(digest)

    def blob(self, digest: Digest) -> Bytes:
        if self.own.has_blob(digest):
            return self.own.blob(digest)
        held = self.held(digest)
        return self._source.blob(digest) if held is None else held

    def held(self, digest: Digest) -> Bytes | None:
        """Give a blob of a registration that is not carried out yet."""
        with self._lock:
            for some in (*self._blobs.values(), self.offered):
                if digest in some:
                    return some[digest]
        try:
            return self.staged[digest]
        except Unknown:
            return None

    def blob_bytes(self, digest: Digest) -> int:
        return self.own.blob_bytes(digest) or self._source.size(digest)

    def local_blob(self, digest: Digest) -> Bytes | None:
        """Give a blob that this node has, for another node. May read a file."""
        try:
            held = self.held(digest)  # first: what is carried out meanwhile is in the catalogue
            if held is not None:
                return held
            return self.own.blob(digest) if self.own.has_blob(digest) else None
        except DandelionError:  # it is damaged: another node may have it whole
            return None

    def close(self) -> None:
        self.own.close()


_T = TypeVar("_T")


def _read(place: int, command: Command, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(command.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(place, command, str(error)) from None


def _removals(place: int, command: Command) -> tuple[Removal, ...]:
    if command.kind == REMOVE:
        return _read(place, command, tuple[Removal, ...])
    kind, name, version = _read(place, command, tuple[str, str, int | None])
    try:
        return (Removal(kind, name, version),)
    except ValueError as error:
        raise Unreadable(place, command, str(error)) from None


def unacknowledged(reason: str, store: str = "") -> CatalogUnavailable:
    """Return the error of a change that is not known to be in the log.

    Args:
        reason: why not.
        store: name of the log store; empty if the log is that of voters.
    """
    again = "the change may still take effect; repeat it when {}, which has no effect twice"
    if store:
        message = f"the change is not known to be stored: {reason}"
        return CatalogUnavailable(store, message, again.format("the store can be used"))
    message = f"a majority of the nodes has not acknowledged the change: {reason}"
    return CatalogUnavailable("cluster", message, again.format("the nodes are up"))


def refused_on_loop() -> InvalidInput:
    """Return the error of a change on the node's own loop, which would wait for itself."""
    return InvalidInput(
        "catalogue",
        "in a cluster, changes wait for other nodes, which the node's loop must not",
        "use asyncio.to_thread",
    )


def _size(data: Bytes) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)


def _total(held: Mapping[str, Mapping[Digest, Bytes]]) -> int:
    return sum([_size(data) for some in held.values() for data in some.values()])
