"""aiohttp's client protocol, fed in small pieces and with a limit on bytes that are not body.

aiohttp parses all data of one read before anything else runs, continues to read while a response
has not begun, and wakes the reader of a body once for each chunk. A hostile server can stretch each
of these to seconds: endless interim responses (``100 Continue``), chunks of two bytes, endless
chunk extensions or trailers, further responses that were not requested.

So the protocol here
- parses in pieces for about `TURN_S`, then yields to the event loop. Meanwhile it does not read the
  socket, which slows down the sender and not the node. The piece after a quick one has twice its
  size, the piece after a slow one half of it, so an ordinary body is parsed in a few pieces;
- closes a connection that sends more than `FRAMING_LIMIT_BYTES` without a byte of body in between:
  heads, interim responses, extensions, trailers, and data without a request under way.

It uses private members of aiohttp that all versions since 3.12 have: `_payload`, and
`_reading_paused`, which says that the reader of a body is behind. `tests/test_http_hostile.py`
tests it against servers that do all of the above.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp.client_proto import ResponseHandler

from .policy import AnswerRefused

PIECE_BYTES = 512
"""The smallest piece, and the first one; some twenty interim responses."""

_LARGEST_PIECE_BYTES = 64 * 1024
_QUICK_S = 0.0001
TURN_S = 0.0003
"""How long one connection parses before others run; all connections take some milliseconds."""

FRAMING_LIMIT_BYTES = 128 * 1024


class BoundedHandler(ResponseHandler):
    """Feeds the parser in pieces, and counts bytes that are not body.

    States: *open*, no data is pending and the socket is read; *pending*, the rest of a read is
    stored and the socket is not read. Then either `_go_on` is scheduled on the loop, or the reader
    of the body must read first, after which aiohttp calls `resume_reading`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._pending = b""
        self._scheduled = False
        self._held = False  # the socket is not read because of pending data
        self._piece_bytes = PIECE_BYTES
        self._framing_bytes = 0
        self._body_bytes = 0  # of the payload so far, at the last check

    def data_received(self, data: bytes) -> None:
        """Take received data; empty when the parser may continue after a pause."""
        if not data:
            super().data_received(data)
        elif self._pending:
            self._pending += data
        elif len(data) <= PIECE_BYTES and not self._scheduled:
            self._feed(data)
        else:
            self._pending = data
            self._parse()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self._pending:
            self._parse()

    def _parse(self) -> None:
        """Parse pending data, for one turn or until the body's buffer is full."""
        data = memoryview(self._pending)
        self._pending = b""
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
            self._pending = bytes(data[position:])
            self._hold()
            if not self._reading_paused:
                self._schedule()
        elif self._held:
            self._held = False
            if not self._reading_paused and self.transport is not None:
                self.transport.resume_reading()

    def _hold(self) -> None:
        self._held = True
        if self.transport is not None:
            self.transport.pause_reading()

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
        error = AnswerRefused(
            f"the server sent {FRAMING_LIMIT_BYTES >> 10} KiB of headers, interim responses or"
            " chunk framing without a byte of body"
        )
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()

    def resume_reading(self, *given: bool, **named: bool) -> None:
        """Continue after a pause. The reader of a body calls this once for each chunk.

        Args:
            given, named: none, or of newer versions one, as given.
        """
        if not self._reading_paused:
            return
        super().resume_reading(*given, **named)
        if self._pending and not self._reading_paused:
            self._hold()
            self._schedule()

    def set_response_params(self, **parameters: object) -> None:
        """Begin a request, and reset the counts of the one before it."""
        self._framing_bytes = self._body_bytes = 0
        super().set_response_params(**parameters)  # type: ignore[arg-type]  # aiohttp's own, as given

    def connection_lost(self, exc: BaseException | None) -> None:
        """Parse the pending data, then close."""
        while self._pending and self.is_connected() and not self._reading_paused:
            self._parse()
        self._pending = b""
        super().connection_lost(exc)
