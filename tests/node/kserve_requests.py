"""Requests of the KServe protocol over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from dandelion.frontend_process.grpc_frontend.server import SERVICE

Array = np.ndarray[Any, Any]
INFER = f"/{SERVICE}/ModelInfer"


def given(name: str, array: Array, datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


ONE = np.array([1], np.int8)


def request_of(
    datatype: str, shape: list[int], raw: list[bytes] | None = None, **contents: Any
) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=raw or [])
    tensor = request.inputs.add(name="a", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return request


def infer(channel: grpc.Channel, request: Any) -> service_pb2.ModelInferResponse:
    call = channel.unary_unary(INFER)
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return service_pb2.ModelInferResponse.FromString(call(data, timeout=20))
