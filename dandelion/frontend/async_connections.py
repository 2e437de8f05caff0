"""HTTP requests of `AsyncClient`: an aiohttp session with a bounded pool of connections.

A request fails if nothing is sent or received for the time-out. This covers the wait for a free
connection, connecting, the body and the response. A slow transfer that progresses does not fail.
Cancelling a request closes its connection, so the node cancels the invocation.

aiohttp repeats a GET once if the connection breaks. It never repeats an invocation, but it does not
use connections that the loop knows to be closed. A loop that was blocked by other code does not
know it yet, so it gets time for that first. aiohttp would also repeat a DELETE, and a second one
forgets the invocation that the first one cancelled; see `_once`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import aiohttp
from yarl import URL

from dandelion.errors import InvalidInput
from dandelion.frontend.client_requests import (
    AUTOMATIC_HEADERS,
    CUT,
    NO_MEMORY,
    NOT_HTTP,
    ClientRequest,
    ClientResponse,
    ClientTarget,
    closed_connection,
)
from dandelion.frontend.problem import ClientClosed, Unreachable

_IDLE_S = 0.01
"""After so long without a request, the loop may have been blocked."""


class AsyncConnections:
    """Connections to one node. Belongs to the event loop that sends the first request.

    Args:
        target: where requests are sent, and how.
    """

    def __init__(self, target: ClientTarget) -> None:
        self._target = target
        port = "" if target.port is None else f":{target.port}"
        host = f"[{target.host}]" if ":" in target.host else target.host
        self._base = f"{'https' if target.secure else 'http'}://{host}{port}{target.path}"
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._used_s = 0.0
        self._is_closed = False
        self._has_answered = False

    async def request(self, request: ClientRequest) -> ClientResponse:
        """Send a request and read its response.

        Raises:
            Unreachable: there is no server, the connection broke, the time-out expired, or there
                is no memory for the response.
            InvalidInput: the running event loop is not that of the first request.
        """
        await self._see_closed_connections()
        session = self._opened()
        limit_s = self._target.timeout_s if request.timeout_s is None else request.timeout_s
        try:
            async with asyncio.timeout(limit_s) as timeout:
                return await self._request(session, request, _Progress(timeout, limit_s))
        except TimeoutError:
            raise Unreachable(self._target.url, f"no answer for {limit_s:g} s") from None
        except (OSError, aiohttp.ClientError) as error:
            raise Unreachable(self._target.url, self._reason(error)) from None
        except (MemoryError, OverflowError):
            raise Unreachable(self._target.url, NO_MEMORY) from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise ClientClosed(self._target.url)
        loop = asyncio.get_running_loop()
        if self._session is None:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._target.connections, ssl=self._target.tls or True
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                auto_decompress=False,
                skip_auto_headers=AUTOMATIC_HEADERS,
            )
        elif self._loop is not loop:
            hint = "make a client for each event loop"
            raise InvalidInput("client", "it was used on another event loop before", hint)
        return self._session

    async def _see_closed_connections(self) -> None:
        """Let the loop see which connections were closed while it was blocked."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._used_s > _IDLE_S:
            await asyncio.sleep(0)  # it looks at the sockets
            await asyncio.sleep(0)  # it has handled what it found there
        self._used_s = loop.time()

    async def _request(
        self, session: aiohttp.ClientSession, request: ClientRequest, moved: Callable[[], None]
    ) -> ClientResponse:
        headers = {**self._target.headers, **request.headers}
        body: bytes | AsyncIterator[memoryview] | None = request.small_body
        if body is None:
            headers["Content-Length"] = str(request.size_bytes)
            body = _pieces(request, moved)
        url = URL(self._base + request.path, encoded=True)
        async with session.request(
            request.method,
            url,
            data=body or None,
            headers=headers,
            allow_redirects=False,
            middlewares=(self._once,) if request.method == "DELETE" else (),
        ) as response:
            self._has_answered = True
            received = await _read(response, moved)
            location = response.headers.get("Location", "")
            return ClientResponse(self._target.url, response.status, received, location)

    async def _once(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request; it fails with an error after which aiohttp does not repeat it."""
        try:
            return await handler(request)
        except (OSError, aiohttp.ClientError) as error:
            raise Unreachable(self._target.url, self._reason(error)) from None

    def _reason(self, error: OSError | aiohttp.ClientError) -> str:
        closed = aiohttp.ServerDisconnectedError | aiohttp.ClientConnectionResetError
        if isinstance(error, closed) or isinstance(error.__cause__, closed):
            return closed_connection(has_answered=self._has_answered)
        if isinstance(error, aiohttp.ClientPayloadError):
            return CUT
        if isinstance(error, aiohttp.ClientResponseError):
            return NOT_HTTP
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return str(error.certificate_error)
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            return str(error.os_error)
        if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)
        strerror = getattr(error, "strerror", None)
        return str(strerror or error) or type(error).__name__

    async def close(self) -> None:
        """Close all connections. Requests under way fail. May be called twice."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


class _Progress:
    """Restarts a time-out.

    Args:
        timeout: is restarted.
        limit_s: how long it is from then on, in seconds.
    """

    def __init__(self, timeout: asyncio.Timeout, limit_s: float) -> None:
        self._timeout = timeout
        self._limit_s = limit_s
        self._time = asyncio.get_running_loop().time

    def __call__(self) -> None:
        self._timeout.reschedule(self._time() + self._limit_s)


async def _pieces(request: ClientRequest, moved: Callable[[], None]) -> AsyncIterator[memoryview]:
    for piece in request.pieces():
        yield piece
        moved()  # aiohttp asks for the next piece when this one is sent


async def _read(response: aiohttp.ClientResponse, moved: Callable[[], None]) -> memoryview:
    """Receive a body into one buffer; it grows only where the size is not known beforehand."""
    buffer = bytearray(response.content_length or 0)
    filled = 0
    async for piece in response.content.iter_any():
        buffer[filled : filled + len(piece)] = piece
        filled += len(piece)
        moved()
    return memoryview(buffer).toreadonly()
