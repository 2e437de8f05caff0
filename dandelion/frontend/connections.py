"""Kept-alive HTTP connections of a client, and one request over one of them.

A connection belongs to one request at a time and comes back to the pool when its reply was read, so
threads never share one. A server closes idle connections when it likes; before a pooled one is used
it is asked whether the other side has closed it, so nothing has to be sent twice to find out.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dandelion.data import Bytes
from dandelion.errors import DandelionError, InvalidInput


@dataclass(eq=False)
class Unreachable(DandelionError):
    """A node could not be talked to: nobody listens, the connection broke, no answer came."""

    url: str
    message: str
    status = 503

    def __str__(self) -> str:
        refused = "refused" in self.message
        hint = "; is a node running there? start one with `dandelion serve`" if refused else ""
        return f"{self.url}: {self.message}{hint}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of the server.

    Attributes:
        status: the HTTP status.
        headers: by name, in lower case.
        body: the whole body, read-only.
    """

    status: int
    headers: Mapping[str, str]
    body: memoryview


class Connections:
    """A pool of connections to one server. Safe to use from any thread.

    Args:
        url: ``http://HOST:PORT``, optionally with a path that comes before all others.
        timeout_s: how long to wait for a connection, and for each piece of a reply, in seconds.

    Raises:
        InvalidInput: the URL is not of that form.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput("url", f"'{url}': {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput(
                "url", f"'{url}' is no URL of a node", "such as http://127.0.0.1:8080"
            )
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._path = parts.path.rstrip("/")
        self._host, self._port = host, port
        self._secure = parts.scheme == "https"
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        chunks: Sequence[Bytes] = (),
        timeout_s: float | None = None,
    ) -> Answer:
        """Send a request and read its reply.

        Args:
            method, path, headers: of the request; Content-Length is added.
            chunks: the body in pieces; they are not joined.
            timeout_s: instead of that of the pool.

        Raises:
            Unreachable: there is no server, or the connection broke or stayed silent.
        """
        connection = self._take()
        timeout = self.timeout_s if timeout_s is None else timeout_s
        try:
            answer, reusable = _exchange(
                connection, method, self._path + path, headers, chunks, timeout
            )
        except TimeoutError:
            connection.close()
            raise Unreachable(self.url, f"no answer for {timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            message = str(getattr(error, "strerror", None) or error) or type(error).__name__
            raise Unreachable(self.url, message) from None
        except BaseException:
            connection.close()
            raise
        if reusable:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if not _closed_by_peer(connection):
                return connection
            connection.close()
        cls = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return cls(self._host, self._port, timeout=self.timeout_s)

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _closed_by_peer(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))  # between two requests nothing but the end can be there to read


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: Mapping[str, str],
    chunks: Sequence[Bytes],
    timeout_s: float,
) -> tuple[Answer, bool]:
    if connection.sock is None:
        connection.connect()
    connection.sock.settimeout(timeout_s)
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(sum(len(chunk) for chunk in chunks)))
    # A server that refuses a body answers before it has read all of it, and closes.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.endheaders(chunks[0] if len(chunks) == 1 else None)
        for chunk in chunks if len(chunks) > 1 else ():
            connection.send(chunk)
    response = connection.getresponse()
    body = _read(response)
    known = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, known, body), not response.will_close


def _read(response: http.client.HTTPResponse) -> memoryview:
    if response.length is None:
        return memoryview(response.read())
    buffer = bytearray(response.length)
    view = memoryview(buffer)
    filled = 0
    while filled < len(buffer):
        count = response.readinto(view[filled:])
        if not count:
            raise http.client.IncompleteRead(b"", len(buffer) - filled)
        filled += count
    response.read()  # the end of the reply, so that the connection can be used again
    return view.toreadonly()
