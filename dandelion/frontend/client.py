"""A client of a node over HTTP and MessagePack.

    with Client("http://127.0.0.1:8080") as client:
        client.register(render_logs, functions=[access, fan_out, render])
        html = client.invoke("render_logs", token=b"...", topic=b"...").html.text()

Values, results and errors are those of an embedded `dandelion.node.Node`, so a program can change
from one to the other. `dandelion.AsyncClient` is the same for
asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Never, Self, TypeVar

from dandelion.activity import Activity, ActivityQuery
from dandelion.asynchronous.handle import InvocationHandle
from dandelion.asynchronous.records import KeptPage, KeptRequest, KeptState
from dandelion.call_logs import PAGE_LINES, LogLine, LogPage
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
from dandelion.frontend.client_kept import ClientKept
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
from dandelion.frontend.connections import Connections
from dandelion.frontend.outage import Outage
from dandelion.frontend.problem import ClientClosed, Unreachable
from dandelion.frontend.records import Description
from dandelion.frontend.wait_places import WaitPlaces
from dandelion.invocation_result import InvocationResult
from dandelion.set_values import check_named
from dandelion.traces import TraceDocument

__all__ = ["Client", "Unreachable"]

T = TypeVar("T")
FOLLOW_S = 0.25
"""How often `Client.follow_logs` asks for new lines, in seconds."""


class Client:
    """Sends requests to one node. Connections are kept alive.

    Safe to use from any thread, and in a child process after a fork. A call that is interrupted
    closes its connection, and the node then cancels the invocation.

    Args:
        url: where the node listens, such as ``http://127.0.0.1:8080``; a path in it is put before
            the path of each request.
        timeout_s: how long a call may go without progress, in seconds. An invocation with a
            deadline waits as long as that, and some seconds for the node's answer.
        token: bearer token. Over ``http://`` it can be read on the network.
        headers: additional HTTP headers of each request.
        tls: of ``https://``: True checks the node's certificate with the system's certificates, a
            path with those of a file in PEM, an `ssl.SSLContext` as it says. False checks nothing.
        connections: how many connections there may be; further calls wait for one.

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
        self._connections = Connections(target)
        self._places = WaitPlaces(connections)
        self.url = target.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls under way in other threads are not interrupted."""
        self._connections.close()

    def _run(self, steps: Steps[T]) -> T:
        """Carry out the requests of a method."""
        try:
            request = next(steps)
            while True:
                request = steps.send(self._connections.request(request))
        except StopIteration as end:
            result: T = end.value
            return result

    # --- invoking -------------------------------------------------------------------------------

    def invoke(
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
        """Invoke a function or composition, as `dandelion.node.Node.invoke`.

        Args:
            name: what to invoke: a name, or a decorated function or composition.
            version: which version; by default the newest.
            deadline_s: seconds until the node cancels the invocation.
            priority: from -1000 to 1000. Of the waiting calls of this tenant, those of the highest
                priority are next.
            idempotency_key: a second call with the same key and the same request gives the result
                of the first one. With it a call that got no answer can be repeated.
            *unnamed: none, since sets have no order.
            **sets: the input sets. All must be named; None is an absent set.

        Returns:
            The output sets by name; arrays have the declared dtype and shape.

        Raises:
            DandelionError: of the same class as in-process; `invocation` is the invocation's id.
            Unreachable: the node gave no answer.
        """
        check_named(unnamed)
        return self.invoke_sets(
            name,
            sets,
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            idempotency_key=idempotency_key,
        ).sets

    def invoke_sets(
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
        return self._run(
            client_protocol.invoke(
                name_of(name), sets, version, deadline_s, priority, idempotency_key
            )
        )

    # --- invoking asynchronously ----------------------------------------------------------------

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
        **sets: Value,
    ) -> InvocationHandle:
        """Submit an asynchronous invocation, and return at once, as `dandelion.node.Node.submit`.

        Args:
            name, version, priority, sets: as of `invoke`.
            deadline_s: of each attempt, in seconds; by default that of the node.
            key: a second submission with the same key and the same request gives the first
                invocation. With it a submission that got no answer can be repeated.
            callback: a URL that the node calls at the end, if its operator allows it.

        Raises:
            DandelionError: of the same class as in-process.
            Unreachable: the node gave no answer.
        """
        check_named(unnamed)
        requested = KeptRequest(
            name=name_of(name),
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            key=key,
            callback=callback,
        )
        return self.submit_sets(requested, sets)

    def submit_sets(self, requested: KeptRequest, sets: Mapping[str, Value]) -> InvocationHandle:
        """Submit as `submit` does."""
        id_ = self._run(client_protocol.submit(requested, sets))
        access = ClientKept(self._run, self._places, Outage(is_reached=True))
        return InvocationHandle(id_, access)

    def submitted(self, id_: str) -> InvocationHandle:
        """Give the handle of an asynchronous invocation, by its id; nothing is sent."""
        access = ClientKept(self._run, self._places, Outage(is_reached=False))
        return InvocationHandle(id_, access)

    def invocations(
        self, state: KeptState | None = None, after: str = "", limit: int = 100
    ) -> KeptPage:
        """List asynchronous invocations, newest first.

        Args:
            state: only those in this state.
            after: `KeptPage.after` of the page before.
            limit: how many at most, up to 1000.
        """
        return self._run(client_protocol.list_kept(state, after, limit))

    # --- the catalogue --------------------------------------------------------------------------

    def register(
        self,
        *things: Registrable,
        functions: Iterable[FunctionDocument] = (),
        libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
        progress: bool = False,
    ) -> list[Registered]:
        """Register everything together, all or nothing.

        Args:
            things: compositions of the DSL, texts in the composition language, functions,
                registration documents.
            functions: further functions.
            libraries: code objects by name: text, bytes, or the path of a file.
            progress: on a terminal or in a notebook, show how much of a large body is sent.

        Returns:
            Kind, name and version of each.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition, Conflict, Unknown, InvalidInput:
                what the node refused; nothing was registered.
        """
        return self._run(client_protocol.register(things, functions, libraries, progress))

    def compare(self, *things: Registrable) -> Changes:
        """Tell what `register` would change; nothing is registered.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition, Conflict: as `register`.
        """
        return self._run(client_protocol.compare(things))

    def list(self) -> Entries:
        """List the newest versions of all functions, compositions and libraries."""
        return self._run(client_protocol.list_all())

    def describe(self, name: str, version: int | None = None) -> Description:
        """Describe a function, composition or library.

        Raises:
            Unknown: with the nearest name.
        """
        return self._run(client_protocol.describe(name, version))

    def remove(self, name: str, version: int | None = None) -> Entries:
        """Remove one version of a name, or all.

        Raises:
            Unknown: the name or version is not registered.
            Conflict: a composition uses it.
        """
        return self._run(client_protocol.remove(name, version))

    def remove_together(self, removals: Iterable[Removal]) -> Entries:
        """Remove records, all or nothing.

        Raises:
            Unknown: one is not registered.
            Conflict: a composition uses one, or would not fit what stays.
        """
        return self._run(client_protocol.remove_together(removals))

    def graph(self, name: str, format: str = "svg", version: int | None = None) -> str:  # noqa: A002  # as in the query
        """Draw a composition as ``svg``, ``mermaid``, ``json`` or ``text``."""
        return self._run(client_protocol.graph(name, format, version))

    # --- observing ------------------------------------------------------------------------------

    def record(
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
        return self._run(client_protocol.record(name, sets, version, deadline_s))

    def activity(self, query: ActivityQuery | None = None) -> Activity:
        """Tell what this client's tenant did lately: invocations, and calls by function."""
        return self._run(client_protocol.activity(query or ActivityQuery()))

    def trace(self, invocation: str) -> TraceDocument:
        """Return the trace of a recent invocation, for Chrome and Perfetto.

        Raises:
            Unknown: the node has no trace of that id, or no longer.
        """
        return self._run(client_protocol.trace(invocation))

    def logs(
        self,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
    ) -> LogPage:
        """Return lines that functions wrote lately, as `dandelion.node.Node.logs`."""
        return self._run(client_protocol.logs(function, invocation, after, limit))

    def follow_logs(
        self, function: str | None = None, invocation: str | None = None
    ) -> Iterator[LogLine]:
        """Yield lines that functions wrote lately, then new ones as they come, without end.

        If more than `PAGE_LINES` come within `FOLLOW_S`, the newest are given. A node that is away
        later is waited for, see `Outage`.
        """
        page = self.logs(function, invocation)
        outage = Outage(is_reached=True)
        while True:
            yield from page.lines
            time.sleep(FOLLOW_S)
            page = outage.asked(partial(self.logs, function, invocation, page.last))

    def engines(self) -> Engines:
        """List the node's engines, and unavailable backends with the reason."""
        return self._run(client_protocol.engines())

    def capacity(self, function: str | None = None, version: int | None = None) -> NodeCapacity:
        """Tell what the node has and what is free, as far as this client's tenant may see it.

        Args:
            function: also tell what would happen to a call of it now, see `Admission`.
            version: of the function; by default the newest.

        Raises:
            Unknown: there is no such function.
            InvalidInput: it is a composition.
        """
        return self._run(client_protocol.capacity(function, version))

    def cluster(self) -> ClusterInfo | None:
        """Tell what the node knows of its cluster; None if it is in none."""
        return self._run(client_protocol.cluster())

    def metrics(self) -> str:
        """Return the node's metrics in Prometheus' text format."""
        return self._run(client_protocol.metrics())

    def ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the node's engines are up; wait for that, at most `wait_s` seconds."""
        end = time.monotonic() + wait_s
        while True:
            try:
                if self._run(client_protocol.ready()):
                    return True
            except ClientClosed:
                raise
            except Unreachable:
                pass  # it may be starting
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(POLL_S, left_s))
