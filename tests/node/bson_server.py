"""A node with the BSON routes, and documents for it."""

from __future__ import annotations

import contextlib
import http.client
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import bson
import msgspec

from dandelion.driver import Driver
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

from .guarded import token
from .served import SETTINGS, GateDriver

BSON = msgspec.structs.replace(SETTINGS, protocols=("bson",))
NATIVE = msgspec.structs.replace(
    BSON, backends=("null", "native"), body_limit_bytes=16 << 20, arena_bytes=64 << 20
)


CONTEXT_BYTES = 8 << 20


class Served:
    """A node that serves the protocol; with its bytes as the original's clients see them."""

    def __init__(self, node: Node, port: int, gate: GateDriver | None = None) -> None:
        self.node = node
        self.port = port
        self.gate = gate

    def post(
        self, path: str, body: bytes | dict[str, Any], *, method: str = "POST", caller: str = ""
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token(caller)}"} if caller else {}
        body = body if isinstance(body, bytes) else bson.encode(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def invoke(self, document: dict[str, Any]) -> dict[str, Any]:
        status, body = self.post("/hot/matmul", document)
        assert status == 200, body
        read: dict[str, Any] = bson.decode(body)
        return read

    def refused(self, path: str, body: bytes | dict[str, Any]) -> str:
        status, text = self.post(path, body)
        assert status == 400, text
        assert text.startswith(b"Failed to serve request: ")
        return text.decode()


@contextlib.contextmanager
def serving(settings: Settings, drivers: Sequence[Driver] = ()) -> Iterator[Served]:
    with Node(settings, drivers) as node, BackgroundServer(node) as server:
        assert node.wait_ready()
        yield Served(node, int(server.url.rsplit(":", 1)[1]))


def items(*given: tuple[str, int, bytes]) -> list[dict[str, Any]]:
    return [{"identifier": name, "key": key, "data": data} for name, key, data in given]


def a_set(identifier: str, *given: tuple[str, int, bytes]) -> dict[str, Any]:
    return {"identifier": identifier, "items": items(*given)}


def executable(name: str, elf: bytes, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "context_size": CONTEXT_BYTES,
        "engine_type": "Process",
        "binary": list(elf),
        "input_sets": [["", None]],
        "output_sets": [""],
        **changed,
    }


def document(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def string(text: bytes) -> bytes:
    return struct.pack("<i", len(text) + 1) + text + b"\0"


TEXT = "function echo(in) => (out); composition c(x) => (y) { echo(in = each x) => (y = out); }"
