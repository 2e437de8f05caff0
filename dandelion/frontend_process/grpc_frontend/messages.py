"""The messages of KServe v2 over gRPC, made at import from the table below.

They are in a pool of their own, so a program may also use other definitions of the same names.
Fields that a node neither reads nor writes are left out; they are skipped when a message is read.

Source: Open Inference Protocol (KServe v2), "GRPC"; field numbers of the extensions are those of
the Triton Inference Server.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
_PACKAGE = "inference"

Message: TypeAlias = Any
"""An instance of a generated class."""

_TABLE = """
ServerLiveRequest
ServerLiveResponse: bool live = 1
ServerReadyRequest
ServerReadyResponse: bool ready = 1
ModelReadyRequest: string name = 1, string version = 2
ModelReadyResponse: bool ready = 1
ServerMetadataRequest
ServerMetadataResponse: string name = 1, string version = 2, repeated string extensions = 3

ModelMetadataRequest: string name = 1, string version = 2
TensorMetadata: string name = 1, string datatype = 2, repeated int64 shape = 3
ModelMetadataResponse: string name = 1, repeated string versions = 2, string platform = 3,
    repeated TensorMetadata inputs = 4, repeated TensorMetadata outputs = 5

InferParameter: oneof bool bool_param = 1, oneof int64 int64_param = 2,
    oneof string string_param = 3, oneof double double_param = 4, oneof uint64 uint64_param = 5
InferTensorContents: repeated bool bool_contents = 1, repeated int32 int_contents = 2,
    repeated int64 int64_contents = 3, repeated uint32 uint_contents = 4,
    repeated uint64 uint64_contents = 5, repeated float fp32_contents = 6,
    repeated double fp64_contents = 7, repeated bytes bytes_contents = 8
InferInputTensor: string name = 1, string datatype = 2, repeated int64 shape = 3,
    map InferParameter parameters = 4, InferTensorContents contents = 5
InferRequestedOutputTensor: string name = 1, map InferParameter parameters = 2
ModelInferRequest: string model_name = 1, string model_version = 2, string id = 3,
    map InferParameter parameters = 4, repeated InferInputTensor inputs = 5,
    repeated InferRequestedOutputTensor outputs = 6, repeated bytes raw_input_contents = 7
InferOutputTensor: string name = 1, string datatype = 2, repeated int64 shape = 3,
    map InferParameter parameters = 4
ModelInferResponse: string model_name = 1, string model_version = 2, string id = 3,
    map InferParameter parameters = 4, repeated InferOutputTensor outputs = 5,
    repeated bytes raw_output_contents = 6
ModelStreamInferResponse: string error_message = 1, ModelInferResponse infer_response = 2

ModelConfigRequest: string name = 1, string version = 2
ModelInput: string name = 1, int32 data_type = 2, repeated int64 dims = 4, bool optional = 8
ModelOutput: string name = 1, int32 data_type = 2, repeated int64 dims = 3
ModelConfig: string name = 1, string platform = 2, int32 max_batch_size = 4,
    repeated ModelInput input = 5, repeated ModelOutput output = 6, string backend = 17
ModelConfigResponse: ModelConfig config = 1

ModelStatisticsRequest: string name = 1, string version = 2
StatisticDuration: uint64 count = 1, uint64 ns = 2
InferStatistics: StatisticDuration success = 1, StatisticDuration fail = 2
ModelStatistics: string name = 1, string version = 2, uint64 last_inference = 3,
    uint64 inference_count = 4, InferStatistics inference_stats = 6
ModelStatisticsResponse: repeated ModelStatistics model_stats = 1

RepositoryIndexRequest: string repository_name = 1, bool ready = 2
ModelIndex: string name = 1, string version = 2, string state = 3, string reason = 4
RepositoryIndexResponse: repeated ModelIndex models = 1

SystemSharedMemoryStatusRequest: string name = 1
RegionStatus: string name = 1, string key = 2, uint64 offset = 3, uint64 byte_size = 4
SystemSharedMemoryStatusResponse: map RegionStatus regions = 1
SystemSharedMemoryRegisterRequest: string name = 1, string key = 2, uint64 offset = 3,
    uint64 byte_size = 4
SystemSharedMemoryUnregisterRequest: string name = 1
"""
"""A message in a line, which may be continued: its fields, with ``map`` for maps from texts."""

DATA_TYPES = (
    *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
    *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32"),
    *("TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
)
"""Names of the enumeration of datatypes in configurations; the index is the number."""


def _descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="dandelion/inference.proto", package=_PACKAGE, syntax="proto3"
    )
    for line in _TABLE.replace(",\n ", ",").splitlines():
        name, _, fields = line.partition(":")
        if name:
            message = file.message_type.add(name=name)
            for text in filter(None, map(str.strip, fields.split(","))):
                _add_field(message, text.split())
    return file


def _add_field(message: Any, words: list[str]) -> None:
    *kind, type_name, name, _, number = words
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kind in (["repeated"], ["map"]) else field.LABEL_OPTIONAL
    if kind == ["oneof"]:
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
    if kind == ["map"]:
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, ["string", "key", "=", "1"])
        _add_field(entry, [type_name, "value", "=", "2"])
        type_name = f"{message.name}.{entry.name}"
    if type_name[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{type_name}"
    else:
        field.type = getattr(field, f"TYPE_{type_name.upper()}")


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_descriptor())


def message_class(name: str) -> Any:
    """Give the class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
