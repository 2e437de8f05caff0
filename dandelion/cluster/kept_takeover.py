"""Taking over the asynchronous invocations of nodes that are gone.

A node that sees a majority looks for journals whose holder is dead, has left, or was started again.
The nodes wait in an order of their own for each journal, so usually only one of them asks for it,
and the invocations of a node are divided if it held several journals. If two ask at the same time,
the ballots decide.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence

from dandelion.asynchronous.records import Ballot, KeptRecord
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import (
    KeptCopies,
    data_part,
    holder_of,
    mark_of,
    newest,
    node_of,
)
from dandelion.cluster.kept_journals import KeptJournals
from dandelion.cluster.kept_messages import (
    DataOf,
    Prepare,
    Promise,
    ReadData,
    decode_answer,
    encode_kept,
)
from dandelion.cluster.link import OutLink
from dandelion.cluster.membership import Membership, MemberState
from dandelion.data import Bytes
from dandelion.errors import DandelionError, NodeLost

SETTLE_S = 2.0
"""After its start a node waits so long to find others, before it thinks that they are gone."""
TURN_S = 0.2
"""How long each node waits for the one before it in the order of a journal."""
ANSWER_S = 2.0
PAUSE_S = 0.3
UNREACHABLE = 4
"""A node that was not seen since the start of this one is gone after so many attempts."""

log = logging.getLogger("dandelion.cluster")


class KeptTakeover:
    """Finds journals without a holder, and takes them. For the loop's thread.

    Args:
        token: ``NODE#LIFE`` of this node.
        voters: names of all voters.
        copies, journals: of this node.
        membership, links: the other nodes.
        lives: the ``LIFE`` of those that have answered.
        adopt: goes on with records, given whether another node accepted them.
        is_current: whether the catalogue here follows that of the cluster. If it does not, this
            node takes nothing of others, which may name what is not registered here.
        spawn: has something done in the background.
    """

    def __init__(
        self,
        token: str,
        voters: Sequence[str],
        copies: KeptCopies,
        journals: KeptJournals,
        membership: Membership,
        links: Mapping[str, OutLink],
        lives: Mapping[str, str],
        adopt: Callable[[Sequence[KeptRecord], bool], None],
        is_current: Callable[[], bool],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._token = token
        self._name = token.rpartition("#")[0]
        self._voters = voters
        self._copies = copies
        self._journals = journals
        self._membership = membership
        self._links = links
        self._lives = lives
        self._adopt = adopt
        self._is_current = is_current
        self._spawn = spawn
        self._gone_s: dict[str, float] = {}
        self._taking: set[str] = set()
        self._began_s = 0.0
        self.count = 0

    def look(self, now_s: float) -> None:
        """Look for journals whose holder is gone; call it several times a second."""
        self._began_s = self._began_s or now_s
        alone = len(self._voters) == 1 and not self._membership.members
        if not self._membership.has_majority or (now_s - self._began_s < SETTLE_S and not alone):
            self._gone_s.clear()
            return
        gone = {}
        is_current = self._is_current()
        for journal, ballot in self._copies.journals():
            if not is_current and holder_of(ballot) != self._name:
                continue
            if journal not in self._taking and self._is_gone(journal, ballot):
                gone[journal] = self._gone_s.get(journal, now_s)
                if now_s - gone[journal] >= TURN_S * self._turn(journal):
                    self._taking.add(journal)
                    self._spawn(self._take(journal))
        self._gone_s = gone

    def _is_gone(self, journal: str, ballot: Ballot) -> bool:
        if ballot[1] == self._token:
            return journal not in self._journals.held  # an attempt of this node failed
        name = holder_of(ballot)
        if name == self._name:
            return True
        member = self._membership.members.get(name)
        if member is None or member.state is MemberState.DEAD:
            return True
        if member.state is MemberState.UNKNOWN:
            return member.failures >= UNREACHABLE
        return self._lives.get(name, ballot[1]) != ballot[1]

    def _turn(self, journal: str) -> int:
        """Return how many nodes are before this one in the order of a journal."""
        members = self._membership.members.values()
        names = [self._name, *[member.name for member in members if member.is_up]]
        return sorted(names, key=lambda name: _weight(journal, name)).index(self._name)

    async def _take(self, journal: str) -> None:
        ballot = (self._copies.ballot(journal)[0] + 1, self._token)
        try:
            found = await self._prepare(journal, ballot)
            if found is None:
                await asyncio.sleep(PAUSE_S * (1 + random.random()))
                return
            data = [(record, await self._data(record, names)) for record, names in found]
            records = await self._journals.adopt(journal, ballot, data)
        except (DandelionError, BadPeer) as error:
            log.warning("invocations of %s cannot be taken over yet: %s", journal, error)
            self._journals.release(journal)
            await asyncio.sleep(PAUSE_S * (1 + random.random()))
            return
        finally:
            self._taking.discard(journal)
        ahead = sum(not record.state.has_ended for record in records)
        self.count += ahead
        if ahead:
            log.warning("this node goes on with the invocations of %s: %d", journal, ahead)
        self._adopt(records, node_of(journal) != self._name)

    async def _prepare(
        self, journal: str, ballot: Ballot
    ) -> list[tuple[KeptRecord, list[str]]] | None:
        """Ask for a ballot.

        Returns:
            What a majority has, each with the nodes that have it; None if it is refused.
        """
        if not self._copies.prepare(journal, ballot):
            return None
        own = Promise(None, self._records(journal), self._copies.dropped(journal))
        promises = {self._name: own}
        others = [name for name in self._voters if name in self._links]
        asking = [self._ask(name, Prepare(journal, ballot)) for name in others]
        for name, answer in zip(others, await asyncio.gather(*asking), strict=True):
            if answer is None:
                continue
            if answer.refused is not None:
                self._copies.accept(journal, answer.refused)
                return None
            promises[name] = answer
        if len(promises.keys() & set(self._voters)) < self._journals.majority:
            return None
        merged = newest((one.records, dict(one.dropped)) for one in promises.values())
        having = {
            name: {one.id: mark_of(one).data for one in promise.records}
            for name, promise in promises.items()
        }
        return [
            (one, [name for name, data in having.items() if data.get(one.id) == mark_of(one).data])
            for one in merged
        ]

    def _records(self, journal: str) -> tuple[KeptRecord, ...]:
        return tuple([self._copies.records[id_] for id_ in self._copies.ids(journal)])

    async def _ask(self, name: str, question: Prepare) -> Promise | None:
        link = self._links.get(name)
        if link is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                content, _ = await link.questions.ask(encode_kept(question))
            return decode_answer(content, Promise)
        except (DandelionError, BadPeer, TimeoutError):
            return None

    async def _data(self, record: KeptRecord, names: Sequence[str]) -> Bytes | None:
        """Fetch the data of a record, if this node lacks it.

        Raises:
            NodeLost: none of the nodes that have it answers.
        """
        part = data_part(record)
        if part is None or self._name in names:
            return None
        question = encode_kept(ReadData(record.id, part, mark_of(record).data))
        for name in names:
            link = self._links.get(name)
            if link is None:
                continue
            try:
                content, data = await link.questions.ask(question)
                if decode_answer(content, DataOf).found:
                    return bytes(data)
            except (DandelionError, BadPeer) as error:
                log.warning("data of invocation %s: %s", record.id, error)
        raise NodeLost(", ".join(names), f"the {part.value} of {record.id} cannot be had")


def _weight(journal: str, name: str) -> bytes:
    return hashlib.blake2b(f"{journal}\n{name}".encode(), digest_size=8).digest()
