"""aiohttp's client protocol with a limit on what the receiver of a callback may send.

aiohttp reads while a response has not begun, and stores each interim response (1xx) until then. A
receiver that sends them without end would fill the memory of the node within the time-out. Only the
status of the response is used, so little data is enough. Each connection has one request.
"""

from __future__ import annotations

import asyncio

from aiohttp.client_proto import ResponseHandler

LIMIT_BYTES = 64 * 1024


class ShortAnswer(ResponseHandler):
    """Ends the connection behind the first bytes. A response that has begun by then is used."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._left_bytes = LIMIT_BYTES

    def data_received(self, data: bytes) -> None:
        """Take received data; none when aiohttp continues after a pause."""
        super().data_received(data[: self._left_bytes])
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._left_bytes = 0
            if self.transport is not None:
                self.transport.abort()
