"""Giving voters copies of the asynchronous invocations that this node holds.

Each voter that a link leads to is *followed up* by a task: first it is offered all that the
journals of this node have, then it gets every entry in order, one at a time. A journal that it has
already stored up to the last entry, since its start, is not offered again at a new link: a write
without content finds out whether another node holds it now. So a new link costs what has changed.
A voter that keeps as many copies as it may leaves some out; the journals of these are offered to it
again from time to time, until it has room for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from dandelion.asynchronous.failures import CopiesFull
from dandelion.asynchronous.records import Ballot
from dandelion.asynchronous.store import Part
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import KeptCopies, data_part, mark_of
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

GROUP = 256
GROUP_BYTES = 4 << 20
"""So many records, or about so many bytes, are sent at once to a voter that lacks them."""
QUEUE_LIMIT = 64
QUEUE_BYTES = 64 << 20
"""So many entries, or so much data of them, wait for one voter; one that is slower is offered
everything anew, and the data is read when it is sent."""
PAUSE_S = 0.25
OFFER_AGAIN_S = 5.0
"""How often a voter that has left something out is offered it again."""

log = logging.getLogger("dandelion.cluster")


@dataclass(slots=True, eq=False)
class Entry:
    """Something that a majority is to have.

    Attributes:
        journal, ballot: of it.
        steps: versions; without any, all that the journal has.
        chunks: data of the steps, in order.
        stored: the nodes that have it.
        full: the voters that have left something of it out.
        done: is resolved when they are enough.
        stamp: the last step of the journal that is in it.
    """

    journal: str
    ballot: Ballot
    steps: tuple[CopyStep, ...] = ()
    chunks: list[Bytes] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    done: Future[None] = field(default_factory=Future)
    stamp: int = 0

    @property
    def size_bytes(self) -> int:
        """Of its data."""
        return sum([step.size for step in self.steps])


class Holder(Protocol):
    """The journals of this node, to `Followers`."""

    held: dict[str, Ballot]

    def missing(self, name: str) -> list[Entry]:
        """All that a voter may lack."""

    def is_up_to_date(self, journal: str, name: str) -> bool:
        """Whether a node has all of a journal."""

    def restarted(self, name: str) -> None:
        """A voter was started again, perhaps without what it had."""

    def stamp(self, journal: str) -> int:
        """The last step that was published of a journal."""

    async def read(self, id_: str, part: Part) -> Bytes | None:
        """Read from this node's store; raises as that."""

    def acknowledged(self, entry: Entry, name: str) -> None:
        """A node has stored an entry."""

    def caught_up(self, entry: Entry, name: str) -> None:
        """A node has all of a journal up to an entry."""

    def left_out(self, entry: Entry, name: str, error: CopiesFull) -> None:
        """A voter has no room for something of an entry."""

    def fence(self, journal: str, ballot: Ballot) -> None:
        """Another node was promised a higher ballot."""


@dataclass(slots=True, eq=False)
class _Follower:
    """A voter that a link leads to.

    Attributes:
        left: journals of which it has left something out.
        offer_s: when these are offered again, by the loop's clock.
        slow: its queue was too long, and has not been empty since.
    """

    name: str
    link: OutLink
    queue: deque[Entry] = field(default_factory=deque)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    left: dict[str, None] = field(default_factory=dict)
    offer_s: float = 0.0
    slow: bool = False


