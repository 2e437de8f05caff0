"""One request and its response on a connection of HTTP/1.1, as an ASGI server offers them.

The application is called without a task: its first step runs at once. Most requests complete in
this step, the others go on in a task.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Coroutine, Generator
from typing import Any, Protocol

from dandelion.data import Bytes
from dandelion.frontend.asgi import (
    WHOLE_BODY,
    WHOLE_RESPONSE,
    Application,
    Header,
    Message,
    Response,
    Scope,
)

JOIN_BYTES = 16 * 1024
"""Bodies up to this size are joined with their head. Chunks of larger bodies are not copied."""
READ_AHEAD_BYTES = 64 * 1024
"""No more of a body is read before the application takes it."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_BUG = b"Internal Server Error"
_WITHOUT_BODY = (204, 304)
_PHRASES = {status.value: status.phrase for status in http.HTTPStatus}
_STATUS_LINES = {s: f"HTTP/1.1 {s} {_PHRASES.get(s, '')}\r\n".encode() for s in range(200, 600)}

log = logging.getLogger("dandelion.frontend")


class Connection(Protocol):
    """The protocol, as used by its cycles.

    Attributes:
        transport: of the connection.
        lingers: whether the sending half of the connection is closed.
        write_paused: whether the client does not read fast enough.
    """

    transport: asyncio.Transport
    lingers: bool
    write_paused: bool

    def close(self, *, linger: bool = False) -> None:
        """Close the connection when everything is written; with `linger`, discard further input."""

    def hold(self) -> None:
        """Do not read the next request for a while."""

    def pause_reading(self) -> None:
        """Read no more input for now."""

    def resume_reading(self) -> None:
        """Read input again."""

    async def drain(self) -> None:
        """Wait until the client has read enough."""

    def on_response_complete(self) -> None:
        """Start the next request, or wait for it."""


