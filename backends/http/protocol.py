"""aiohttp's client protocol, fed in small pieces and with a bound on what is not body.

aiohttp parses everything that one read of the socket brings before anything else runs, reads on
while a response has not begun, and wakes the reader of a body once for each chunk. A hostile server
turns each of these into seconds: interim responses (``100 Continue``) without end, chunks of two
bytes, chunk extensions or trailers without end, further responses that were not asked for.

So the protocol here
- parses in pieces for about `TURN_S`, then lets the event loop run. Meanwhile it reads nothing from
  the socket, so the sender is slowed down and not the node. A piece that took next to no time is
  followed by one of twice its size, a slow one by half of it: an ordinary body is parsed in a few;
- ends a connection that sends more than `FRAMING_LIMIT_BYTES` without a byte of body in between:
  heads, interim responses, extensions, trailers, and what comes when no request is under way.

It reaches into aiohttp: `_payload`, `_reading_paused` and the hold that aiohttp keeps for buffers
of its own (`_pause_reading_for_buffer`). `tests/test_http_hostile.py` holds it against servers that
do all of the above.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp.client_proto import ResponseHandler

from .policy import Refused

PIECE_BYTES = 512
"""The smallest piece, and the first one; some twenty interim responses."""

_LARGEST_PIECE_BYTES = 64 * 1024
_QUICK_S = 0.0001
TURN_S = 0.0003
"""How long one connection parses before others run; all places together take some milliseconds."""

FRAMING_LIMIT_BYTES = 128 * 1024


class BoundedHandler(ResponseHandler):
    """Feeds the parser piece by piece, and counts what brings no body.

    States: *open*, nothing is held and the socket is read; *holding*, the rest of a read is kept,
    the socket is not read, and either the loop has `_go_on` scheduled or the reader of the body has
    to take some first (then aiohttp says so by ``data_received(b"")``).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._held = b""
        self._scheduled = False
        self._piece_bytes = PIECE_BYTES
        self._framing_bytes = 0
        self._body_bytes = 0  # of the payload so far, when it was last looked at

    def data_received(self, data: bytes) -> None:
        """Take what the socket brought; empty when the parser may go on after a pause."""
        if not data:
            super().data_received(data)
            if self._held:
                self._schedule()
        elif self._held:
            self._held += data
        elif len(data) <= PIECE_BYTES and not self._scheduled:
            self._feed(data)
        else:
            self._held = data
            self._parse()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self._held:
            self._parse()

    def _parse(self) -> None:
        """Parse what is held, for one turn or until the reader of the body has enough."""
        data = memoryview(self._held)
        self._held = b""
        position = 0
        now_s = time.monotonic()
        end_s = now_s + TURN_S
        while position < len(data) and not self._reading_paused and self.is_connected():
            self._feed(bytes(data[position : position + self._piece_bytes]))
            position += self._piece_bytes
            before_s, now_s = now_s, time.monotonic()
            if now_s - before_s < _QUICK_S:
                self._piece_bytes = min(2 * self._piece_bytes, _LARGEST_PIECE_BYTES)
            elif now_s > end_s:
                self._piece_bytes = max(self._piece_bytes // 2, PIECE_BYTES)
            if now_s > end_s:
                break
        if not self.is_connected():
            return
        if position < len(data):
            self._held = bytes(data[position:])
            self._pause_reading_for_buffer()
            if not self._reading_paused:
                self._schedule()
        elif self._buffer_paused:
            self._resume_reading_for_buffer()

    def _feed(self, piece: bytes) -> None:
        super().data_received(piece)
        payload = self._payload
        body_bytes = self._body_bytes if payload is None else payload.total_bytes
        if body_bytes != self._body_bytes:
            self._body_bytes = body_bytes
            self._framing_bytes = 0
            return
        self._framing_bytes += len(piece)
        if self._framing_bytes > FRAMING_LIMIT_BYTES:
            self._refuse()

    def _refuse(self) -> None:
        error = Refused(
            f"the server sent {FRAMING_LIMIT_BYTES >> 10} KiB of headers, interim responses or"
            " chunk framing without a byte of body"
        )
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on after a pause. The reader of a body asks for it once for each chunk."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def set_response_params(self, **parameters: object) -> None:
        """Begin a request: what was counted belongs to the one before it."""
        self._framing_bytes = self._body_bytes = 0
        super().set_response_params(**parameters)  # type: ignore[arg-type]  # aiohttp's own, as given

    def connection_lost(self, exc: BaseException | None) -> None:
        """Parse what came before the end, then end."""
        while self._held and self.is_connected() and not self._reading_paused:
            self._parse()
        self._held = b""
        super().connection_lost(exc)