class Followers:
    """The voters that are followed up. For the loop's thread.

    Args:
        holder: the journals.
        copies: what this node has.
    """

    def __init__(self, holder: Holder, copies: KeptCopies) -> None:
        self._holder = holder
        self._copies = copies
        self._all: dict[str, _Follower] = {}
        self._lives: dict[str, str] = {}

    @property
    def full(self) -> list[str]:
        """Names of the voters that have left something of this node out."""
        return sorted([name for name, follower in self._all.items() if follower.left])

    def publish(self, entry: Entry) -> None:
        """Send an entry to all, behind those before it."""
        for name, follower in self._all.items():
            follower.queue.append(entry)
            follower.more.set()
            size_bytes = sum([one.size_bytes for one in follower.queue])
            is_large = size_bytes > QUEUE_BYTES and len(follower.queue) > 1
            if len(follower.queue) > QUEUE_LIMIT or is_large:
                if not follower.slow:
                    log.warning("node %s is slow to take copies of invocations", name)
                follower.slow = True
                follower.queue = deque(self._holder.missing(name))

    def unlinked(self, name: str, link: OutLink) -> None:
        """A link has ended."""
        follower = self._all.get(name)
        if follower is not None and follower.link is link:
            follower.more.set()
            del self._all[name]

    async def follow_up(self, name: str, life: str, link: OutLink) -> None:
        """Give a voter everything, until its link ends.

        Args:
            name: of the voter.
            life: another text after each start of it.
            link: to it.
        """
        if self._lives.get(name) != life:
            self._lives[name] = life
            self._holder.restarted(name)
        follower = self._all[name] = _Follower(name, link)
        follower.queue.extend(self._holder.missing(name))
        try:
            await self._send_all(follower)
        finally:
            self.unlinked(name, link)  # it may have ended before it was followed

    async def _send_all(self, follower: _Follower) -> None:
        while not follower.link.closed:
            self._offer_again(follower)
            if not follower.queue:
                await self._wait(follower)
                continue
            entry = follower.queue.popleft()
            try:
                full = await self._send(follower, entry)
            except (DandelionError, BadPeer) as error:
                if not isinstance(error, NodeLost):
                    log.warning("node %s has no copies of invocations: %s", follower.name, error)
                    await asyncio.sleep(PAUSE_S)
                follower.queue = deque(self._holder.missing(follower.name))
                continue
            if self._holder.held.get(entry.journal) != entry.ballot:
                continue
            if full is None:
                self._holder.acknowledged(entry, follower.name)
                if entry.journal not in follower.left:
                    self._holder.caught_up(entry, follower.name)
            else:
                self._left_out(follower, entry, full)

    async def _wait(self, follower: _Follower) -> None:
        """Wait until there is something to send, or to offer again."""
        if follower.slow:
            log.info("node %s takes copies of invocations in time again", follower.name)
            follower.slow = False
        follower.more.clear()
        limit_s = follower.offer_s if follower.left else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(limit_s):
                await follower.more.wait()

    def _offer_again(self, follower: _Follower) -> None:
        """Offer what was left out, and send again what still waits for voters."""
        if not follower.left or asyncio.get_running_loop().time() < follower.offer_s:
            return
        held = self._holder.held
        follower.left = {journal: None for journal in follower.left if journal in held}
        others = [entry for entry in follower.queue if entry.journal not in follower.left]
        missing = self._holder.missing(follower.name)
        again = [entry for entry in missing if entry.journal in follower.left]
        follower.queue = deque([*others, *again])
        follower.offer_s = asyncio.get_running_loop().time() + OFFER_AGAIN_S

    def _left_out(self, follower: _Follower, entry: Entry, full: CopiesFull) -> None:
        if not follower.left:
            log.warning("node %s keeps as many copies as it may; others have them", follower.name)
            follower.offer_s = asyncio.get_running_loop().time() + OFFER_AGAIN_S
        follower.left[entry.journal] = None
        self._holder.left_out(entry, follower.name, full)

    # --- messages ---------------------------------------------------------------------------------

    async def _send(self, follower: _Follower, entry: Entry) -> CopiesFull | None:
        """Send an entry; return why the voter has left something out."""
        journal, ballot, link = entry.journal, entry.ballot, follower.link
        if self._holder.held.get(journal) != ballot:
            return None
        if entry.steps:
            return await self._write(link, journal, ballot, entry.steps, entry.chunks)
        entry.stamp = self._holder.stamp(journal)
        if self._holder.is_up_to_date(journal, follower.name):  # its ballot may be outdated
            return await self._write(link, journal, ballot, (), ())
        offered = self._copies.offer(journal)
        content, _ = await link.questions.ask(encode_kept(Offer(journal, ballot, offered)))
        wanted = decode_answer(content, Wanted)
        if wanted.refused is not None:
            self._holder.fence(journal, wanted.refused)
            return None
        full = await self._give(link, journal, ballot, wanted)
        if wanted.left and full is None:
            full = CopiesFull(follower.name)
        if full is None and follower.left.pop(journal, "") is None and not follower.left:
            log.info("node %s has all copies again", follower.name)
        return full

    async def _give(
        self, link: OutLink, journal: str, ballot: Ballot, wanted: Wanted
    ) -> CopiesFull | None:
        """Send what a voter lacks, in groups."""
        steps: list[CopyStep] = []
        chunks: list[Bytes] = []
        size = 0
        full: CopiesFull | None = None
        for id_, lacks_data in wanted.ids.items():
            found = await self._current(id_, lacks_data)
            if found is None:
                continue
            step, data = found
            steps.append(step)
            chunks += () if data is None else (data,)
            size += step.size
            if size > GROUP_BYTES or len(steps) >= GROUP:
                full = await self._write(link, journal, ballot, tuple(steps), chunks) or full
                steps, chunks, size = [], [], 0
        if steps:
            full = await self._write(link, journal, ballot, tuple(steps), chunks) or full
        return full

    async def _current(self, id_: str, lacks_data: bool) -> tuple[CopyStep, Bytes | None] | None:
        """Give the version of a record, and its data; None if it has changed meanwhile."""
        record = self._copies.records.get(id_)
        if record is None:
            return None
        part = data_part(record) if lacks_data else None
        try:
            data = None if part is None else await self._holder.read(id_, part)
        except Unknown:
            return None  # its invocation has ended meanwhile
        if self._copies.records.get(id_) is not record:
            return None  # what is new comes with an entry of its own
        size = 0 if data is None else memoryview(data).nbytes
        return CopyStep(id_, record, mark_of(record).version, part, size), data

    async def _write(
        self,
        link: OutLink,
        journal: str,
        ballot: Ballot,
        steps: tuple[CopyStep, ...],
        chunks: Sequence[Bytes],
    ) -> CopiesFull | None:
        content = encode_kept(Write(journal, ballot, steps))
        answer, _ = await link.questions.ask(content, chunks)
        written = decode_answer(answer, Written)
        if written.refused is not None:
            self._holder.fence(journal, written.refused)
        elif written.problem:
            raise CatalogUnavailable(link.peer, written.problem)
        elif written.left:
            left = set(written.left)
            needed = sum([s.record.kept_bytes for s in steps if s.record and s.id in left])
            return CopiesFull(link.peer, needed, written.free_bytes, written.number)
        return None
