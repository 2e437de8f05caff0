"""Writing asynchronous invocations: to this node's store, and to the voters.

An entry is done when this node and more than half of the voters have it; `kept_followers` sends it.
See `kept_copies` for what a journal is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from dandelion.asynchronous.failures import CopiesFull
from dandelion.asynchronous.records import Ballot, KeptMark, KeptRecord
from dandelion.asynchronous.store import Drop, KeptStore, Part, Put, StoreStep
from dandelion.cluster.kept_copies import (
    DROPPED_LIMIT,
    Before,
    KeptCopies,
    data_part,
    first_ballot,
    mark_of,
)
from dandelion.cluster.kept_followers import Entry, Followers
from dandelion.cluster.kept_messages import CopyStep
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, DandelionError
from dandelion.executors import to_dandelion_error

JOURNAL_RECORDS = 4000
"""After so many invocations a node begins another journal: all that one has fits into a message."""

EMPTY_LIMIT = DROPPED_LIMIT // JOURNAL_RECORDS + 1
"""Empty journals beyond these are used again, first the one that has been empty for longest: while
a voter is away, no journal can be forgotten. Until then so much was dropped of others that no node
remembers what was dropped of this one, so what a node has of it still fits into a message."""

LOST_LIMIT = 10_000
"""So many ids of invocations that other nodes have taken are remembered: steps of them may wait."""

log = logging.getLogger("dandelion.cluster")


class KeptJournals:
    """The journals that a node holds. For the loop's thread.

    Args:
        token: ``NODE#LIFE`` of this node.
        voters: names of all voters.
        copies: what this node has.
        inner: the node's own store; only this writes to it.
        fenced: called with the ids of invocations that another node has taken over.
        spawn: has something done in the background.

    Attributes:
        held: the ballots of the journals that this node holds. One that is empty is forgotten when
            all voters know that it is; of those that are not, a limited number is kept.
        followers: the voters that get copies.
    """

    def __init__(
        self,
        token: str,
        voters: Sequence[str],
        copies: KeptCopies,
        inner: KeptStore,
        fenced: Callable[[list[str]], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._name = token.rpartition("#")[0]
        self._token = token
        self._voters = voters
        self._copies = copies
        self._inner = inner
        self._fenced = fenced
        self._spawn = spawn
        self._pool = ThreadPoolExecutor(1, "dandelion-copies")
        self._step = self._count = 0
        self.followers = Followers(self, copies)
        self._open: dict[Entry, None] = {}
        self._stamps: dict[str, int] = {}  # the last step that was published of each journal
        self._up_to_date: dict[str, set[str]] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self.held: dict[str, Ballot] = {}
        self._own = ""
        self._begin_journal()

    def _begin_journal(self) -> None:
        before = self._own
        self._in_own = 0
        self._own = self._empty_journal() or self._new_journal()
        self._forget_if_empty(before)

    def _new_journal(self) -> str:
        self._count += 1
        journal = f"{self._token}#{self._count}"
        self.held[journal] = first_ballot(journal)
        return journal

    def _empty_journal(self) -> str:
        """Return a journal of this node to use again; empty if there are not too many."""
        empty = [
            journal
            for journal, ballot in self.held.items()
            if ballot == first_ballot(journal) and self._copies.is_empty(journal)
        ]
        # The last step of an empty journal has dropped its last invocation.
        return min(empty, key=self.stamp) if len(empty) > EMPTY_LIMIT else ""

    @property
    def majority(self) -> int:
        """How many voters are enough."""
        return len(self._voters) // 2 + 1

    # --- this node's store ------------------------------------------------------------------------

    async def run(self, work: Callable[[], Bytes | None]) -> Bytes | None:
        """Use the store in its thread, behind everything that was begun before."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def store(self, steps: Sequence[StoreStep], before: Before) -> None:
        """Write to the store; raises as that. Then copies are again what they were before.

        It is written also if the caller is cancelled, as when the link of the node ends that asks
        for it: what is among the copies is in the store, or will be.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spawn(self._store(steps, before, stored))
        await asyncio.shield(stored)

    async def _store(
        self, steps: Sequence[StoreStep], before: Before, stored: asyncio.Future[None]
    ) -> None:
        try:
            await self.run(partial(self._inner.write, list(steps)))
        except Exception as error:
            last = {s.record.id if isinstance(s, Put) else s.id: s for s in steps}
            for id_, step in last.items():
                failed = step.record if isinstance(step, Put) else None
                self._copies.restore(id_, failed, before[id_])
            stored.set_exception(to_dandelion_error(error, "store"))
            stored.exception()  # the caller may be gone
        else:
            stored.set_result(None)
        finally:
            stored.cancel()

    def close(self) -> None:
        """Wait for the store. Not on the loop."""
        self._pool.shutdown()

    # --- writing ----------------------------------------------------------------------------------

    def write(self, steps: Sequence[StoreStep]) -> list[Entry]:
        """Begin to write; return what is to be waited for, by `Entry.done`.

        Raises:
            CatalogUnavailable: another node has taken one of the invocations.
        """
        if any(isinstance(step, Put) and self._is_lost(step.record.id) for step in steps):
            raise taken_over()
        entries: list[Entry] = []
        local: list[StoreStep] = []
        before: Before = {}
        for step in steps:
            id_ = step.record.id if isinstance(step, Put) else step.id
            known = self._copies.records.get(id_)
            if isinstance(step, Drop) and (known is None or self._is_lost(id_)):
                continue
            journal = self._new_in() if known is None else mark_of(known).journal
            if not entries or entries[-1].journal != journal:
                entries.append(Entry(journal, self.held[journal]))
            before.setdefault(id_, known)
            local.append(self._added(entries[-1], step, known))
        for entry in entries:
            self._publish(entry)
        if local:
            self._spawn(self._stored(local, before, entries))
        return entries

    def _is_lost(self, id_: str) -> bool:
        """Whether another node has taken an invocation of this one, or has refused it since."""
        known = self._copies.records.get(id_)
        return id_ in self._lost if known is None else mark_of(known).journal not in self.held

    def give_up(self, entries: Iterable[Entry]) -> None:
        """No writer waits for entries. Voters get those under way, and offers after a new link."""
        for entry in entries:
            self._open.pop(entry, None)

    def _new_in(self) -> str:
        """Return the journal of a new invocation."""
        if self._in_own >= JOURNAL_RECORDS:
            self._begin_journal()
        self._in_own += 1
        return self._own

    def _added(self, entry: Entry, step: StoreStep, known: KeptRecord | None) -> StoreStep:
        """Add a step to an entry; return what this node's store does."""
        self._step += 1
        version = (entry.ballot, self._step)
        if isinstance(step, Drop):
            self._copies.drop(entry.journal, step.id, version)
            entry.steps += (CopyStep(step.id, None, version),)
            return step
        data = ""
        if step.part is not None:
            data = f"{entry.ballot[0]}/{entry.ballot[1]}/{self._step}"
        elif known is not None and data_part(step.record) is data_part(known):
            data = mark_of(known).data
        mark = KeptMark(entry.journal, *version, data)
        record = msgspec.structs.replace(step.record, mark=mark)
        self._copies.put(record)
        size = sum([memoryview(chunk).nbytes for chunk in step.chunks])
        entry.steps += (CopyStep(record.id, record, version, step.part, size),)
        entry.chunks += step.chunks
        return Put(record, step.part, step.chunks)

    async def _stored(
        self, local: Sequence[StoreStep], before: Before, entries: Iterable[Entry]
    ) -> None:
        try:
            await self.store(local, before)
        except DandelionError as error:
            for entry in entries:
                self._fail(entry, error)
                self._retract(entry, before)
        else:
            for entry in entries:
                self.acknowledged(entry, self._name)
                self.caught_up(entry, self._name)

    def _retract(self, entry: Entry, before: Before) -> None:
        """Have voters drop what is new in an entry that this node could not store."""
        new = [step.id for step in entry.steps if step.record and before.get(step.id) is None]
        self._step += 1
        version = (entry.ballot, self._step)
        drops = tuple([CopyStep(id_, None, version) for id_ in new])
        if drops and entry.journal in self.held:
            drop = Entry(entry.journal, entry.ballot, drops)
            self._publish(drop)
            self.acknowledged(drop, self._name)
            self.caught_up(drop, self._name)

    def _publish(self, entry: Entry) -> None:
        self._open[entry] = None
        entry.stamp = self._stamps[entry.journal] = self._step
        self._up_to_date.pop(entry.journal, None)
        self.followers.publish(entry)

    def stamp(self, journal: str) -> int:
        """The last step that was published of a journal."""
        return self._stamps.get(journal, 0)

    def acknowledged(self, entry: Entry, name: str) -> None:
        """A node has stored an entry."""
        entry.stored.add(name)
        entry.full.discard(name)
        votes = len(entry.stored.intersection(self._voters))
        if votes >= self.majority and self._name in entry.stored and not entry.done.done():
            self._open.pop(entry, None)
            entry.done.set_result(None)

    def caught_up(self, entry: Entry, name: str) -> None:
        """A node has all of a journal up to an entry."""
        if entry.stamp == self.stamp(entry.journal) and entry.journal in self.held:
            self._up_to_date.setdefault(entry.journal, set()).add(name)
            self._forget_if_empty(entry.journal)

    def is_up_to_date(self, journal: str, name: str) -> bool:
        """Whether a node has all of a journal."""
        return name in self._up_to_date.get(journal, ())

    def restarted(self, name: str) -> None:
        """A voter was started again, perhaps without what it had."""
        for names in self._up_to_date.values():
            names.discard(name)

    def _forget_if_empty(self, journal: str) -> None:
        """Hold a journal no longer that gets no more invocations, and that no voter has any of."""
        known = self._up_to_date.get(journal, set())
        if journal == self._own or not self._copies.is_empty(journal):
            return
        if known.issuperset((self._name, *self._voters)):
            self.release(journal)

    def release(self, journal: str) -> None:
        """Hold a journal no longer."""
        self.held.pop(journal, None)
        self._stamps.pop(journal, None)
        self._up_to_date.pop(journal, None)

    def left_out(self, entry: Entry, name: str, error: CopiesFull) -> None:
        """A voter has no room for something of an entry, which fails if too few others are left."""
        entry.full.add(name)
        if len(set(self._voters) - entry.full) < self.majority:
            self._fail(entry, error)

    def _fail(self, entry: Entry, error: DandelionError) -> None:
        self._open.pop(entry, None)
        if not entry.done.done():
            entry.done.set_exception(error)

    # --- taking over ------------------------------------------------------------------------------

    async def adopt(
        self, journal: str, ballot: Ballot, found: Sequence[tuple[KeptRecord, Bytes | None]]
    ) -> list[KeptRecord]:
        """Hold a journal that a majority has promised.

        Args:
            journal, ballot: of the promise.
            found: what the majority has, and the data where this node lacks it.

        Returns:
            The records, when a majority has them under the new ballot.

        Raises:
            DandelionError: they cannot be stored, or another node was faster.
        """
        self.held[journal] = ballot
        kept = {record.id for record, _ in found}
        before: Before = {id_: self._copies.records.get(id_) for id_ in kept}
        local: list[StoreStep] = []
        for id_ in self._copies.ids(journal):
            if id_ not in kept:
                self._step += 1
                before[id_] = self._copies.records.get(id_)
                self._copies.drop(journal, id_, (ballot, self._step))
                local.append(Drop(id_))
        records = []
        for record, data in found:
            self._step += 1
            mark = KeptMark(journal, ballot, self._step, mark_of(record).data)
            records.append(msgspec.structs.replace(record, mark=mark))
            self._copies.put(records[-1])
            part = None if data is None else data_part(record)
            local.append(Put(records[-1], part, () if data is None else (data,)))
        entry = Entry(journal, ballot)
        self._open[entry] = None
        await self._stored(local, before, [entry])
        self.followers.publish(entry)
        await asyncio.wrap_future(entry.done)
        return records

    def fence(self, journal: str, ballot: Ballot) -> None:
        """Another node was promised a higher ballot: this one holds a journal no longer."""
        self._copies.accept(journal, ballot)
        if self.held.get(journal, ballot) >= ballot:
            return
        log.warning("node %s has taken over invocations of this node", ballot[1])
        self.release(journal)
        if journal == self._own:
            self._begin_journal()
        ids = self._copies.ids(journal)
        self._lost.update(dict.fromkeys(ids))
        while len(self._lost) > LOST_LIMIT:
            self._lost.popitem(last=False)
        self._fenced(ids)
        for entry in [entry for entry in self._open if entry.journal == journal]:
            self._fail(entry, taken_over())

    # --- voters -----------------------------------------------------------------------------------

    def missing(self, name: str) -> list[Entry]:
        """All that a voter may lack, and all journals that another node may have taken from it."""
        held = [
            Entry(journal, ballot)
            for journal, ballot in self.held.items()
            if not (self.is_up_to_date(journal, name) and self._copies.is_empty(journal))
        ]
        return [*held, *self._open]

    async def read(self, id_: str, part: Part) -> Bytes | None:
        """Read from this node's store; raises as that."""
        return await self.run(partial(self._inner.read, id_, part))


def taken_over() -> CatalogUnavailable:
    """Another node runs an invocation."""
    reason = "another node has taken over this invocation"
    return CatalogUnavailable("cluster", reason, "ask for it again; it is not lost")
