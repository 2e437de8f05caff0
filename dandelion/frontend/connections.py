"""HTTP requests of `Client`: a urllib3 pool of connections.

A request fails when the node neither takes nor sends anything for the time-out. A request that is
interrupted closes its connection, so the node cancels the invocation.

urllib3 does not use connections that the server closed while they were idle, and repeats a GET once
if the connection breaks. It repeats nothing else: not an invocation, and not a DELETE, since a
second one forgets the invocation that the first one cancelled.

A proxy may send interim responses (1xx) before the response, such as 103 Early Hints. `http.client`
skips only 100 Continue. It would return another one as the response, and the actual response would
then answer the next request on the connection.

aiohttp on an event loop in a thread was tried as well. A call of a function that does nothing then
took 1.5 times as long as with `http.client`, and a body of 1 MiB twice as long. With urllib3 a call
takes 1.3 times as long, and a large body the same time.
"""

from __future__ import annotations

import math
import os
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from types import TracebackType
from typing import Self

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import ConnectionPool
from urllib3.util import SKIP_HEADER, Retry, Timeout

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


class _BrokenOnce(Retry):
    """Repeats a request whose connection broke, but not one whose time is over."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        if isinstance(error, exceptions.ReadTimeoutError):
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)


_ONCE_MORE = _BrokenOnce(
    total=1,
    connect=0,
    redirect=0,
    status=0,
    other=0,
    allowed_methods=("GET",),
    respect_retry_after_header=False,
)
_SWITCHING_PROTOCOLS = 101


class _FinalResponse(HTTPResponse):
    """A response without the interim ones before it."""

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != _SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment]  # with headers it reads no further head
            super().begin()


class _Connection(HTTPConnection):
    response_class = _FinalResponse


class _TlsConnection(HTTPSConnection):
    response_class = _FinalResponse


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class Connections:
    """Connections to one node. Safe to use from any thread, and in a child process after a fork.

    Args:
        target: where requests are sent, and how.
    """

    def __init__(self, target: ClientTarget) -> None:
        self._target = target
        self._has_answered = False
        self._headers = {**dict.fromkeys(AUTOMATIC_HEADERS, SKIP_HEADER), **target.headers}
        self._open()

    def _open(self) -> None:
        target = self._target
        host = f"[{target.host}]" if ":" in target.host else target.host  # else without a zone
        self._pool: urllib3.HTTPConnectionPool
        if target.tls is None:
            self._pool = _Pool(host, target.port, maxsize=target.connections, block=True)
        else:
            self._pool = _TlsPool(
                host,
                target.port,
                maxsize=target.connections,
                block=True,
                ssl_context=target.tls,
                cert_reqs=target.tls.verify_mode,
                assert_hostname=None if target.tls.check_hostname else False,
            )
        self._process = os.getpid()

    def request(self, request: ClientRequest) -> ClientResponse:
        """Send a request and read its response.

        Raises:
            Unreachable: there is no server, the connection broke, the time-out expired, or there
                is no memory for the response.
        """
        if self._process != os.getpid():
            self._open()  # a connection must not be used by two processes
        limit_s = self._target.timeout_s if request.timeout_s is None else request.timeout_s
        headers = {**self._headers, **request.headers}
        body = request.small_body
        if body is None:
            headers["Content-Length"] = str(request.size_bytes)
        try:
            response = self._pool.urlopen(
                request.method,
                self._target.path + request.path,
                body=request.pieces() if body is None else body or None,  # type: ignore[arg-type]  # views too
                headers=headers,
                retries=_ONCE_MORE,
                redirect=False,
                timeout=Timeout(connect=limit_s, read=limit_s),
                pool_timeout=math.ceil(limit_s),
                decode_content=False,
            )
        except exceptions.ClosedPoolError:
            raise ClientClosed(self._target.url) from None
        except (exceptions.HTTPError, OSError) as error:
            raise Unreachable(self._target.url, self._reason(error, limit_s)) from None
        except (MemoryError, OverflowError):
            raise Unreachable(self._target.url, NO_MEMORY) from None
        self._has_answered = True
        received = memoryview(response.data)
        location = response.headers.get("Location", "")
        return ClientResponse(self._target.url, response.status, received, location)

    def close(self) -> None:
        """Close all connections that are idle, and the others when their request ends."""
        self._pool.close()

    def _reason(self, error: BaseException, limit_s: float) -> str:
        if isinstance(error, exceptions.MaxRetryError) and error.reason is not None:
            error = error.reason
        if isinstance(error, exceptions.EmptyPoolError):
            return f"all connections of the client were in use for {limit_s:g} s"
        cause = error.args[-1] if isinstance(error, exceptions.ProtocolError) else error.__cause__
        if isinstance(cause, OSError) and (cause.errno or 0) > 0:
            return os.strerror(cause.errno or 0)
        if isinstance(error, exceptions.NameResolutionError):
            return str(getattr(cause, "strerror", cause))
        if isinstance(error, exceptions.TimeoutError) or isinstance(cause, TimeoutError):
            return f"no answer for {limit_s:g} s"
        if isinstance(cause, RemoteDisconnected):
            return closed_connection(has_answered=self._has_answered)
        if isinstance(cause, IncompleteRead):
            return CUT
        if isinstance(cause, HTTPException):
            return NOT_HTTP
        return str(error) or type(error).__name__
