"""Where a request ends: no byte of a body is ever taken as the next request.

Each case is a request whose body, or what could be taken for its body, is a request that removes a
function. A server in front of the node that understands the first request in another way would let
a client smuggle the second. Every case is parsed as HTTP/1.1 requires, and then the function that
runs gets the body as its input; or it is refused, and then the connection ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

LIMIT_S = 20
VICTIM = "pair"
REMOVAL = f"DELETE /v1/functions/{VICTIM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
"""What is smuggled."""
SIZE = len(REMOVAL)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, REMOVAL)
START = b"POST /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\n"
LENGTH = b"Content-Length: %d\r\n" % SIZE
UPGRADE = b"Connection: upgrade\r\nUpgrade: x\r\n"
CODED = b"Transfer-Encoding: chunked\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = (
    b"Connection: keep-alive, UPGRADE\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
)
LAST = b"POST /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
LAST += b"Content-Length: 4\r\n\r\nlast"

PARSED = {
    "a length": (START + LENGTH + b"\r\n", REMOVAL),
    "chunks": (START + CODED + b"\r\n", CHUNKED),
    "an upgrade and a length": (START + UPGRADE + LENGTH + b"\r\n", REMOVAL),
    "an upgrade behind a length": (START + LENGTH + UPGRADE + b"\r\n", REMOVAL),
    "an upgrade and chunks": (START + UPGRADE + CODED + b"\r\n", CHUNKED),
    "an upgrade that is not named as such": (START + b"Upgrade: x\r\n" + LENGTH + b"\r\n", REMOVAL),
    "h2c and a length": (START + H2C + LENGTH + b"\r\n", REMOVAL),
    "h2c and chunks": (START + H2C + CODED + b"\r\n", CHUNKED),
    "a web socket and a length": (START + WEBSOCKET + LENGTH + b"\r\n", REMOVAL),
    "two upgrades": (START + H2C + WEBSOCKET + LENGTH + b"\r\n", REMOVAL),
    "chunks in capitals": (START + b"TRANSFER-ENCODING: Chunked\r\n\r\n", CHUNKED),
    "chunks with an extension": (
        START + CODED + b"\r\n",
        b'%x;a=b;c="d"\r\n%b\r\n0;e\r\n\r\n' % (SIZE, REMOVAL),
    ),
    "chunks with a trailer": (
        START + CODED + b"\r\n",
        b"%x\r\n%b\r\n0\r\nHost: evil\r\nOrigin: http://evil\r\n\r\n" % (SIZE, REMOVAL),
    ),
    "a name like that of a length": (START + b"Content_Length: 1\r\n%b\r\n" % LENGTH, REMOVAL),
    "blank lines before": (b"\r\n\r\n" + START + LENGTH + b"\r\n", REMOVAL),
}  # fmt: skip

NO_BODY = {
    "h2c": START + H2C + b"\r\n",
    "a web socket": START + WEBSOCKET + b"\r\n",
    "an upgrade and an empty body": START + H2C + b"Content-Length: 0\r\n\r\n",
    "an upgrade and no chunks": START + H2C + CODED + b"\r\n0\r\n\r\n",
    "two upgrades, one behind the other": (START + H2C + b"\r\n") * 2,
}

REFUSED = {
    "connect": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + REMOVAL,
    "connect with a length": (
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + LENGTH + b"\r\n" + REMOVAL
    ),
    "connect to a path": b"CONNECT /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\n\r\n" + REMOVAL,
    "connect with an upgrade": (
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + H2C + b"\r\n" + REMOVAL
    ),
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + REMOVAL,
    "no version": b"POST /v1/invoke/echo\r\n\r\n" + REMOVAL,
    "two lengths": START + LENGTH + b"Content-Length: 0\r\n\r\n" + REMOVAL,
    "two equal lengths": START + LENGTH * 2 + b"\r\n" + REMOVAL,
    "a list of lengths": START + b"Content-Length: %d, %d\r\n\r\n" % (SIZE, SIZE) + REMOVAL,
    "a length and chunks": START + LENGTH + CODED + b"\r\n" + CHUNKED,
    "chunks and a length": START + CODED + LENGTH + b"\r\n" + CHUNKED,
    "an upgrade, a length and chunks": START + H2C + LENGTH + CODED + b"\r\n" + CHUNKED,
    "an upgrade and two lengths": START + H2C + LENGTH + b"Content-Length: 0\r\n\r\n" + REMOVAL,
    "another coding": START + b"Transfer-Encoding: identity\r\n\r\n" + REMOVAL,
    "an unknown coding": START + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
    "a coding behind the chunks": START + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    "a coding before the chunks": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED,
    "a coding in a line before": START + b"Transfer-Encoding: gzip\r\n" + CODED + b"\r\n" + CHUNKED,
    "chunks in chunks": START + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKED,
    "two codings": START + CODED + b"Transfer-Encoding: identity\r\n\r\n" + CHUNKED,
    "an upgrade and another coding": START + H2C + b"Transfer-Encoding: identity\r\n\r\n" + REMOVAL,
    "a coding with a vertical tab": START + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + CHUNKED,
    "a folded length": START + b"Content-Length:\r\n %d\r\n\r\n" % SIZE + REMOVAL,
    "a folded coding": START + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKED,
    "a folded header": START + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + REMOVAL,
    "a first header that is folded": (
        b"POST /v1/invoke/echo HTTP/1.1\r\n Host: localhost\r\n" + LENGTH + b"\r\n" + REMOVAL
    ),
    "line ends without CR": (START + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + REMOVAL,
    "one line end without CR": START + b"X: a\n" + LENGTH + b"\r\n" + REMOVAL,
    "a line end without LF": START + b"X: a\r" + LENGTH + b"\r\n" + REMOVAL,
    "a CR within a value": START + b"X: a\rb\r\n" + LENGTH + b"\r\n" + REMOVAL,
    "a NUL within a value": START + b"X: a\0b\r\n" + LENGTH + b"\r\n" + REMOVAL,
    "a space before the colon": START + b"Content-Length : %d\r\n\r\n" % SIZE + REMOVAL,
    "a tab before the colon": START + b"Transfer-Encoding\t: chunked\r\n\r\n" + CHUNKED,
    "a header without a name": START + b": x\r\n" + LENGTH + b"\r\n" + REMOVAL,
    "a header without a colon": START + b"Content-Length\r\n" + LENGTH + b"\r\n" + REMOVAL,
    "a negative length": START + b"Content-Length: -1\r\n\r\n" + REMOVAL,
    "a length with a plus": START + b"Content-Length: +%d\r\n\r\n" % SIZE + REMOVAL,
    "a hexadecimal length": START + b"Content-Length: 0x%x\r\n\r\n" % SIZE + REMOVAL,
    "a length with an underscore": START + b"Content-Length: 1_0\r\n\r\n" + REMOVAL,
    "a length with a space": START + b"Content-Length: 1 0\r\n\r\n" + REMOVAL,
    "an empty length": START + b"Content-Length:\r\n\r\n" + REMOVAL,
    "a length beyond 64 bits": START + b"Content-Length: 18446744073709551617\r\n\r\n" + REMOVAL,
    "a chunk beyond 64 bits": START + CODED + b"\r\n1%016x\r\n" % SIZE + REMOVAL,
    "a negative chunk": START + CODED + b"\r\n-1\r\n" + REMOVAL,
    "a chunk with a plus": START + CODED + b"\r\n+1\r\n" + REMOVAL,
    "a chunk with a prefix": START + CODED + b"\r\n0x1\r\n" + REMOVAL,
    "a chunk without a size": START + CODED + b"\r\n\r\n" + REMOVAL,
    "a chunk with a space": START + CODED + b"\r\n%x \r\n" % SIZE + REMOVAL,
    "a chunk size that ends without CR": START + CODED + b"\r\n%x\n%b\r\n" % (SIZE, REMOVAL),
    "an extension that ends without CR": START + CODED + b"\r\n%x;a\n%b\r\n" % (SIZE, REMOVAL),
    "an extension with a CR": START + CODED + b"\r\n%x;a\rb\r\n%b\r\n0\r\n\r\n" % (SIZE, REMOVAL),
    "a chunk that ends without CR": START + CODED + b"\r\n%x\r\n%b\n0\r\n\r\n" % (SIZE, REMOVAL),
    "a chunk that is too long": START + CODED + b"\r\n1\r\n" + REMOVAL,
    "a length in a trailer": START + CODED + b"\r\n0\r\nContent-Length: 5\r\n\r\n" + REMOVAL,
    "a last chunk without its end": START + CODED + b"\r\n0\r\nX\r\n\r\n" + REMOVAL,
}  # fmt: skip


@dataclass
class Served:
    node: Node
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def functions(self) -> list[str]:
        return [record.name for record in self.node.records()]

    def read_what_was_sent(self) -> None:
        """Wait until the node has read what was sent before."""
        for _ in range(2):  # the first may come from the same round of its loop
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as asking:
                asking.request("GET", "/healthz")
                assert asking.getresponse().status == 200

    def responses(self, *pieces: bytes) -> list[tuple[int, bytes]]:
        """Send pieces that the node reads one by one; give all responses up to the end."""
        with contextlib.closing(self.connect()) as connection:
            for piece in pieces:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(piece)
                if len(pieces) > 1:
                    self.read_what_was_sent()
            return list(_responses(connection))


class _Buffered:
    """A connection whose responses are read by several readers without losing bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rb")

    def makefile(self, _mode: str) -> _Buffered:
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)

    def close(self) -> None:
        """The next reader goes on."""


