"""The OpenAPI document of the HTTP interface.

The schemas are generated from the records that are decoded.

Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from dandelion import __version__
from dandelion.activity import Activity
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.data import FORMS
from dandelion.documents import RegistrationDocument
from dandelion.frontend.graphs import MEDIA_TYPES
from dandelion.frontend.kept_documents import (
    EventDocument,
    EventsDocument,
    InvocationsDocument,
    KeptDocument,
)
from dandelion.frontend.problem import MEDIA_TYPE, ProblemDocument
from dandelion.frontend.records import (
    TEXT_TYPE,
    ComparisonResponse,
    Description,
    Entry,
    RegisterResponse,
    RemoveDocument,
)
from dandelion.frontend.routing import ANY_METHOD, Json, Route
from dandelion.priority import PRIORITY_LIMIT

_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_RECORDS = (
    Activity,
    RegistrationDocument,
    RegisterResponse,
    RemoveDocument,
    ComparisonResponse,
    Entry,
    Description,
    NodeCapacity,
    ClusterInfo,
    ProblemDocument,
    KeptDocument,
    InvocationsDocument,
    EventDocument,
    EventsDocument,
)

_ITEM: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "free text, at most 255 bytes of UTF-8"},
        "key": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "default": 0},
        "data": {"type": "string", "contentEncoding": "base64"},
        "text": {"type": "string"},
        "numbers": {"description": "a number or nested arrays, row-major"},
        "value": {"description": "any JSON value"},
        "dtype": {
            "type": "string",
            "description": "element type of an array; plain bytes have none",
            "examples": ["float32"],
        },
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    },
    "oneOf": [
        {"required": ["data"]},
        {"required": ["text"]},
        {"required": ["numbers"]},
        {"required": ["value"]},
    ],
}
_PROBLEM: Json = {
    "description": "a problem (RFC 9457)",
    "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDocument")}}},
}
_ENTRIES: Json = {"type": "array", "items": {"$ref": _REF.format(name="Entry")}}
_TOKEN: Json = {
    "type": "http",
    "scheme": "bearer",
    "description": "needed if the node has tokens; each route needs one right",
}
_SET: Json = {
    "description": "A list of items; null is absent. A single item, a string, and numbers for a "
    "set that declares a dtype are shorthands.",
    "oneOf": [
        {"type": "null"},
        {"type": "array", "items": {"$ref": _REF.format(name="Item")}},
        {"$ref": _REF.format(name="Item")},
        {"type": "string"},
    ],
}
_SETS: Json = {
    "type": "object",
    "anyOf": [{"required": ["sets"]}, {"required": ["values"]}],
    "properties": {
        "sets": {"type": "object", "additionalProperties": {"$ref": _REF.format(name="Set")}},
        "values": {
            "type": "object",
            "description": "sets as plain JSON values; the declaration of each says what it means",
        },
    },
}
_RESULT: Json = {
    "type": "object",
    "required": ["id", "sets"],
    "properties": {
        "id": {"type": "string", "description": "of the invocation"},
        "sets": {
            "type": "object",
            "additionalProperties": {
                "oneOf": [
                    {"type": "null"},
                    {"type": "array", "items": {"$ref": _REF.format(name="Item")}},
                ]
            },
        },
        "types": {
            "type": "object",
            "description": "dtype and shape of the sets that declare them",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "dtype": {"type": "string"},
                    "shape": {"type": ["array", "null"], "items": {"type": "integer"}},
                },
            },
        },
        "forms": {
            "type": "object",
            "description": "of the sets that are declared as text or JSON",
            "additionalProperties": {"enum": [form for form in FORMS if form]},
        },
    },
}


def openapi_document(routes: Iterable[Route], schemas: Mapping[str, Json]) -> bytes:
    """Write the OpenAPI document as JSON.

    Args:
        routes: those without an operation are left out.
        schemas: of protocols, beside those of this module.
    """
    records = schemas_of(_RECORDS)
    own = {"Item": _ITEM, "Set": _SET, "Sets": _SETS, "Result": _RESULT}
    paths: Json = {}
    for route in routes:
        if route.operation is not None:
            security = [] if route.right is None else [{"token": [route.right.value]}]
            operation = {**route.operation, "security": security}
            operation = _with_path_parameters(operation, route.documented_path)
            method = "post" if route.method == ANY_METHOD else route.method.lower()
            paths.setdefault(route.documented_path, {})[method] = operation
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Dandelion", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**records, **own, **schemas},
            "securitySchemes": {"token": _TOKEN},
        },
    }
    return msgspec.json.encode(document)


def _with_path_parameters(operation: Json, path: str) -> Json:
    """Describe the parameters of a path that the operation itself does not describe."""
    given: list[Json] = operation.get("parameters", [])
    described = {one["name"] for one in given if one["in"] == "path"}
    missing = [name for name in _PATH_PARAMETER.findall(path) if name not in described]
    if not missing:
        return operation
    added = [parameter("path", name, {"type": "string"}, required=True) for name in missing]
    return {**operation, "parameters": [*added, *given]}


def list_operation(kind: str) -> Json:
    """Describe ``GET /v1/{kind}``."""
    listed = {"type": "object", "properties": {kind: _ENTRIES}}
    return operation_of(f"List {kind}", json_content(listed))


def describe_operation(kind: str) -> Json:
    """Describe ``GET /v1/{kind}/{name}``."""
    content = json_content(reference("Description"))
    return operation_of(f"Describe one of the {kind}", content, [NAME, VERSION])


def remove_operation() -> Json:
    """Describe ``DELETE /v1/{kind}/{name}``."""
    removed = {"type": "object", "properties": {"removed": _ENTRIES}}
    return operation_of("Remove all versions, or one", json_content(removed), [NAME, VERSION])


def remove_together_operation() -> Json:
    """Describe ``POST /v1/remove``."""
    operation = remove_operation()
    content = json_content(reference("RemoveDocument"))
    body = {"required": True, "content": content}
    summary = "Remove records, all or nothing"
    return {**operation, "summary": summary, "parameters": [], "requestBody": body}


def graph_operation() -> Json:
    """Describe ``GET /v1/compositions/{name}/graph``."""
    formats = {"type": "string", "enum": list(MEDIA_TYPES), "default": "svg"}
    drawn: Json = {m.decode().partition(";")[0]: {} for m in MEDIA_TYPES.values()}
    return operation_of("Draw it", drawn, [NAME, VERSION, parameter("query", "format", formats)])


def trace_operation() -> Json:
    """Describe ``GET /v1/traces/{id}``."""
    identity = parameter("path", "id", {"type": "string"}, required=True)
    return operation_of("Trace of a recent invocation, for Perfetto", json_content({}), [identity])


def logs_operation() -> Json:
    """Describe ``GET /v1/logs``."""
    number: Json = {"type": "integer", "minimum": 0}
    parameters = [
        parameter("query", "function", {"type": "string"}, "only lines of this function"),
        parameter("query", "invocation", {"type": "string"}, "only lines of this invocation"),
        parameter("query", "after", number, "only later lines; Dandelion-Logs-Last of a response"),
        parameter("query", "limit", number, "how many, the newest; at most 1000"),
        parameter("query", "follow", {"type": "boolean"}, "also give all later lines"),
    ]
    content: Json = {"application/x-ndjson": {"schema": {"type": "string"}}}
    return operation_of("What functions wrote, a JSON object a line", content, parameters)


def cluster_operation() -> Json:
    """Describe ``GET /v1/cluster``."""
    schema: Json = {"anyOf": [reference("ClusterInfo"), {"type": "null"}]}
    return operation_of("The nodes of the cluster, null without one", json_content(schema))


def capacity_operation() -> Json:
    """Describe ``GET /v1/capacity``."""
    function = parameter(
        "query", "function", {"type": "string"}, "also: would a call of it run now?"
    )
    capacity = {"application/json": {"schema": reference("NodeCapacity")}}
    capacity |= {"application/msgpack": {"schema": reference("NodeCapacity")}}
    return operation_of("What the node has and what is free", capacity, [function, VERSION])


def invoke_operation() -> Json:
    """Describe ``POST /v1/invoke/{name}``."""
    bytes_ = {"schema": {"type": "string", "format": "binary"}}
    form = {"schema": {"type": "object", "additionalProperties": {"type": "string"}}}
    request = {
        "application/json": {"schema": reference("Sets")},
        "application/msgpack": {"schema": reference("Sets")},
        "application/octet-stream": bytes_,
        "multipart/form-data": form,
    }
    response = {
        "application/json": {"schema": reference("Result")},
        "application/msgpack": {"schema": reference("Result")},
        "application/octet-stream": bytes_,
    }
    seconds = {"type": "number", "exclusiveMinimum": 0}
    priority = {
        "type": "integer",
        "minimum": -PRIORITY_LIMIT,
        "maximum": PRIORITY_LIMIT,
        "default": 0,
    }
    parameters = [
        NAME,
        VERSION,
        parameter("query", "set", {"type": "string"}, "the input set of a raw body"),
        parameter("query", "deadline_s", seconds),
        parameter("header", "Dandelion-Deadline", seconds, "seconds"),
        parameter("query", "priority", priority),
        parameter("header", "Dandelion-Priority", priority, "among calls of the same tenant"),
        parameter("header", "Dandelion-Dtype", {"type": "string"}, "element type of a raw body"),
        parameter(
            "header", "Dandelion-Shape", {"type": "string"}, "shape of a raw body, such as 2,3"
        ),
        parameter("header", "traceparent", {"type": "string"}, "W3C trace context of the caller"),
        parameter("header", "tracestate", {"type": "string"}, "forwarded with it"),
        parameter(
            "header", "Prefer", {"type": "string"}, "respond-async: accept it (202); wait=SECONDS"
        ),
        parameter(
            "header", "Idempotency-Key", {"type": "string"}, "invoke once, however often it is sent"
        ),
        parameter(
            "header",
            "Dandelion-Callback",
            {"type": "string"},
            "with respond-async or a key: URL to call",
        ),
    ]
    operation = operation_of("Invoke a function or composition", response, parameters)
    operation["responses"]["202"] = {
        "description": "accepted, with respond-async; Location has its relative address",
        "content": json_content(reference("KeptDocument")),
    }
    return {**operation, "requestBody": {"required": True, "content": request}}


def record_operation() -> Json:
    """Describe ``POST /v1/record/{name}``."""
    bytes_ = {"schema": {"type": "string", "format": "binary"}}
    text = "Invoke, and record the invocation with its code; also needs the right 'invoke'"
    content = {"application/vnd.dandelion.recording": bytes_}
    operation = operation_of(text, content, [NAME, VERSION])
    return {**operation, "requestBody": invoke_operation()["requestBody"]}


def register_operation() -> Json:
    """Describe ``POST /v1/register``."""
    content = {
        "application/json": {"schema": reference("RegistrationDocument")},
        "application/msgpack": {"schema": reference("RegistrationDocument")},
        TEXT_TYPE: {"schema": {"type": "string", "description": "composition language"}},
    }
    operation = operation_of(
        "Register, all or nothing", json_content(reference("RegisterResponse"))
    )
    return {**operation, "requestBody": {"required": True, "content": content}}


def compare_operation() -> Json:
    """Describe ``POST /v1/compare``."""
    text = "What registering a document would change; nothing is registered"
    operation = operation_of(text, json_content(reference("ComparisonResponse")))
    return {**operation, "requestBody": register_operation()["requestBody"]}


def schemas_of(records: Iterable[type]) -> dict[str, Json]:
    """Make the schemas of records, and of those that they refer to, by name."""
    return msgspec.json.schema_components(records, ref_template=_REF)[1]


def operation_of(
    summary: str,
    content: Json,
    parameters: list[Json] | None = None,
    problem: Json | None = None,
) -> Json:
    """Make an operation.

    Args:
        summary: what it does.
        content: of its response, by media type.
        parameters: of path, query and header; those of the path may be left out.
        problem: the response for errors; by default a problem document.
    """
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "default": problem or _PROBLEM,
        },
    }
    return {**operation, "parameters": parameters} if parameters else operation


def health_operation(operation: Json) -> Json:
    """Add that the response has the same form with status 503, if something is not well."""
    responses = operation["responses"]
    unavailable = {**responses["200"], "description": "not now"}
    return {**operation, "responses": {**responses, "503": unavailable}}


def reference(name: str) -> Json:
    """Refer to a schema."""
    return {"$ref": _REF.format(name=name)}


def json_content(schema: Json) -> Json:
    """Make the content of a JSON body."""
    return {"application/json": {"schema": schema}}


def parameter(
    place: str, name: str, schema: Json, text: str = "", *, required: bool = False
) -> Json:
    """Make a parameter of an operation; `place` is ``path``, ``query`` or ``header``."""
    described = {"description": text} if text else {}
    return {"in": place, "name": name, "required": required, "schema": schema, **described}


NAME = parameter("path", "name", {"type": "string"}, required=True)
VERSION = parameter("query", "version", {"type": "integer", "minimum": 1}, "default: the newest")
