"""The JSON documents of the protocol.

Source: Open Inference Protocol (KServe v2), "HTTP/REST"; the extensions of the Triton Inference
Server for binary tensor data, model repository, model configuration and shared memory.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from dandelion.data import Bytes
from dandelion.errors import InvalidInput

Parameters: TypeAlias = dict[str, bool | int | float | str | None]
_T = TypeVar("_T")


class InputDocument(msgspec.Struct, omit_defaults=True):
    """An input tensor; its data is here, or its parameters tell where."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = {}
    data: Any = None


class RequestedOutput(msgspec.Struct, omit_defaults=True):
    """An output that the client wants, and in which form."""

    name: str
    parameters: Parameters = {}


class InferRequest(msgspec.Struct, omit_defaults=True):
    """The request of an inference."""

    inputs: list[InputDocument]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[RequestedOutput] | None = None


class OutputDocument(msgspec.Struct, omit_defaults=True):
    """An output tensor; without `data`, it follows in binary form or lies in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Parameters = {}
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class InferResponse(msgspec.Struct, omit_defaults=True):
    """The response of an inference."""

    model_name: str
    model_version: str
    outputs: list[OutputDocument]
    id: str = ""


class TensorMetadata(msgspec.Struct, frozen=True):
    """An input or output of a model; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(msgspec.Struct, frozen=True):
    """What a model takes and gives."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class ConfigTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output in the configuration of a model.

    Attributes:
        optional: an input that a request may leave out.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


class ModelConfig(msgspec.Struct, frozen=True):
    """The configuration of a model, as far as there is one here."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: tuple[ConfigTensor, ...]
    output: tuple[ConfigTensor, ...]


class Duration(msgspec.Struct, frozen=True):
    """How many there were, and how long they took in total."""

    count: int
    ns: int


class InferenceStatistics(msgspec.Struct, frozen=True):
    """What became of inferences, from the call to the result."""

    success: Duration
    fail: Duration


class ModelStatistics(msgspec.Struct, frozen=True):
    """The inferences of a model, of all versions, since the node started.

    Attributes:
        last_inference: when the last one ended, in milliseconds since 1970.
        inference_count: how many succeeded.
    """

    name: str
    last_inference: int
    inference_count: int
    inference_stats: InferenceStatistics
    version: str = ""


class ServerMetadata(msgspec.Struct, frozen=True):
    """What the server is."""

    name: str
    version: str
    extensions: tuple[str, ...]


class IndexEntry(msgspec.Struct, frozen=True):
    """A model in the index of the repository."""

    name: str
    version: str
    state: str
    reason: str = ""


class IndexRequest(msgspec.Struct):
    """Which models the client wants: all, or those that are ready."""

    ready: bool = False


_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class RegionRequest(msgspec.Struct):
    """The registration of a region of shared memory.

    Attributes:
        key: name of the POSIX shared memory object.
        offset, byte_size: the part of it, in bytes.
    """

    key: str
    byte_size: _Offset
    offset: _Offset = 0


class RegionDocument(msgspec.Struct, frozen=True):
    """A registered region."""

    name: str
    key: str
    offset: int
    byte_size: int


_request = msgspec.json.Decoder(InferRequest)
_region = msgspec.json.Decoder(RegionRequest)
_index = msgspec.json.Decoder(IndexRequest)


def read_infer_request(body: Bytes) -> InferRequest:
    """Read the JSON of an inference.

    Raises:
        InvalidInput: it is no JSON, or a field does not fit; the message has its path.
    """
    return _read(_request, body)


def read_region_request(body: Bytes) -> RegionRequest:
    """Read the registration of a region; raises as `read_infer_request`."""
    return _read(_region, body)


def read_index_request(body: Bytes) -> IndexRequest:
    """Read the request of the index, which may be empty; raises as `read_infer_request`."""
    return _read(_index, body) if len(body) else IndexRequest()


def _read(decoder: msgspec.json.Decoder[_T], body: Bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput("body", f"not a valid request: {error}") from None
