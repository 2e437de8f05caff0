"""The OpenAPI document of the HTTP interface, and a page that shows it offline.

The schemas are generated from the records that are decoded.

Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import msgspec

from dandelion import __version__
from dandelion.capacity import NodeCapacity
from dandelion.documents import RegistrationDocument
from dandelion.frontend.graphs import MEDIA_TYPES
from dandelion.frontend.guard import RIGHTS
from dandelion.frontend.problem import MEDIA_TYPE, ProblemDocument
from dandelion.frontend.records import TEXT_TYPE, Description, Entry, RegisterResponse
from dandelion.priority import PRIORITY_LIMIT

Json: TypeAlias = dict[str, Any]
"""A part of an OpenAPI document."""

_REF = "#/components/schemas/{name}"
_RECORDS = (
    RegistrationDocument,
    RegisterResponse,
    Entry,
    Description,
    NodeCapacity,
    ProblemDocument,
)

_ITEM: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "free text, at most 255 bytes of UTF-8"},
        "key": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "default": 0},
        "data": {"type": "string", "contentEncoding": "base64"},
        "text": {"type": "string"},
        "numbers": {"description": "a number or nested arrays, row-major"},
        "dtype": {
            "type": "string",
            "description": "element type of an array; plain bytes have none",
            "examples": ["float32"],
        },
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    },
    "oneOf": [{"required": ["data"]}, {"required": ["text"]}, {"required": ["numbers"]}],
}
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
    "required": ["sets"],
    "properties": {
        "sets": {"type": "object", "additionalProperties": {"$ref": _REF.format(name="Set")}}
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
    },
}


@cache
def openapi_document() -> bytes:
    """Write the OpenAPI document as JSON."""
    _, schemas = msgspec.json.schema_components(_RECORDS, ref_template=_REF)
    schemas |= {"Item": _ITEM, "Set": _SET, "Sets": _SETS, "Result": _RESULT}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Dandelion", "version": __version__},
        "paths": _with_rights(_paths()),
        "components": {"schemas": schemas, "securitySchemes": {"token": _TOKEN}},
    }
    return msgspec.json.encode(document)


def _paths() -> Json:
    paths: Json = {
        "/v1/invoke/{name}": {"post": _invoke()},
        "/v1/register": {"post": _register()},
    }
    for kind in ("functions", "compositions", "libraries"):
        entries = {"type": "array", "items": _ref("Entry")}
        listed = {"type": "object", "properties": {kind: entries}}
        removed = {"type": "object", "properties": {"removed": entries}}
        version = [_NAME, _VERSION]
        paths[f"/v1/{kind}"] = {"get": _operation(f"List {kind}", _json(listed))}
        paths[f"/v1/{kind}/{{name}}"] = {
            "get": _operation(f"Describe one of the {kind}", _json(_ref("Description")), version),
            "delete": _operation("Remove all versions, or one", _json(removed), version),
        }
    formats = {"type": "string", "enum": list(MEDIA_TYPES), "default": "svg"}
    drawn: Json = {m.decode().partition(";")[0]: {} for m in MEDIA_TYPES.values()}
    parameters = [_NAME, _VERSION, _parameter("query", "format", formats)]
    paths["/v1/compositions/{name}/graph"] = {"get": _operation("Draw it", drawn, parameters)}
    identity = _parameter("path", "id", {"type": "string"}, required=True)
    paths["/v1/traces/{id}"] = {
        "get": _operation("Trace of a recent invocation, for Perfetto", _json({}), [identity])
    }
    paths["/v1/engines"] = {"get": _operation("List the node's engines", _json({}))}
    function = _parameter(
        "query", "function", {"type": "string"}, "also: would a call of it run now?"
    )
    capacity = {"application/json": {"schema": _ref("NodeCapacity")}}
    capacity |= {"application/msgpack": {"schema": _ref("NodeCapacity")}}
    paths["/v1/capacity"] = {
        "get": _operation("What the node has and what is free", capacity, [function, _VERSION])
    }
    paths["/healthz"] = {"get": _operation("The process is running", _json({}))}
    paths["/readyz"] = {"get": _operation("Engines are up (else 503)", _json({}))}
    paths["/metrics"] = {"get": _operation("Prometheus metrics", {"text/plain": {}})}
    return paths


def _with_rights(paths: Json) -> Json:
    """Add the right that each operation needs."""
    for path, methods in paths.items():
        for method, operation in methods.items():
            right = RIGHTS[path][method.upper()]
            operation["security"] = [] if right is None else [{"token": [right.value]}]
    return paths


def _invoke() -> Json:
    bytes_ = {"schema": {"type": "string", "format": "binary"}}
    form = {"schema": {"type": "object", "additionalProperties": {"type": "string"}}}
    request = {
        "application/json": {"schema": _ref("Sets")},
        "application/msgpack": {"schema": _ref("Sets")},
        "application/octet-stream": bytes_,
        "multipart/form-data": form,
    }
    response = {
        "application/json": {"schema": _ref("Result")},
        "application/msgpack": {"schema": _ref("Result")},
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
        _NAME,
        _VERSION,
        _parameter("query", "set", {"type": "string"}, "the input set of a raw body"),
        _parameter("query", "deadline_s", seconds),
        _parameter("header", "Dandelion-Deadline", seconds, "seconds"),
        _parameter("query", "priority", priority),
        _parameter("header", "Dandelion-Priority", priority, "among calls of the same tenant"),
        _parameter("header", "Dandelion-Dtype", {"type": "string"}, "element type of a raw body"),
        _parameter(
            "header", "Dandelion-Shape", {"type": "string"}, "shape of a raw body, such as 2,3"
        ),
        _parameter("header", "traceparent", {"type": "string"}, "W3C trace context; echoed"),
    ]
    operation = _operation("Invoke a function or composition", response, parameters)
    return {**operation, "requestBody": {"required": True, "content": request}}


def _register() -> Json:
    content = {
        "application/json": {"schema": _ref("RegistrationDocument")},
        "application/msgpack": {"schema": _ref("RegistrationDocument")},
        TEXT_TYPE: {"schema": {"type": "string", "description": "composition language"}},
    }
    operation = _operation("Register, all or nothing", _json(_ref("RegisterResponse")))
    return {**operation, "requestBody": {"required": True, "content": content}}


def _operation(summary: str, content: Json, parameters: list[Json] | None = None) -> Json:
    problem = {MEDIA_TYPE: {"schema": _ref("ProblemDocument")}}
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "default": {"description": "a problem (RFC 9457)", "content": problem},
        },
    }
    return {**operation, "parameters": parameters} if parameters else operation


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _parameter(
    place: str, name: str, schema: Json, text: str = "", *, required: bool = False
) -> Json:
    described = {"description": text} if text else {}
    return {"in": place, "name": name, "required": required, "schema": schema, **described}


_NAME = _parameter("path", "name", {"type": "string"}, required=True)
_VERSION = _parameter("query", "version", {"type": "integer", "minimum": 1}, "default: the newest")

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
