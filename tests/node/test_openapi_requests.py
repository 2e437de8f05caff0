"""Requests made of the OpenAPI document: no server error, and nothing but what it describes.

A small form of what tools such as schemathesis do, with the same requests in each run.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections import Counter
from typing import Any

import bson
import jsonschema
import msgspec
import pytest

from dandelion.frontend.app import App
from dandelion.frontend.asgi import Message
from dandelion.node import Node

from .openapi_requests import MadeRequest, Maker
from .served import DOCUMENT, SETTINGS

COUNT = 24
"""Requests of each operation."""
KNOWN = {
    "name": ("echo", "echo", "matrix", "twice", "lib/k.cl"),
    "model": ("echo", "matrix"),
    "version": ("1",),
    "any": ("x",),
    "id": ("x",),
}
FIXED = {"follow": "false", "wait_s": "0"}
BODIES = {
    "/register/composition": bson.encode(
        {
            "composition": "function echo(a) => (b); "
            "composition d(x) => (y) { echo(a = all x) => (y = b); }"
        }
    ),
    "/register/library": bson.encode({"name": "lib/b.cl", "library": [1, 2]}),
    "/hot": bson.encode({"name": "echo", "sets": []}),
}
LEFT_OUT = "/v1/activity/events"  # a stream without an end
SUCCEED = {
    "post /v1/invoke/{name}", "post /v1/compare", "get /v1/functions", "get /v1/functions/{name}",
    "delete /v1/functions/{name}", "get /v1/compositions/{name}/graph", "get /v1/logs",
    "get /v1/capacity", "get /v1/invocations", "get /v1/activity", "get /v2",
    "get /v2/models/{model}", "get /v2/models/{model}/config", "get /v2/models/{model}/ready",
    "get /v2/models/{model}/stats", "post /v2/repository/index", "get /v2/models/stats",
    "get /healthz", "get /metrics", "post /register/composition", "post /register/library",
    "post /hot",
}  # fmt: skip
"""Operations that have to succeed sometimes, or the test would not reach what they do."""


def test_responses_are_those_of_the_document() -> None:
    asyncio.run(scenario())


async def scenario() -> None:
    settings = msgspec.structs.replace(SETTINGS, protocols=("kserve", "bson"))
    async with Node(settings) as node:
        functions = tuple(f for f in DOCUMENT.functions if f.code[0].format == "null")
        document = msgspec.structs.replace(DOCUMENT, functions=functions)
        await asyncio.to_thread(node.register, document)
        app = App(node, ("localhost",))
        await app.start()
        try:
            succeeded = await ask_all(app)
        finally:
            await app.stop()
            await asyncio.to_thread(app.close)
    assert succeeded.keys() >= SUCCEED


async def ask_all(app: App) -> Counter[str]:
    """Ask for all operations; those that remove things come last."""
    _, _, data = await ask(app, MadeRequest("GET", "/openapi.json"))
    described = json.loads(data)
    maker = Maker(described, KNOWN, FIXED, BODIES)
    operations = [(m, p) for p, methods in described["paths"].items() for m in methods]
    operations.sort(key=lambda operation: operation[0] == "delete")
    succeeded: Counter[str] = Counter()
    for method, path in operations:
        if path == LEFT_OUT:
            continue
        operation = described["paths"][path][method]
        for request in maker.requests(path, method, COUNT):
            status, media, body = await ask(app, request)
            check(described, operation, request, status, media, body)
            if status < 300:
                succeeded[f"{method} {path}"] += 1
    return succeeded


def check(
    described: Any, operation: Any, request: MadeRequest, status: int, media: str, body: bytes
) -> None:
    """Compare a response with what is described."""
    where = f"{request}: {status} {media} {body[:300]!r}"
    assert status < 500, where
    responses = operation["responses"]
    response = responses.get(str(status)) or responses.get("default")
    assert response is not None, f"no such status, {where}"
    content = response.get("content", {})
    assert media in content, f"no such media type, {where}"
    schema = content[media].get("schema")
    if schema is not None and media in ("application/json", "application/problem+json"):
        validator = jsonschema.Draft202012Validator(
            {**schema, "components": described["components"]}
        )
        problem = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(body)))
        assert problem is None, f"{problem}, {where}"


async def ask(app: App, request: MadeRequest) -> tuple[int, str, bytes]:
    """Call the application; gives status, media type and body."""
    raw_path, _, query = request.target.partition("?")
    scope: Message = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "path": urllib.parse.unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "headers": [
            (b"host", b"localhost"),
            (b"content-length", b"%d" % len(request.body)),
            *request.headers,
        ],
        "client": ("127.0.0.1", 1),
    }
    sent: list[Message] = []
    received = False

    async def receive() -> Message:
        nonlocal received
        if received:
            await asyncio.Event().wait()
        received = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), 20)
    head = dict(sent[0]["headers"])
    media = head.get(b"content-type", b"").decode().partition(";")[0]
    return sent[0]["status"], media, b"".join(bytes(m.get("body", b"")) for m in sent[1:])


UNDESCRIBED = [
    (500, "application/problem+json", b"{}"),
    (200, "text/html", b""),
    (200, "application/json", b'{"functions": [{"name": 1}]}'),
    (404, "application/problem+json", b'{"type": 1}'),
]


def test_a_response_that_is_not_described_is_found() -> None:
    document = asyncio.run(described())
    operation = document["paths"]["/v1/functions"]["get"]
    for response in UNDESCRIBED:
        with pytest.raises(AssertionError):
            check(document, operation, MadeRequest("GET", "/v1/functions"), *response)


async def described() -> Any:
    app = App(Node(SETTINGS), ("localhost",))
    try:
        return json.loads((await ask(app, MadeRequest("GET", "/openapi.json")))[2])
    finally:
        await asyncio.to_thread(app.close)
