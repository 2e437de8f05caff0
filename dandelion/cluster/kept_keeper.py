"""A node's part of keeping asynchronous invocations in a cluster; see `kept_copies`.

It joins the node's store, the journals, taking over, and what nodes ask each other. On the node's
loop, unless said otherwise.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from dandelion.asynchronous.records import KeptMark, KeptRecord
from dandelion.asynchronous.store import Drop, KeptStore, Part, Put, StoreStep
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import Before, CopyLimits, KeptCopies, data_part, mark_of
from dandelion.cluster.kept_elsewhere import KeptElsewhere
from dandelion.cluster.kept_journals import KeptJournals, taken_over
from dandelion.cluster.kept_messages import (
    AskLife,
    DataOf,
    FindKey,
    KeptQuestion,
    Life,
    Offer,
    Prepare,
    Promise,
    ReadData,
    Refusal,
    Wanted,
    Write,
    Written,
    decode_answer,
    decode_question,
    encode_kept,
)
from dandelion.cluster.kept_store import ReplicatedKeptStore, Writes
from dandelion.cluster.kept_takeover import KeptTakeover
from dandelion.cluster.link import OutLink
from dandelion.cluster.membership import Membership
from dandelion.cluster.questions import Answer
from dandelion.data import Bytes
from dandelion.errors import DandelionError, Unknown
from dandelion.node.kept_service import KeptService

_ID = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger("dandelion.cluster")


class KeptKeeper:
    """Copies of the asynchronous invocations of all nodes, and those of this one.

    Args:
        name: of this node.
        voters: names of all voters, which have copies.
        apart: each node has copies of its own invocations only.
        membership, links: the other nodes.
        limits: of copies of what other nodes hold.
        spawn: has something done in the background, on the loop.

    Attributes:
        elsewhere: finds what other nodes run.
    """

    def __init__(
        self,
        name: str,
        voters: Sequence[str],
        apart: bool,
        membership: Membership,
        links: Mapping[str, OutLink],
        limits: CopyLimits,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._life = secrets.token_hex(8)
        self._token = f"{name}#{self._life}"
        self._voters = voters
        self._membership = membership
        self._links = links
        self._spawn = spawn
        self._copies = KeptCopies(limits)
        self._lives: dict[str, str] = {}
        self._journals: KeptJournals | None = None
        self._takeover: KeptTakeover | None = None
        self._service: KeptService | None = None
        holders = None if apart else voters
        self.elsewhere = KeptElsewhere(name, self._copies, membership, links, holders)

    # --- the node's side --------------------------------------------------------------------------

    def wrap(
        self, store: KeptStore, post: Callable[[Callable[[], None]], None]
    ) -> ReplicatedKeptStore:
        """Give the store that the node uses. Called once, before the start."""
        for number, record in enumerate(store.load()):
            if record.mark is None:  # from before the node was in a cluster
                journal = f"{self._token.rpartition('#')[0]}#0#0"
                data = "" if data_part(record) is None else "0"
                mark = KeptMark(journal, (0, journal.rpartition("#")[0]), number, data)
                record = msgspec.structs.replace(record, mark=mark)
            self._copies.put(record)
            self._copies.accept(mark_of(record).journal, mark_of(record).ballot)
        self._journals = KeptJournals(
            self._token, self._voters, self._copies, store, self._abandon, self._spawn
        )
        journals = self._journals

        def begin(steps: Sequence[StoreStep]) -> Future[Writes]:
            begun: Future[Writes] = Future()

            def write() -> None:
                try:
                    begun.set_result(journals.write(steps))
                except Exception as error:  # for the thread that waits
                    begun.set_exception(error)

            post(write)
            return begun

        def give_up(steps: Sequence[StoreStep], entries: Writes) -> None:
            new = [s for s in steps if isinstance(s, Put) and s.part is Part.INPUTS]
            drops = [Drop(step.record.id) for step in new]
            post(lambda: journals.give_up([*entries, *journals.write(drops)]))

        return ReplicatedKeptStore(store, begin, give_up, journals.close)

    def start(self, service: KeptService, is_current: Callable[[], bool]) -> None:
        """Begin; `wrap` was called.

        Args:
            service: of the node.
            is_current: whether its catalogue follows that of the cluster.
        """
        assert self._journals is not None, "the node has wrapped its store"
        self._service = service
        self.elsewhere.service = service
        self._takeover = KeptTakeover(
            self._token,
            self._voters,
            self._copies,
            self._journals,
            self._membership,
            self._links,
            self._lives,
            service.adopt,
            is_current,
            self._spawn,
        )

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        if self._takeover is not None:
            self._takeover.look(now_s)

    @property
    def copies(self) -> int:
        """How many invocations of any node this one has a copy of."""
        return len(self._copies.records)

    @property
    def copies_bytes(self) -> int:
        """Their inputs and results, in bytes."""
        return self._copies.kept_bytes

    @property
    def full_voters(self) -> tuple[str, ...]:
        """Names of the voters that have no room for all copies of what this node runs."""
        return () if self._journals is None else tuple(self._journals.followers.full)

    @property
    def taken_over(self) -> int:
        """How many invocations of other nodes this one has gone on with."""
        return 0 if self._takeover is None else self._takeover.count

    def _abandon(self, ids: list[str]) -> None:
        if self._service is not None:
            self._service.abandon(ids, taken_over())

    # --- other nodes ------------------------------------------------------------------------------

    def linked(self, name: str, link: OutLink) -> None:
        """There is a link to another node."""
        self._lives.pop(name, None)
        self._spawn(self._greet(name, link))

    async def _greet(self, name: str, link: OutLink) -> None:
        try:
            content, _ = await link.questions.ask(encode_kept(AskLife()))
            life = self._lives[name] = f"{name}#{decode_answer(content, Life).life}"
        except (DandelionError, BadPeer) as error:
            log.warning("node %s: %s", name, error)
            return
        if name in self._voters and self._journals is not None:
            await self._journals.followers.follow_up(name, life, link)

    def unlinked(self, name: str, link: OutLink) -> None:
        """A link to another node has ended."""
        self._lives.pop(name, None)
        if self._journals is not None:
            self._journals.followers.unlinked(name, link)

    async def answer(self, peer: str, content: bytes, data: Bytes) -> Answer:
        """Answer a question of another node."""
        try:
            return await self._answer(decode_question(content), data)
        except (DandelionError, BadPeer) as error:
            log.warning("a question of %s cannot be answered: %s", peer, error)
            reason = str(error)
        except Exception as error:  # a bug, here or there
            log.exception("a question of %s cannot be answered", peer)
            reason = type(error).__name__
        return Answer(encode_kept(Refusal(reason)))

    async def _answer(self, question: KeptQuestion, data: Bytes) -> Answer:
        if isinstance(question, AskLife):
            return Answer(encode_kept(Life(self._life)))
        if isinstance(question, Write):
            return Answer(encode_kept(await self._write(question, data)))
        if isinstance(question, Offer):
            return Answer(encode_kept(await self._offered(question)))
        if isinstance(question, Prepare):
            return Answer(encode_kept(self._prepare(question)))
        if isinstance(question, ReadData):
            return await self._read(question)
        if isinstance(question, FindKey):
            return Answer(encode_kept(self.elsewhere.keyed(question.tenant, question.key)))
        return await self.elsewhere.answer(question)

    async def _write(self, question: Write, data: Bytes) -> Written:
        if not self._accepts(question.journal, question.ballot):
            return Written(self._copies.ballot(question.journal))
        assert self._journals is not None, "it has links"
        pieces = _checked_pieces(question, memoryview(data).cast("B"))
        room = self._copies.room(question.journal, self._journals.held)
        local: list[StoreStep] = []
        before: Before = {}
        left: list[str] = []
        problem = ""
        for step, chunk in zip(question.steps, pieces, strict=True):
            known = self._copies.records.get(step.id)
            before.setdefault(step.id, known)
            if step.record is None:
                if self._copies.drop(question.journal, step.id, step.version):
                    local.append(Drop(step.id))
            elif known is not None and mark_of(known).version >= step.version:
                continue
            elif not room.take(step.record.kept_bytes, known):
                left.append(step.id)
            elif _lacks_data(step.record, step.part, known):
                problem = "the data of a version is missing here"
                break
            elif self._copies.put(step.record):
                chunks = () if step.part is None else (bytes(chunk),)
                local.append(Put(step.record, step.part, chunks))
        try:
            if local:
                await self._journals.store(local, before)
        except DandelionError as error:
            problem = str(error)
        return Written(None, problem, tuple(left), room.number, room.free_bytes)

    def _accepts(self, journal: str, ballot: tuple[int, str]) -> bool:
        """Whether a ballot is taken; if so, this node holds the journal no longer."""
        if not self._copies.accept(journal, ballot):
            return False
        assert self._journals is not None, "it has links"
        self._journals.fence(journal, ballot)
        return True

    async def _offered(self, question: Offer) -> Wanted:
        if not self._accepts(question.journal, question.ballot):
            return Wanted(self._copies.ballot(question.journal))
        assert self._journals is not None, "it has links"
        gone = self._copies.gone(question.journal, question.records)
        before: Before = {id_: self._copies.records.get(id_) for id_ in gone}
        for id_, version in gone.items():
            self._copies.drop(question.journal, id_, version)
        if gone:
            await self._journals.store([Drop(id_) for id_ in gone], before)
        room = self._copies.room(question.journal, self._journals.held)
        return Wanted(None, *self._copies.lacks(question.records, room))

    def _prepare(self, question: Prepare) -> Promise:
        if not self._copies.prepare(question.journal, question.ballot):
            return Promise(self._copies.ballot(question.journal))
        assert self._journals is not None, "it has links"
        self._journals.fence(question.journal, question.ballot)
        records = tuple([self._copies.records[id_] for id_ in self._copies.ids(question.journal)])
        return Promise(None, records, self._copies.dropped(question.journal))

    async def _read(self, question: ReadData) -> Answer:
        assert self._journals is not None, "it has links"
        record: KeptRecord | None = self._copies.records.get(question.id)
        if record is None or mark_of(record).data != question.data:
            return Answer(encode_kept(DataOf(False)))
        try:
            data = await self._journals.read(question.id, question.part)
        except Unknown:
            return Answer(encode_kept(DataOf(False)))
        return Answer(encode_kept(DataOf(True)), () if data is None else (data,))


def _checked_pieces(question: Write, data: memoryview) -> list[memoryview]:
    """Return the data of each step.

    Raises:
        BadPeer: a step is not a version of the journal, or its data is not whole.
    """
    pieces = []
    for step in question.steps:
        pieces.append(data[: step.size])
        data = data[step.size :]
        record = step.record
        if record is None:
            continue
        if _ID.fullmatch(step.id) is None:  # stores make names of files of it
            raise BadPeer("an id of an invocation is none")
        if len(pieces[-1]) < step.size or record.id != step.id or record.mark is None:
            raise BadPeer("a version of an invocation is not whole")
        if record.mark.journal != question.journal or record.mark.version != step.version:
            raise BadPeer("a version belongs to another journal")
    return pieces


def _lacks_data(record: KeptRecord, part: Part | None, known: KeptRecord | None) -> bool:
    """Whether the data of a version does not come with it and is not here."""
    if part is not None or not mark_of(record).data:
        return False
    return known is None or mark_of(known).data != mark_of(record).data
