"""A node whose frontends are processes, for clients of its address."""

from __future__ import annotations

import contextlib
import http.client

from dandelion.node import Settings

from .frontend_processes import Processes
from .served import GateDriver

LIMIT_S = 20.0
JSON = {"Content-Type": "application/json"}
RAW = {"Content-Type": "application/octet-stream"}
ARENA_BYTES = 64 << 20
SETTINGS = Settings(
    backends=("null",), arena_bytes=ARENA_BYTES, body_limit_bytes=12 << 20, max_waiting=64
)


class Served:
    """Two frontend processes, and the gate that functions named `wait` stand at."""

    def __init__(self, processes: Processes, gate: GateDriver) -> None:
        self.processes = processes
        self.node = processes.node
        self.gate = gate
        self.at_rest = self.node.info().arena
        self.opened = contextlib.ExitStack()

    def connect(self) -> http.client.HTTPConnection:
        port = self.processes.port
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        self.opened.callback(made.close)
        return made

    def connections(self) -> list[http.client.HTTPConnection]:
        """Open connections until both frontends have some; those of the first come first."""
        found: dict[int, list[http.client.HTTPConnection]] = {}
        while len(found) < 2 or min(map(len, found.values())) < 2:
            connection = self.connect()
            before = self.counts()
            assert invoke(connection, "echo", b"x") == (200, b"x")
            (place,) = (
                i for i, (a, b) in enumerate(zip(before, self.counts(), strict=True)) if a < b
            )
            found.setdefault(place, []).append(connection)
        return [connection for place in sorted(found) for connection in found[place][:2]]

    def counts(self) -> list[int]:
        """How many invocations each frontend has submitted."""
        places = self.processes.supervisor._places
        return [place.link.invocations if place.link is not None else 0 for place in places]

    def pids(self) -> list[int]:
        return self.processes.supervisor.pids

    def rests(self) -> bool:
        return self.node.info().arena == self.at_rest


def invoke(
    connection: http.client.HTTPConnection, name: str, body: bytes, **headers: str
) -> tuple[int, bytes]:
    connection.request("POST", f"/v1/invoke/{name}", body, {**RAW, **headers})
    answer = connection.getresponse()
    return answer.status, answer.read()
