"""A client of asynchronous invocations over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from tests.node.frontend_processes import Processes
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

TIMEOUT_S = 20.0
SETS = b'{"sets": {"a": "hello"}}'
ASYNC = {"Prefer": "respond-async", "Content-Type": "application/json"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def kind(self) -> str:
        return str(self.json["type"]).rpartition(":")[2]

    @property
    def place(self) -> str:
        """Path of the invocation that was accepted."""
        return urllib.parse.urljoin("/v1/invoke/name", self.headers["location"])


class Served:
    """A node that is served, with an engine whose calls wait at a gate."""

    def __init__(self, node: Node, port: int, driver: GateDriver) -> None:
        self.node = node
        self.port = port
        self.gate = driver.gate

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    def submit(self, name: str, body: bytes = SETS, **headers: str) -> Answer:
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.ask("POST", f"/v1/invoke/{name}", body, {**ASYNC, **given})

    def submitted(self, name: str, body: bytes = SETS) -> str:
        answer = self.submit(name, body)
        assert answer.status == 202, answer.body
        return answer.place


@contextlib.contextmanager
def served(frontends: int, **settings: Any) -> Iterator[Served]:
    driver = GateDriver()
    changed: Settings = msgspec.structs.replace(SETTINGS, frontends=frontends, **settings)
    with contextlib.ExitStack() as stack:
        if frontends > 1:
            processes = stack.enter_context(Processes(changed, [driver], frontends))
            node, port = processes.node, processes.port
        else:
            node = stack.enter_context(Node(changed, [driver]))
            server = stack.enter_context(BackgroundServer(node))
            port = int(server.url.rpartition(":")[2])
        node.register(DOCUMENT)
        assert node.wait_ready()
        stack.callback(driver.gate.open, 100)
        yield Served(node, port, driver)
