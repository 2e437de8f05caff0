"""A node at the other end of a link, as the frontend needs it.

An invocation that is small costs one message each way: its data travels in the message or is copied
into a slab that is there already. Data that is large and does not lie in a lease yet needs a lease
first, and many items need several messages.

Methods that are not coroutines wait for the node; they are for threads. What the loop needs at once
comes from the node's status page.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dandelion.asynchronous.records import KeptRequest
from dandelion.data import Bytes, Item, ItemSet, Sets
from dandelion.errors import from_record
from dandelion.frontend_process.link import Link
from dandelion.frontend_process.messages import (
    Answered,
    Ask,
    AskKept,
    Cancel,
    Drain,
    Ended,
    Failed,
    FetchKept,
    FromNode,
    Keep,
    Leased,
    LinesDropped,
    Open,
    Part,
    Reload,
    Submit,
)
from dandelion.frontend_process.query_messages import Query
from dandelion.frontend_process.remote_kept import RemoteKept
from dandelion.frontend_process.remote_memory import RemoteMemory
from dandelion.frontend_process.remote_queries import RemoteQueries
from dandelion.frontend_process.remote_sets import RemoteSets, placed
from dandelion.frontend_process.status import StatusReader
from dandelion.frontend_process.wire import (
    PART_ITEMS,
    WireSet,
    WireSets,
    joined,
)
from dandelion.invocation_result import InvocationResult
from dandelion.memory import ArenaMap, Context
from dandelion.settings import Settings
from dandelion.tokens.table import Buckets
from dandelion.trace_context import InvocationSpan

_THREAD_BYTES = 1024 * 1024
"""Copying more is left to a thread."""


class RemoteNode(RemoteQueries):
    """Implements `dandelion.frontend.service.Service`.

    Args:
        link: to the node; what it receives after `Open` goes to `received`.
        opened: what the node said first.
        arena: of the node.
        arena_descriptors: see `Service`.

    Attributes:
        on_drain: called when the node accepts no more requests.
        on_reload: called when there are other tokens or another certificate.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Link[FromNode],
        opened: Open,
        arena: ArenaMap,
        arena_descriptors: tuple[int, ...],
    ) -> None:
        self._loop = loop
        self._link = link
        self._settings = opened.settings
        self._arena = arena
        self._arena_descriptors = arena_descriptors
        self._status = StatusReader(arena, opened.status_offset)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._parts: dict[int, list[WireSet]] = {}
        self._memory = memory = RemoteMemory(
            loop, link, self._numbers, arena, opened.settings.frontends
        )
        self._wire = RemoteSets(memory)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Ended: self._on_ended,
            Failed: self._on_failed,
            Leased: memory.leased,
            Part: self._on_part,
            Answered: self._on_answered,
            Drain: lambda _: self.on_drain(),
            Reload: lambda message: self.on_reload(message),
        }
        self.on_drain: Callable[[], None] = lambda: None
        self.on_reload: Callable[[Reload], None] = lambda _: None
        self.kept = RemoteKept(self)

    @property
    def settings(self) -> Settings:
        """Settings of the node, with this frontend's limits of connections."""
        return self._settings

    @property
    def arena(self) -> ArenaMap:
        """The node's arena."""
        return self._arena

    @property
    def arena_descriptors(self) -> tuple[int, ...]:
        """The lifeline: the node keeps this frontend's memory as long as a process has it open."""
        return self._arena_descriptors

    @property
    def buckets(self) -> Buckets:
        """State of the rate limits, shared with the other frontends."""
        return self._status.buckets

    @property
    def generation(self) -> int:
        """Of the node's catalogue, as it is now."""
        return self._status.generation

    def alive(self) -> bool:
        """Whether the node's event loop runs."""
        return self._status.alive()

    def lines_dropped(self, count: int) -> None:
        """Count lines of an access log that were lost."""
        self._link.post(LinesDropped(count))

    def ready(self) -> bool:
        """Whether the node is ready."""
        return self._status.ready()

    # --- messages -------------------------------------------------------------------------------

    def received(self, messages: list[FromNode]) -> None:
        """Take messages of the node."""
        for message in messages:
            self._handlers[type(message)](message)

    def lost(self) -> None:
        """Fail everything that waits; the node is gone."""
        for future in self._waiting.values():
            future.cancel()
        self._memory.lost()

    def _expect(self) -> tuple[int, asyncio.Future[Any]]:
        number = next(self._numbers)
        future = self._waiting[number] = self._loop.create_future()
        return number, future

    def _resolve(self, number: int, result: object) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(result)

    def _on_failed(self, message: Failed) -> None:
        self._parts.pop(message.number, None)
        if self._memory.failed(message.number, partial(from_record, message.error)):
            return
        future = self._waiting.pop(message.number, None)
        if future is not None and not future.done():
            error = from_record(message.error)
            error.invocation = message.id
            future.set_exception(error)

    def _on_part(self, message: Part) -> None:
        self._parts.setdefault(message.number, []).append(message.set)

    # --- memory ---------------------------------------------------------------------------------

    def acquire_to_fill(self, size_bytes: int) -> Context:
        """Give a context in the arena, with any content; for threads.

        Raises:
            ContextFull: the arena has no room.
        """
        return self._memory.lease_now(size_bytes)[1]

    async def acquire_to_fill_async(self, size_bytes: int) -> Context:
        """Give a context in the arena, with any content; raises as `acquire_to_fill`."""
        return await self._memory.acquire(size_bytes)

    # --- invoking -------------------------------------------------------------------------------

    async def invoke_sets_async(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str,
        trace_context: InvocationSpan | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> InvocationResult:
        """Invoke with sets; cancelling it cancels the invocation."""
        number, future = self._expect()
        try:
            wire = self._wire.wired(sets)
            if wire is None:
                wire = await self._sent_ahead(number, sets)
            self._link.post(
                Submit(number, name, version, deadline_s, priority, wire, tenant, trace_context)
            )
            self._memory.submitted()
            del sets, wire
            if on_wait is not None:
                on_wait()
            outcome: InvocationResult = await future
        except BaseException:
            self.dropped(number)
            raise
        finally:
            del future  # its error refers to this frame
        return outcome

    def dropped(self, number: int) -> None:
        """The answer of a request is not wanted any more."""
        if self._waiting.pop(number, None) is not None:
            self._link.post(Cancel(number))

    async def keep(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], tenant: str
    ) -> Bytes:
        """Send an asynchronous invocation; give the answer, see `Keep`."""
        number, future = self._expect()
        try:
            wire = self._wire.wired(sets)
            if wire is None:
                wire = await self._sent_ahead(number, sets)
            self._link.post(Keep(number, request, wire, tenant))
            self._memory.submitted()
            del sets, wire
            answer: Bytes = await future
        except BaseException:
            self.dropped(number)
            raise
        finally:
            del future
        return answer

    async def asked_kept(self, make: Callable[[int], AskKept | FetchKept]) -> Any:
        """Send a request about asynchronous invocations; give its answer."""
        number, future = self._expect()
        try:
            self._link.post(make(number))
            return await future
        except BaseException:
            self.dropped(number)
            raise
        finally:
            del future

    async def _sent_ahead(self, number: int, sets: Mapping[str, ItemSet | None]) -> WireSets:
        """Send all items in parts, those that lie elsewhere copied to a lease; give the sets.

        Slabs are not used: one may be released while this waits, before its data is named.
        """
        loose = [
            i for s in sets.values() if s is not None for i in s.items if self._wire.is_loose(i)
        ]
        size = sum(item.size_bytes for item in loose)
        lease = await self._memory.lease(size) if size else None
        end = 0
        for name, one in sets.items():
            if one is None:
                continue
            for start in range(0, len(one.items), PART_ITEMS):
                some = []
                for item in one.items[start : start + PART_ITEMS]:
                    if lease is not None and self._wire.is_loose(item):
                        await _copied(lease[1], end, item)
                        some.append(placed(item, lease[0], end))
                        end += item.size_bytes
                    else:
                        made = self._wire.wired_item(item)
                        assert made is not None, "it is small or lies in a lease"
                        some.append(made)
                self._link.post(Part(number, WireSet(name, tuple(some))))
                await asyncio.sleep(0)
        return tuple(
            WireSet(name) if one is None else WireSet(name, (), one.dtype, one.shape, one.form)
            for name, one in sets.items()
        )

    def _on_ended(self, message: Ended) -> None:
        sets = message.sets
        if self._parts:
            parts = self._parts.pop(message.number, None)
            sets = joined(parts, sets) if parts is not None else sets
        outcome = InvocationResult(message.id, Sets(self._wire.read(message.number, sets)))
        self._resolve(message.number, outcome)

    # --- queries: see `RemoteQueries` -----------------------------------------------------------

    def _answer(self, query: Query) -> Bytes:
        return asyncio.run_coroutine_threadsafe(self._asked(query), self._loop).result()

    def _lease_now(self, size_bytes: int) -> tuple[int, Context]:
        return self._memory.lease_now(size_bytes)

    async def _asked(self, query: Query) -> Bytes:
        number, future = self._expect()
        try:
            self._link.post(Ask(number, query))
            answer: Bytes = await future
        except BaseException:
            self._waiting.pop(number, None)
            raise
        finally:
            del future  # its error refers to this frame
        return answer

    def _on_answered(self, message: Answered) -> None:
        blob = message.answer
        data: Bytes | None = blob.data
        if data is None:
            data = self._memory.leases.result(message.number, blob.offset, blob.size)
            self._memory.release_later()
        self._resolve(message.number, data)


async def _copied(context: Context, offset_bytes: int, item: Item) -> None:
    if item.size_bytes > _THREAD_BYTES:
        await asyncio.to_thread(context.write, offset_bytes, item.data)
    else:
        context.write(offset_bytes, item.data)
