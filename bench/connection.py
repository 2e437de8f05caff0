"""A kept-alive HTTP connection of a single blocking caller, as cheap as one can be in Python.

For timing one call after the other in this process, in turns with other things. For load, see
`dandelion.bench.load`.
"""

from __future__ import annotations

import socket

from .closing import Closing

_CHUNK_BYTES = 1 << 18
_LIMIT_S = 60.0


class Refused(Exception):
    """A server did not answer with a success; the text is what it said."""


class Connection(Closing):
    """Knows just enough HTTP to ask and to wait for an answer of known size.

    Args:
        port: of the server, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *request: bytes) -> bytearray:
        """Send the parts of a request and wait for the whole answer; its body is given.

        Raises:
            Refused: the answer's status is not 200, or the connection ended.
        """
        for part in request:
            self._socket.sendall(part)
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._received()
        head = bytes(data[:end])
        del data[: end + 4]
        length = _length(head)
        if length - len(data) > _CHUNK_BYTES:
            data = self._rest(data, length)
        while len(data) < length:
            data += self._received()
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise Refused(f"{head!r} {bytes(data[:300])!r}")
        return data

    def _received(self) -> bytes:
        part = self._socket.recv(_CHUNK_BYTES)
        if not part:
            raise Refused("the connection ended")
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
                raise Refused("the connection ended")
            filled += size
        return body

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def head(path: str, size_bytes: int, content_type: str = "application/octet-stream") -> bytes:
    """Write the head of a POST request; its body of `size_bytes` follows."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
        f"accept: {content_type}\r\ncontent-length: {size_bytes}\r\n\r\n"
    ).encode()
