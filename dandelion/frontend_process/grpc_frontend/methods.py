"""What each method of the service does: a message in, a message out, both as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

from dandelion.errors import DandelionError, InvalidInput, Unknown
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import LARGE_BYTES
from dandelion.frontend.kserve.documents import ConfigTensor
from dandelion.frontend.kserve.errors import Unsupported, cuda_refused, load_refused
from dandelion.frontend.kserve.inference import Inferences
from dandelion.frontend.kserve.models import Model, Models, config_of
from dandelion.frontend.kserve.routes import METADATA
from dandelion.frontend.service import Service
from dandelion.frontend_process.grpc_frontend.calls import Call
from dandelion.frontend_process.grpc_frontend.messages import DATA_TYPES, Message, message_class
from dandelion.frontend_process.grpc_frontend.tensors import read_infer, read_message, write_infer
from dandelion.settings import tracing_of
from dandelion.shared_regions import SharedRegion, named_region
from dandelion.tokens import Right

Method: TypeAlias = Callable[[bytes, str, float | None], Awaitable[bytes]]
"""Takes the message, the tenant and the deadline in seconds."""

_EMPTY = b""
_FINAL = "triton_enable_empty_final_response"


class Methods:
    """The methods of the service.

    Args:
        node: serves the calls.
        converter: does what takes some milliseconds.
    """

    def __init__(self, node: Service, converter: Converter) -> None:
        self._node = node
        self._tracing = tracing_of(node.settings)
        self._models = Models(node)
        self._inferences = Inferences(node, converter, self._models)

    def table(self) -> Mapping[str, tuple[Right | None, Method]]:
        """Give all methods but `infer` by name, with the right that a caller needs."""
        read, invoke, register = Right.READ, Right.INVOKE, Right.REGISTER
        return {
            "ServerLive": (None, self._live),
            "ServerReady": (None, self._ready),
            "ServerMetadata": (None, self._server),
            "ModelReady": (read, self._model_ready),
            "ModelMetadata": (read, self._metadata),
            "ModelConfig": (read, self._config),
            "ModelStatistics": (read, self._statistics),
            "RepositoryIndex": (read, self._index),
            "SystemSharedMemoryStatus": (invoke, self._regions),
            "SystemSharedMemoryRegister": (invoke, self._register_region),
            "SystemSharedMemoryUnregister": (invoke, self._unregister_region),
            "CudaSharedMemoryStatus": (invoke, _nothing),
            "CudaSharedMemoryRegister": (invoke, _refusing(cuda_refused)),
            "CudaSharedMemoryUnregister": (invoke, _nothing),
            "RepositoryModelLoad": (register, _refusing(load_refused)),
            "RepositoryModelUnload": (register, _refusing(load_refused)),
            "TraceSetting": (read, _refusing(_no_settings)),
            "LogSettings": (read, _refusing(_no_settings)),
        }

    # --- inference ------------------------------------------------------------------------------

    async def infer(self, data: bytes, tenant: str, deadline_s: float | None, about: Call) -> bytes:
        """``ModelInfer``, and a request of ``ModelStreamInfer``."""
        if len(data) > LARGE_BYTES:  # there may be millions of numbers in it
            call, id_ = await asyncio.to_thread(read_infer, data, deadline_s)
        else:
            call, id_ = read_infer(data, deadline_s)
        del data
        is_final = call.parameters.get(_FINAL) is True
        span = about.begin_span(self._tracing)
        result = await self._inferences.infer(call, tenant, trace_context=span)
        about.invocation = result.invocation
        write = partial(write_infer, result, id_, is_final=is_final)
        if sum(output.size_bytes for output in result.outputs) > LARGE_BYTES:
            return await asyncio.to_thread(write)
        return write()

    # --- models ---------------------------------------------------------------------------------

    async def _find(self, kind: str, data: bytes, tenant: str) -> Model:
        request = read_message(message_class(kind), data)
        return await self._models.find(tenant, request.name, request.version)

    async def _model_ready(self, data: bytes, tenant: str, _: float | None) -> bytes:
        try:
            await self._find("ModelReadyRequest", data, tenant)
        except Unknown:  # as Triton answers
            ready = False
        else:
            ready = self._node.ready()
        return _written(message_class("ModelReadyResponse")(ready=ready))

    async def _metadata(self, data: bytes, tenant: str, _: float | None) -> bytes:
        model = await self._find("ModelMetadataRequest", data, tenant)
        found = await asyncio.to_thread(self._models.metadata, tenant, model)
        response = message_class("ModelMetadataResponse")(
            name=found.name, versions=found.versions, platform=found.platform
        )
        for one in found.inputs:
            response.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        for one in found.outputs:
            response.outputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        return _written(response)

    async def _config(self, data: bytes, tenant: str, _: float | None) -> bytes:
        found = config_of(await self._find("ModelConfigRequest", data, tenant))
        response = message_class("ModelConfigResponse")()
        config = response.config
        config.name, config.platform, config.backend = found.name, found.platform, found.backend
        for one in found.input:
            config.input.add(optional=one.optional, **_configured(one))
        for one in found.output:
            config.output.add(**_configured(one))
        return _written(response)

    async def _statistics(self, data: bytes, tenant: str, _: float | None) -> bytes:
        request = read_message(message_class("ModelStatisticsRequest"), data)
        model = None
        if request.name:
            model = await self._models.find(tenant, request.name, request.version)
        response = message_class("ModelStatisticsResponse")()
        for one in await asyncio.to_thread(self._models.statistics, tenant, model):
            added = response.model_stats.add(
                name=one.name,
                version=one.version,
                last_inference=one.last_inference,
                inference_count=one.inference_count,
            )
            stats = one.inference_stats
            added.inference_stats.success.count = stats.success.count
            added.inference_stats.success.ns = stats.success.ns
            added.inference_stats.fail.count = stats.fail.count
            added.inference_stats.fail.ns = stats.fail.ns
        return _written(response)

    async def _index(self, data: bytes, tenant: str, _: float | None) -> bytes:
        request = read_message(message_class("RepositoryIndexRequest"), data)
        response = message_class("RepositoryIndexResponse")()
        for one in await asyncio.to_thread(self._models.index, tenant):
            if one.state == "READY" or not request.ready:
                response.models.add(
                    name=one.name, version=one.version, state=one.state, reason=one.reason
                )
        return _written(response)

    # --- the server -----------------------------------------------------------------------------

    async def _live(self, data: bytes, tenant: str, _: float | None) -> bytes:
        return _written(message_class("ServerLiveResponse")(live=self._node.alive()))

    async def _ready(self, data: bytes, tenant: str, _: float | None) -> bytes:
        return _written(message_class("ServerReadyResponse")(ready=self._node.ready()))

    async def _server(self, data: bytes, tenant: str, _: float | None) -> bytes:
        response = message_class("ServerMetadataResponse")(
            name=METADATA.name, version=METADATA.version, extensions=METADATA.extensions
        )
        return _written(response)

    # --- shared memory --------------------------------------------------------------------------

    async def _regions(self, data: bytes, tenant: str, _: float | None) -> bytes:
        request = read_message(message_class("SystemSharedMemoryStatusRequest"), data)
        regions = await asyncio.to_thread(self._node.regions, tenant=tenant)
        if request.name:
            regions = [named_region(regions, request.name)]
        response = message_class("SystemSharedMemoryStatusResponse")()
        for one in regions:
            added = response.regions[one.name]
            added.name, added.key = one.name, one.key
            added.offset, added.byte_size = one.offset, one.byte_size
        return _written(response)

    async def _register_region(self, data: bytes, tenant: str, _: float | None) -> bytes:
        request = read_message(message_class("SystemSharedMemoryRegisterRequest"), data)
        if max(request.offset, request.byte_size) >= 2**62:
            message = f"{request.byte_size} bytes at {request.offset} are not a region"
            raise InvalidInput("region", message)
        region = SharedRegion(request.name, request.key, request.offset, request.byte_size)
        register = partial(self._node.register_region, region, tenant=tenant)
        await asyncio.to_thread(register)
        return _EMPTY

    async def _unregister_region(self, data: bytes, tenant: str, _: float | None) -> bytes:
        request = read_message(message_class("SystemSharedMemoryUnregisterRequest"), data)
        unregister = partial(self._node.unregister_region, request.name or None, tenant=tenant)
        await asyncio.to_thread(unregister)
        return _EMPTY


async def _nothing(data: bytes, tenant: str, deadline_s: float | None) -> bytes:
    """Answer for CUDA shared memory: nothing is registered, and nothing remains."""
    return _EMPTY


def _refusing(make: Callable[[], DandelionError]) -> Method:
    async def refuse(data: bytes, tenant: str, deadline_s: float | None) -> bytes:
        raise make()

    return refuse


def _no_settings() -> Unsupported:
    return Unsupported("settings of logs and traces cannot be changed", "see the node's settings")


def _written(message: Message) -> bytes:
    written: bytes = message.SerializeToString()
    return written


def _configured(one: ConfigTensor) -> dict[str, object]:
    return {"name": one.name, "data_type": DATA_TYPES.index(one.data_type), "dims": one.dims}
