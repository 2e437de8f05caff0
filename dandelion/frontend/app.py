"""The ASGI application: routes, and the conversion of errors to problem documents.

There is no framework. The path of an invocation is found by a prefix test, all others in a table.
Every exception of a handler becomes a problem document. A connection is never closed without a
response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from dandelion.errors import CapacityError, DandelionError, InternalError, Unknown, nearest, root_of
from dandelion.frontend.access import Access, preflight_response
from dandelion.frontend.asgi import NAME_LIMIT, Receive, Request, Response, Scope, Send, clipped
from dandelion.frontend.catalogue import KINDS, CatalogueRoutes, json_response
from dandelion.frontend.conversion.converter import Converter
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
from dandelion.namespaces import DEFAULT_TENANT

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Methods: TypeAlias = dict[str, Handler]

log = logging.getLogger("dandelion.frontend")

_HTML = b"text/html; charset=utf-8"
_ENCODERS = {Codec.JSON: msgspec.json.encode, Codec.MSGPACK: msgspec.msgpack.encode}
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class App:
    """One node's HTTP interface.

    Args:
        node: serves the requests; it is neither started nor closed here.
        bound: host names and addresses of the server, in addition to loopback.

    Raises:
        InvalidInput: the setting `hosts` or `cors_origins` is malformed.
    """

    def __init__(self, node: Service, bound: Sequence[str] = ()) -> None:
        self._node = node
        self._access = Access(bound, node.settings.hosts, node.settings.cors_origins)
        self._converter = Converter(node)
        self._invoke = Invocations(node, self._converter)
        catalogue = CatalogueRoutes(node, self._converter)
        self._exact: dict[str, Methods] = {
            "/v1/register": {"POST": catalogue.register},
            "/v1/engines": {"GET": self._engines},
            "/v1/capacity": {"GET": self._capacity},
            "/healthz": {"GET": self._health},
            "/readyz": {"GET": self._ready},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
            "/docs": {"GET": self._docs},
        }
        for kind in KINDS:
            self._exact[f"/v1/{kind}"] = {"GET": catalogue.list_kind}
        self._named: Methods = {"GET": catalogue.describe, "DELETE": catalogue.remove}
        self._drawn: Methods = {"GET": catalogue.graph}
        self._traced: Methods = {"GET": self._trace}
        self._invoked: Methods = {"POST": self._invoke}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope, receive)
        try:
            try:
                self._access.check(request)
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

    def _handler(self, request: Request) -> Handler:
        path = request.path
        if path.startswith(PREFIX) and request.method == "POST" and len(path) < NAME_LIMIT:
            return self._invoke
        methods = self._methods(path)
        if methods is None:
            raise _no_route(path, self._exact)
        if self._access.is_preflight(request):
            return self._preflight
        method = "GET" if request.method == "HEAD" else request.method
        handler = methods.get(method)
        if handler is None:
            raise MethodNotAllowed(request.method, clipped(path), tuple(methods))
        return handler

    def _methods(self, path: str) -> Methods | None:
        if path.startswith(PREFIX):
            if len(path) > len(PREFIX) + NAME_LIMIT:
                raise Unknown("function or composition", clipped(path[len(PREFIX) :]))
            return self._invoked
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        if path.startswith("/v1/traces/"):
            return self._traced
        _, _, kind, *rest = [*path.split("/", 3), "", ""]
        if kind not in KINDS or not path.startswith("/v1/") or not rest[0]:
            return None
        is_graph = kind == "compositions" and path.endswith("/graph")
        return self._drawn if is_graph else self._named

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
        capacity = partial(self._node.capacity, DEFAULT_TENANT, function, request.version)
        body = _ENCODERS[codec](await asyncio.to_thread(capacity))
        return Response([body], codec.value.encode())

    async def _trace(self, request: Request) -> Response:
        request.expect_query(())
        id_ = request.path.removeprefix("/v1/traces/")
        trace = await asyncio.to_thread(self._node.trace, id_)
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


def _problem(request: Request, error: DandelionError) -> Response:
    root = root_of(error)
    if root.status >= 500 and not isinstance(root, CapacityError):
        log.error("%s", error, extra={"path": clipped(request.path)})
    return problem_response(error, error.invocation or request.invocation)


def _no_route(path: str, known: dict[str, Methods]) -> NoRoute:
    close = nearest(path, known) if len(path) <= NAME_LIMIT else None
    return NoRoute(clipped(path), close)
