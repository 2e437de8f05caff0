"""HTTP requests of one blocking caller.

`BlockingConnection` is as cheap as a client can be in Python, for timing one call after the other
in this process. For load, see `dandelion.bench.load`.
"""

from __future__ import annotations

import http.client
import socket

from .load import HttpRequest
from .processes import Closeable

_CHUNK_BYTES = 1 << 18
_LIMIT_S = 60.0


class HttpFailed(Exception):
    """A server did not answer with status 200; the text is what it answered."""


class BlockingConnection(Closeable):
    """A kept-alive connection that understands answers with a content length only."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *request: bytes) -> bytearray:
        """Send the parts of a request, wait for the whole answer, and give its body.

        Raises:
            HttpFailed: the status is not 200, or the connection ended.
        """
        for part in request:
            self._socket.sendall(part)
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._received()
        head = bytes(data[:end])
        del data[: end + 4]
        length = _content_length(head)
        if length - len(data) > _CHUNK_BYTES:
            data = self._rest(data, length)
        while len(data) < length:
            data += self._received()
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise HttpFailed(f"{head!r} {bytes(data[:300])!r}")
        return data

    def _received(self) -> bytes:
        part = self._socket.recv(_CHUNK_BYTES)
        if not part:
            raise HttpFailed("the connection ended")
        return part

    def _rest(self, begun: bytearray, length: int) -> bytearray:
        """Receive a large body into its place."""
        body = bytearray(length)
        filled = len(begun)
        body[:filled] = begun
        view = memoryview(body)
        while filled < length:
            size = self._socket.recv_into(view[filled:])
            if not size:
                raise HttpFailed("the connection ended")
            filled += size
        return body

    def close(self) -> None:
        self._socket.close()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def request_head(
    path: str, size_bytes: int, content_type: str = "application/octet-stream"
) -> bytes:
    """Write the head of a POST request."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
        f"accept: {content_type}\r\ncontent-length: {size_bytes}\r\n\r\n"
    ).encode()


def fetch(port: int, request: HttpRequest, limit_s: float = _LIMIT_S) -> bytes:
    """Send a request over its own connection and give the body of the answer.

    Raises:
        HttpFailed: the status is not 200.
        OSError, http.client.HTTPException: there is no answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        headers = {"content-type": request.content_type, "accept": request.accept}
        headers |= dict(request.headers)
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        reply = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise HttpFailed(f"status {answer.status}: {reply[:300]!r}")
    return reply
