"""The body of a request, on its way from the socket into memory.

A body that came with the head of its request stays where the server put it. A larger one goes,
piece by piece, into a context of the arena whose size is that of Content-Length: the pieces are
never joined elsewhere. Of a chunked body nobody knows the size before its end, so its pieces are
kept until then. The limit holds while a body comes in, not afterwards.

A client that sends more than the limit gets its answer at once. That the answer is not lost while
it goes on sending, and that a body comes fast enough, is the server's business, see
`dandelion.frontend.protocol`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn

from dandelion.data import Bytes
from dandelion.errors import Cancelled, InvalidInput, TooLarge
from dandelion.frontend.asgi import Exchange, Message, clipped
from dandelion.frontend.problem import UnsupportedMedia
from dandelion.memory import Context


class Body:
    """Reads the body of one request, once.

    Args:
        exchange: the request.
        acquire: gives a context of so many bytes.
        limit_bytes: how large the body may be.
    """

    def __init__(
        self,
        exchange: Exchange,
        acquire: Callable[[int], Awaitable[Context]],
        limit_bytes: int,
    ) -> None:
        self._exchange = exchange
        self._receive = exchange.receive
        self.acquire = acquire
        self._limit_bytes = limit_bytes
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
            Cancelled: the client left before the body was complete, or the server gave it up.
        """
        size = self.size_bytes
        if size is not None and size > self._limit_bytes:
            self._refuse(size)
        message = await self._next()
        first: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(first) > self._limit_bytes:
                self._refuse(len(first))
            return first
        return await self._fill(first, size) if size else await self._gather(first)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read the body piece by piece; raises as `read` does."""
        if self.size_bytes is not None and self.size_bytes > self._limit_bytes:
            self._refuse(self.size_bytes)
        total = 0
        more = True
        while more:
            message = await self._next()
            chunk: bytes = message.get("body", b"")
            total += len(chunk)
            more = message.get("more_body", False)
            if total > self._limit_bytes:
                self._refuse(total)
            if chunk:
                yield chunk

    async def _fill(self, first: bytes, size_bytes: int) -> Bytes:
        view = (await self.acquire(size_bytes)).view
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
                self._refuse(total)
        if not total:
            return b""
        view = (await self.acquire(total)).view
        end = 0
        for piece in pieces:
            start, end = end, end + len(piece)
            view[start:end] = piece
        return view[:end].toreadonly()

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise _left()
        return message

    def _refuse(self, total_bytes: int) -> NoReturn:
        self._exchange.close = True
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
