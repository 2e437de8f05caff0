"""The ASGI application: routes, and the border where errors become problems.

No framework: the path of an invocation is one prefix test, everything else a table. Whatever a
handler raises ends in a problem document; a connection is never dropped without an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from dandelion.errors import CapacityError, DandelionError, InternalError, Unknown, nearest, root_of
from dandelion.frontend.access import Access, preflight_reply
from dandelion.frontend.asgi import NAME_LIMIT, Exchange, Receive, Reply, Scope, Send, clipped
from dandelion.frontend.catalogue import KINDS, CatalogueRoutes, json_reply
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.invocations import PREFIX, Invocations
from dandelion.frontend.openapi import DOCS_PAGE, openapi_document
from dandelion.frontend.problem import (
    MethodNotAllowed,
    NoRoute,
    ShuttingDown,
    problem_reply,
)
from dandelion.frontend.service import Service

Handler: TypeAlias = Callable[[Exchange], Awaitable[Reply]]
Methods: TypeAlias = dict[str, Handler]

log = logging.getLogger("dandelion.frontend")

_HTML = b"text/html; charset=utf-8"
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class App:
    """One node's HTTP interface.

    Args:
        node: what is served; it is neither started nor closed here.
        bound: names and addresses that it is served on, beside those of loopback.

    Raises:
        InvalidInput: a setting of the node about hosts or origins is malformed.
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
        """Answer one request."""
        exchange = Exchange(scope, receive)
        try:
            try:
                self._access.check(exchange)
                reply = await self._handler(exchange)(exchange)
            except DandelionError as error:
                reply = _problem(exchange, error)
            except Exception as error:
                log.exception("request failed", extra={"path": clipped(exchange.path)})
                reply = _problem(exchange, InternalError(f"{type(error).__name__}: {error}"))
            except asyncio.CancelledError:
                if exchange.client_left:
                    raise
                reply = _problem(exchange, ShuttingDown())
            reply.close = exchange.close
            reply.headers += exchange.answer_headers
            await reply.send(send, scope.get("extensions") or {})
        except asyncio.CancelledError:
            if not exchange.client_left:
                raise  # the server is shutting down, and does not wait for slow readers
            log.info("client left", extra={"path": clipped(exchange.path)})

    def close(self) -> None:
        """End the process that converts large documents."""
        self._converter.close()

    def _handler(self, exchange: Exchange) -> Handler:
        path = exchange.path
        if path.startswith(PREFIX) and exchange.method == "POST" and len(path) < NAME_LIMIT:
            return self._invoke
        methods = self._methods(path)
        if methods is None:
            raise _no_route(path, self._exact)
        if self._access.is_preflight(exchange):
            return self._preflight
        method = "GET" if exchange.method == "HEAD" else exchange.method
        handler = methods.get(method)
        if handler is None:
            raise MethodNotAllowed(exchange.method, clipped(path), tuple(methods))
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

    async def _preflight(self, exchange: Exchange) -> Reply:
        return preflight_reply(self._methods(exchange.path) or ())

    async def _engines(self, exchange: Exchange) -> Reply:
        exchange.expect_query(())
        engines = await asyncio.to_thread(self._node.engines)
        return json_reply({"engines": engines})

    async def _trace(self, exchange: Exchange) -> Reply:
        exchange.expect_query(())
        id_ = exchange.path.removeprefix("/v1/traces/")
        trace = await asyncio.to_thread(self._node.trace, id_)
        if trace is None:
            raise Unknown("trace", clipped(id_))
        return Reply([trace])

    async def _health(self, exchange: Exchange) -> Reply:
        if self._node.alive():
            return json_reply({"status": "ok"})
        return json_reply({"status": "stalled"}, 503)

    async def _ready(self, exchange: Exchange) -> Reply:
        ready = self._node.ready()
        return json_reply({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, exchange: Exchange) -> Reply:
        return Reply([await asyncio.to_thread(self._node.metrics)], _METRICS)

    async def _openapi(self, exchange: Exchange) -> Reply:
        return Reply([openapi_document()])

    async def _docs(self, exchange: Exchange) -> Reply:
        policy = (b"content-security-policy", b"default-src 'self' 'unsafe-inline'")
        return Reply([DOCS_PAGE], _HTML, headers=[policy])


def _problem(exchange: Exchange, error: DandelionError) -> Reply:
    root = root_of(error)
    if root.status >= 500 and not isinstance(root, CapacityError):
        log.error("%s", error, extra={"path": clipped(exchange.path)})
    return problem_reply(error, error.invocation or exchange.invocation)


def _no_route(path: str, known: dict[str, Methods]) -> NoRoute:
    close = nearest(path, known) if len(path) <= NAME_LIMIT else None
    return NoRoute(clipped(path), close)