def _responses(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    buffered = _Buffered(connection)
    with contextlib.closing(buffered.file), contextlib.suppress(ConnectionResetError):
        while buffered.file.peek(1):
            response = http.client.HTTPResponse(buffered)  # type: ignore[arg-type]  # it reads only
            response.begin()
            yield response.status, response.read()
            if response.headers["connection"] == "close":
                assert not buffered.file.read(1)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Node(SETTINGS, [GateDriver()]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node) as server:
            yield Served(node, int(server.url.rpartition(":")[2]))


@pytest.fixture(autouse=True)
def unharmed(served: Served) -> Iterator[None]:
    """Check that nothing was smuggled."""
    yield
    assert VICTIM in served.functions()


def test_the_smuggled_request_works_where_it_is_a_request(served: Served) -> None:
    assert served.responses(REMOVAL + LAST)[0][0] in (200, 204)
    assert VICTIM not in served.functions()
    served.node.register(DOCUMENT.functions[1])


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("name", PARSED)
def test_a_body_is_input_of_its_function(served: Served, name: str, apart: bool) -> None:
    head, body = PARSED[name]
    pieces = (head, body[:9], body[9:] + LAST) if apart else (head + body + LAST,)
    assert served.responses(*pieces) == [(200, REMOVAL), (200, b"last")]


def test_a_head_in_single_bytes_is_read_alike(served: Served) -> None:
    head, body = PARSED["h2c and chunks"]
    with contextlib.closing(served.connect()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        for byte in head + body + LAST:
            connection.sendall(bytes((byte,)))
        assert list(_responses(connection)) == [(200, REMOVAL), (200, b"last")]


@pytest.mark.parametrize("name", NO_BODY)
def test_an_upgrade_without_a_body_is_an_ordinary_request(served: Served, name: str) -> None:
    answers = served.responses(NO_BODY[name] + LAST)
    assert [status for status, _ in answers[:-1]] == [200] * NO_BODY[name].count(START)
    assert answers[-1] == (200, b"last")


@pytest.mark.parametrize("before", [0, 1, 3])
def test_upgrades_among_others_in_one_piece(served: Served, before: int) -> None:
    plain, body = START + LENGTH + b"\r\n" + REMOVAL, REMOVAL
    upgrade = START + H2C + CODED + b"\r\n" + CHUNKED
    answers = served.responses(plain * before + upgrade * 2 + plain + LAST)
    assert answers == [(200, body)] * (before + 3) + [(200, b"last")]


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_request_without_a_certain_end_is_refused(served: Served, name: str, apart: bool) -> None:
    request = REFUSED[name]
    at = request.index(b"\r\n\r\n") + 4 if b"\r\n\r\n" in request else len(request) // 2
    pieces = (request[:at], request[at:], LAST) if apart else (request + LAST,)
    ((status, body),) = served.responses(*pieces)
    assert status in (400, 405, 501, 505)
    assert json.loads(body)["type"].startswith("urn:dandelion:error:")


@pytest.mark.parametrize("piece", [b"x: y\r\n" * 100, b"z" * 1000, b";a=b" * 100])
def test_trailers_without_end_are_refused(served: Served, piece: bytes) -> None:
    start = b"1" if piece[:1] == b";" else b"1\r\nx\r\n0\r\nx: "
    with contextlib.closing(served.connect()) as connection:
        connection.sendall(START + CODED + b"\r\n" + start)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(piece)
        ((status, body),) = _responses(connection)
    assert status == 431
    assert json.loads(body)["type"].endswith(":HeadTooLong")


def test_small_chunks_with_long_extensions_are_read(served: Served) -> None:
    body = b"1;%b\r\nx\r\n" % (b"e" * 50_000) * 8 + b"0\r\n\r\n"
    assert served.responses(START + CODED + b"\r\n" + body + LAST)[0] == (200, b"x" * 8)
