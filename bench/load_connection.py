"""A kept-alive connection of the load generator, on a socket that never blocks.

A connection carries one request at a time. It is opened when it is first needed, and again after
the server closed it. What cannot be written at once is written when the socket can take it.
"""

from __future__ import annotations

import errno
import select
import socket

import httptools

from .load import HttpRequest

READ = select.EPOLLIN | select.EPOLLRDHUP
_READ_BYTES = 1 << 18
REFUSED = "refused"
CLOSED = "closed"


class EncodedRequest:
    """A request as bytes, ready to be sent under any number."""

    def __init__(self, request: HttpRequest) -> None:
        further = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        self._head = (
            f"{request.method} {request.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: {request.content_type}\r\naccept: {request.accept}\r\n"
            f"content-length: {len(request.body)}\r\n{further}"
        ).encode()
        self._body = request.body
        self._whole: bytes = self._head + b"\r\n" + request.body
        self._numbered = request.numbered
        self.expect = request.expect

    def of(self, number: int) -> bytes:
        """Give the bytes of the request with this number."""
        if not self._numbered:
            return self._whole
        return b"%bx-number: %d\r\n\r\n%b" % (self._head, number, self._body)


class LoadConnection:
    """A connection and its current request.

    Attributes:
        number: of the current request; -1 if there is none.
        freed_ns: when the request before was over.
        intended_ns, sent_ns: when the request was to be sent, and when it was.
        failure: why the request failed, once `send` or `on_event` returned True; empty if the
            answer is right.
    """

    __slots__ = (
        "_body", "_expect", "_keeps", "_mask", "_out", "_over", "_parser", "_poll", "_port",
        "_socket", "failure", "freed_ns", "intended_ns", "number", "sent_ns",
    )  # fmt: skip

    def __init__(self, port: int, poll: select.epoll) -> None:
        self._port = port
        self._poll = poll
        self._socket: socket.socket | None = None
        self._mask = 0
        self._out = memoryview(b"")
        self._expect: bytes | None = None
        self._body: list[bytes] = []
        self._over = False
        self._keeps = True
        self._parser = httptools.HttpResponseParser(self)
        self.number = -1
        self.freed_ns = self.intended_ns = self.sent_ns = 0
        self.failure = ""

    def open(self, connections: dict[int, LoadConnection]) -> bool:
        """Open it, if it is not, and enter it under its descriptor.

        Returns:
            False if the server does not listen. The first event says whether it does.
        """
        if self._socket is not None:
            return True
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if opened.connect_ex(("127.0.0.1", self._port)) not in (0, errno.EINPROGRESS):
            opened.close()
            return False
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = opened
        self._parser = httptools.HttpResponseParser(self)
        self._mask = READ
        connections[opened.fileno()] = self
        self._poll.register(opened.fileno(), READ)
        return True

    def close(self) -> None:
        """Close it; the next `open` opens it again. May be called twice."""
        if self._socket is not None:
            self._socket.close()  # which also removes it from the poll
            self._socket = None

    def begin(self, number: int, intended_ns: int, sent_ns: int) -> None:
        """Take a request."""
        self.number, self.intended_ns, self.sent_ns = number, intended_ns, sent_ns
        self.failure = ""

    def send(self, request: EncodedRequest) -> bool:
        """Send the request that was taken. True if it has failed already."""
        self._expect = request.expect
        self._over = False
        self._body.clear()
        self._out = memoryview(request.of(self.number))
        return self._write()

    def on_event(self, mask: int) -> bool:
        """Read and write what can be. True if the current request is over."""
        if mask & select.EPOLLOUT and self._write():
            return True
        return bool(mask & ~select.EPOLLOUT) and self._read()

    def _write(self) -> bool:
        assert self._socket is not None
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError as error:
            return self.fail(_reason(error))
        mask = READ | select.EPOLLOUT if self._out else READ
        if mask != self._mask:
            self._mask = mask
            self._poll.modify(self._socket.fileno(), mask)
        return False

    def _read(self) -> bool:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            return self.fail(_reason(error))
        return self._parse(data) if data else self.fail(CLOSED)

    def _parse(self, data: bytes) -> bool:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            return self.fail("no HTTP")
        if not self._over:
            return False
        if self.number < 0:
            return self.fail("unasked")
        status = self._parser.get_status_code()
        if status >= 400:
            self.failure = f"status {status}"
        elif self._expect is not None and b"".join(self._body) != self._expect:
            self.failure = "wrong answer"
        if self._out or not self._keeps:
            self.close()
        return True

    def on_body(self, part: bytes) -> None:
        """Take a part of the body; called by the parser."""
        if self._expect is not None:
            self._body.append(part)

    def on_message_complete(self) -> None:
        """Take note of the end of the answer; called by the parser."""
        self._over = True
        self._keeps = self._parser.should_keep_alive()  # later it has forgotten

    def fail(self, why: str) -> bool:
        """Close it. True if there was a current request, which is over then."""
        self.close()
        self.failure = why
        return self.number >= 0


def _reason(error: OSError) -> str:
    return REFUSED if isinstance(error, ConnectionRefusedError) else CLOSED
