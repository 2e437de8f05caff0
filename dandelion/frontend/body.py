"""The body of a request, on its way from the socket into memory.

A body that came with the head of its request stays where the server put it. A larger one goes,
piece by piece, into a context of the arena whose size is that of Content-Length: the pieces are
never joined elsewhere. Of a chunked body nobody knows the size before its end, so its pieces are
kept until then. The limit holds while a body comes in, not afterwards.

A client that sends more than the limit is heard out for a while, up to `DRAIN_BYTES`, so that it
gets to see the answer; then the connection is closed on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from dandelion.data import Bytes
from dandelion.errors import Cancelled, InvalidInput, TooLarge
from dandelion.frontend.asgi import Exchange, Message, clipped
from dandelion.frontend.problem import Stalled, UnsupportedMedia
from dandelion.memory import Context

DRAIN_BYTES = 8 * 1024 * 1024
IDLE_S = 30.0


class Body:
    """Reads the body of one request, once.

    Args:
        exchange: the request.
        acquire: gives a context of so many bytes.
        limit_bytes: how large the body may be.
        idle_s: how long a client may send nothing, in seconds.
    """

    def __init__(
        self,
        exchange: Exchange,
        acquire: Callable[[int], Context],
        limit_bytes: int,
        idle_s: float = IDLE_S,
    ) -> None:
        self._exchange = exchange
        self._receive = exchange.receive
        self.acquire = acquire
        self._limit_bytes = limit_bytes
        self._idle_s = idle_s
        encoding = exchange.headers.get(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
            given = clipped(encoding.decode("latin-1"))
            raise UnsupportedMedia(f"content encoding {given}", ("identity",))
        self.size_bytes = _length(exchange)

    async def read(self) -> Bytes:
        """Read the whole body.

        Returns:
            bytes, or a read-only view into a context of the arena.

        Raises:
            TooLarge: it is larger than the limit.
            ContextFull: the arena has no room for it.
            Cancelled: the client left before the body was complete.
            Stalled: the client stopped sending.
        """
        size = self.size_bytes
        if size is not None and size > self._limit_bytes:
            await self._refuse(size)
        message = await self._receive()  # holds nothing yet, so it may take its time
        if message["type"] == "http.disconnect":
            raise _left()
        first: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(first) > self._limit_bytes:
                await self._refuse(len(first), complete=True)
            return first
        return await self._fill(first, size) if size else await self._gather(first)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read the body piece by piece; raises as `read` does."""
        if self.size_bytes is not None and self.size_bytes > self._limit_bytes:
            await self._refuse(self.size_bytes)
        total = 0
        more = True
        while more:
            message = await self._next()
            chunk: bytes = message.get("body", b"")
            total += len(chunk)
            more = message.get("more_body", False)
            if total > self._limit_bytes:
                await self._refuse(total, complete=not more)
            if chunk:
                yield chunk

    async def _fill(self, first: bytes, size_bytes: int) -> Bytes:
        view = self.acquire(size_bytes).view
        filled = 0
        chunk, more = first, True
        while True:
            end = filled + len(chunk)
            view[filled:end] = chunk
            filled = end
            if not more:
                return view[:filled].toreadonly()
            message = await self._next()
            chunk = message.get("body", b"")
            more = message.get("more_body", False)

    async def _gather(self, first: bytes) -> Bytes:
        pieces = [first]
        total = len(first)
        more = True
        while more:
            message = await self._next()
            pieces.append(message.get("body", b""))
            total += len(pieces[-1])
            more = message.get("more_body", False)
            if total > self._limit_bytes:
                pieces.clear()
                await self._refuse(total, complete=not more)
        if not total:
            return b""
        view = self.acquire(total).view
        end = 0
        for piece in pieces:
            start, end = end, end + len(piece)
            view[start:end] = piece
        return view[:end].toreadonly()

    async def _next(self) -> Message:
        if asyncio.current_task() is None:  # begun without a task, so the body is there: no wait
            return await self._receive()
        try:
            async with asyncio.timeout(self._idle_s):
                message = await self._receive()
        except TimeoutError:
            raise Stalled(self._idle_s) from None
        if message["type"] == "http.disconnect":
            raise _left()
        return message

    async def _refuse(self, total_bytes: int, complete: bool = False) -> NoReturn:
        """Hear the client out for a while, so that it gets to see the answer, and raise."""
        drained = 0
        if total_bytes > self._limit_bytes + DRAIN_BYTES:
            drained = DRAIN_BYTES
        while not complete and drained < DRAIN_BYTES:
            message = await self._next()
            drained += len(message.get("body", b""))
            complete = not message.get("more_body", False)
        self._exchange.close = not complete
        raise TooLarge("body", total_bytes, self._limit_bytes)


def _left() -> Cancelled:
    return Cancelled("the client left while it sent the body")


def _length(exchange: Exchange) -> int | None:
    text = exchange.headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise InvalidInput("header.content-length", f"'{clipped(text.decode('latin-1'))}'")
    return int(text)
