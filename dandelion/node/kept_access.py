"""Asynchronous invocations of a node, for callers on any event loop and in any thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from dandelion.asynchronous.handle import AsyncKeptAccess, KeptAccess
from dandelion.asynchronous.records import KeptPage, KeptRequest, KeptState, KeptView, Watched
from dandelion.data import ItemSet, Sets
from dandelion.errors import Cancelled, CatalogUnavailable, InvalidInput, Unknown
from dandelion.node.attachment import ClusterPart
from dandelion.node.invoker import Invoker
from dandelion.node.kept_service import KeptOutcome, KeptService
from dandelion.node.kept_views import WAIT_LIMIT_S
from dandelion.node.loop import NodeLoop

T = TypeVar("T")
KEY_TRIES = 5


class NodeKept:
    """Implements `dandelion.frontend.service.KeptInvocations`; raises as `KeptService`.

    Args:
        service: of the node.
        loop: of the node.
        invoker: of the node, which knows whether it runs.
        cluster: whose other nodes may run what this one does not.
    """

    def __init__(
        self,
        service: KeptService,
        loop: NodeLoop,
        invoker: Invoker,
        cluster: ClusterPart | None = None,
    ) -> None:
        self._cluster = cluster
        self._service = service
        self._loop = loop
        self._invoker = invoker

    async def submit(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], *, tenant: str
    ) -> KeptView:
        """Accept an asynchronous invocation."""
        if self._cluster is not None:
            self._cluster.check_acknowledges()
        return await self._here(self._submit(request, sets, tenant))

    async def _submit(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], tenant: str
    ) -> KeptView:
        if self._cluster is not None and request.key:
            digest = await self._service.reader.digest(request, sets)
            earlier = await self._earlier(self._cluster, request.key, digest, tenant)
            if earlier is not None:
                return earlier
        return await self._service.submit(request, sets, tenant)

    async def _earlier(
        self, cluster: ClusterPart, key: str, digest: str, tenant: str
    ) -> KeptView | None:
        """Find the invocation of an idempotency key that another node has accepted.

        A node may still have a copy of one that was never acknowledged, since its owner was lost
        or cut off; such a copy is dropped soon, and then there is none of that key.
        """
        for _ in range(KEY_TRIES):
            id_ = await cluster.elsewhere.earlier(tenant, key, digest)
            if id_ is None or id_ in self._service.lives.books.all:
                return None
            try:
                return (await self._watch(id_, tenant, after="", wait_s=0.0, end=True)).view
            except Unknown:
                continue
        reason = "copies of an invocation that was not acknowledged have its idempotency key"
        raise CatalogUnavailable("cluster", reason, "try again")

    async def watch(
        self, id_: str, *, tenant: str, after: str = "", wait_s: float = 0.0, end: bool = False
    ) -> Watched:
        """Tell about one, at once or when there is something new."""
        return await self._here(self._watch(id_, tenant, after=after, wait_s=wait_s, end=end))

    async def _watch(
        self, id_: str, tenant: str, *, after: str, wait_s: float, end: bool
    ) -> Watched:
        until_s = time.monotonic() + min(wait_s, WAIT_LIMIT_S)
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            try:
                watch = self._service.views.watch
                return await watch(id_, tenant, after=after, wait_s=left_s, end=end)
            except Unknown:
                if self._cluster is None:
                    raise
            watch_there = self._cluster.elsewhere.watch
            found = await watch_there(id_, tenant, after=after, wait_s=left_s, end=end)
            if found is not None:
                return found

    async def result(self, id_: str, *, tenant: str) -> KeptOutcome:
        """Give the result of one."""
        return await self._here(self._result(id_, tenant))

    async def _result(self, id_: str, tenant: str) -> KeptOutcome:
        while True:  # an invocation may itself have failed with `Unknown`
            if self._cluster is None or self._service.lives.find(id_, tenant) is not None:
                return await self._service.result(id_, tenant)
            found = await self._cluster.elsewhere.result(id_, tenant)
            if found is not None:
                return found

    async def cancel(self, id_: str, *, tenant: str) -> KeptView:
        """End one, or forget it if it has ended."""
        return await self._here(self._cancel(id_, tenant))

    async def _cancel(self, id_: str, tenant: str) -> KeptView:
        while True:
            try:
                return self._service.cancel(id_, tenant)
            except Unknown:
                if self._cluster is None:
                    raise
            found = await self._cluster.elsewhere.cancel(id_, tenant)
            if found is not None:
                return found

    async def list(
        self, *, tenant: str, state: KeptState | None = None, after: str = "", limit: int = 100
    ) -> KeptPage:
        """List those of a tenant, newest first; in a cluster those of all nodes that answer."""
        return await self._here(self._list(tenant, state, after, limit))

    async def _list(self, tenant: str, state: KeptState | None, after: str, limit: int) -> KeptPage:
        page = self._service.views.list(tenant, state, after, limit)
        if self._cluster is None:
            return page
        return await self._cluster.elsewhere.list_all(page, tenant, state, after, limit)

    def blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the coroutines above, and block until it is done.

        Raises:
            InvalidInput: this is the node's own loop, which would wait for itself.
        """
        if self._loop.is_current:
            work.close()
            hint = "use submit_async and the handle that it gives"
            raise InvalidInput("submit", "it would block the node's own event loop", hint)
        if not self._invoker.running:
            work.close()
            raise Cancelled("the node is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop.loop).result()

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop, for one on any loop."""
        if not self._invoker.running:
            work.close()
            raise Cancelled("the node is not running")
        if self._loop.is_current:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop.loop))


class TenantKept(AsyncKeptAccess):
    """What a handle of a tenant uses."""

    def __init__(self, kept: NodeKept, tenant: str) -> None:
        self._kept = kept
        self._tenant = tenant

    async def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        return await self._kept.watch(id_, tenant=self._tenant, after=after, wait_s=wait_s, end=end)

    async def result(self, id_: str, wait_s: float) -> Sets:
        if wait_s > 0:
            await self._kept.watch(id_, tenant=self._tenant, wait_s=wait_s, end=True)
        return (await self._kept.result(id_, tenant=self._tenant)).sets

    async def cancel(self, id_: str) -> KeptView:
        return await self._kept.cancel(id_, tenant=self._tenant)


class BlockingKept(KeptAccess):
    """The same for threads."""

    def __init__(self, kept: NodeKept, tenant: str) -> None:
        self._kept = kept
        self._tenant = tenant
        self._inner = TenantKept(kept, tenant)

    def submit(self, request: KeptRequest, sets: Mapping[str, ItemSet | None]) -> str:
        """Accept an asynchronous invocation; return its id."""
        work = self._kept.submit(request, sets, tenant=self._tenant)
        return self._kept.blocking(work).id

    def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        return self._kept.blocking(self._inner.watch(id_, after, wait_s, end=end))

    def result(self, id_: str, wait_s: float) -> Sets:
        return self._kept.blocking(self._inner.result(id_, wait_s))

    def cancel(self, id_: str) -> KeptView:
        return self._kept.blocking(self._inner.cancel(id_))
