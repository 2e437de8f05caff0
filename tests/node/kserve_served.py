"""A node that serves KServe over HTTP and gRPC, for its tests."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dandelion.data import SetSpec
from dandelion.documents import RegistrationDocument
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until

from .frontend_processes import Processes
from .served import DOCUMENT, SETTINGS, GateDriver, function

PREFIX = "/dandelion_test_"
KSERVE = msgspec.structs.replace(SETTINGS, protocols=("kserve",), arena_bytes=64 << 20)
VECTOR = SetSpec("v", "float32", (4,))
FURTHER = RegistrationDocument(
    functions=(
        function("vector", (VECTOR,), (VECTOR,)),
        function("ragged", (SetSpec("v", "float32"),), (SetSpec("v", "float32"),)),
        function("complex", (SetSpec("z", "complex64", (2,)),), (SetSpec("z", "complex64", (2,)),)),
    ),
    compositions=(
        """function vector(v) => (v); function ragged(v) => (v);
        composition vectors(v) => (w) { vector(v = each v) => (w = v); }""",
    ),
)


@dataclass
class KServed:
    """A served node.

    Attributes:
        node: the node.
        gate: that functions named `wait` stand at.
        port: of HTTP.
        grpc_port: of gRPC; 0 where it is not served.
        at_rest: what the arena holds when nothing runs.
        processes: the frontends; None if the node's process serves.
    """

    node: Node
    gate: GateDriver
    port: int
    grpc_port: int
    at_rest: int
    processes: Processes | None

    @property
    def address(self) -> str:
        """Of HTTP, as clients take it."""
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        """Of gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        """Send a request; gives status, document and response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            data = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, data, dict(headers or {}))
            response = connection.getresponse()
            read = response.read()
            is_json = response.getheader("content-type", "").startswith("application/json")
            return response.status, json.loads(read) if is_json else read, response

    def check_no_leak(self) -> None:
        """Wait until the arena holds what it held at first."""
        wait_until(lambda: self.node.info().arena.used_bytes <= self.at_rest)


@contextlib.contextmanager
def kserved(
    frontends: int, settings: Settings = KSERVE, *, with_grpc: bool = False, **changes: object
) -> Iterator[KServed]:
    """Serve; with more than one frontend also gRPC."""
    settings = msgspec.structs.replace(settings, **changes)
    gate = GateDriver()
    with contextlib.ExitStack() as stack:
        processes = None
        grpc_port = 0
        if frontends > 1 or with_grpc:
            processes = stack.enter_context(
                Processes(msgspec.structs.replace(settings, grpc_port=0), [gate], frontends)
            )
            node, port = processes.node, processes.port
            assert processes.supervisor.grpc_address is not None
            grpc_port = processes.supervisor.grpc_address[1]
        else:
            node = stack.enter_context(Node(settings, [gate]))
            server = stack.enter_context(BackgroundServer(node))
            port = int(server.url.rpartition(":")[2])
        for document in (DOCUMENT, FURTHER):
            node.register(document)
        assert node.wait_ready()
        at_rest = node.info().arena.used_bytes
        yield KServed(node, gate, port, grpc_port, at_rest, processes)
