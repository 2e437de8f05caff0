"""The OpenAPI document of the HTTP interface, and a page that shows it offline.

The schemas are generated from the records that are decoded.

Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dandelion import __version__
from dandelion.activity import Activity
from dandelion.capacity import ClusterInfo, NodeCapacity
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
)
from dandelion.frontend.routing import ANY_METHOD, Json, Route
from dandelion.priority import PRIORITY_LIMIT

_REF = "#/components/schemas/{name}"
_RECORDS = (
    Activity,
    RegistrationDocument,
    RegisterResponse,
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
            "additionalProperties": {"enum": ["text", "json", "text[]", "json[]"]},
        },
    },
}


def openapi_document(routes: Iterable[Route], schemas: Mapping[str, Json]) -> bytes:
    """Write the OpenAPI document as JSON.

    Args:
        routes: those without an operation are left out.
        schemas: of protocols, beside those of this module.
    """
    _, records = msgspec.json.schema_components(_RECORDS, ref_template=_REF)
    own = {"Item": _ITEM, "Set": _SET, "Sets": _SETS, "Result": _RESULT}
    paths: Json = {}
    for route in routes:
        if route.operation is not None:
            security = [] if route.right is None else [{"token": [route.right.value]}]
            operation = {**route.operation, "security": security}
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
            "header", "Idempotency-Key", {"type": "string"}, "with respond-async: accept it once"
        ),
        parameter(
            "header", "Dandelion-Callback", {"type": "string"}, "with respond-async: URL to call"
        ),
    ]
    operation = operation_of("Invoke a function or composition", response, parameters)
    operation["responses"]["202"] = {
        "description": "accepted, with respond-async; Location has its address",
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


def operation_of(summary: str, content: Json, parameters: list[Json] | None = None) -> Json:
    """Make an operation.

    Args:
        summary: what it does.
        content: of its response, by media type.
        parameters: of path, query and header.
    """
    problem = {MEDIA_TYPE: {"schema": reference("ProblemDocument")}}
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "default": {"description": "a problem (RFC 9457)", "content": problem},
        },
    }
    return {**operation, "parameters": parameters} if parameters else operation


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

DOCS_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dandelion: HTTP interface</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
         color: CanvasText; background: Canvas; color-scheme: light dark }
  summary { cursor: pointer; padding: .4rem 0; border-bottom: 1px solid GrayText }
  code, pre { font: 14px/1.45 ui-monospace, monospace }
  pre { overflow: auto; padding: .75rem; border: 1px solid GrayText; border-radius: .4rem }
  .method { display: inline-block; min-width: 4.5rem; font-weight: 700 }
  table { border-collapse: collapse } td { padding: .15rem 1rem .15rem 0; vertical-align: top }
</style>
<h1>Dandelion</h1>
<p>Everything below comes from <a href="/openapi.json">openapi.json</a> of this node.</p>
<main id="routes"><noscript>Without scripts, read openapi.json itself.</noscript></main>
<script>
const node = (tag, text, cls) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (cls) made.className = cls;
  return made;
};
const show = (title, value) => {
  const box = node("div");
  box.append(node("h4", title), node("pre", JSON.stringify(value, null, 2)));
  return box;
};
fetch("/openapi.json").then(response => response.json()).then(spec => {
  const routes = document.getElementById("routes");
  const resolve = value => JSON.parse(JSON.stringify(value, (key, part) =>
    part && part.$ref ? { $ref: part.$ref.split("/").pop() } : part));
  for (const [path, methods] of Object.entries(spec.paths))
    for (const [method, operation] of Object.entries(methods)) {
      const details = node("details"), summary = node("summary"), table = node("table");
      summary.append(node("span", method.toUpperCase(), "method"), node("code", path),
        document.createTextNode("  " + operation.summary));
      for (const given of operation.parameters || []) {
        const row = table.insertRow();
        row.insertCell().append(node("code", given.name));
        row.insertCell().textContent = given.in;
        row.insertCell().textContent = given.description || given.schema.type;
      }
      details.append(summary, table);
      const body = operation.requestBody;
      if (body) details.append(show("Body", resolve(body.content)));
      details.append(show("Response", resolve(operation.responses["200"].content)));
      routes.append(details);
    }
  routes.append(node("h2", "Schemas"));
  for (const [name, schema] of Object.entries(spec.components.schemas)) {
    const details = node("details");
    details.append(node("summary", name), node("pre", JSON.stringify(resolve(schema), null, 2)));
    routes.append(details);
  }
});
</script>
</html>
"""
