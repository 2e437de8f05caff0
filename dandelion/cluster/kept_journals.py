"""Writing asynchronous invocations: to this node's store, and to the voters.

Each voter that a link leads to is *followed up* by a task: first it is offered all that the
journals of this node have, then it gets every entry in order, one at a time. An entry is done when
this node and more than half of the voters have it. See `kept_copies` for what a journal is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec

from dandelion.asynchronous.records import Ballot, KeptMark, KeptRecord
from dandelion.asynchronous.store import Drop, KeptStore, Part, Put, StoreStep
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import Before, KeptCopies, data_part, first_ballot, mark_of
from dandelion.cluster.kept_messages import (
    CopyStep,
    Offer,
    Wanted,
    Write,
    Written,
    decode_answer,
    encode_kept,
)
from dandelion.cluster.link import OutLink
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, DandelionError, NodeLost, Unknown
from dandelion.executors import to_dandelion_error

GROUP = 256
GROUP_BYTES = 4 << 20
"""So many records, or about so many bytes, are sent at once to a voter that lacks them."""
QUEUE_LIMIT = 64
"""Entries that wait for one voter; one that is slower is offered everything anew."""
JOURNAL_RECORDS = 4000
"""After so many invocations a node begins another journal: all that one has fits into a message."""
PAUSE_S = 0.25

log = logging.getLogger("dandelion.cluster")


@dataclass(slots=True, eq=False)
class Entry:
    """Something that a majority is to have.

    Attributes:
        journal, ballot: of it.
        steps: versions; without any, all that the journal has.
        chunks: data of the steps, in order.
        stored: the nodes that have it.
        done: is resolved when they are enough.
    """

    journal: str
    ballot: Ballot
    steps: tuple[CopyStep, ...] = ()
    chunks: list[Bytes] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Follower:
    """A voter that a link leads to."""

    link: OutLink
    queue: deque[Entry] = field(default_factory=deque)
    more: asyncio.Event = field(default_factory=asyncio.Event)


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
        held: the ballots of the journals that this node holds.
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
        self._followers: dict[str, _Follower] = {}
        self._open: dict[Entry, None] = {}
        self.held: dict[str, Ballot] = {}
        self._own = ""
        self._begin_journal()

    def _begin_journal(self) -> None:
        self._count += 1
        self._in_own = 0
        self._own = f"{self._token}#{self._count}"
        self.held[self._own] = first_ballot(self._own)

    @property
    def majority(self) -> int:
        """How many voters are enough."""
        return len(self._voters) // 2 + 1

    # --- this node's store ------------------------------------------------------------------------

    async def run(self, work: Callable[[], Bytes | None]) -> Bytes | None:
        """Use the store in its thread, behind everything that was begun before."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def store(self, steps: Sequence[StoreStep], before: Before) -> None:
        """Write to the store; raises as that. Then copies are again what they were before."""
        try:
            await self.run(partial(self._inner.write, list(steps)))
        except Exception as error:
            last = {s.record.id if isinstance(s, Put) else s.id: s for s in steps}
            for id_, step in last.items():
                failed = step.record if isinstance(step, Put) else None
                self._copies.restore(id_, failed, before[id_])
            raise to_dandelion_error(error, "store") from None

    def close(self) -> None:
        """Wait for the store. Not on the loop."""
        self._pool.shutdown()

    # --- writing ----------------------------------------------------------------------------------

    def write(self, steps: Sequence[StoreStep]) -> list[Future[None]]:
        """Begin to write; return what is to be waited for.

        Raises:
            CatalogUnavailable: another node has taken one of the invocations.
        """
        entries: list[Entry] = []
        local: list[StoreStep] = []
        before: Before = {}
        for step in steps:
            id_ = step.record.id if isinstance(step, Put) else step.id
            known = self._copies.records.get(id_)
            if known is None and isinstance(step, Drop):
                continue
            journal = self._new_in() if known is None else mark_of(known).journal
            ballot = self.held.get(journal)
            if ballot is None:
                if isinstance(step, Drop):
                    continue
                raise taken_over()
            if not entries or entries[-1].journal != journal:
                entries.append(Entry(journal, ballot))
            before.setdefault(id_, known)
            local.append(self._added(entries[-1], step, known))
        for entry in entries:
            self._publish(entry)
        if local:
            self._spawn(self._stored(local, before, entries))
        return [entry.done for entry in entries]

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
        else:
            for entry in entries:
                self._acknowledged(entry, self._name)

    def _publish(self, entry: Entry) -> None:
        self._open[entry] = None
        for name, follower in self._followers.items():
            follower.queue.append(entry)
            follower.more.set()
            if len(follower.queue) > QUEUE_LIMIT:
                log.warning("node %s is slow to take copies of invocations", name)
                follower.queue = deque(self._everything())

    def _acknowledged(self, entry: Entry, name: str) -> None:
        entry.stored.add(name)
        votes = len(entry.stored.intersection(self._voters))
        if votes >= self.majority and self._name in entry.stored and not entry.done.done():
            self._open.pop(entry, None)
            entry.done.set_result(None)

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
        for follower in self._followers.values():
            follower.queue.append(entry)
            follower.more.set()
        await asyncio.wrap_future(entry.done)
        return records

    def fence(self, journal: str, ballot: Ballot) -> None:
        """Another node was promised a higher ballot: this one holds a journal no longer."""
        self._copies.accept(journal, ballot)
        if self.held.get(journal, ballot) >= ballot:
            return
        log.warning("node %s has taken over invocations of this node", ballot[1])
        del self.held[journal]
        if journal == self._own:
            self._begin_journal()
        self._fenced(self._copies.ids(journal))
        for entry in [entry for entry in self._open if entry.journal == journal]:
            self._fail(entry, taken_over())

    # --- voters -----------------------------------------------------------------------------------

    def _everything(self) -> list[Entry]:
        """All that a voter may lack."""
        held = [Entry(journal, ballot) for journal, ballot in self.held.items()]
        return [*held, *self._open]

    async def follow_up(self, name: str, link: OutLink) -> None:
        """Give a voter everything, until its link ends."""
        follower = self._followers[name] = _Follower(link)
        follower.queue.extend(self._everything())
        while not link.closed:
            if not follower.queue:
                follower.more.clear()
                await follower.more.wait()
                continue
            entry = follower.queue.popleft()
            try:
                await self._send(link, entry)
            except (DandelionError, BadPeer) as error:
                if not isinstance(error, NodeLost):
                    log.warning("node %s has no copies of invocations: %s", name, error)
                    await asyncio.sleep(PAUSE_S)
                follower.queue = deque(self._everything())
            else:
                if self.held.get(entry.journal) == entry.ballot:
                    self._acknowledged(entry, name)

    def unlinked(self, name: str, link: OutLink) -> None:
        """A link has ended."""
        follower = self._followers.get(name)
        if follower is not None and follower.link is link:
            follower.more.set()
            del self._followers[name]

    async def _send(self, link: OutLink, entry: Entry) -> None:
        if self.held.get(entry.journal) != entry.ballot:
            return
        if entry.steps:
            await self._write(link, entry.journal, entry.ballot, entry.steps, entry.chunks)
            return
        offer = Offer(entry.journal, entry.ballot, self._copies.offer(entry.journal))
        content, _ = await link.questions.ask(encode_kept(offer))
        wanted = decode_answer(content, Wanted)
        if wanted.refused is not None:
            self.fence(entry.journal, wanted.refused)
            return
        steps: list[CopyStep] = []
        chunks: list[Bytes] = []
        size = 0
        for id_, lacks_data in wanted.ids.items():
            record = self._copies.records.get(id_)
            if record is None:
                continue
            part = data_part(record) if lacks_data else None
            try:
                data = None if part is None else await self.read(id_, part)
            except Unknown:
                continue  # its invocation has ended meanwhile
            if self._copies.records.get(id_) is not record:
                continue  # it changed meanwhile; what is new comes with an entry of its own
            length = 0 if data is None else memoryview(data).nbytes
            steps.append(CopyStep(id_, record, mark_of(record).version, part, length))
            chunks += () if data is None else (data,)
            size += length
            if size > GROUP_BYTES or len(steps) >= GROUP:
                await self._write(link, entry.journal, entry.ballot, tuple(steps), chunks)
                steps, chunks, size = [], [], 0
        if steps:
            await self._write(link, entry.journal, entry.ballot, tuple(steps), chunks)

    async def read(self, id_: str, part: Part) -> Bytes | None:
        """Read from this node's store; raises as that."""
        return await self.run(partial(self._inner.read, id_, part))

    async def _write(
        self,
        link: OutLink,
        journal: str,
        ballot: Ballot,
        steps: tuple[CopyStep, ...],
        chunks: Sequence[Bytes],
    ) -> None:
        content = encode_kept(Write(journal, ballot, steps))
        answer, _ = await link.questions.ask(content, chunks)
        written = decode_answer(answer, Written)
        if written.refused is not None:
            self.fence(journal, written.refused)
        elif written.problem:
            raise CatalogUnavailable(link.peer, written.problem)


def taken_over() -> CatalogUnavailable:
    """Another node runs an invocation."""
    reason = "another node has taken over this invocation"
    return CatalogUnavailable("cluster", reason, "ask for it again; it is not lost")
