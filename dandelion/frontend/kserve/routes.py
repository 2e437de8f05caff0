"""The routes of KServe v2 below ``/v2``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from dandelion import __version__
from dandelion.frontend.adapter import Adapter, AdapterContext
from dandelion.frontend.asgi import Request, Response, clipped
from dandelion.frontend.body import Body
from dandelion.frontend.kserve import operations
from dandelion.frontend.kserve.bodies import read_body, wanted_outputs, write_response
from dandelion.frontend.kserve.documents import (
    RegionDocument,
    ServerMetadata,
    read_index_request,
    read_region_request,
)
from dandelion.frontend.kserve.errors import cuda_refused, kserve_problem, load_refused
from dandelion.frontend.kserve.inference import InferenceCall, Inferences
from dandelion.frontend.kserve.models import Model, Models, config_of
from dandelion.frontend.problem import NoRoute
from dandelion.frontend.routing import ANY_METHOD, Handler, Json, Route
from dandelion.shared_regions import SharedRegion, named_region
from dandelion.tokens import Right

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
    "system_shared_memory",
)
METADATA = ServerMetadata("dandelion", __version__, EXTENSIONS)
_BODY_LIMIT_BYTES = 64 * 1024
"""Of requests that are no inferences."""


class KServeAdapter(Adapter):
    """Serves clients of KServe v2 over HTTP."""

    begins_without_task: ClassVar[bool] = True

    def __init__(self, context: AdapterContext) -> None:
        self._node = context.node
        self._converter = context.converter
        self._models = Models(context.node)
        self._inferences = Inferences(context.node, context.converter, self._models)

    def routes(self) -> Sequence[Route]:
        def route(
            method: str,
            path: str,
            handler: Handler,
            right: Right | None,
            operation: Json | None = None,
        ) -> Route:
            return Route(method, path, handler, right, operation, kserve_problem)

        found = [
            route("GET", "/v2", self._server, None, operations.SERVER),
            route("GET", "/v2/health/live", self._live, None, operations.LIVE),
            route("GET", "/v2/health/ready", self._ready, None, operations.READY),
            route("POST", "/v2/repository/index", self._index, Right.READ, operations.INDEX),
            route(
                "GET", "/v2/models/stats", self._all_statistics, Right.READ, operations.STATISTICS
            ),
            route(ANY_METHOD, "/v2/{rest...}", _no_route, Right.READ),
        ]
        for action in ("load", "unload"):
            path = f"/v2/repository/models/{{model}}/{action}"
            found.append(route("POST", path, _refuse_load, Right.REGISTER))
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            read = Right.READ
            found += [
                route("GET", model, self._metadata, read, operations.METADATA),
                route("GET", f"{model}/ready", self._model_ready, read, operations.MODEL_READY),
                route("GET", f"{model}/config", self._config, read, operations.CONFIG),
                route("GET", f"{model}/stats", self._statistics, read, operations.STATISTICS),
                route("POST", f"{model}/infer", self._infer, Right.INVOKE, operations.INFER),
            ]
        return [*found, *self._region_routes(route)]

    def schemas(self) -> Mapping[str, Json]:
        return operations.kserve_schemas()

    def _region_routes(self, route: Any) -> list[Route]:
        invoke = Right.INVOKE
        own, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
        return [
            route("GET", f"{own}/status", self._regions, invoke, operations.REGIONS),
            route("GET", f"{own}/region/{{region}}/status", self._regions, invoke),
            route("POST", f"{own}/region/{{region}}/register", self._register_region, invoke),
            route("POST", f"{own}/region/{{region}}/unregister", self._unregister_region, invoke),
            route("POST", f"{own}/unregister", self._unregister_region, invoke),
            route("GET", f"{cuda}/status", _no_regions, invoke),
            route("GET", f"{cuda}/region/{{region}}/status", _no_regions, invoke),
            route("POST", f"{cuda}/region/{{region}}/register", _refuse_cuda, invoke),
            route("POST", f"{cuda}/region/{{region}}/unregister", _nothing_to_unregister, invoke),
            route("POST", f"{cuda}/unregister", _nothing_to_unregister, invoke),
        ]

    # --- inferences -----------------------------------------------------------------------------

    async def _infer(self, request: Request) -> Response:
        limit = self._node.settings.body_limit_bytes
        try:
            data = await Body(request, self._node.acquire_to_fill_async, limit).read()
            document, inputs = await read_body(request, data, self._converter)
            del data
            call = InferenceCall(
                request.parameters["model"],
                request.parameters.get("version", ""),
                inputs,
                document.parameters,
                wanted_outputs(document.outputs),
            )
            del inputs
            result = await self._inferences.infer(
                call, request.grant.tenant, request.watch, request.begin_span()
            )
            request.invocation = result.invocation
            return await write_response(document, result, self._converter)
        finally:
            request.stop_watching()

    # --- models ---------------------------------------------------------------------------------

    async def _found(self, request: Request) -> Model:
        given = request.parameters
        return await self._models.find(
            request.grant.tenant, given["model"], given.get("version", "")
        )

    async def _metadata(self, request: Request) -> Response:
        model = await self._found(request)
        describe = partial(self._models.metadata, request.grant.tenant, model)
        return _json(await asyncio.to_thread(describe))

    async def _model_ready(self, request: Request) -> Response:
        model = await self._found(request)
        ready = self._node.ready()
        return _json({"name": model.name, "ready": ready}, 200 if ready else 503)

    async def _config(self, request: Request) -> Response:
        return _json(config_of(await self._found(request)))

    async def _statistics(self, request: Request) -> Response:
        model = await self._found(request)
        get = partial(self._models.statistics, request.grant.tenant, model)
        return _json({"model_stats": await asyncio.to_thread(get)})

    async def _all_statistics(self, request: Request) -> Response:
        get = partial(self._models.statistics, request.grant.tenant)
        return _json({"model_stats": await asyncio.to_thread(get)})

    async def _index(self, request: Request) -> Response:
        requested = read_index_request(await self._small_body(request))
        entries = await asyncio.to_thread(self._models.index, request.grant.tenant)
        return _json([one for one in entries if one.state == "READY" or not requested.ready])

    # --- the server -----------------------------------------------------------------------------

    async def _server(self, request: Request) -> Response:
        return _json(METADATA)

    async def _live(self, request: Request) -> Response:
        live = self._node.alive()
        return _json({"live": live}, 200 if live else 503)

    async def _ready(self, request: Request) -> Response:
        ready = self._node.ready()
        return _json({"ready": ready}, 200 if ready else 503)

    # --- shared memory --------------------------------------------------------------------------

    async def _regions(self, request: Request) -> Response:
        name = request.parameters.get("region")
        tenant = request.grant.tenant
        regions = await asyncio.to_thread(self._node.regions, tenant=tenant)
        if name is not None:
            regions = [named_region(regions, name)]
        return _json([RegionDocument(r.name, r.key, r.offset, r.byte_size) for r in regions])

    async def _register_region(self, request: Request) -> Response:
        requested = read_region_request(await self._small_body(request))
        name = request.parameters["region"]
        region = SharedRegion(name, requested.key, requested.offset, requested.byte_size)
        register = partial(self._node.register_region, region, tenant=request.grant.tenant)
        await asyncio.to_thread(register)
        return _json({})

    async def _unregister_region(self, request: Request) -> Response:
        name = request.parameters.get("region")
        unregister = partial(self._node.unregister_region, name, tenant=request.grant.tenant)
        await asyncio.to_thread(unregister)
        return _json({})

    async def _small_body(self, request: Request) -> bytes:
        body = Body(request, self._node.acquire_to_fill_async, _BODY_LIMIT_BYTES)
        return bytes(await body.read())


def adapter(context: AdapterContext) -> Adapter:
    """Make the adapter of KServe v2."""
    return KServeAdapter(context)


async def _no_route(request: Request) -> Response:
    raise NoRoute(clipped(request.path))


async def _refuse_load(request: Request) -> Response:
    raise load_refused()


async def _refuse_cuda(request: Request) -> Response:
    raise cuda_refused()


async def _no_regions(request: Request) -> Response:
    return _json([])


async def _nothing_to_unregister(request: Request) -> Response:
    return _json({})


def _json(document: object, status: int = 200) -> Response:
    return Response([msgspec.json.encode(document)], status=status)
