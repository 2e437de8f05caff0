"""The ASGI application: finds the route of a request, and converts errors to responses.

There is no framework. All routes are in one table (`RouteTable`): the node's own, those of the
protocols in the setting `protocols`, and the operator's below. Every exception of a handler becomes
a response in the form of its route; a connection is never closed without a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from dandelion.data import Bytes
from dandelion.errors import CapacityError, DandelionError, InternalError, nearest, root_of
from dandelion.frontend.access import Access, preflight_response
from dandelion.frontend.access_log import (
    AGENT_LIMIT,
    CLIENT_LEFT,
    PATH_LIMIT,
    RequestRecord,
    access_log_of,
)
from dandelion.frontend.adapter import Adapter, AdapterContext, load_adapter
from dandelion.frontend.asgi import (
    NAME_LIMIT,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    clipped,
    empty_stream,
)
from dandelion.frontend.audit import Change
from dandelion.frontend.catalogue import json_response
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.docs_page import DOCS_PAGE
from dandelion.frontend.guard import Guard
from dandelion.frontend.native import NativeAdapter
from dandelion.frontend.openapi import (
    health_operation,
    json_content,
    openapi_document,
    operation_of,
)
from dandelion.frontend.page import PageAdapter
from dandelion.frontend.problem import MethodNotAllowed, NoRoute, ShuttingDown
from dandelion.frontend.problem_response import problem_response
from dandelion.frontend.routing import Handler, Route, RouteTable
from dandelion.frontend.service import Service
from dandelion.settings import tracing_of
from dandelion.tokens import ANONYMOUS, Right

log = logging.getLogger("dandelion.frontend")

_HTML = b"text/html; charset=utf-8"
_DOCS_POLICY = b"default-src 'self' 'unsafe-inline'; img-src 'self' data:"
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class App:
    """One node's HTTP interface.

    Args:
        node: serves the requests; it is neither started nor closed here.
        bound: host names and addresses of the server, in addition to loopback.
        guard: knows what callers may do; by default everything.

    Attributes:
        routes: all of them.
        converter: reads and writes documents that would block the event loop.

    Raises:
        InvalidInput: the setting `hosts`, `cors_origins` or `protocols` is malformed, or the access
            log cannot be opened.
        BackendUnavailable: a protocol needs a module that is not installed.
    """

    def __init__(
        self, node: Service, bound: Sequence[str] = (), guard: Guard | None = None
    ) -> None:
        self._node = node
        self._access = Access(bound, node.settings.hosts, node.settings.cors_origins)
        self._guard = guard or Guard()
        self._tracing = tracing_of(node.settings)
        self._log = access_log_of(node.settings.access_log)
        self.converter = Converter(node)
        context = AdapterContext(node, self.converter)
        self._adapters: list[Adapter] = [NativeAdapter(context), PageAdapter(context)]
        self._adapters += [load_adapter(name, context) for name in node.settings.protocols]
        served = [route for adapter in self._adapters for route in _routes_of(adapter)]
        self.routes = RouteTable([*served, *self._own_routes()])

    def _own_routes(self) -> Iterable[Route]:
        health = health_operation(operation_of("The process is running", json_content({})))
        ready = health_operation(operation_of("Engines are up", json_content({})))
        metrics = operation_of("Prometheus metrics", {"text/plain": {}})
        return (
            Route("GET", "/healthz", self._health, None, health),
            Route("GET", "/readyz", self._ready, None, ready),
            Route("GET", "/metrics", self._metrics, Right.OPERATE, metrics),
            Route("GET", "/openapi.json", self._openapi, None),
            Route("GET", "/docs", self._docs, None),
        )

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare the protocols, before connections are accepted.

        Raises:
            DandelionError: one of them cannot start.
        """
        for adapter in self._adapters:
            await adapter.start()

    async def stop(self) -> None:
        """End what keeps requests open, when the server begins to drain."""
        for adapter in self._adapters:
            await adapter.stop()

    def close(self) -> None:
        """Release everything, after the last request. Not on the event loop."""
        for adapter in self._adapters:
            adapter.close()
        self.converter.close()
        if self._log is not None:
            self._log.close()

    def tick(self) -> None:
        """Tell the node what it counts; to be called several times a second, on the loop."""
        dropped = 0 if self._log is None else self._log.newly_dropped()
        if dropped:
            self._node.lines_dropped(dropped)

    def reload(self) -> None:
        """Open the access log by its name again."""
        if self._log is not None:
            self._log.reopen()

    # --- requests -------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope, receive, self._tracing)
        started_ns = time.monotonic_ns()
        response: Response | None = None
        try:
            try:
                handler = self._handler(request)
                response = await handler(request)
            except asyncio.CancelledError:
                if request.client_left:
                    raise
                response = _problem_of(request, ShuttingDown())
            except Exception as error:
                response = _problem_of(request, error)
            if response.stream is not None:
                response.stream = await self._limited(request, response.stream)
            response.close = request.close
            if request.response_headers:
                response.headers += request.response_headers
            await response.send(send, scope.get("extensions") or {})
        except asyncio.CancelledError:
            response = None
            if not request.client_left:
                raise  # the server is shutting down and does not wait for slow readers
            log.info("client disconnected", extra={"path": clipped(request.path)})
        finally:
            if self._log is not None:
                self._log.add(self._record(request, response, started_ns))

    def _record(
        self, request: Request, response: Response | None, started_ns: int
    ) -> RequestRecord:
        now_ns = time.monotonic_ns()
        grant = request.grant
        is_known = grant is not ANONYMOUS or not self._guard.is_closed
        span = request.span
        return RequestRecord(
            now_ns,
            now_ns - started_ns,
            request.method,
            request.path[: PATH_LIMIT + 1],
            CLIENT_LEFT if response is None else response.status,
            request.received_bytes,
            0 if response is None or request.method == "HEAD" else response.sent_bytes,
            grant.tenant if is_known else "",
            grant.name if is_known else "",
            request.scope.get("client"),
            request.invocation,
            span.context.traceparent if span is not None else "",
            request.headers.get(b"user-agent", b"")[: AGENT_LIMIT + 1],
        )

    async def _limited(
        self, request: Request, stream: AsyncGenerator[Bytes, None]
    ) -> AsyncGenerator[Bytes, None]:
        """Limit a stream, which may have no end."""
        if request.method == "HEAD":
            await stream.aclose()
            return empty_stream()
        return self._while_allowed(request, stream)

    async def _while_allowed(
        self, request: Request, stream: AsyncGenerator[Bytes, None]
    ) -> AsyncGenerator[Bytes, None]:
        """Yield what a stream yields, until the token of its request expires or is removed."""
        async with contextlib.aclosing(stream):
            async for chunk in stream:
                if not self._guard.allows_still(request):
                    return
                yield chunk

    def _handler(self, request: Request) -> Handler:
        """Check a request, and find what serves it."""
        self._access.check(request)
        match = self.routes.find(request.path)
        if match is not None:
            request.problem = match.problem
        route = None if match is None else match.route(request.method)
        is_closed = self._guard.is_closed
        is_preflight = self._access.is_preflight(request)  # these have no token
        if is_closed and not (is_preflight or (match is not None and match.is_public)):
            self._identify(request, route)
        if match is None:
            raise _no_route(request.path, self.routes)
        if is_preflight:
            methods = match.methods

            async def preflight(_: Request) -> Response:
                return preflight_response(methods)

            return preflight
        if route is None:
            raise MethodNotAllowed(request.method, clipped(request.path), tuple(match.methods))
        if is_closed:
            self._authorize(request, route)
            request.recheck = partial(self._guard.require_still, (route.right, route.also))
        request.parameters = match.parameters
        return route.handler

    def _identify(self, request: Request, route: Route | None) -> None:
        """Refuse a request whose caller is not known."""
        try:
            self._guard.identify(request)
        except DandelionError as error:
            _audit_refused(request, route, error)
            raise

    def _authorize(self, request: Request, route: Route) -> None:
        """Refuse a request whose caller may not use the route now."""
        try:
            self._guard.authorize(request, route.right, route.also)
        except DandelionError as error:
            _audit_refused(request, route, error)
            raise

    # --- the operator's routes ------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        if self._node.alive():
            return json_response({"status": "ok"})
        return json_response({"status": "stalled"}, 503)

    async def _ready(self, request: Request) -> Response:
        ready = self._node.ready()
        return json_response({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response([await asyncio.to_thread(self._node.metrics)], _METRICS)

    async def _openapi(self, request: Request) -> Response:
        return Response([self._document])

    @cached_property
    def _document(self) -> bytes:
        schemas = {name: s for a in self._adapters for name, s in a.schemas().items()}
        return openapi_document(self.routes, schemas)

    async def _docs(self, request: Request) -> Response:
        policy = (b"content-security-policy", _DOCS_POLICY)
        return Response([DOCS_PAGE], _HTML, headers=[policy])


def _audit_refused(request: Request, route: Route | None, error: DandelionError) -> None:
    if route is not None and route.change:
        Change(request, route.change).write(type(error).__name__)


def _routes_of(adapter: Adapter) -> Iterable[Route]:
    """List the routes of an adapter, with handlers that may be called without a task."""
    if adapter.begins_without_task:
        return adapter.routes()
    return [replace(route, handler=_in_task(route.handler)) for route in adapter.routes()]


def _in_task(handler: Handler) -> Handler:

    async def within(request: Request) -> Response:
        if asyncio.current_task() is None:
            await asyncio.sleep(0)
        return await handler(request)

    return within


def _problem_of(request: Request, error: Exception) -> Response:
    """Make the response for what a handler raised."""
    if not isinstance(error, DandelionError):
        log.error("request failed", exc_info=error, extra={"path": clipped(request.path)})
        error = InternalError(f"{type(error).__name__}: {error}")
    root = root_of(error)
    if root.status >= 500 and not isinstance(root, CapacityError):
        log.error("%s", error, extra={"path": clipped(request.path)})
    write = request.problem or problem_response
    request.invocation = error.invocation or request.invocation
    return write(error, request.invocation)


def _no_route(path: str, routes: Iterable[Route]) -> NoRoute:
    known = [route.path for route in routes if "{" not in route.path]
    close = nearest(path, known) if len(path) <= NAME_LIMIT else None
    return NoRoute(clipped(path), close)
