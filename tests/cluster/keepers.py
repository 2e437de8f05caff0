"""Keepers of asynchronous invocations of several nodes on one loop, without connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, cast

from dandelion.asynchronous.records import KeptRecord, KeptRequest
from dandelion.asynchronous.store import Drop, KeptStore, MemoryKeptStore, Part, Put, StoreStep
from dandelion.cluster.kept_copies import CopyLimits
from dandelion.cluster.kept_keeper import KeptKeeper
from dandelion.cluster.kept_store import ReplicatedKeptStore
from dandelion.cluster.link import OutLink
from dandelion.cluster.membership import Membership
from dandelion.data import Bytes

VOTERS = ("a:1", "b:1", "c:1")


class PlayedLink:
    """A link to another keeper, which answers at once."""

    def __init__(self, asker: str, answerer: PlayedNode) -> None:
        self.peer, self.closed = answerer.name, False
        self.questions = self
        self._asker, self._answerer = asker, answerer
        self.asked: list[bytes] = []

    async def ask(self, content: bytes, chunks: Sequence[Bytes] = ()) -> tuple[bytes, Bytes]:
        self.asked.append(content)
        answer = await self._answerer.answer(self._asker, content, b"".join(chunks))
        return answer.content, b"".join(answer.chunks)


class PlayedNode(KeptKeeper):
    """A keeper with a store in memory. Use it on a loop.

    Attributes:
        inner: what is stored.
        out: links to others, by name.
    """

    def __init__(
        self,
        name: str,
        limits: CopyLimits | None = None,
        voters: Sequence[str] = VOTERS,
        inner: KeptStore | None = None,
    ) -> None:
        self.name = name
        self.tasks: set[asyncio.Task[None]] = set()
        self.out: dict[str, OutLink] = {}
        members = Membership(name, [voter for voter in voters if voter != name], voters)
        super().__init__(name, voters, False, members, self.out, limits or CopyLimits(), self._run)
        self.inner = inner or MemoryKeptStore()
        post = cast(
            Callable[[Callable[[], None]], None], asyncio.get_running_loop().call_soon_threadsafe
        )
        self.store: ReplicatedKeptStore = self.wrap(self.inner, post)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def link(self, *others: PlayedNode) -> None:
        for other in others:
            link = self.out[other.name] = cast(OutLink, PlayedLink(self.name, other))
            self.linked(other.name, link)

    async def write(self, *steps: StoreStep) -> None:
        await asyncio.to_thread(self.store.write, steps)

    @property
    def ids(self) -> list[str]:
        return sorted(self._copies.records)

    @property
    def stored(self) -> list[str]:
        return sorted(record.id for record in self.inner.load())

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.store.close()


@contextlib.asynccontextmanager
async def linked(*limits: CopyLimits | None) -> AsyncIterator[list[PlayedNode]]:
    """Give nodes with these limits, of which the first is linked to the others."""
    made = [PlayedNode(name, limit) for name, limit in zip(VOTERS, limits, strict=True)]
    try:
        made[0].link(*made[1:])
        yield made
    finally:
        for one in made:
            await one.close()


def id_of(number: int) -> str:
    return f"{number:032x}"


def record(number: int, data: bytes = b"", key: str = "", **given: object) -> KeptRecord:
    request = KeptRequest(name="work", key=key)
    size = {} if "state" in given else {"input_bytes": len(data)}
    return KeptRecord(id=id_of(number), tenant="t", request=request, **{**size, **given})  # type: ignore[arg-type]


def put(number: int, data: bytes = b"", key: str = "") -> Put:
    """A new invocation."""
    return Put(record(number, data, key), Part.INPUTS, (data,))


def drop(number: int) -> Drop:
    return Drop(id_of(number))


async def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)
