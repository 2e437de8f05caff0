"""Requests made of an OpenAPI document, valid and not; the same ones in each run."""

from __future__ import annotations

import json
import random
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A part of a JSON document."""

STRINGS = (
    "",
    "echo",
    "matrix",
    "x",
    "a b",
    "é\u2028",
    "..",
    "null",
    "0",
    "x" * 300,
    "a\x00b",
    "-1",
)
WRONG = (None, True, "", "text", 0, -1, 1.5, [], {}, [[]], {"a": None}, 2**64)
BODIES = (b"", b"{", b"null", b"[]", b'"a"', b"\xff\xfe", b"1e999", b"{}" * 3, b"[" * 2000)
DEPTH = 5


@dataclass
class MadeRequest:
    """A request; `target` is quoted."""

    method: str
    target: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""


class Maker:
    """Makes requests.

    Args:
        document: OpenAPI.
        known: values of path parameters by name that exist, to be used often.
        fixed: values of query parameters that are always the same.
        bodies: bodies that are no JSON, by path, to be used often.
    """

    def __init__(
        self,
        document: Json,
        known: Mapping[str, tuple[str, ...]],
        fixed: Mapping[str, str],
        bodies: Mapping[str, bytes],
    ) -> None:
        self._bodies = bodies
        self._document = document
        self._known = known
        self._fixed = fixed
        self._random = random.Random(1)

    def requests(self, path: str, method: str, count: int) -> Iterator[MadeRequest]:
        """Make requests of one operation."""
        operation = self._document["paths"][path][method]
        for number in range(count):
            plain = number if number < count // 2 else None
            yield self._request(path, method, operation, plain)

    def _request(self, path: str, method: str, operation: Json, plain: int | None) -> MadeRequest:
        """Make a request; one with a number may well succeed."""
        is_plain = plain is not None
        made = MadeRequest(method.upper(), path)
        query: dict[str, str] = {}
        for one in operation.get("parameters", ()):
            name, place = one["name"], one["in"]
            if place == "path":
                value = self._known_value(name, plain)
                made.target = made.target.replace(f"{{{name}}}", urllib.parse.quote(value, ""))
            elif name in self._fixed:
                query[name] = self._fixed[name]
            elif not is_plain and self._random.random() < 0.3:
                text = self._text(one["schema"])
                if place == "query":
                    query[name] = text
                else:
                    value_bytes = text.encode("latin-1", "replace").replace(b"\0", b"")
                    made.headers.append((name.lower().encode(), value_bytes))
        if query:
            made.target += "?" + urllib.parse.urlencode(query)
        if "requestBody" in operation:
            self._add_body(made, operation["requestBody"]["content"], is_plain)
        return made

    def _known_value(self, name: str, plain: int | None) -> str:
        if plain is None:
            return self._random.choice(STRINGS[1:])
        known = self._known.get(name, ("x",))
        return known[plain % len(known)]

    def _text(self, schema: Json) -> str:
        value = self._value(schema, 0) if self._random.random() < 0.6 else self._any(WRONG)
        return value if isinstance(value, str) else json.dumps(value)

    def _add_body(self, made: MadeRequest, content: Json, is_plain: bool) -> None:
        media = self._any(list(content))
        if is_plain and "application/json" in content:
            media = "application/json"
        made.headers.append((b"content-type", media.encode()))
        schema = content[media].get("schema", {})
        if is_plain and made.target in self._bodies:
            made.body = self._bodies[made.target]
        elif self._random.random() < 0.15 and not is_plain:
            made.body = self._any(BODIES)
        elif media == "application/json":
            document = self._value(schema, 0)
            if not is_plain and self._random.random() < 0.5:
                document = self._spoiled(document)
            made.body = json.dumps(document).encode()
        else:
            made.body = self._any(STRINGS).encode()

    # --- values of schemas ----------------------------------------------------------------------

    def _any(self, values: Any) -> Any:
        return values[self._random.randrange(len(values))]

    def _value(self, schema: Json, depth: int) -> Json:
        """Make a value that a schema allows, as far as it says so simply."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self._value(self._document["components"]["schemas"][name], depth)
        for several in ("oneOf", "anyOf"):
            if several in schema and "properties" not in schema:
                return self._value(self._any(schema[several]), depth)
        if "enum" in schema:
            return self._any(schema["enum"])
        kind = schema.get("type", "any")
        kind = self._any(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            items = schema.get("items") or {}
            size = 0 if depth >= DEPTH else self._random.randrange(3)
            return [self._value(items, depth + 1) for _ in range(size)]
        if kind in ("integer", "number"):
            found = (schema.get("minimum"), schema.get("maximum"), 1, 2)
            return self._any([value for value in found if value is not None])
        return {"null": None, "boolean": True}.get(kind) or self._any(STRINGS)

    def _object(self, schema: Json, depth: int) -> Json:
        required = set(schema.get("required", ()))
        for option in ("oneOf", "anyOf"):
            if option in schema:
                required |= set(self._any(schema[option]).get("required", ()))
        made = {
            name: self._value(one, depth + 1)
            for name, one in schema.get("properties", {}).items()
            if name in required or (depth < DEPTH and self._random.random() < 0.3)
        }
        further = schema.get("additionalProperties")
        if isinstance(further, dict) and depth < DEPTH:
            made |= {self._any(("a", "a", "m")): self._value(further, depth + 1)}
        return made

    def _spoiled(self, document: Json) -> Json:
        """Replace some part of a document by one of another type."""
        if isinstance(document, dict) and document and self._random.random() < 0.8:
            name = self._any(list(document))
            return {**document, name: self._spoiled(document[name])}
        if isinstance(document, list) and document and self._random.random() < 0.8:
            return [self._spoiled(document[0]), *document[1:]]
        return self._any(WRONG)
