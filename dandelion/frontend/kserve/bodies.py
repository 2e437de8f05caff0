"""Bodies of ``POST .../infer``: JSON, which binary tensors may follow.

The header ``Inference-Header-Content-Length`` is the size of the JSON. Behind it are the tensors in
binary form, in the order of those inputs or outputs that have the parameter ``binary_data_size``.
Input tensors are views into the body, output tensors views into the result.

Source: binary tensor data extension of the Triton Inference Server.
"""

from __future__ import annotations

from dandelion.data import Bytes
from dandelion.errors import InvalidInput, TooLarge
from dandelion.frontend.asgi import JSON, Header, Request, Response, clipped
from dandelion.frontend.codecs import SetMap
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import ITEMS, LARGE_BYTES, NUMBER_COST, costs_json
from dandelion.frontend.invocations import JSON_LIMIT_BYTES
from dandelion.frontend.kserve.datatypes import BYTES
from dandelion.frontend.kserve.documents import (
    InferRequest,
    InferResponse,
    OutputDocument,
    Parameters,
    RequestedOutput,
)
from dandelion.frontend.kserve.errors import Unsupported
from dandelion.frontend.kserve.inference import (
    REGION,
    REGION_OFFSET,
    REGION_SIZE,
    GivenTensor,
    InferenceResult,
    Place,
    WantedOutput,
    count_of,
    place_of,
)
from dandelion.frontend.kserve.json_tensors import chunks_set, read_tensors, write_tensors
from dandelion.frontend.kserve.tensors import OutputTensor

HEADER = b"inference-header-content-length"
BINARY_SIZE = "binary_data_size"
_OCTETS = b"application/octet-stream"
_PIECES = 16
"""More pieces of a response are joined: sending each costs more than copying it."""


async def read_body(
    request: Request, data: Bytes, converter: Converter
) -> tuple[InferRequest, list[GivenTensor]]:
    """Read the body of an inference.

    Args:
        request: its headers are read; it is watched if the body takes long.
        data: the whole body.
        converter: reads a large document.

    Raises:
        InvalidInput: sizes do not fit, or the JSON is not a request.
        TooLarge, TooCostly: the JSON is too large.
    """
    body = memoryview(data)
    size = _json_size(request, len(body))
    if size > JSON_LIMIT_BYTES:
        raise TooLarge("JSON", size, JSON_LIMIT_BYTES)
    head = body[:size]
    if costs_json(head):
        request.watch()
        document, texts = await converter.tensors(head)
    else:
        document, texts = read_tensors(head)
    return document, _inputs(document, texts, body[size:])


def _json_size(request: Request, size_bytes: int) -> int:
    given = request.headers.get(HEADER)
    if given is None:
        return size_bytes
    where = "header.inference-header-content-length"
    if not given.isdigit() or len(given) > 18:
        raise InvalidInput(where, f"'{clipped(given.decode('latin-1'))}' is not a size in bytes")
    if int(given) > size_bytes:
        raise InvalidInput(where, f"{int(given)} is more than the body, {size_bytes} bytes")
    if not int(given):
        raise Unsupported("a body without JSON is not supported", "describe the inputs in JSON")
    return int(given)


def _inputs(document: InferRequest, texts: SetMap, binary: memoryview) -> list[GivenTensor]:
    tensors = []
    end = 0
    for index, given in enumerate(document.inputs):
        where = f"inputs.{clipped(given.name)}"
        text, place = texts.get(str(index)), place_of(where, given.parameters)
        size = count_of(where, given.parameters, BINARY_SIZE)
        if (text is not None) + (place is not None) + (size is not None) != 1:
            message = f"give exactly one of data, {BINARY_SIZE} and {REGION}"
            raise InvalidInput(where, message)
        data: Bytes | Place
        if text is not None:
            data = text.items[0].data
        elif place is not None:
            data = place
        else:
            assert size is not None
            start, end = end, end + size
            if end > len(binary):
                message = f"it ends at {end} of the binary data, which has {len(binary)} bytes"
                raise InvalidInput(where, message)
            data = binary[start:end]
        tensors.append(GivenTensor(given.name, given.datatype, given.shape, data))
    if end != len(binary):
        message = f"{len(binary)} bytes of binary data, and the inputs have {end}"
        raise InvalidInput("body", message, f"set {BINARY_SIZE} of each input")
    return tensors


def wanted_outputs(outputs: list[RequestedOutput] | None) -> list[WantedOutput] | None:
    """List the outputs that the client wants.

    Raises:
        Unsupported: it wants a classification.
        InvalidInput: a parameter is malformed.
    """
    if outputs is None:
        return None
    wanted = []
    for output in outputs:
        where = f"outputs.{clipped(output.name)}"
        if output.parameters.get("classification"):
            raise Unsupported("classification is not supported", "request the tensor itself")
        wanted.append(WantedOutput(output.name, place_of(where, output.parameters)))
    return wanted


# --- responses ------------------------------------------------------------------------------------


async def write_response(
    document: InferRequest, result: InferenceResult, converter: Converter
) -> Response:
    """Write the response of an inference.

    Args:
        document: the request.
        result: of the invocation.
        converter: writes what takes long.

    Raises:
        NotAcceptable: an output has no form in JSON.
        TooLarge: an element of BYTES has 4 GiB or more.
    """
    forms = {output.name: output.parameters for output in document.outputs or ()}
    binary_by_default = document.parameters.get("binary_data_output") is True
    outputs: list[OutputDocument] = []
    pieces: list[Bytes] = []
    texts: SetMap = {}
    cost = 0
    for index, tensor in enumerate(result.outputs):
        parameters: Parameters = {}
        if tensor.name in result.places:
            parameters = region_parameters(result.places[tensor.name])
        elif forms.get(tensor.name, {}).get("binary_data", binary_by_default) is True:
            parameters = {BINARY_SIZE: tensor.size_bytes}
            pieces += tensor.binary()
        else:
            texts[str(index)] = chunks_set(index, tensor)
            cost += _cost(tensor)
        outputs.append(OutputDocument(tensor.name, tensor.datatype, tensor.shape, parameters))
    model = result.model
    response = InferResponse(model.name, str(model.version), outputs, document.id)
    if cost > LARGE_BYTES:
        head = await converter.tensors_response(response, texts)
    else:
        head = write_tensors(response, texts)
    if len(pieces) > _PIECES:
        pieces = [await _joined(pieces, converter)]
    return _response(result.invocation, head, pieces, has_binary=len(texts) < len(outputs))


def _response(id_: str, head: Bytes, pieces: list[Bytes], *, has_binary: bool) -> Response:
    headers: list[Header] = [(b"dandelion-invocation", id_.encode())]
    if has_binary:
        headers.append((HEADER, b"%d" % len(head)))
    return Response([head, *pieces], _OCTETS if has_binary else JSON, 200, headers)


def region_parameters(place: Place) -> Parameters:
    """Give the parameters of an output that was written to shared memory."""
    return {REGION: place.region, REGION_OFFSET: place.offset, REGION_SIZE: place.size_bytes}


def _cost(tensor: OutputTensor) -> int:
    """Estimate what writing a tensor as JSON costs, in bytes of text."""
    size = tensor.size_bytes
    return size + 16 * len(tensor.chunks) if tensor.datatype == BYTES else size * NUMBER_COST


async def _joined(pieces: list[Bytes], converter: Converter) -> bytes:
    if len(pieces) > ITEMS or sum(map(len, pieces)) > LARGE_BYTES:
        return await converter.elsewhere(lambda: b"".join(pieces))
    return b"".join(pieces)
