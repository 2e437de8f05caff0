"""HTTP/2 for the same application: a protocol of its own, with the library h2.

A connection is HTTP/2 if its first bytes are the preface ("prior knowledge"), or if TLS negotiated
``h2``. There is no upgrade from HTTP/1.1. h2 knows the frames, the header compression and the
states of streams; this file moves bytes and decides what a client may do:

- Each request is a stream and a task. If the client resets the stream, the request is treated as
  one of HTTP/1.1 whose connection ended, so its invocation is cancelled.
- The connection is one entry of the `ConnectionTable`, which knows what it waits for. A stream that
  waits for its client, for its body or for a window, and moves less than the minimum rate, is ended
  by itself: with 408, or by a reset if its response has begun.
- What frames cost is limited, see `http2_limits`. h2 limits the frames of one header block and
  checks lengths of bodies, except of those that a head or trailers end.
- A malformed request is reset with PROTOCOL_ERROR, and counts as one that the client has reset.
- A connection that breaks another rule gets GOAWAY, with the reason in words, and lingers.
- At the end of the server, and after GOAWAY of the client, it gets GOAWAY, its streams complete,
  new ones are refused. GOAWAY of the client with an error closes it at once.

Rejected: h2's own GOAWAY at the end of the server, since h2 sends nothing after it.

Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import h2.config
import h2.events
import h2.exceptions
import h2.settings
import uvicorn
from h2.errors import ErrorCodes
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from dandelion.errors import DandelionError
from dandelion.frontend import http2_limits as limits
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.access import OPEN_PATHS
from dandelion.frontend.admission import close_gently
from dandelion.frontend.asgi import Application, Header, Message, Receive, Scope, Send
from dandelion.frontend.http2_connection import (
    GracefulH2Connection,
    Http2Connection,
    LateDataReceived,
    goaway,
)
from dandelion.frontend.http2_limits import FrameBudget, FrameScanner
from dandelion.frontend.http2_stream import Http2Stream, scope_of
from dandelion.frontend.problem import Crowded, Stalled
from dandelion.frontend.problem_response import problem_response

_PIECE_BYTES = 16 * 1024
_DEFAULT_WINDOW_BYTES = 65535
_GONE = (h2.exceptions.ProtocolError, KeyError)  # h2's errors for a stream that was closed
Settings = h2.settings.SettingCodes


class Http2Protocol(Http2Connection):
    """One HTTP/2 connection.

    Args:
        config: of the server.
        server_state: of the server.
        newcomer: its place in the table is taken by this connection.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        *,
        newcomer: Newcomer,
    ) -> None:
        super().__init__(newcomer)
        if not config.loaded:
            config.load()
        self._app: Application = config.loaded_app
        self._server_state = server_state
        self._surplus = newcomer.surplus
        settings = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._h2 = GracefulH2Connection(settings)
        self._running: set[Http2Stream] = set()
        now = self._loop.time()
        self._scanner = FrameScanner()
        self._frames = FrameBudget(limits.FRAMES_BURST, limits.FRAMES_RATE, now)
        self._resets = FrameBudget(limits.RESETS_BURST, limits.RESETS_RATE, now)
        self._late_bytes = 0  # that may come for streams that the node ended
        self._look: asyncio.TimerHandle | None = None
        self._draining = False
        self._handlers: dict[type[h2.events.Event], Callable[[Any], None]] = {
            h2.events.RequestReceived: self._on_request,
            h2.events.DataReceived: self._on_data,
            LateDataReceived: self._on_late_data,
            h2.events.StreamEnded: self._on_end,
            h2.events.StreamReset: self._on_reset,
            h2.events.WindowUpdated: self._on_window,
            h2.events.RemoteSettingsChanged: self._on_settings,
            h2.events.ConnectionTerminated: self._on_goaway,
        }

    # --- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's
        """Take the newcomer's place in the table, and send the server's settings."""
        self._transport = transport
        transport.set_write_buffer_limits(high=limits.PAUSE_BYTES)  # TLS has a larger one
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn only calls shutdown()
        self._enter_table()
        self._base: Message = {
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "root_path": "",
        }
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                Settings.MAX_CONCURRENT_STREAMS: 1 if self._surplus else limits.STREAMS,
                Settings.INITIAL_WINDOW_SIZE: limits.STREAM_WINDOW_BYTES,
                Settings.MAX_HEADER_LIST_SIZE: limits.HEADERS_LIMIT_BYTES,
                Settings.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self._h2.decoder.max_header_list_size = limits.HEADERS_LIMIT_BYTES
        self._h2.initiate_connection()
        more = limits.CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES
        self._h2.increment_flow_control_window(more)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table, and end all requests."""
        self._table.forget(self)
        self._server_state.connections.discard(self)
        self._can_write.set()
        if self._look is not None:
            self._look.cancel()
        for stream in list(self._streams.values()):
            stream.leave()
        self._streams.clear()
        self._handlers.clear()  # they refer to this connection

    def shutdown(self) -> None:
        """Finish the requests that run, and refuse new ones; called by the server."""
        self._finish("the server is shutting down")

    def _finish(self, reason: str) -> None:
        if self._draining or self._transport.is_closing():
            return
        self._draining = True
        self._write(goaway(ErrorCodes.NO_ERROR, self._last_stream, reason))
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        ends = self._lingers or self._transport.is_closing()
        if self._draining and not self._streams and not ends:
            close_gently(self._transport, self._loop)
            self._update_wait()

    # --- input ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the input and start its requests."""
        self._received_bytes += len(data)
        for start in range(0, len(data), _PIECE_BYTES):
            if self._lingers or self._transport.is_closing():
                break
            self._parse(data[start : start + _PIECE_BYTES])
        if self._lingers:
            if self._received_bytes > limits.LINGER_BYTES:
                self.abort()
            return
        self._flush()
        is_full = self._transport.get_write_buffer_size() > limits.BUFFER_BYTES
        if is_full and not self._transport.is_closing():
            self._choked = True
            self._transport.pause_reading()
        self._update_wait()

    def _parse(self, piece: bytes) -> None:
        cost = self._scanner.cost(piece)
        if cost and not self._frames.take(self._loop.time(), cost):
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames that carry nothing")
            return
        if self._scanner.too_large:
            self._fail(ErrorCodes.FRAME_SIZE_ERROR, "a frame is larger than 16 KiB")
            return
        try:
            events = self._h2.receive_data(piece)
        except h2.exceptions.ProtocolError:
            self._flush()  # h2 has written GOAWAY
            self._linger()
            return
        except Exception as error:  # a value that h2 does not check
            self._fail(ErrorCodes.PROTOCOL_ERROR, f"not valid HTTP/2: {type(error).__name__}")
            return
        for event in events:
            handler = self._handlers.get(type(event))
            if handler is not None and not self._lingers:
                handler(event)

    def eof_received(self) -> None:
        """The client sends no more, so it can neither send requests nor windows."""

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        number = event.stream_id
        if self._draining or len(self._running) >= 2 * limits.STREAMS:
            self._expect_late_data()
            with contextlib.suppress(*_GONE):  # the client may have reset it already
                self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        self._last_stream = number
        self._frames.add(limits.REQUEST_FRAMES)
        scope, error = scope_of(event.headers, self._base, self._is_secure)
        application: Application = self._app
        if error is not None:
            application = _Failing(error)
        elif self._surplus and scope["path"] not in OPEN_PATHS:
            application = _Failing(Crowded(self._table.limits.connections))
        stream = Http2Stream(self, number, scope)
        self._streams[number] = stream
        self._served = True
        self._running.add(stream)
        task = self._loop.create_task(stream.run(application))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)
        if self._look is None:
            self._look = self._loop.call_later(self._table.limits.moving_s, self._look_at_streams)

    def _on_data(self, event: h2.events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        size = event.flow_controlled_length
        if stream is None or stream.is_complete:
            self._h2.acknowledge_received_data(size, event.stream_id)
            return
        stream.feed(bytes(event.data), size)

    def _on_late_data(self, event: LateDataReceived) -> None:
        if event.size_bytes <= self._late_bytes:
            self._late_bytes -= event.size_bytes
        elif not self._frames.take(self._loop.time()):
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames for closed streams")

    def _expect_late_data(self) -> None:
        """Let the client send what a stream's window allows, since it may not know of the end."""
        more = self._late_bytes + limits.STREAM_WINDOW_BYTES
        self._late_bytes = min(more, limits.CONNECTION_WINDOW_BYTES)

    def _on_end(self, event: h2.events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.feed_end()
        if stream.is_short:
            self._drop(stream, ErrorCodes.PROTOCOL_ERROR)
            stream.leave()
            self._count_reset()

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        """End a stream: the client has reset it, or h2, since the client broke a rule."""
        stream = self._streams.pop(event.stream_id, None)
        if stream is not None:
            self._release(stream)
            stream.leave()
        if not event.remote_reset and (stream is None or stream.more_body):
            self._expect_late_data()
        is_late = event.remote_reset if stream is None else stream.is_complete
        if not is_late:
            self._count_reset()
        self._close_if_idle()

    def _count_reset(self) -> None:
        if not self._resets.take(self._loop.time()):
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM, "too many streams were reset")

    def _on_window(self, event: h2.events.WindowUpdated) -> None:
        if event.stream_id:
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.window_changed()
            return
        for stream in self._streams.values():
            stream.window_changed()

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        encoder = self._h2.encoder
        if encoder.header_table_size > limits.TABLE_BYTES:
            encoder.table_size_changes.clear()  # the larger size is not announced
            encoder.header_table_size = limits.TABLE_BYTES
        if Settings.INITIAL_WINDOW_SIZE in event.changed_settings:
            for stream in self._streams.values():
                stream.window_changed()

    def _on_goaway(self, event: h2.events.ConnectionTerminated) -> None:
        if event.error_code == ErrorCodes.NO_ERROR:
            self._finish("the client closes the connection")
        else:
            self._fail(ErrorCodes.NO_ERROR, "the client closed the connection with an error")

    def _look_at_streams(self) -> None:
        """End streams that have waited for their client since the last look, without progress."""
        given = self._table.limits
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for stream in list(self._streams.values()):
            mark, stream.mark = stream.mark, stream.moved_bytes if stream.waits else None
            if mark is None or stream.mark is None:
                continue
            if stream.mark - mark < max(1, given.rate_bytes * given.moving_s):
                self._end_stalled(stream, Stalled("body", given.moving_s, given.rate_bytes))
        if self._streams:
            self._look = self._loop.call_later(given.moving_s, self._look_at_streams)

    def _end_stalled(self, stream: Http2Stream, error: DandelionError) -> None:
        if not stream.has_started:
            stream.has_started = True
            response = problem_response(error)
            head = [(b":status", b"%d" % response.status), (b"content-type", response.media_type)]
            self.send_headers(stream, head, end=False)
            body = b"".join(response.chunks)
            if self.window_bytes(stream) >= len(body):
                self.send_data(stream, body, end=True)
                self._drop(stream, ErrorCodes.NO_ERROR)
        self._drop(stream, ErrorCodes.CANCEL)
        stream.leave()

    # --- for streams ----------------------------------------------------------------------------

    def send_headers(self, stream: Http2Stream, headers: Iterable[Header], *, end: bool) -> None:
        """Send a head."""
        if stream.gone:
            return
        try:
            self._h2.send_headers(stream.number, list(headers), end_stream=end)
        except _GONE:
            stream.leave()
        self._flush_later(is_last=end)

    def send_data(self, stream: Http2Stream, data: bytes, *, end: bool) -> None:
        """Send a frame that the windows allow."""
        if stream.gone:
            return
        try:
            self._h2.send_data(stream.number, data, end_stream=end)
        except _GONE:
            stream.leave()
        self._frames.add(limits.SENT_FRAMES)
        self._flush()

    def window_bytes(self, stream: Http2Stream) -> int:
        """Return how much data may be sent now."""
        try:
            return self._h2.local_flow_control_window(stream.number)
        except _GONE:
            stream.leave()
            return 0

    def acknowledge(self, stream: Http2Stream, size_bytes: int) -> None:
        """Let the client send more."""
        if size_bytes and not self._lingers:
            self._h2.acknowledge_received_data(size_bytes, stream.number)
            self._flush()

    def finished(self, stream: Http2Stream) -> None:
        """The application is done with the request."""
        self._running.discard(stream)
        if stream.number not in self._streams:
            return
        self._server_state.total_requests += 1
        if not stream.is_complete:
            self._drop(stream, ErrorCodes.INTERNAL_ERROR)
        elif stream.more_body:
            self._drop(stream, ErrorCodes.NO_ERROR)  # the rest of the body is not wanted
        else:
            self._release(stream)
            del self._streams[stream.number]
        if self._surplus:
            self.shutdown()
        self._close_if_idle()
        self._update_wait()

    def waiting_changed(self) -> None:
        """A stream began or stopped to wait for the client."""
        self._update_wait()

    def _drop(self, stream: Http2Stream, code: ErrorCodes) -> None:
        """Reset a stream."""
        self._streams.pop(stream.number, None)
        if stream.more_body:
            self._expect_late_data()
        self._release(stream)
        with contextlib.suppress(*_GONE):
            self._h2.reset_stream(stream.number, code)
        self._flush()
        self._close_if_idle()

    def _release(self, stream: Http2Stream) -> None:
        unread = stream.release()
        if unread:
            self._h2.acknowledge_received_data(unread, stream.number)

    # --- output ---------------------------------------------------------------------------------

    def _flush_later(self, *, is_last: bool) -> None:
        """Send a head together with the data that follows it."""
        if is_last:
            self._flush()
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._write(data)


class _Failing:
    """An application that answers every request with an error."""

    def __init__(self, error: DandelionError) -> None:
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await problem_response(self._error).send(send, scope["extensions"])
