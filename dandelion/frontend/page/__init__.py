"""The page at ``/``: what runs, what ran, and what is registered.

The page is static files without a build step. It reads the same routes as other programs, with the
token that its user enters, and shows everything as text. Its policy forbids inline scripts, inline
styles and other hosts, so it also works offline. All its addresses are relative, since a proxy may
serve the node below a path.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from dandelion.activity import Activity, ActivityQuery
from dandelion.data import Bytes
from dandelion.dataflow.draw_svg import STYLE
from dandelion.errors import InvalidInput
from dandelion.frontend.adapter import Adapter, AdapterContext
from dandelion.frontend.asgi import Header, Request, Response, clipped
from dandelion.frontend.openapi import json_content, operation_of, parameter, reference
from dandelion.frontend.problem import NoRoute
from dandelion.frontend.routing import Json, Route
from dandelion.frontend.stream_places import StreamPlaces
from dandelion.tokens import Right

FILES = Path(__file__).parent / "files"
EVENTS_S = 1.0
"""How often new activity is looked for, in seconds."""
HEARTBEAT_S = 15.0
LIMIT = 1000
"""Most invocations in one response."""
_TYPES = {".html": b"text/html", ".css": b"text/css", ".js": b"text/javascript"}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: list[Header] = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]
_QUERY = ("after", "before", "limit", "name", "failed")
_encode = msgspec.json.Encoder().encode


class PageAdapter(Adapter):
    """Serves the page, and the activity that it shows."""

    def __init__(self, context: AdapterContext) -> None:
        self._node = context.node
        self._places = StreamPlaces("streams of events")
        self._stopped = asyncio.Event()

    def routes(self) -> Sequence[Route]:
        read = Right.READ
        return [
            Route("GET", "/", self._index, None),
            Route("GET", "/page/{file}", self._file, None),
            Route("GET", "/v1/activity", self._activity, read, _activity_operation()),
            Route("GET", "/v1/activity/events", self._events, read, _events_operation()),
        ]

    async def stop(self) -> None:
        """End all streams."""
        self._stopped.set()

    async def _index(self, request: Request) -> Response:
        return _file_response("index.html")

    async def _file(self, request: Request) -> Response:
        return _file_response(request.parameters["file"])

    async def _activity(self, request: Request) -> Response:
        request.expect_query(_QUERY)
        found = await self._find(request, _query_of(request))
        return Response([_encode(found)])

    async def _find(self, request: Request, query: ActivityQuery) -> Activity:
        return await asyncio.to_thread(partial(self._node.activity, request.grant.tenant, query))

    async def _events(self, request: Request) -> Response:
        """Stream what happens: server-sent events, each an `Activity` with what is new."""
        request.expect_query(("after",))
        self._places.check(request.grant.tenant)
        after = _number(request, "after", 0)
        request.watch()
        return Response([], b"text/event-stream", stream=self._stream(request, after))

    async def _stream(self, request: Request, after: int) -> AsyncGenerator[Bytes, None]:
        with self._places.taken(request.grant.tenant):
            last, silent_s = b"", 0.0
            while not self._stopped.is_set():
                found = await self._find(request, ActivityQuery(after=after, limit=LIMIT))
                after = found.cursor
                body = _encode(found)
                if body != last:
                    yield b"data: " + body + b"\n\n"
                    last, silent_s = body, 0.0
                elif silent_s >= HEARTBEAT_S:
                    yield b": nothing new\n\n"
                    silent_s = 0.0
                silent_s += EVENTS_S
                await self._pause()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), EVENTS_S)
        except TimeoutError:
            return


@functools.cache
def _files() -> dict[str, bytes]:
    """Read the files of the page; the style of drawn compositions is one of them."""
    found = {path.name: path.read_bytes() for path in FILES.iterdir() if path.suffix in _TYPES}
    return {**found, "graph.css": STYLE.encode()}


def _file_response(name: str) -> Response:
    content = _files().get(name)
    if content is None:
        raise NoRoute(f"/page/{clipped(name)}")
    kind = _TYPES[Path(name).suffix] + b"; charset=utf-8"
    return Response([content], kind, headers=list(_HEADERS))


def _query_of(request: Request) -> ActivityQuery:
    failed = request.query.get("failed", "")
    if failed not in ("", "true", "false"):
        raise InvalidInput("query.failed", f"'{clipped(failed)}' is not true or false")
    limit = _number(request, "limit", 100)
    if not 0 < limit <= LIMIT:
        raise InvalidInput("query.limit", f"{limit} is not between 1 and {LIMIT}")
    return ActivityQuery(
        after=_number(request, "after", 0),
        before=_number(request, "before", 0),
        limit=limit,
        name=request.query.get("name", ""),
        failed=failed == "true",
    )


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise InvalidInput(f"query.{name}", f"'{clipped(text)}' is not a number")
    return int(text)


def _activity_operation() -> Json:
    number: Json = {"type": "integer", "minimum": 0, "default": 0}
    parameters = [
        parameter("query", "after", number, "only invocations with a higher number"),
        parameter("query", "before", number, "only invocations with a lower number"),
        parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": LIMIT}),
        parameter("query", "name", {"type": "string"}, "of the function or composition"),
        parameter("query", "failed", {"type": "boolean"}, "only those that failed"),
    ]
    text = "What the tenant did lately: invocations, and calls by function"
    return operation_of(text, json_content(reference("Activity")), parameters)


def _events_operation() -> Json:
    number: Json = {"type": "integer", "minimum": 0, "default": 0}
    text = "The same as server-sent events, as it changes"
    return operation_of(text, {"text/event-stream": {}}, [parameter("query", "after", number)])
