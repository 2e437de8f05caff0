"""The client of a node for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Never, Self, TypeVar

from dandelion.activity import Activity, ActivityQuery
from dandelion.asynchronous.handle import AsyncInvocationHandle
from dandelion.asynchronous.records import KeptPage, KeptRequest, KeptState
from dandelion.call_logs import PAGE_LINES, LogPage
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.catalog import Removal
from dandelion.data import Sets, Value
from dandelion.documents import (
    ContentLike,
    FunctionDocument,
    Named,
    Registered,
    Registrable,
    name_of,
)
from dandelion.frontend import client_protocol
from dandelion.frontend.async_connections import AsyncConnections
from dandelion.frontend.client_kept import AsyncClientKept
from dandelion.frontend.client_protocol import Changes, Engines, Entries
from dandelion.frontend.client_requests import (
    CONNECTIONS,
    POLL_S,
    TIMEOUT_S,
    URL,
    ClientTarget,
    Steps,
)
from dandelion.frontend.client_tls import Tls
from dandelion.frontend.outage import Outage
from dandelion.frontend.problem import ClientClosed, Unreachable
from dandelion.frontend.records import Description
from dandelion.frontend.wait_places import AsyncWaitPlaces
from dandelion.invocation_result import InvocationResult
from dandelion.set_values import check_named
from dandelion.traces import TraceDocument

T = TypeVar("T")


class AsyncClient:
    """The asynchronous form of `dandelion.frontend.client.Client`.

    An instance belongs to the event loop that it is first used on. Cancelling a call closes its
    connection, and the node then cancels the invocation.

    Args:
        url, timeout_s, token, headers, tls, connections: as for `Client`.

    Raises:
        InvalidInput: the URL is not that of a node, the token or a header is malformed, or the
            certificates cannot be read.
    """

    def __init__(
        self,
        url: str = URL,
        timeout_s: float = TIMEOUT_S,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: Tls = True,
        connections: int = CONNECTIONS,
    ) -> None:
        target = ClientTarget.of(url, timeout_s, headers, connections, token, tls)
        self._connections = AsyncConnections(target)
        self._places = AsyncWaitPlaces(connections)
        self.url = target.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls under way fail."""
        await self._connections.close()

    async def _run(self, steps: Steps[T]) -> T:
        """Carry out the requests of a method."""
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._connections.request(request))
        except StopIteration as end:
            result: T = end.value
            return result

    async def invoke(
        self,
        name: str | Named,
        /,
        *unnamed: Never,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        idempotency_key: str = "",
        **sets: Value,
    ) -> Sets:
        """Invoke a function or composition, as `Client.invoke`."""
        check_named(unnamed)
        result = await self.invoke_sets(
            name,
            sets,
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        return result.sets

    async def invoke_sets(
        self,
        name: str | Named,
        sets: Mapping[str, Value],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        idempotency_key: str = "",
    ) -> InvocationResult:
        """Invoke as `invoke` does; the result also has the id of the invocation, for `trace`."""
        return await self._run(
            client_protocol.invoke(
                name_of(name), sets, version, deadline_s, priority, idempotency_key
            )
        )

    async def submit(
        self,
        name: str | Named,
        /,
        *unnamed: Never,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        key: str = "",
        callback: str = "",
        **sets: Value,
    ) -> AsyncInvocationHandle:
        """Submit an asynchronous invocation, and return at once, as `Client.submit`."""
        check_named(unnamed)
        requested = KeptRequest(
            name=name_of(name),
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            key=key,
            callback=callback,
        )
        id_ = await self._run(client_protocol.submit(requested, sets))
        access = AsyncClientKept(self._run, self._places, Outage(is_reached=True))
        return AsyncInvocationHandle(id_, access)

    def submitted(self, id_: str) -> AsyncInvocationHandle:
        """Give the handle of an asynchronous invocation, by its id; nothing is sent."""
        access = AsyncClientKept(self._run, self._places, Outage(is_reached=False))
        return AsyncInvocationHandle(id_, access)

    async def invocations(
        self, state: KeptState | None = None, after: str = "", limit: int = 100
    ) -> KeptPage:
        """List asynchronous invocations, newest first, as `Client.invocations`."""
        return await self._run(client_protocol.list_kept(state, after, limit))

    async def register(
        self,
        *things: Registrable,
        functions: Iterable[FunctionDocument] = (),
        libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
        progress: bool = False,
    ) -> list[Registered]:
        """Register everything together, all or nothing, as `Client.register`."""
        return await self._run(client_protocol.register(things, functions, libraries, progress))

    async def compare(self, *things: Registrable) -> Changes:
        """Tell what `register` would change; nothing is registered.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition, Conflict: as `register`.
        """
        return await self._run(client_protocol.compare(things))

    async def list(self) -> Entries:
        """List the newest versions of all functions, compositions and libraries."""
        return await self._run(client_protocol.list_all())

    async def describe(self, name: str, version: int | None = None) -> Description:
        """Describe a function, composition or library, as `Client.describe`."""
        return await self._run(client_protocol.describe(name, version))

    async def remove(self, name: str, version: int | None = None) -> Entries:
        """Remove one version of a name, or all, as `Client.remove`."""
        return await self._run(client_protocol.remove(name, version))

    async def remove_together(self, removals: Iterable[Removal]) -> Entries:
        """Remove records, all or nothing, as `Client.remove_together`."""
        return await self._run(client_protocol.remove_together(removals))

    async def graph(self, name: str, format: str = "svg", version: int | None = None) -> str:  # noqa: A002  # as in the query
        """Draw a composition as ``svg``, ``mermaid``, ``json`` or ``text``."""
        return await self._run(client_protocol.graph(name, format, version))

    async def record(
        self,
        name: str,
        sets: Mapping[str, Value],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
    ) -> bytes:
        """Invoke, and return a recording of the invocation for ``dandelion replay``.

        It has the code of all functions that the invocation can use, its inputs, all its calls and
        the result, also if that is an error.

        Raises:
            MissingRight: the token needs the rights ``read`` and ``invoke``.
            DandelionError: the invocation could not begin.
        """
        return await self._run(client_protocol.record(name, sets, version, deadline_s))

    async def activity(self, query: ActivityQuery | None = None) -> Activity:
        """Tell what this client's tenant did lately: invocations, and calls by function."""
        return await self._run(client_protocol.activity(query or ActivityQuery()))

    async def trace(self, invocation: str) -> TraceDocument:
        """Return the trace of a recent invocation, as `Client.trace`."""
        return await self._run(client_protocol.trace(invocation))

    async def logs(
        self,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
    ) -> LogPage:
        """Return lines that functions wrote lately, as `dandelion.node.Node.logs`."""
        return await self._run(client_protocol.logs(function, invocation, after, limit))

    async def engines(self) -> Engines:
        """List the node's engines, and unavailable backends with the reason."""
        return await self._run(client_protocol.engines())

    async def capacity(
        self, function: str | None = None, version: int | None = None
    ) -> NodeCapacity:
        """Tell what the node has and what is free, as `Client.capacity`."""
        return await self._run(client_protocol.capacity(function, version))

    async def cluster(self) -> ClusterInfo | None:
        """Tell what the node knows of its cluster; None if it is in none."""
        return await self._run(client_protocol.cluster())

    async def metrics(self) -> str:
        """Return the node's metrics in Prometheus' text format."""
        return await self._run(client_protocol.metrics())

    async def ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the node's engines are up; wait for that, at most `wait_s` seconds."""
        now = asyncio.get_running_loop().time
        end = now() + wait_s
        while True:
            try:
                if await self._run(client_protocol.ready()):
                    return True
            except ClientClosed:
                raise
            except Unreachable:
                pass  # it may be starting
            left_s = end - now()
            if left_s <= 0:
                return False
            await asyncio.sleep(min(POLL_S, left_s))
