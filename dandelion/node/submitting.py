"""Asynchronous invocations on a node: submitting them, and finding them again."""

from __future__ import annotations

from typing import Never

from dandelion.asynchronous.handle import AsyncInvocationHandle, InvocationHandle
from dandelion.asynchronous.records import KeptRequest
from dandelion.data import Value
from dandelion.documents import Named, name_of
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node.awaiting import awaited_plan
from dandelion.node.components import Components
from dandelion.node.inputs import converted
from dandelion.node.kept_access import BlockingKept, NodeKept, TenantKept
from dandelion.set_values import check_named


class Submitting:
    """The methods of a node for asynchronous invocations. Safe from any thread.

    Attributes:
        kept: gives access to them, awaited; see ``docs/asynchronous.md``.
    """

    def __init__(self, parts: Components) -> None:
        self._invoker = parts.invoker
        self._spaces = parts.spaces
        self.kept = NodeKept(parts.kept, parts.loop, parts.invoker, parts.cluster)

    def submit(
        self,
        name: str | Named,
        /,
        *unnamed: Never,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        key: str = "",
        callback: str = "",
        tenant: str = DEFAULT_TENANT,
        **sets: Value,
    ) -> InvocationHandle:
        """Accept an asynchronous invocation, and return at once; see ``docs/asynchronous.md``.

        Args:
            name, version, priority, tenant, sets: as of `invoke`.
            deadline_s: of each attempt, in seconds; by default the setting `async_deadline_s`.
            key: a second submission with the same key and the same request gives the first
                invocation.
            callback: a URL that is called at the end, if the operator allows it.

        Raises:
            Unknown, InvalidInput: the call does not fit.
            KeyReused: the key belongs to another request.
            Overloaded, KeptFull, DiskFull, CatalogUnavailable: it cannot be kept now.
        """
        check_named(unnamed)
        request = KeptRequest(
            name=name_of(name),
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            key=key,
            callback=callback,
        )
        plan = self._spaces.of(tenant).library.plan(name_of(name), version)
        access = BlockingKept(self.kept, tenant)
        return InvocationHandle(access.submit(request, converted(plan, sets)), access)

    async def submit_async(
        self,
        name: str | Named,
        /,
        *unnamed: Never,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        key: str = "",
        callback: str = "",
        tenant: str = DEFAULT_TENANT,
        **sets: Value,
    ) -> AsyncInvocationHandle:
        """Accept an asynchronous invocation as `submit` does, from any event loop."""
        check_named(unnamed)
        request = KeptRequest(
            name=name_of(name),
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            key=key,
            callback=callback,
        )
        plan = await awaited_plan(self._invoker.library(tenant), name_of(name), version)
        view = await self.kept.submit(request, converted(plan, sets), tenant=tenant)
        return AsyncInvocationHandle(view.id, TenantKept(self.kept, tenant))

    def submitted(self, id_: str, tenant: str = DEFAULT_TENANT) -> InvocationHandle:
        """Give the handle of an asynchronous invocation that was submitted before, by its id."""
        return InvocationHandle(id_, BlockingKept(self.kept, tenant))
