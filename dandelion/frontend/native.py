"""The node's own protocol: all routes below ``/v1``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import msgspec

from dandelion.errors import Unknown
from dandelion.frontend.adapter import Adapter, AdapterContext
from dandelion.frontend.asgi import Request, Response, clipped
from dandelion.frontend.catalogue import KINDS, CatalogueRoutes, json_response
from dandelion.frontend.invocations import Invocations
from dandelion.frontend.kept_routes import KeptRoutes
from dandelion.frontend.logs_routes import LogsRoute
from dandelion.frontend.negotiation import Codec, writers
from dandelion.frontend.openapi import (
    capacity_operation,
    cluster_operation,
    compare_operation,
    describe_operation,
    graph_operation,
    invoke_operation,
    json_content,
    list_operation,
    logs_operation,
    operation_of,
    record_operation,
    register_operation,
    remove_operation,
    remove_together_operation,
    trace_operation,
)
from dandelion.frontend.openapi_kept import (
    cancel_kept_operation,
    describe_kept_operation,
    kept_events_operation,
    kept_result_operation,
    list_kept_operation,
)
from dandelion.frontend.problem import NotAcceptable
from dandelion.frontend.results import ResultWriter
from dandelion.frontend.routing import Route
from dandelion.tokens import Right

_TRACES_KEPT = (
    "a node keeps traces of the last invocations that ended; 'keep_traces' in its settings is "
    "their number"
)
_ENCODERS = {Codec.JSON: msgspec.json.encode, Codec.MSGPACK: msgspec.msgpack.encode}


class NativeAdapter(Adapter):
    """Invokes, changes and lists the catalogue, shows traces, engines and capacity."""

    begins_without_task: ClassVar[bool] = True

    def __init__(self, context: AdapterContext) -> None:
        self._node = context.node
        results = ResultWriter(context.converter)
        self._kept = KeptRoutes(context.node.kept, results)
        self._invocations = Invocations(context.node, context.converter, results, self._kept)
        self._logs = LogsRoute(context.node)
        self._catalogue = CatalogueRoutes(context.node, context.converter)

    def routes(self) -> Sequence[Route]:
        catalogue, read = self._catalogue, Right.READ
        engines = operation_of("List the node's engines", json_content({}))
        found = [
            Route("POST", "/v1/invoke/{name}", self._invocations, Right.INVOKE, invoke_operation()),
            Route(
                "POST",
                "/v1/record/{name}",
                self._invocations.record,
                Right.READ,  # the recording has the code
                record_operation(),
                also=Right.INVOKE,
            ),
            Route("POST", "/v1/compare", catalogue.compare, Right.REGISTER, compare_operation()),
            Route(
                "POST",
                "/v1/register",
                catalogue.register,
                Right.REGISTER,
                register_operation(),
                change="register",
            ),
            Route(
                "POST",
                "/v1/remove",
                catalogue.remove_together,
                Right.REGISTER,
                remove_together_operation(),
                change="remove",
            ),
        ]
        for kind in KINDS:
            path = f"/v1/{kind}/{{name...}}"
            found += [
                Route("GET", f"/v1/{kind}", catalogue.list_kind, read, list_operation(kind)),
                Route("GET", path, catalogue.describe, read, describe_operation(kind)),
                Route(
                    "DELETE",
                    path,
                    catalogue.remove,
                    Right.REGISTER,
                    remove_operation(),
                    change="remove",
                ),
            ]
        graph = "/v1/compositions/{name}/graph"
        return [
            *found,
            Route("GET", graph, catalogue.graph, read, graph_operation()),
            Route("GET", "/v1/traces/{id}", self._trace, read, trace_operation()),
            Route("GET", "/v1/logs", self._logs, read, logs_operation()),
            Route("GET", "/v1/capacity", self._capacity, read, capacity_operation()),
            Route("GET", "/v1/cluster", self._cluster, Right.OPERATE, cluster_operation()),
            Route("GET", "/v1/engines", self._engines, Right.OPERATE, engines),
            *self._kept_routes(),
        ]

    async def start(self) -> None:
        self._logs.start()

    async def stop(self) -> None:
        """End streams and long polls."""
        self._logs.stop()
        self._kept.stop()

    def _kept_routes(self) -> Sequence[Route]:
        kept, right, path = self._kept, Right.INVOKE, "/v1/invocations/{id}"
        return [
            Route("GET", "/v1/invocations", kept.listing, right, list_kept_operation()),
            Route("GET", path, kept.describe, right, describe_kept_operation()),
            Route("DELETE", path, kept.cancel, right, cancel_kept_operation()),
            Route("GET", f"{path}/result", kept.result, right, kept_result_operation()),
            Route("GET", f"{path}/events", kept.events, right, kept_events_operation()),
        ]

    async def _engines(self, request: Request) -> Response:
        request.expect_query(())
        engines = await asyncio.to_thread(self._node.engines)
        return json_response({"engines": engines})

    async def _cluster(self, request: Request) -> Response:
        request.expect_query(())
        return json_response(await asyncio.to_thread(self._node.cluster))

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
        id_ = request.parameters["id"]
        find = partial(self._node.trace, id_, tenant=request.grant.tenant)
        trace = await asyncio.to_thread(find)
        if trace is None:
            raise Unknown("trace", clipped(id_), hint=_TRACES_KEPT)
        return Response([trace])
