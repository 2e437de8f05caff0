"""Asynchronous invocations that other nodes run: any node answers for all of them."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dandelion.asynchronous.failures import KeyReused
from dandelion.asynchronous.records import (
    KeptPage,
    KeptRecord,
    KeptState,
    KeptView,
    Watched,
)
from dandelion.asynchronous.stored_sets import DamagedSets, decode_sets, encode_sets
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import KeptCopies, holder_of, mark_of
from dandelion.cluster.kept_messages import (
    CancelKept,
    FetchResult,
    FindKey,
    Keyed,
    ListKept,
    Operation,
    OperationAnswer,
    Watch,
    decode_answer,
    encode_kept,
)
from dandelion.cluster.link import OutLink
from dandelion.cluster.membership import Membership
from dandelion.cluster.questions import Answer
from dandelion.data import Bytes, Sets
from dandelion.errors import CatalogUnavailable, DandelionError, Unknown, from_record
from dandelion.node.kept_service import KeptOutcome, KeptService

log = logging.getLogger("dandelion.cluster")

FIND_S = 10.0
"""How long an invocation may have no node that runs it, while its node is lost."""
PAUSE_S = 0.1
OLDER_S = 1.0
"""How much longer than its wait a node may take to answer."""


class KeptElsewhere:
    """Implements `dandelion.node.attachment.KeptElsewhere`. For the loop's thread.

    Args:
        name: of this node.
        copies: of this node.
        membership, links: the other nodes.
        voters: names of the nodes that have copies; None if each node has copies of its own
            invocations only.

    Attributes:
        service: of this node, once it has started.
    """

    def __init__(
        self,
        name: str,
        copies: KeptCopies,
        membership: Membership,
        links: Mapping[str, OutLink],
        voters: Sequence[str] | None,
    ) -> None:
        self._name = name
        self._copies = copies
        self._membership = membership
        self._links = links
        self._voters = voters
        self.service: KeptService | None = None

    # --- asking -----------------------------------------------------------------------------------

    async def earlier(self, tenant: str, key: str, digest: str) -> str | None:
        """Return the id of an invocation with an idempotency key that a node accepted.

        One that was acknowledged is at a majority of the voters, so this asks as many as every
        majority has one of.

        Raises:
            KeyReused: its request was different.
            CatalogUnavailable: too few voters answer.
        """
        found = self.keyed(tenant, key)
        if not found.id:
            found = await self._keyed_elsewhere(FindKey(tenant, key))
        if found.id and found.digest != digest:
            raise KeyReused(key, found.id)
        return found.id or None

    def keyed(self, tenant: str, key: str) -> Keyed:
        """Find the invocation of an idempotency key among the copies here."""
        record = self._copies.with_key(tenant, key)
        return Keyed() if record is None else Keyed(record.id, record.digest)

    async def _keyed_elsewhere(self, question: FindKey) -> Keyed:
        names = self._links if self._voters is None else self._voters
        links = [self._links[name] for name in names if name in self._links]
        missing = 0
        if self._voters is not None:
            majority = len(self._voters) // 2 + 1
            missing = len(self._voters) - majority + 1 - (self._name in self._voters)
            if not missing:
                return Keyed()
        tasks = [asyncio.create_task(self._ask_key(link, question)) for link in links]
        try:
            for task in asyncio.as_completed(tasks):
                answer = await task
                missing -= answer is not None
                if answer is not None and answer.id:
                    return answer
                if not missing and self._voters is not None:
                    return Keyed()
        finally:
            for one in tasks:
                one.cancel()
        if missing > 0:
            reason = "too few voters say whether they know the idempotency key"
            remedy = "try again when they are connected, and have the same version"
            raise CatalogUnavailable("cluster", reason, remedy)
        return Keyed()

    async def _ask_key(self, link: OutLink, question: FindKey) -> Keyed | None:
        """Ask a node; None if it does not answer."""
        try:
            async with asyncio.timeout(OLDER_S):
                content, _ = await link.questions.ask(encode_kept(question))
            return decode_answer(content, Keyed)
        except BadPeer as error:
            log.warning("node %s: %s", link.peer, error)
        except (DandelionError, TimeoutError):
            pass
        return None

    async def watch(
        self, id_: str, tenant: str, *, after: str, wait_s: float, end: bool
    ) -> Watched | None:
        """See `KeptViews.watch`; None if this node runs it by now."""
        found = await self._find(Watch(id_, tenant, after, wait_s, end), wait_s)
        return None if found is None else found[0].watched

    async def result(self, id_: str, tenant: str) -> KeptOutcome | None:
        """See `KeptService.result`; None if this node runs it by now."""
        found = await self._find(FetchResult(id_, tenant))
        if found is None:
            return None
        try:
            return KeptOutcome(id_, Sets(decode_sets(found[1])))
        except DamagedSets as error:
            reason = f"the result of invocation {id_} did not arrive whole: {error}"
            raise CatalogUnavailable("cluster", reason, "ask again") from None

    async def cancel(self, id_: str, tenant: str) -> KeptView | None:
        """See `KeptService.cancel`; None if this node runs it by now."""
        found = await self._find(CancelKept(id_, tenant))
        return None if found is None else found[0].view

    async def list_all(
        self, own: KeptPage, tenant: str, state: KeptState | None, after: str, limit: int
    ) -> KeptPage:
        """Add what all other nodes list to a page of this one; lost nodes are missing in it."""
        question = ListKept(tenant, state, after, limit)
        asking = [self._ask(link, question, OLDER_S) for link in self._links.values()]
        answers = [answer for answer, _ in await asyncio.gather(*asking)]
        pages = [own, *(one.page for one in answers if one is not None and one.page is not None)]
        return _merged(pages, limit)

    async def _find(
        self, question: Watch | FetchResult | CancelKept, wait_s: float = 0.0
    ) -> tuple[OperationAnswer, Bytes] | None:
        """Ask the node that runs an invocation, whichever that is; None if it is this one.

        Raises:
            Unknown: there is no such invocation.
            CatalogUnavailable: no node runs it now, or this node sees too few others to know.
            DandelionError: as the other node said.
        """
        began_s = time.monotonic()
        while True:
            service = self.service
            if service is not None and service.lives.find(question.id, question.tenant):
                return None
            took_s = time.monotonic() - began_s
            if isinstance(question, Watch):
                question = msgspec.structs.replace(question, wait_s=max(0.0, wait_s - took_s))
            link = self._holder(question.id)
            links = list(self._links.values()) if link is None else [link]
            is_known = self._not_here(question).has_copy
            for answer, data in await self._ask_all(links, question):
                if answer is None or answer.has_copy:
                    is_known = True
                elif answer.error is not None:
                    raise from_record(answer.error)
                elif answer.watched or answer.view or answer.result:
                    return answer, data
            if not is_known and self._knows_all:
                raise Unknown("invocation", question.id[:64])
            if time.monotonic() - began_s > max(FIND_S, wait_s):
                reason = f"no node that this one can reach runs invocation {question.id[:64]} now"
                raise CatalogUnavailable("cluster", reason, "ask again, or ask another node")
            await asyncio.sleep(PAUSE_S)

    @property
    def _knows_all(self) -> bool:
        """Whether an invocation that no node answers for does not exist."""
        members = self._membership
        return members.sees_all if self._voters is None else members.has_majority

    def _holder(self, id_: str) -> OutLink | None:
        record = self._copies.records.get(id_)
        if record is None:
            return None
        return self._links.get(holder_of(self._copies.ballot(mark_of(record).journal)))

    async def _ask_all(
        self, links: Iterable[OutLink], question: Operation
    ) -> list[tuple[OperationAnswer | None, Bytes]]:
        """Ask nodes until one has the invocation; None for those that do not answer."""
        wait_s = (question.wait_s if isinstance(question, Watch) else 0.0) + FIND_S
        tasks = [asyncio.create_task(self._ask(link, question, wait_s)) for link in links]
        answers = []
        try:
            for task in asyncio.as_completed(tasks):
                answers.append(await task)
                one = answers[-1][0]
                if one is not None and (one.watched or one.view or one.result or one.error):
                    break
        finally:
            for asking in tasks:
                asking.cancel()
        return answers

    async def _ask(
        self, link: OutLink, question: Operation, limit_s: float
    ) -> tuple[OperationAnswer | None, Bytes]:
        try:
            async with asyncio.timeout(limit_s):
                content, data = await link.questions.ask(encode_kept(question))
            return decode_answer(content, OperationAnswer), data
        except (DandelionError, BadPeer, TimeoutError):
            return None, b""

    # --- answering --------------------------------------------------------------------------------

    async def answer(self, question: Operation) -> Answer:
        """Answer a question of another node, about what this one runs."""
        if isinstance(question, FetchResult) and self.service is not None:
            if self.service.lives.find(question.id, question.tenant) is None:
                return Answer(encode_kept(self._not_here(question)))
            try:
                outcome = await self.service.result(question.id, question.tenant)
                return Answer(encode_kept(OperationAnswer(result=True)), encode_sets(outcome.sets))
            except DandelionError as error:
                return Answer(encode_kept(OperationAnswer(error=error.record())))
        return Answer(encode_kept(await self._operation_answer(question)))

    async def _operation_answer(self, question: Operation) -> OperationAnswer:
        if self.service is None:
            return self._not_here(question)
        views = self.service.views
        try:
            if isinstance(question, Watch):
                watched = await views.watch(
                    question.id,
                    question.tenant,
                    after=question.after,
                    wait_s=question.wait_s,
                    end=question.end,
                )
                return OperationAnswer(watched=watched)
            if isinstance(question, CancelKept):
                return OperationAnswer(view=self.service.cancel(question.id, question.tenant))
            if isinstance(question, ListKept):
                page = (question.tenant, question.state, question.after, question.limit)
                return OperationAnswer(page=views.list(*page))
            return self._not_here(question)
        except Unknown:
            return self._not_here(question)
        except DandelionError as error:
            return OperationAnswer(error=error.record())

    def _not_here(self, question: Operation) -> OperationAnswer:
        if isinstance(question, ListKept):
            return OperationAnswer()
        record: KeptRecord | None = self._copies.records.get(question.id)
        return OperationAnswer(has_copy=record is not None and record.tenant == question.tenant)


def _merged(pages: Iterable[KeptPage], limit: int) -> KeptPage:
    """Merge pages: newest first, each invocation once."""
    pages = list(pages)
    ordered = heapq.merge(
        *[page.invocations for page in pages],
        key=lambda view: (view.created_s, view.id),
        reverse=True,
    )
    found: dict[str, KeptView] = {}
    more = any(page.after is not None for page in pages)
    for view in ordered:
        if view.id not in found and len(found) == limit:
            more = True
            break
        found[view.id] = view
    views = tuple(found.values())
    if not more or not views:
        return KeptPage(views)
    return KeptPage(views, f"{views[-1].created_s!r}_{views[-1].id}")
