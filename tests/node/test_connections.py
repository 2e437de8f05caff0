"""What comes over one connection: whole requests in one piece, many at once, heads without end."""

import contextlib
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.served import DOCUMENT, SETTINGS, GateDriver


@dataclass
class Served:
    gate: GateDriver
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def answers(self, requests: bytes) -> bytes:
        """Send bytes in one go and read to the end of the connection."""
        with contextlib.closing(self.connect()) as connection:
            connection.sendall(requests)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    gate = GateDriver()
    with Node(SETTINGS, [gate]) as node:
        node.register(DOCUMENT)
        with BackgroundServer(node) as server:
            yield Served(gate, int(server.url.rsplit(":", 1)[1]))
            gate.gate.open(100)


def post(name: str, body: bytes, *headers: str) -> bytes:
    head = [
        f"POST /v1/invoke/{name} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


LAST = post("echo", b"last", "Connection: close")


def test_a_form_may_come_in_one_piece_with_its_head(served: Served) -> None:
    form = b'--B\r\ncontent-disposition: form-data; name="a"\r\n\r\nfield\r\n--B--\r\n'
    kind = "Content-Type: multipart/form-data; boundary=B"
    answer = served.answers(post("echo", form, kind, "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"field"' in answer


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=B"])
def test_a_body_over_the_limit_may_come_in_one_piece(kind: str) -> None:
    settings = msgspec.structs.replace(SETTINGS, backends=("null",), body_limit_bytes=100)
    with Node(settings) as node, BackgroundServer(node) as server:
        node.register(DOCUMENT.functions[0])
        served = Served(GateDriver(), int(server.url.rsplit(":", 1)[1]))
        answer = served.answers(post("echo", bytes(1000), f"Content-Type: {kind}") + LAST)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"\r\n\r\nlast" in answer


def test_thousands_of_requests_behind_one_that_waits(served: Served) -> None:
    requests = post("wait", b"first") + post("echo", b"next") * 2000 + LAST
    with contextlib.closing(served.connect()) as connection:
        connection.sendall(requests)
        assert served.gate.gate.entered()
        served.gate.gate.open()
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 ") == 2002


def test_leaving_cancels_the_request_that_is_under_way(served: Served) -> None:
    with contextlib.closing(served.connect()) as connection:
        connection.sendall(post("wait", b"1") + post("wait", b"2"))
        assert served.gate.gate.entered()
        served.gate.gate.open()
        assert served.gate.gate.entered()
        assert not served.gate.gate.was_cancelled(0)
    assert served.gate.gate.was_cancelled()


@pytest.mark.parametrize("piece", [b"x: y\r\n" * 100, b"z" * 1000])
def test_a_head_without_end_is_refused(served: Served, piece: bytes) -> None:
    answer = b""
    with contextlib.closing(served.connect()) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(20_000):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(65536)
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    assert served.answers(LAST).startswith(b"HTTP/1.1 200 ")


def test_rubbish_behind_a_request_ends_the_connection_alone(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    answer = served.answers(post("wait", b"1") + post("echo", b"2") + b"\0\0 rubbish\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert served.gate.gate.entered()
    served.gate.gate.open()
    assert served.answers(LAST).startswith(b"HTTP/1.1 200 ")
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_a_server_that_stops_says_so_to_those_who_wait() -> None:
    gate = GateDriver()
    with Node(SETTINGS, [gate]) as node:
        node.register(DOCUMENT)
        with BackgroundServer(node, drain_s=0) as server:
            connection = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
            connection.sendall(post("wait", b"1"))
            assert gate.gate.entered()
        with contextlib.closing(connection):
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert gate.gate.was_cancelled()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"ShuttingDown" in answer