class Cycle:
    """One request and its response.

    Args:
        connection: of the request.
        scope: ASGI scope.
        keep_alive: whether the connection may be used for another request.
        expects_continue: whether the client waits for a response before it sends the body.
        body: the whole body, if it came with the head.

    Attributes:
        more_body: whether the body is incomplete.
        disconnected: whether the client is gone.
        response_started, response_complete: how far the response is.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_connection",
        "_event",
        "_has_news",
        "_left_bytes",
        "disconnected",
        "expects_continue",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
        "scope",
    )

    def __init__(
        self,
        connection: Connection,
        scope: Scope,
        *,
        keep_alive: bool,
        expects_continue: bool,
        body: bytes | None = None,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.more_body = body is None
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._connection = connection
        self._body: bytes | bytearray = body or b""  # what the application has not received
        self._event: asyncio.Event | None = None
        self._has_news = not self.more_body
        self._chunked = False
        self._left_bytes: int | None = 0  # of the body of the response; None: until it is closed

    # --- from the connection ----------------------------------------------------------------------

    def feed(self, body: bytes) -> None:
        """Take a part of the body."""
        if self.response_complete:
            return
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body) + body
        if len(self._body) > READ_AHEAD_BYTES:
            self._connection.pause_reading()
        self._notify()

    def end_body(self) -> None:
        """The body is complete."""
        self.more_body = False
        if not self.response_complete:
            self._notify()

    def leave(self) -> None:
        """End: the client is gone."""
        if not self.response_complete:
            self.disconnected = True
            self.expects_continue = False
        self._notify()

    def _notify(self) -> None:
        self._has_news = True
        if self._event is not None:
            self._event.set()

    # --- the application --------------------------------------------------------------------------

    def begin(self, application: Application) -> Coroutine[Any, Any, None] | None:
        """Call the application; return the rest of its work, if it has to wait."""
        if self.more_body:  # it would wait at once
            return self._run(application(self.scope, self.receive, self.send))
        if not self.expects_continue:
            self.scope[WHOLE_BODY] = bytes(self._body)
            self._body = b""
        running = application(self.scope, self.receive, self.send)
        try:
            awaited = running.send(None)
        except StopIteration:
            if not self.response_complete:
                self._fail("the application gave no whole response")
            return None
        except Exception as error:
            self._fail("request failed", error)
            return None
        return self._run(_Rest(running, awaited))

    async def _run(self, running: Any) -> None:
        """Await the application, or the rest of its work."""
        try:
            await running
        except BaseException as error:
            self._fail("request failed", error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            if not self.response_complete:
                self._fail("the application gave no whole response")

    def _fail(self, message: str, error: BaseException | None = None) -> None:
        """The application has not responded: respond in its place, or close the connection."""
        if self.disconnected:
            return
        if error is not None and not isinstance(error, asyncio.CancelledError):
            log.error(message, exc_info=error, extra={"path": self.scope["path"][:80]})
        if not self.response_started and not self._connection.transport.is_closing():
            response = Response([_BUG], b"text/plain; charset=utf-8", 500, close=True)
            response.sent_bytes = len(_BUG)
            self.keep_alive = False
            self._respond(response)
        else:
            self._connection.close()

    async def receive(self) -> Message:
        """Give the part of the body that has arrived, or the event that the client is gone."""
        if self.expects_continue and not self._connection.transport.is_closing():
            self._connection.transport.write(_CONTINUE)
            self.expects_continue = False
        if not (self.disconnected or self.response_complete):
            self._connection.resume_reading()
            while not self._has_news:
                if self._event is None:
                    self._event = asyncio.Event()
                self._event.clear()
                await self._event.wait()
            self._has_news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body: bytes | None = self.scope.pop(WHOLE_BODY, None)
        if body is None:
            body, self._body = bytes(self._body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Send an ASGI message or a whole response."""
        connection = self._connection
        if connection.lingers:
            self.disconnected = True
        if connection.write_paused and not self.disconnected:
            await connection.drain()
        if self.disconnected or connection.transport.is_closing():
            self.disconnected = True
            return
        kind = message["type"]
        if kind == WHOLE_RESPONSE:
            self._respond(message["response"])
        elif kind == "http.response.start":
            self._start(message["status"], message["headers"])
        else:
            self._write_part(message.get("body", b""), message.get("more_body", False))

    # --- the response -----------------------------------------------------------------------------

    def _respond(self, response: Response) -> None:
        """Write a whole response."""
        self.response_started = True
        if self.more_body and (response.close or self.expects_continue):
            self.keep_alive = False  # the start of the next request is unknown
        size = response.sent_bytes
        head: list[Bytes] = [
            _STATUS_LINES[response.status],
            b"content-type: ",
            response.media_type,
            b"\r\ncontent-length: %d\r\n" % size,
        ]
        for name, value in response.headers:
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n" if self.keep_alive else _CLOSE + b"\r\n")
        if response.hold:
            self._connection.hold()
        transport = self._connection.transport
        if self.scope["method"] == "HEAD":
            transport.write(b"".join(head))
        elif size <= JOIN_BYTES:
            head += response.chunks
            transport.write(b"".join(head))
        else:
            transport.writelines([b"".join(head), *response.chunks])
        self._complete()

    def _start(self, status: int, headers: list[Header]) -> None:
        """Write the head of a response whose body follows."""
        if self.response_started:
            raise RuntimeError("the response has started already")
        self.response_started = True
        self.expects_continue = False
        given = dict(headers)
        if b"close" in given.get(b"connection", b"").lower():
            self.keep_alive = False
        head = [_STATUS_LINES[status]]
        head += [b"%b: %b\r\n" % header for header in headers if header[0] != b"connection"]
        has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        if b"content-length" in given:
            self._left_bytes = int(given[b"content-length"]) if has_body else 0
        elif has_body and self.scope["http_version"] == "1.0":
            self.keep_alive = False  # HTTP/1.0 has no chunks: it ends with its connection
            self._left_bytes = None
        elif has_body:
            self._chunked = True
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n" if self.keep_alive else _CLOSE + b"\r\n")
        self._connection.transport.write(b"".join(head))

    def _write_part(self, body: bytes, more_body: bool) -> None:
        """Write a part of the body of a response."""
        if not self.response_started or self.response_complete:
            raise RuntimeError("a part of a response without its head, or after its end")
        if self._chunked:
            parts = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
            if not more_body:
                parts.append(b"0\r\n\r\n")
            self._connection.transport.write(b"".join(parts))
        elif self.scope["method"] != "HEAD":
            if self._left_bytes is not None:
                self._left_bytes -= len(body)
                if self._left_bytes < 0 or (self._left_bytes and not more_body):
                    raise RuntimeError("the body of the response is not as long as its head says")
            self._connection.transport.write(body)
        if not more_body:
            self._complete()

    def _complete(self) -> None:
        self.expects_continue = False
        self.response_complete = True
        self._notify()
        if not self.keep_alive:
            self._connection.close(linger=self.more_body)
        self._connection.on_response_complete()


class _Rest:
    """The rest of a coroutine whose first step ran outside a task."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        awaited, self._awaited = self._awaited, None
        while True:
            try:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = None  # a future that failed holds this frame by its traceback
                    awaited = self._coroutine.throw(error)
                else:
                    awaited = self._coroutine.send(value)
            except StopIteration:
                return
