"""One kept-alive connection of a load generator, on sockets that never block.

A connection carries one request at a time. It is opened when it is first needed and again when the
server has closed it; what cannot be written at once is written when the socket can take it.
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


class Message:
    """A request as bytes, ready to be sent under any number."""

    def __init__(self, request: HttpRequest) -> None:
        further = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        head = (
            f"{request.method} {request.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: {request.content_type}\r\naccept: {request.accept}\r\n"
            f"content-length: {len(request.body)}\r\n{further}"
        ).encode()
        self._head = head
        self._body = request.body
        self._whole: bytes = head + b"\r\n" + request.body
        self._numbered = request.numbered
        self.expect = request.expect

    def of(self, number: int) -> bytes:
        """Give the bytes of the request with this number."""
        if not self._numbered:
            return self._whole
        return b"%bx-number: %d\r\n\r\n%b" % (self._head, number, self._body)


class Connection:
    """A connection, and the request that is under way on it.

    Attributes:
        number: of the request under way; -1 if there is none.
        freed_ns: when the request before was over.
        intended_ns: when the request was to be sent.
        sent_ns: when it was sent.
        failure: why the request failed, once `send` or `on_event` has said that it is over; empty
            if the answer is the right one.
    """

    __slots__ = (
        "_body",
        "_expect",
        "_mask",
        "_out",
        "_over",
        "_parser",
        "_poll",
        "_port",
        "_socket",
        "failure",
        "freed_ns",
        "intended_ns",
        "number",
        "sent_ns",
    )

    def __init__(self, port: int, poll: select.epoll) -> None:
        self._port = port
        self._poll = poll
        self._socket: socket.socket | None = None
        self._mask = 0
        self._out = memoryview(b"")
        self._expect: bytes | None = None
        self._body: list[bytes] = []
        self._over = False
        self._parser = httptools.HttpResponseParser(self)
        self.number = -1
        self.freed_ns = 0
        self.intended_ns = 0
        self.sent_ns = 0
        self.failure = ""

    # --- sockets --------------------------------------------------------------------------------

    def open(self, connections: dict[int, Connection]) -> bool:
        """Open it, if it is not; it is entered under its descriptor, by which events name it.

        Returns:
            False if the server does not listen. That it does, the first event tells.
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
        """Close it; the next `open` opens it anew. May be called twice."""
        if self._socket is not None:
            self._socket.close()  # which also takes it out of the poll
            self._socket = None

    def begin(self, number: int, intended_ns: int, sent_ns: int) -> None:
        """Take a request."""
        self.number = number
        self.intended_ns = intended_ns
        self.sent_ns = sent_ns
        self.failure = ""

    def send(self, message: Message) -> bool:
        """Send the request that was taken. True if it is over already, since it failed."""
        self._expect = message.expect
        self._over = False
        self._body.clear()
        self._out = memoryview(message.of(self.number))
        return self._write()

    def on_event(self, mask: int) -> bool:
        """Read and write what can be. True if the request under way is over."""
        if mask & select.EPOLLOUT and self._write():
            return True
        if mask & ~select.EPOLLOUT:
            return self._read()
        return False

    def _write(self) -> bool:
        assert self._socket is not None
        try:
            self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError as error:
            return self.fail(_word(error))
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
            return self.fail(_word(error))
        if not data:
            return self.fail(CLOSED)
        return self._parse(data)

    # --- answers --------------------------------------------------------------------------------

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
        if self._out or not self._parser.should_keep_alive():
            self.close()
        return True

    def on_body(self, part: bytes) -> None:
        """Hear of a part of the body, from the parser."""
        if self._expect is not None:
            self._body.append(part)

    def on_message_complete(self) -> None:
        """Hear of the end of the answer, from the parser."""
        self._over = True

    def fail(self, why: str) -> bool:
        """Close it. True if a request was under way, which is over then."""
        self.close()
        self.failure = why
        return self.number >= 0


def _word(error: OSError) -> str:
    return REFUSED if isinstance(error, ConnectionRefusedError) else CLOSED
