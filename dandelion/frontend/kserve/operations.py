"""OpenAPI operations of KServe v2; their schemas are those of the records."""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.frontend.kserve import documents
from dandelion.frontend.openapi import (
    health_operation,
    json_content,
    operation_of,
    reference,
    schemas_of,
)
from dandelion.frontend.routing import Json

_ERROR: Json = {
    "description": "an error",
    "content": json_content(
        {
            "type": "object",
            "required": ["error"],
            "properties": {"error": {"type": "string"}},
        }
    ),
}
_PREFIX = "KServe"
_RECORDS = (
    documents.InferRequest,
    documents.InferResponse,
    documents.ModelMetadata,
    documents.ModelConfig,
    documents.ModelStatistics,
    documents.ServerMetadata,
    documents.IndexEntry,
    documents.IndexRequest,
    documents.RegionDocument,
)
_BINARY: Json = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}


def kserve_schemas() -> Mapping[str, Json]:
    """Give the schemas that the operations refer to, by name."""
    return schemas_of(_RECORDS)


def _operation(text: str, content: Json, body: Json | None = None) -> Json:
    operation = operation_of(f"{_PREFIX} v2: {text}", content, problem=_ERROR)
    return operation if body is None else {**operation, "requestBody": {"content": body}}


def _list_of(name: str) -> Json:
    return {"type": "array", "items": reference(name)}


def _object_of(name: str, schema: Json) -> Json:
    return {"type": "object", "required": [name], "properties": {name: schema}}


_BOOLEAN: Json = {"type": "boolean"}
_NAMED: Json = {
    "type": "object",
    "required": ["name", "ready"],
    "properties": {"name": {"type": "string"}, "ready": _BOOLEAN},
}
_STATISTICS = json_content(_object_of("model_stats", _list_of("ModelStatistics")))

SERVER = _operation("the server", json_content(reference("ServerMetadata")))
LIVE = health_operation(_operation("the node runs", json_content(_object_of("live", _BOOLEAN))))
READY = health_operation(_operation("engines are up", json_content(_object_of("ready", _BOOLEAN))))
INDEX = _operation(
    "models", json_content(_list_of("IndexEntry")), json_content(reference("IndexRequest"))
)
METADATA = _operation("inputs and outputs", json_content(reference("ModelMetadata")))
MODEL_READY = health_operation(_operation("readiness", json_content(_NAMED)))
CONFIG = _operation("configuration", json_content(reference("ModelConfig")))
STATISTICS = _operation("statistics", _STATISTICS)
INFER = _operation(
    "invoke",
    {**json_content(reference("InferResponse")), **_BINARY},
    {**json_content(reference("InferRequest")), **_BINARY},
)
REGIONS = _operation("shared memory", json_content(_list_of("RegionDocument")))
