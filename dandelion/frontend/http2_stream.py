"""One request and its response on an HTTP/2 connection, as an ASGI server offers them.

The body is kept until the application reads it; then the client may send more. A response is sent
in frames as far as the windows of the stream and of the connection allow.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Iterable
from typing import Any, Protocol

from dandelion.data import Bytes
from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.asgi import (
    WHOLE_RESPONSE,
    Application,
    Header,
    Message,
    Response,
    Scope,
)
from dandelion.frontend.http2_limits import FRAME_BYTES
from dandelion.frontend.problem import NoTunnel

log = logging.getLogger("dandelion.frontend")

_TURN_FRAMES = 64
"""Frames of one response between two turns of the loop."""
_OF_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})


class StreamConnection(Protocol):
    """The connection, as its streams use it. Methods on a stream that is gone have no effect."""

    def send_headers(self, stream: Http2Stream, headers: Iterable[Header], *, end: bool) -> None:
        """Send a head."""

    def send_data(self, stream: Http2Stream, data: bytes, *, end: bool) -> None:
        """Send a frame that the windows allow."""

    def window_bytes(self, stream: Http2Stream) -> int:
        """Return how much data may be sent now."""

    async def drain(self) -> None:
        """Wait until the client has read enough."""

    def acknowledge(self, stream: Http2Stream, size_bytes: int) -> None:
        """Let the client send more."""

    def finished(self, stream: Http2Stream) -> None:
        """The application is done with the request."""

    def waiting_changed(self) -> None:
        """A stream began or stopped to wait for the client."""

    def hold(self) -> None:
        """Do not read for a while."""


class Http2Stream:
    """One request.

    Args:
        connection: of the stream.
        number: id of the stream.
        scope: ASGI scope.

    Attributes:
        gone: the client reset the stream, or the connection ended.
        more_body: whether the body is incomplete.
        is_complete: whether the response was sent.
        moved_bytes: of body and response, so far.
        mark: `moved_bytes` at the last look of the connection; None before the first.
        has_started: whether the head of the response was sent.
    """

    def __init__(self, connection: StreamConnection, number: int, scope: Scope) -> None:
        self.number = number
        self.gone = False
        self.more_body = True
        self.is_complete = False
        self.moved_bytes = 0
        self.mark: int | None = None
        self.has_started = False
        self._connection = connection
        self._scope = scope
        self._pieces: list[bytes] = []
        self._unread_bytes = 0  # as flow control counts them
        self._event = asyncio.Event()
        self._window = asyncio.Event()
        self._reads = False
        self._lacks_window = False
        headers = dict(scope["headers"])
        self._expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._missing_bytes = int(headers.get(b"content-length", b"0"))  # h2 has checked it

    @property
    def waits(self) -> bool:
        """Whether nothing happens before the client sends something."""
        if self._lacks_window:
            return True
        return self._reads and self.more_body and not self._unread_bytes

    @property
    def is_short(self) -> bool:
        """Whether less of the body has arrived than its content-length; h2 checks for more."""
        return self._missing_bytes > 0 and not self.is_complete

    # --- from the connection ----------------------------------------------------------------------

    def feed(self, data: bytes, counted_bytes: int) -> None:
        """Take a piece of the body; `counted_bytes` includes its padding."""
        self.moved_bytes += len(data)
        self._unread_bytes += counted_bytes
        self._missing_bytes -= len(data)
        if data:
            self._pieces.append(data)
        self._event.set()

    def feed_end(self) -> None:
        """Take the end of the body."""
        self.more_body = False
        self._event.set()

    def window_changed(self) -> None:
        """Try again to send."""
        self._window.set()

    def leave(self) -> None:
        """End: the client or the connection is gone."""
        self.gone = True
        self._event.set()
        self._window.set()

    def release(self) -> int:
        """Drop what was not read; return its size for flow control."""
        unread, self._unread_bytes = self._unread_bytes, 0
        self._pieces.clear()
        return unread

    # --- the application --------------------------------------------------------------------------

    async def run(self, application: Application) -> None:
        """Run the application."""
        try:
            if not self.gone:
                await application(self._scope, self.receive, self.send)
        except Exception:
            log.exception("request failed", extra={"path": self._scope["path"][:80]})
        finally:
            self._connection.finished(self)

    async def receive(self) -> Message:
        """Give a piece of the body, or the event that the client is gone."""
        if self._expects_continue and not self.has_started:
            self._expects_continue = False
            self._connection.send_headers(self, [(b":status", b"100")], end=False)
        if not self.gone and not self.is_complete:
            self._reads = True
            self._connection.waiting_changed()
            await self._event.wait()
            self._event.clear()
            self._reads = False
        if self.gone or self.is_complete:
            return {"type": "http.disconnect"}
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        more_body = self.more_body
        self._connection.acknowledge(self, self.release())
        return {"type": "http.request", "body": body, "more_body": more_body}

    async def send(self, message: Any) -> None:
        """Send a part of the response, or all of it."""
        if self.gone:
            return
        kind = message["type"]
        if kind == WHOLE_RESPONSE:
            response: Response = message["response"]
            if response.hold:
                self._connection.hold()
            self._start(response.status, response.all_headers(), end=not self._has_body)
            if self._has_body:
                for chunk in response.chunks[:-1]:
                    await self._data(chunk, end=False)
                await self._data(response.chunks[-1], end=True)
            self._complete()
        elif kind == "http.response.start":
            self._start(message["status"], message["headers"], end=not self._has_body)
        elif kind == "http.response.body":
            end = not message.get("more_body", False)
            if self._has_body:
                await self._data(message.get("body", b""), end=end)
            if end:
                self._complete()

    @property
    def _has_body(self) -> bool:
        return bool(self._scope["method"] != "HEAD")

    def _start(self, status: int, headers: Iterable[Header], *, end: bool) -> None:
        self.has_started = True
        fields = [(name, value) for name, value in headers if name not in _OF_CONNECTION]
        self._connection.send_headers(self, [(b":status", b"%d" % status), *fields], end=end)

    async def _data(self, data: Bytes, *, end: bool) -> None:
        view = memoryview(data)
        frames = 0
        while not self.gone:
            window = self._connection.window_bytes(self)
            if window < min(len(view), 1):  # h2 sends no empty frame either to a negative one
                await self._wait_for_window()
                continue
            size = min(len(view), FRAME_BYTES, window)
            is_last = size == len(view)
            self.moved_bytes += size
            self._connection.send_data(self, bytes(view[:size]), end=end and is_last)
            await self._connection.drain()
            if is_last:
                return
            view = view[size:]
            frames += 1
            if frames % _TURN_FRAMES == 0:
                await asyncio.sleep(0)

    async def _wait_for_window(self) -> None:
        self._window.clear()
        self._lacks_window = True
        self._connection.waiting_changed()
        try:
            await self._window.wait()
        finally:
            self._lacks_window = False
            self._connection.waiting_changed()

    def _complete(self) -> None:
        self.is_complete = True
        self._event.set()


def scope_of(
    fields: Iterable[Header], base: Message, is_secure: bool
) -> tuple[Message, DandelionError | None]:
    """Make the ASGI scope of a request.

    Args:
        fields: headers and pseudo-headers, as the HTTP/2 library has checked them.
        base: what all requests of the connection have.
        is_secure: whether the connection has TLS.

    Returns:
        The scope, and why the request cannot be served.
    """
    pseudo: dict[bytes, bytes] = {}
    headers: list[Header] = []
    for name, value in fields:
        if name[:1] == b":":
            pseudo[name] = value
        else:
            headers.append((name, value))
    authority = pseudo.get(b":authority")
    if authority is not None:  # the library has compared both
        headers = [(b"host", authority), *(h for h in headers if h[0] != b"host")]
    target = pseudo.get(b":path", b"")
    raw_path, _, query = target.partition(b"?")
    method = pseudo.get(b":method", b"")
    error: DandelionError | None = None
    if method == b"CONNECT":  # also with :protocol, since that is not offered
        error = NoTunnel()
    elif not raw_path.startswith((b"/", b"*")) or b"#" in target or not target.isascii():
        error = InvalidInput("request", "its path is not valid", "send a path that begins with /")
    path = raw_path.decode("latin-1")
    scope = {
        **base,
        "type": "http",
        "http_version": "2",
        "scheme": "https" if is_secure else "http",
        "method": method.decode("latin-1"),
        "path": urllib.parse.unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": headers,
        "extensions": {WHOLE_RESPONSE: {}},
    }
    return scope, error
