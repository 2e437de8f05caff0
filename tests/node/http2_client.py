"""An HTTP/2 client for tests: requests through h2, and frames that h2 would not send."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import h2.config
import h2.connection
import h2.events
import h2.settings
from hyperframe.frame import Frame, GoAwayFrame

from dandelion.frontend.http2_limits import FrameScanner

_Event = TypeVar("_Event", bound=h2.events.Event)
_FRAME_BYTES = 16_000
Headers = Sequence[tuple[str, str]]


class Http2Client:
    """One connection.

    Args:
        port: of the server.
        settings: sent first, by code.
        connected: to the server; by default a new connection without TLS.

    Attributes:
        events: all that were received.
        is_closed: whether the server closed the connection.
    """

    def __init__(
        self,
        port: int,
        settings: dict[int, int] | None = None,
        connected: socket.socket | None = None,
    ) -> None:
        self._socket = connected or socket.create_connection(("127.0.0.1", port), timeout=20)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._received = b""
        if settings:
            self._h2.local_settings = h2.settings.Settings(client=True, initial_values=settings)
        self._h2.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.is_closed = False
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def h2(self) -> h2.connection.H2Connection:
        """The state of the connection."""
        return self._h2

    def flush(self) -> None:
        """Send what h2 has to send."""
        self.send_raw(self._h2.data_to_send())

    def send_raw(self, data: bytes) -> None:
        """Send bytes; the server may have closed the connection."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Send frames as they are."""
        self.send_raw(b"".join(frame.serialize() for frame in frames))

    def request(
        self,
        path: str,
        body: bytes | None = b"",
        headers: Headers = (),
        *,
        method: str = "POST",
        authority: str = "localhost",
    ) -> int:
        """Send a request, with its whole body or, for None, without its end; return its stream."""
        stream = self._h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "http"), (":authority", authority)]
        self._h2.send_headers(stream, [*pseudo, (":path", path), *headers])
        if body is not None:
            for at in range(0, len(body), _FRAME_BYTES):
                self._h2.send_data(stream, body[at : at + _FRAME_BYTES])
            self._h2.end_stream(stream)
        self.flush()
        return stream

    def send_body(self, stream: int, body: bytes) -> None:
        """Send the body and the end of a request whose end is missing, as windows allow."""
        for at in range(0, len(body), _FRAME_BYTES):
            piece = body[at : at + _FRAME_BYTES]
            while self._h2.local_flow_control_window(stream) < len(piece):
                self.wait(h2.events.WindowUpdated)
            self._h2.send_data(stream, piece)
            self.flush()
        self._h2.end_stream(stream)
        self.flush()

    def wait(
        self, kind: type[_Event], accept: Callable[[_Event], bool] = lambda _: True
    ) -> _Event | None:
        """Receive until there is such an event, which is removed; None if the connection ends."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and accept(event):
                    self.events.remove(event)
                    return event
            if self.is_closed or not self._receive():
                return None

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            return False
        self._received += data
        while len(self._received) >= FrameScanner.HEAD_BYTES:
            size = FrameScanner.HEAD_BYTES + int.from_bytes(self._received[:3], "big")
            if len(self._received) < size:
                break
            frame, self._received = self._received[:size], self._received[size:]
            self._take(frame)
        self.flush()
        return True

    def _take(self, frame: bytes) -> None:
        """Take a frame. h2 refuses everything after GOAWAY, so it does not see that one."""
        parsed, _ = Frame.parse_frame_header(memoryview(frame[: FrameScanner.HEAD_BYTES]))
        if not isinstance(parsed, GoAwayFrame):
            self.events += self._h2.receive_data(frame)
            return
        parsed.parse_body(memoryview(frame[FrameScanner.HEAD_BYTES :]))
        ending = h2.events.ConnectionTerminated()
        ending.error_code, ending.additional_data = parsed.error_code, parsed.additional_data
        self.events.append(ending)

    def response(self, stream: int) -> tuple[int, bytes]:
        """Receive a response; status 0 if the stream or the connection ends before."""
        status, body = 0, b""
        while True:
            event = self.wait(h2.events.Event, lambda e: getattr(e, "stream_id", None) == stream)
            if event is None or isinstance(event, h2.events.StreamReset):
                return 0, body
            if isinstance(event, h2.events.ResponseReceived):
                status = int(dict(event.headers)[":status"])
            elif isinstance(event, h2.events.DataReceived):
                body += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, stream)
                self.flush()
            elif isinstance(event, h2.events.StreamEnded):
                return status, body

    def ending(self) -> tuple[int, bytes]:
        """Receive GOAWAY: its code, and the server's words; -1 if the connection just ends."""
        event = self.wait(h2.events.ConnectionTerminated)
        if event is None:
            return -1, b""
        return int(event.error_code), event.additional_data or b""
