"""Tensors as JSON: numbers and texts, flat or nested, row-major.

`read_tensors` and `write_tensors` do all work whose time grows with a document, so the converter
runs them for large ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from dandelion.arrays import RANK_LIMIT, are_finite, declared_dtype, kind_of
from dandelion.data import Bytes, Item, ItemSet
from dandelion.errors import InvalidInput, TooMany
from dandelion.errors.misfits import named_type
from dandelion.frontend.asgi import clipped
from dandelion.frontend.codecs import SetMap
from dandelion.frontend.kserve.datatypes import BYTES, dtype_of, element_pieces
from dandelion.frontend.kserve.documents import (
    InferRequest,
    InferResponse,
    OutputDocument,
    read_infer_request,
)
from dandelion.frontend.kserve.tensors import OutputTensor
from dandelion.frontend.problem import NotAcceptable
from dandelion.frontend.values import cast_numbers, number_array

TENSORS_LIMIT = 1024
PARAMETERS_LIMIT = 64
_json = msgspec.json.Encoder()


def read_tensors(body: Bytes) -> tuple[InferRequest, SetMap]:
    """Read the JSON of an inference.

    Returns:
        The request, whose inputs have no data; and for each input that had data, by its index, a
        set with the tensor in binary form as the only item.

    Raises:
        InvalidInput: the body is not such a request, or data does not fit its datatype and shape.
        TooMany: there are too many inputs, outputs or parameters.
        TooLarge: an element of BYTES has 4 GiB or more.
    """
    request = read_infer_request(body)
    check_counts(request)
    sets: SetMap = {}
    for index, given in enumerate(request.inputs):
        if given.data is not None:
            where = f"inputs.{clipped(given.name)}.data"
            data = _binary(where, given.datatype, given.shape, given.data)
            sets[str(index)] = ItemSet(str(index), (Item("", 0, data),))
            given.data = None
    return request, sets


def _binary(where: str, datatype: str, shape: list[int], value: Any) -> Bytes:
    dtype = dtype_of(where.removesuffix("data") + "datatype", datatype)
    if not isinstance(value, list):
        raise InvalidInput(where, "it is not a list")
    if dtype is None:
        texts = list(_texts(where, value))
        _check_count(where, len(texts), shape)
        return b"".join(element_pieces(where, [text.encode() for text in texts]))
    target = declared_dtype(dtype)
    array = number_array(where, value, target)
    _check_count(where, array.size, shape)
    return cast_numbers(where, array, target)


def _texts(where: str, value: list[Any]) -> Iterator[str]:
    """List the texts of nested lists, in order; the decoder limits their depth."""
    for element in value:
        if isinstance(element, str):
            yield element
        elif isinstance(element, list):
            yield from _texts(where, element)
        else:
            message = f"an element of BYTES is {named_type(element)}"
            raise InvalidInput(where, message, "give texts, or binary data")


def _check_count(where: str, count: int, shape: list[int]) -> None:
    if count != math.prod(shape):
        shown = clipped(str(shape))
        raise InvalidInput(where, f"it has {count} elements, not those of the shape {shown}")


def check_counts(request: Any) -> None:
    """Limit what is handled on the event loop after a request was read.

    Args:
        request: an `InferRequest`, or that message of gRPC.

    Raises:
        TooMany: it has too many tensors or parameters.
        InvalidInput: a tensor has too many dimensions.
    """
    outputs = request.outputs or []
    for what, given in (("inputs", request.inputs), ("outputs", outputs)):
        if len(given) > TENSORS_LIMIT:
            raise TooMany("body", what, len(given), TENSORS_LIMIT)
    all_parameters = [request.parameters]
    all_parameters += [one.parameters for one in request.inputs]
    all_parameters += [one.parameters for one in outputs]
    for parameters in all_parameters:
        if len(parameters) > PARAMETERS_LIMIT:
            raise TooMany("parameters", "parameters", len(parameters), PARAMETERS_LIMIT)
    for one in request.inputs:
        if len(one.shape) > RANK_LIMIT:
            where = f"inputs.{clipped(one.name)}"
            raise InvalidInput(where, f"it has {len(one.shape)} dimensions, at most {RANK_LIMIT}")


def write_tensors(response: InferResponse, tensors: SetMap) -> bytes:
    """Write the JSON of a response.

    Args:
        response: its outputs have no data.
        tensors: by the index of the output, the chunks of those that are written as JSON.

    Raises:
        NotAcceptable: a tensor has no form in JSON.
    """
    for index, one in tensors.items():
        output = response.outputs[int(index)]
        chunks = [] if one is None else [item.data for item in one.items]
        output.data = msgspec.Raw(_text(output, chunks))
    return _json.encode(response)


def chunks_set(index: int, tensor: OutputTensor) -> ItemSet | None:
    """Give the chunks of a tensor as `write_tensors` expects them."""
    items = tuple(Item("", 0, chunk) for chunk in tensor.chunks)
    return ItemSet(str(index), items) if items else None


def _text(output: OutputDocument, chunks: list[Bytes]) -> bytes:
    if output.datatype == BYTES:
        try:
            return _json.encode([str(chunk, "utf-8") for chunk in chunks])
        except UnicodeDecodeError:
            raise _inexpressible(output.name, "bytes that are no text") from None
    dtype = dtype_of(output.name, output.datatype)
    arrays = [np.frombuffer(chunk, dtype) for chunk in chunks]
    if any(kind_of(array.dtype) == "f" and not are_finite(array).all() for array in arrays):
        raise _inexpressible(output.name, "numbers that are not finite")
    return _json.encode([number for array in arrays for number in array.tolist()])


def _inexpressible(name: str, what: str) -> NotAcceptable:
    message = f"output '{name}' has {what}; request it with binary_data"
    return NotAcceptable("JSON", message)
