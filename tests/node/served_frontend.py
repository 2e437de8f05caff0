"""A node that is served over HTTP, within its process and by processes of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.frontend_processes import Processes
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

JSON = {"Content-Type": "application/json"}
RAW = {"Content-Type": "application/octet-stream"}


@dataclass
class Served:
    """A server, its node, and the gate that functions named `wait` stand at."""

    node: Node
    gate: GateDriver
    port: int
    at_rest: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    def invoke(self, name: str, sets: object, path: str = "", **headers: str) -> Any:
        """Invoke with JSON and give the document that came back, of success or problem."""
        given_headers = JSON | {k.replace("_", "-"): v for k, v in headers.items()}
        body = json.dumps({"sets": sets})
        return json.loads(self.ask("POST", f"/v1/invoke/{name}{path}", body, given_headers)[2])

    def problem(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        names = {k.replace("_", "-"): v for k, v in headers.items()}
        status, answered, data = self.ask(method, path, body, names)
        assert answered["content-type"] == "application/problem+json"
        document: dict[str, Any] = json.loads(data)
        assert document["status"] == status
        return document

    def raw(self, request: bytes, leave: bool = False) -> bytes:
        """Send bytes, perhaps go, and read until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request)
            if leave:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def leaks(self) -> bool:
        """Whether more contexts than at the start stay in use, when the server comes to rest."""
        for _ in range(200):
            self.ask("GET", "/healthz")
            if self.node.info().arena.contexts == self.at_rest:
                return False
        return True


def given_served(request: pytest.FixtureRequest) -> Iterator[Served]:
    gate = GateDriver()
    with contextlib.ExitStack() as stack:
        stack.callback(gate.gate.open, 100)
        if request.param == "processes":
            processes = stack.enter_context(Processes(SETTINGS, [gate], 2))
            node, port = processes.node, processes.port
            node.register(DOCUMENT)
        else:
            node = stack.enter_context(Node(SETTINGS, [gate]))
            node.register(DOCUMENT)
            server = stack.enter_context(BackgroundServer(node, drain_s=5))
            port = int(server.url.rpartition(":")[2])
        assert node.wait_ready()
        node.invoke("fixed", a=b"")  # what is fixed lies in the arena from now on
        yield Served(node, gate, port, node.info().arena.contexts)
