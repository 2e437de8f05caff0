"""Requests and responses of inference as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from dandelion.data import Bytes
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import clipped
from dandelion.frontend.kserve.bodies import region_parameters
from dandelion.frontend.kserve.datatypes import BYTES, dtype_of, element_pieces
from dandelion.frontend.kserve.errors import Unsupported
from dandelion.frontend.kserve.inference import (
    GivenTensor,
    InferenceCall,
    InferenceResult,
    Place,
    WantedOutput,
    place_of,
)
from dandelion.frontend.kserve.json_tensors import check_counts
from dandelion.frontend.kserve.tensors import OutputTensor
from dandelion.frontend.values import cast_numbers
from dandelion.frontend_process.grpc_frontend.messages import Message, message_class
from dandelion.frontend_process.grpc_frontend.wire import (
    INPUTS,
    OUTPUTS,
    RAW_INPUTS,
    RAW_OUTPUTS,
    check_parts,
    joined_raw,
    split_raw,
)

_Request = message_class("ModelInferRequest")
_Response = message_class("ModelInferResponse")

_CONTENTS = {
    "BOOL": ("bool_contents", "bool"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", "int32")),
    "INT64": ("int64_contents", "int64"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), ("uint_contents", "uint32")),
    "UINT64": ("uint64_contents", "uint64"),
    "FP32": ("fp32_contents", "float32"),
    "FP64": ("fp64_contents", "float64"),
    BYTES: ("bytes_contents", ""),
}
"""By datatype: the field with the elements, and their dtype there."""


def read_message(cls: Any, data: bytes) -> Message:
    """Read a message.

    Raises:
        InvalidInput: it is not one.
    """
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise InvalidInput("request", f"it is not a protobuf message: {error}") from None


def read_infer(data: bytes, deadline_s: float | None) -> tuple[InferenceCall, str]:
    """Read a ``ModelInferRequest``; its raw contents are views into `data`.

    Returns:
        The call, and the id that the client gave.

    Raises:
        InvalidInput: it is not such a message, or a tensor has no data or too much of it.
        TooMany: it has too many tensors or parameters.
    """
    head, raw = split_raw(data, RAW_INPUTS)
    check_parts(head, (INPUTS, OUTPUTS))
    request = read_message(_Request, head)
    check_counts(request)
    rest = iter(raw)
    inputs = [_given(tensor, rest, has_raw=bool(raw)) for tensor in request.inputs]
    left = sum(1 for _ in rest)
    if left:
        message = f"{len(raw)} raw contents are more than the inputs that need them"
        raise InvalidInput("raw_input_contents", message)
    call = InferenceCall(
        request.model_name,
        request.model_version,
        inputs,
        parameters_of(request.parameters),
        [_wanted(output) for output in request.outputs] or None,
        deadline_s,
    )
    return call, request.id


def _given(tensor: Message, raw: Any, *, has_raw: bool) -> GivenTensor:
    where = f"inputs.{clipped(tensor.name)}"
    place = place_of(where, parameters_of(tensor.parameters))
    has_contents = tensor.HasField("contents")
    data: Bytes | Place
    if place is not None:
        data = place
    elif has_raw:
        if has_contents:
            raise InvalidInput(where, "it has contents beside raw_input_contents", "send one")
        found = next(raw, None)
        if found is None:
            raise InvalidInput(where, "raw_input_contents has no entry for it")
        data = found
    else:
        data = _typed(where, tensor.datatype, tensor.contents)
    return GivenTensor(tensor.name, tensor.datatype, list(tensor.shape), data)


def _typed(where: str, datatype: str, contents: Message) -> Bytes:
    """Convert typed contents to the binary form."""
    dtype = dtype_of(f"{where}.datatype", datatype)
    if datatype not in _CONTENTS:
        raise InvalidInput(where, f"{datatype} has no form in contents", "send raw_input_contents")
    field, wide = _CONTENTS[datatype]
    for other, _ in contents.ListFields():
        if other.name != field:
            raise InvalidInput(where, f"{other.name} for {datatype}", f"send {field}")
    values = getattr(contents, field)
    if dtype is None:
        return b"".join(element_pieces(where, values))
    return cast_numbers(where, np.fromiter(values, wide, len(values)), np.dtype(dtype))


def _wanted(output: Message) -> WantedOutput:
    where = f"outputs.{clipped(output.name)}"
    parameters = parameters_of(output.parameters)
    if parameters.get("classification"):
        raise Unsupported("classification is not supported", "request the tensor itself")
    return WantedOutput(output.name, place_of(where, parameters))


def parameters_of(fields: Mapping[str, Message]) -> dict[str, Any]:
    """Read parameters."""
    found = {}
    for name, value in fields.items():
        kind = value.WhichOneof("choice")
        found[name] = None if kind is None else getattr(value, kind)
    return found


def write_infer(result: InferenceResult, id_: str, *, is_final: bool = False) -> bytes:
    """Write a ``ModelInferResponse`` with raw contents.

    Args:
        result: of the call.
        id_: that the client gave.
        is_final: whether to add that no further response follows.

    Raises:
        TooLarge: the message would have 2 GiB or more, or an element of BYTES 4 GiB.
    """
    model = result.model
    response = _Response(model_name=model.name, model_version=str(model.version), id=id_)
    if is_final:
        response.parameters["triton_final_response"].bool_param = True
    raw: list[list[Bytes]] = []
    for tensor in result.outputs:
        _add_output(response, tensor, result.places.get(tensor.name))
        # those in shared memory have an entry, too: clients find entries by their index
        raw.append([] if tensor.name in result.places else tensor.binary())
    return joined_raw(response.SerializeToString(), RAW_OUTPUTS, raw)


def _add_output(response: Message, tensor: OutputTensor, place: Place | None) -> None:
    output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if place is not None:
        for name, value in region_parameters(place).items():
            parameter = output.parameters[name]
            if isinstance(value, str):
                parameter.string_param = value
            else:
                parameter.int64_param = value
