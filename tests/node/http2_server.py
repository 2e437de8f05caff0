"""A node that serves HTTP/2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

from .http2_client import Http2Client
from .served import DOCUMENT, SETTINGS, GateDriver

HTTP2 = msgspec.structs.replace(SETTINGS, http2=True)


class Served:
    """A node that serves HTTP/2, with a function that waits at a gate."""

    def __init__(self, gate: GateDriver, port: int) -> None:
        self.gate = gate.gate
        self.port = port

    def connect(self, settings: dict[int, int] | None = None) -> Http2Client:
        return Http2Client(self.port, settings)

    def is_well(self) -> bool:
        """Whether a new client is served."""
        with self.connect() as client:
            return client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


@contextlib.contextmanager
def serving(settings: Settings = HTTP2, drain_s: int = 10) -> Iterator[Served]:
    gate = GateDriver()
    with Node(settings, [gate]) as node:
        node.register(DOCUMENT)
        with BackgroundServer(node, drain_s=drain_s) as server:
            yield Served(gate, int(server.url.rsplit(":", 1)[1]))
            gate.gate.open(1000)


def pseudo(path: str) -> list[tuple[str, str]]:
    return [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
