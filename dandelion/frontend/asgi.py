"""The interface to the ASGI server: its types, and the two records that handlers work with.

A `Request` is one HTTP request. A handler returns a `Response`. The body of a response is a list of
chunks, which may be views into the arena. They are sent one by one and never joined.

Source: ASGI 3.0, HTTP connection scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from dandelion.data import Bytes
from dandelion.errors import DandelionError, InvalidInput, nearest
from dandelion.tokens import ANONYMOUS, Grant
from dandelion.trace_context import (
    NO_TRACING,
    InvocationSpan,
    TraceContext,
    Tracing,
    read_trace_context,
)

# ASGI messages are dictionaries whose values depend on their "type".
Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
WHOLE_RESPONSE = "dandelion.response"
"""ASGI extension and type of its message, which has a whole `Response`."""
TASK = "dandelion.task"
"""Key in the scope. A server that starts a request without a task puts the later task there."""
FIELDS = "dandelion.fields"
"""Key in the scope: `header_fields`, made by the server. It is never changed."""
_LISTS = (b"accept", b"prefer", b"content-encoding")
"""Headers that are lists: several lines of one are one list (RFC 9110, 5.3)."""
WHOLE_BODY = "dandelion.body"
"""Key in the scope: the body, if all of it was there when the application was called."""
WATCH_AFTER_S = 0.02
_NO_PARAMETERS: Mapping[str, str] = {}
NAME_LIMIT = 128  # characters; a search for near names takes quadratic time


ProblemWriter: TypeAlias = Callable[[DandelionError, str], "Response"]
"""Makes the response for an error; the text is the id of the invocation, or empty."""


_OF_STREAMS: tuple[Header, ...] = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
"""Their pieces are news: no cache stores them, and proxies such as nginx pass each on at once."""


class Response(msgspec.Struct, eq=False):
    """The response of a handler.

    Attributes:
        chunks: the body, in pieces; at least one.
        media_type: its Content-Type.
        status: the HTTP status.
        headers: further headers; Content-Length is added when it is sent.
        close: whether to close the connection, unless the whole request was read.
        hold: whether the next request of the connection is read later.
        stream: gives the body in place of `chunks`, piece by piece; without a Content-Length. It is
            closed at the end, also if the client disconnects.
        sent_bytes: size of the body that was sent; set by `send`.
    """

    chunks: list[Bytes]
    media_type: bytes = JSON
    status: int = 200
    headers: list[Header] = []
    close: bool = False
    hold: bool = False
    stream: AsyncGenerator[Bytes, None] | None = None
    sent_bytes: int = 0

    async def send(self, send: Send, extensions: Mapping[str, object]) -> None:
        """Write status, headers and body to the connection.

        Args:
            send: of the ASGI server.
            extensions: what the server offers, see `dandelion.frontend.protocol`.
        """
        if self.stream is not None:
            await self._send_stream(send, self.stream)
            return
        chunks = self.chunks
        self.sent_bytes = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        if WHOLE_RESPONSE in extensions:
            await send({"type": WHOLE_RESPONSE, "response": self})
            return
        headers = self.all_headers()
        if self.close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for chunk in chunks[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": chunks[-1]})

    def all_headers(self) -> list[Header]:
        """Give all headers of a response that is sent as a whole."""
        return [
            (b"content-type", self.media_type),
            (b"content-length", b"%d" % self.sent_bytes),
            *self.headers,
        ]

    async def _send_stream(self, send: Send, stream: AsyncGenerator[Bytes, None]) -> None:
        headers = [(b"content-type", self.media_type), *_OF_STREAMS, *self.headers]
        if self.close:
            headers.append((b"connection", b"close"))
        async with contextlib.aclosing(stream):
            await asyncio.sleep(0)  # a stream needs a task, unlike the first step of a request
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            async for chunk in stream:
                self.sent_bytes += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def empty_stream() -> AsyncGenerator[Bytes, None]:
    """Yield nothing: the stream of a response without a body."""
    return
    yield b""


class DisconnectWatcher:
    """Cancels the coroutine of a request when its client disconnects.

    Watching needs a task, so it starts only after `WATCH_AFTER_S`.

    Args:
        request: the request. Its coroutine runs in the current task. If the server started it
            without a task, it runs in the task at `TASK` in the scope.
        loop: the event loop.

    Attributes:
        seen: whether the client disconnected.
    """

    __slots__ = ("_owner", "_receive", "_scope", "_timer", "_watch", "seen")

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self.seen = False
        self._receive = request.receive
        self._scope = request.scope
        self._owner = asyncio.current_task(loop)
        self._watch: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER_S, self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = loop.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.seen = True
        owner: asyncio.Task[None] | None = self._owner or self._scope.get(TASK)
        if owner is not None:
            owner.cancel()

    def stop_watching(self) -> None:
        """Stop. A later disconnect has no effect."""
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()


class Request:
    """One request. Its parts are parsed on first use.

    Args:
        scope: the ASGI scope.
        receive: gives the body, then the event that the client disconnected.
        tracing: begins the span of its invocation.
    """

    def __init__(self, scope: Scope, receive: Receive, tracing: Tracing = NO_TRACING) -> None:
        self.scope = scope
        self._tracing = tracing
        self.span: InvocationSpan | None = None  # of its invocation, once there is one
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.receive = receive
        self.headers: Mapping[bytes, bytes] = scope.get(FIELDS) or header_fields(scope["headers"])
        self.parameters: Mapping[str, str] = _NO_PARAMETERS  # of the route's path
        self.raw_query: bytes = scope["query_string"]
        self.grant: Grant = ANONYMOUS  # what its caller may do
        self.recheck: Callable[[Request], None] | None = None  # raises if that is not so any more
        self.invocation = ""  # its id, once there is one
        self.disconnect_watcher: DisconnectWatcher | None = None
        self.received_bytes = 0  # of the body
        self.close = False  # whether to close the connection without reading the rest of the body
        self.response_headers: list[Header] = []  # of every response, also of an error
        self.problem: ProblemWriter | None = None  # writes errors, once the route is known

    @property
    def peer(self) -> str:
        """The address of the client, for logs; an empty string if it is unknown."""
        host, port = self.scope.get("client") or ("", 0)
        return f"{host}:{port}" if host else ""

    @property
    def client_left(self) -> bool:
        """Whether the request was cancelled because its client disconnected."""
        return self.disconnect_watcher is not None and self.disconnect_watcher.seen

    def require_still(self) -> None:
        """Refuse a request that takes long if its caller would not be allowed it now.

        Raises:
            Unauthenticated: its token has expired or was removed.
            MissingRight: its token has lost a right.
        """
        if self.recheck is not None:
            self.recheck(self)

    def begin_span(self) -> InvocationSpan | None:
        """Begin the span of the request's invocation, which every response to it then names."""
        parent: TraceContext | None = None
        if b"traceparent" in self.headers:
            parent = read_trace_context(self.scope["headers"])
        span = self.span = self._tracing.begin(parent)
        if span is not None:
            self.response_headers.append((b"traceparent", span.context.traceparent.encode()))
        return span

    def watch(self) -> None:
        """From now on, cancel the request if its client disconnects."""
        if self.disconnect_watcher is None:
            self.disconnect_watcher = DisconnectWatcher(self, asyncio.get_running_loop())

    def stop_watching(self) -> None:
        """Stop watching. A later disconnect has no effect."""
        if self.disconnect_watcher is not None:
            self.disconnect_watcher.stop_watching()

    def header(self, name: bytes) -> str:
        """Give a header's value, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    def whole_body(self) -> bytes | None:
        """Take the body, if all of it is here; else it is received."""
        body: bytes | None = self.scope.pop(WHOLE_BODY, None)
        if body is not None:
            self.received_bytes = len(body)
        return body

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters of the query string.

        Raises:
            InvalidInput: there are too many, or one is repeated.
        """
        if not self.raw_query:
            return {}
        text = self.raw_query.decode("latin-1")
        try:
            pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        except ValueError as error:
            raise InvalidInput("query", str(error)) from None
        found = dict(pairs)
        if len(found) != len(pairs):
            times = Counter(name for name, _ in pairs)
            where = f"query.{clipped(times.most_common(1)[0][0])}"
            raise InvalidInput(where, "it is given more than once", "give one value")
        return found

    def expect_query(self, known: Iterable[str]) -> None:
        """Refuse parameters that the route does not have, so that a typing error is reported.

        Raises:
            InvalidInput: with the nearest known name, or a parameter is repeated.
        """
        if not self.raw_query:
            return
        known = tuple(known)
        for name in self.query:
            if name not in known:
                where = f"query.{clipped(name)}"
                hint = did_you_mean(name, known)
                raise InvalidInput(where, "this route has no such parameter", hint)

    @property
    def version(self) -> int | None:
        """The parameter ``version``.

        Raises:
            InvalidInput: it is not a positive integer.
        """
        text = self.query.get("version") if self.raw_query else None
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
            message = f"'{clipped(text)}' is not a positive integer"
            raise InvalidInput("query.version", message)
        return int(text)


def header_fields(headers: Sequence[Header]) -> Mapping[bytes, bytes]:
    """Make a mapping of headers: all lines of those that are lists, the last one of others."""
    fields = dict(headers)
    if len(fields) != len(headers):
        for name in _LISTS:
            if name in fields:
                fields[name] = b", ".join([value for other, value in headers if other == name])
    return fields


def clipped(text: str, limit: int = 80) -> str:
    """Shorten a text of a client, to quote it in a message."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name; empty if none is near or `name` is too long."""
    close = nearest(name, known) if len(name) <= NAME_LIMIT else None
    return f"did you mean '{close}'?" if close else ""
