"""Connections to a server, byte for byte."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

HEAD = b"POST /v1/invoke/%b HTTP/1.1\r\nHost: localhost\r\n"


WHOLE = HEAD % b"echo" + b"Content-Length: 4\r\n\r\nbody"


LIMIT_S = 20


@dataclass
class Served:
    node: Node
    gate: GateDriver
    port: int
    opened: list[socket.socket] = field(default_factory=list)

    def connect(self, source: str = "127.0.0.1", read_bytes: int = 0) -> socket.socket:
        made = socket.socket()
        self.opened.append(made)
        made.settimeout(LIMIT_S)
        if read_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        made.bind((source, 0))
        made.connect(("127.0.0.1", self.port))
        return made

    def ask(self, request: bytes = WHOLE) -> tuple[int, bytes]:
        """Ask as a new caller does."""
        connection = self.connect()
        with contextlib.closing(connection):
            connection.sendall(request)
            return answer_of(connection)[::2]

    def healthy(self) -> bool:
        return self.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200


@contextmanager
def serving(**settings: object) -> Iterator[Served]:
    gate = GateDriver()
    with Node(msgspec.structs.replace(SETTINGS, **settings), [gate]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node, drain_s=5) as server:
            served = Served(node, gate, int(server.url.rpartition(":")[2]))
            try:
                yield served
            finally:
                gate.gate.open(100)
                for connection in served.opened:
                    connection.close()


def answer_of(connection: socket.socket) -> tuple[int, http.client.HTTPMessage, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.headers, response.read()


def ended(connection: socket.socket) -> bool:
    """Wait until the server has ended a connection on which it says nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def readable(connection: socket.socket, within_s: float) -> bool:
    """Wait until something has come, or the end; by `poll`, which takes all descriptors."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def is_open(connection: socket.socket) -> bool:
    """Whether nothing has come, not even the end."""
    return not readable(connection, 0)


def problem_on(connection: socket.socket) -> tuple[int, str]:
    """Read a problem, and the end of the connection after it."""
    status, headers, body = answer_of(connection)
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/problem+json"
    assert ended(connection)
    return status, json.loads(body)["type"].rpartition(":")[2]
