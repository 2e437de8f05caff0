"""The body of a request, from the socket into memory.

A body that arrives together with the head of its request stays in the server's buffer. A larger
body is received piece by piece into one context of the arena, whose size is Content-Length. The
size of a chunked body is not known before its end, so its pieces are kept until then. The limit is
checked while the body arrives.

A client that sends more than the limit gets its response at once. `dandelion.frontend.protocol`
ensures that this response is not lost while the client sends on, and that a body is fast enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn

from dandelion.data import Bytes
from dandelion.errors import Cancelled, InvalidInput, TooLarge
from dandelion.frontend.asgi import Message, Request, clipped
from dandelion.frontend.problem import UnsupportedMedia
from dandelion.memory import Context

RAISE_LIMIT = "raise 'body_limit_bytes'"


class Body:
    """Reads the body of one request, once.

    Args:
        request: the request.
        acquire: returns a context of a given size in bytes, with any content.
        limit_bytes: largest allowed body.
        remedy: how a larger one can be sent.
    """

    def __init__(
        self,
        request: Request,
        acquire: Callable[[int], Awaitable[Context]],
        limit_bytes: int,
        remedy: str = RAISE_LIMIT,
    ) -> None:
        self._request = request
        self._receive = request.receive
        self.acquire = acquire
        self._limit_bytes = limit_bytes
        self._remedy = remedy
        encoding = request.headers.get(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
            given = clipped(encoding.decode("latin-1"))
            raise UnsupportedMedia(f"content encoding {given}", ("identity",))
        self._whole = request.whole_body()
        self.size_bytes = _length(request) if self._whole is None else len(self._whole)

    def whole(self) -> bytes | None:
        """Give the body if all of it arrived with its head, else None; raises as `read`."""
        whole, self._whole = self._whole, None
        if whole is not None and len(whole) > self._limit_bytes:
            self._refuse(len(whole))
        return whole

    async def read(self) -> Bytes:
        """Read the whole body.

        Returns:
            bytes, or a read-only view into a context of the arena.

        Raises:
            TooLarge: the body is larger than the limit.
            ContextFull: the arena has no room for the body.
            Cancelled: the client disconnected before the body was complete.
            Unauthenticated, MissingRight: the caller may not do this any more, now that the body
                is complete.
        """
        whole = self.whole()
        if whole is not None:
            return whole
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
        whole = self.whole()
        if whole is not None:
            if whole:
                yield whole
            return
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
        self._request.received_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._request.require_still()
        return message

    def _refuse(self, total_bytes: int) -> NoReturn:
        self._request.close = True
        raise TooLarge("body", total_bytes, self._limit_bytes, self._remedy)


def _left() -> Cancelled:
    return Cancelled("the client disconnected while it sent the body")


def _length(request: Request) -> int | None:
    text = request.headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise InvalidInput("header.content-length", f"'{clipped(text.decode('latin-1'))}'")
    return int(text)
