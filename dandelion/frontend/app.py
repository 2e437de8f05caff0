"""The ASGI application: routes, and the conversion of errors to problem documents.

There is no framework. The path of an invocation is found by a prefix test, all others in a table.
Every exception of a handler becomes a problem document. A connection is never closed without a
response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec

from dandelion.errors import CapacityError, DandelionError, InternalError, Unknown, nearest, root_of
from dandelion.frontend.access import Access, preflight_response
from dandelion.frontend.asgi import NAME_LIMIT, Receive, Request, Response, Scope, Send, clipped
from dandelion.frontend.audit import Change
from dandelion.frontend.catalogue import KINDS, CatalogueRoutes, json_response
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.guard import PUBLIC_PATHS, RIGHTS, Guard
from dandelion.frontend.invocations import PREFIX, Invocations
from dandelion.frontend.negotiation import Codec, writers
from dandelion.frontend.openapi import DOCS_PAGE, openapi_document
from dandelion.frontend.problem import (
    MethodNotAllowed,
    NoRoute,
    NotAcceptable,
    ShuttingDown,
    problem_response,
)
from dandelion.frontend.service import Service
from dandelion.tokens import Right

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

log = logging.getLogger("dandelion.frontend")


@dataclass(frozen=True, slots=True)
class Route:
    """What handles a method of a path, and the right that its caller needs."""

    handler: Handler
    right: Right | None


Methods: TypeAlias = dict[str, Route]

_HTML = b"text/html; charset=utf-8"
_ENCODERS = {Codec.JSON: msgspec.json.encode, Codec.MSGPACK: msgspec.msgpack.encode}
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class App:
    """One node's HTTP interface.

    Args:
        node: serves the requests; it is neither started nor closed here.
        bound: host names and addresses of the server, in addition to loopback.
        guard: knows what callers may do; by default everything.

    Raises:
        InvalidInput: the setting `hosts` or `cors_origins` is malformed.
    """

    def __init__(
        self, node: Service, bound: Sequence[str] = (), guard: Guard | None = None
    ) -> None:
        self._node = node
        self._access = Access(bound, node.settings.hosts, node.settings.cors_origins)
        self._guard = guard or Guard()
        self._converter = Converter(node)
        self._invoke = _route("/v1/invoke/{name}", POST=Invocations(node, self._converter))["POST"]
        catalogue = CatalogueRoutes(node, self._converter)
        self._exact = {
            "/v1/register": _route("/v1/register", POST=catalogue.register),
            "/v1/engines": _route("/v1/engines", GET=self._engines),
            "/v1/capacity": _route("/v1/capacity", GET=self._capacity),
            "/healthz": _route("/healthz", GET=self._health),
            "/readyz": _route("/readyz", GET=self._ready),
            "/metrics": _route("/metrics", GET=self._metrics),
            "/openapi.json": _route("/openapi.json", GET=self._openapi),
            "/docs": _route("/docs", GET=self._docs),
        }
        self._named: dict[str, Methods] = {}
        for kind in KINDS:
            self._exact[f"/v1/{kind}"] = _route(f"/v1/{kind}", GET=catalogue.list_kind)
            self._named[kind] = _route(
                f"/v1/{kind}/{{name}}", GET=catalogue.describe, DELETE=catalogue.remove
            )
        self._drawn = _route("/v1/compositions/{name}/graph", GET=catalogue.graph)
        self._traced = _route("/v1/traces/{id}", GET=self._trace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope, receive)
        try:
            try:
                self._access.check(request)
                if self._guard.is_closed:
                    self._identify(request)
                response = await self._handler(request)(request)
            except DandelionError as error:
                response = _problem(request, error)
            except Exception as error:
                log.exception("request failed", extra={"path": clipped(request.path)})
                response = _problem(request, InternalError(f"{type(error).__name__}: {error}"))
            except asyncio.CancelledError:
                if request.client_left:
                    raise
                response = _problem(request, ShuttingDown())
            response.close = request.close
            response.headers += request.response_headers
            await response.send(send, scope.get("extensions") or {})
        except asyncio.CancelledError:
            if not request.client_left:
                raise  # the server is shutting down and does not wait for slow readers
            log.info("client disconnected", extra={"path": clipped(request.path)})

    def close(self) -> None:
        """Stop the converter process."""
        self._converter.close()

    def _identify(self, request: Request) -> None:
        """Find out whose request it is. Preflights of listed pages have no token."""
        if request.path not in PUBLIC_PATHS and not self._access.is_preflight(request):
            self._guard.identify(request)

    def _handler(self, request: Request) -> Handler:
        path = request.path
        if path.startswith(PREFIX) and request.method == "POST" and len(path) < NAME_LIMIT:
            return self._allowed(request, self._invoke)
        methods = self._methods(path)
        if methods is None:
            raise _no_route(path, self._exact)
        if self._access.is_preflight(request):
            return self._preflight
        method = "GET" if request.method == "HEAD" else request.method
        route = methods.get(method)
        if route is None:
            raise MethodNotAllowed(request.method, clipped(path), tuple(methods))
        return self._allowed(request, route)

    def _allowed(self, request: Request, route: Route) -> Handler:
        """Return the handler if the caller may use the route now."""
        if self._guard.is_closed:
            try:
                self._guard.authorize(request, route.right)
            except DandelionError as error:
                if route.right is Right.REGISTER:
                    action = "remove" if request.method == "DELETE" else "register"
                    Change(request, action).write(type(error).__name__)
                raise
        return route.handler

    def _methods(self, path: str) -> Methods | None:
        if path.startswith(PREFIX):
            if len(path) > len(PREFIX) + NAME_LIMIT:
                raise Unknown("function or composition", clipped(path[len(PREFIX) :]))
            return {"POST": self._invoke}
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        if path.startswith("/v1/traces/"):
            return self._traced
        _, _, kind, *rest = [*path.split("/", 3), "", ""]
        if kind not in KINDS or not path.startswith("/v1/") or not rest[0]:
            return None
        is_graph = kind == "compositions" and path.endswith("/graph")
        return self._drawn if is_graph else self._named[kind]

    async def _preflight(self, request: Request) -> Response:
        return preflight_response(self._methods(request.path) or ())

    async def _engines(self, request: Request) -> Response:
        request.expect_query(())
        engines = await asyncio.to_thread(self._node.engines)
        return json_response({"engines": engines})

    async def _capacity(self, request: Request) -> Response:
        request.expect_query(("function", "version"))
        accept = request.header(b"accept").encode("latin-1")
        codec = next((c for c in writers(accept, Codec.JSON) if c in _ENCODERS), None)
        if codec is None:
            raise NotAcceptable(clipped(accept.decode("latin-1")), "this is JSON or MessagePack")
        function = request.query.get("function")
        capacity = partial(self._node.capacity, request.grant.tenant, function, request.version)
        body = _ENCODERS[codec](await asyncio.to_thread(capacity))
        return Response([body], codec.value.encode())

    async def _trace(self, request: Request) -> Response:
        request.expect_query(())
        id_ = request.path.removeprefix("/v1/traces/")
        find = partial(self._node.trace, id_, tenant=request.grant.tenant)
        trace = await asyncio.to_thread(find)
        if trace is None:
            raise Unknown("trace", clipped(id_))
        return Response([trace])

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
        return Response([openapi_document()])

    async def _docs(self, request: Request) -> Response:
        policy = (b"content-security-policy", b"default-src 'self' 'unsafe-inline'")
        return Response([DOCS_PAGE], _HTML, headers=[policy])


def _route(path: str, **handlers: Handler) -> Methods:
    """Make the methods of a path with the rights that they need."""
    return {method: Route(handler, RIGHTS[path][method]) for method, handler in handlers.items()}


def _problem(request: Request, error: DandelionError) -> Response:
    root = root_of(error)
    if root.status >= 500 and not isinstance(root, CapacityError):
        log.error("%s", error, extra={"path": clipped(request.path)})
    return problem_response(error, error.invocation or request.invocation)


def _no_route(path: str, known: dict[str, Methods]) -> NoRoute:
    close = nearest(path, known) if len(path) <= NAME_LIMIT else None
    return NoRoute(clipped(path), close)
