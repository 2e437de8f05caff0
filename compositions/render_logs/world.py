"""The servers of the example: an authority and log servers, as one server on loopback.

``/access`` takes a token and returns a grant; ``/logs/NAME?topic=TOPIC`` takes the grant's ticket
and returns lines of a log. Each server is configured to answer, answer late, fail, or close the
connection.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .loopback import Answer, Request, serve


@dataclass(frozen=True, slots=True)
class LogServer:
    """A log server.

    Attributes:
        name: also its path; it may contain characters with a meaning in HTML.
        status: of its answers; it returns its log only with 200.
        delay_s: delay of its answers.
        hangs_up: whether it closes the connection instead.
    """

    name: str
    status: int = 200
    delay_s: float = 0.0
    hangs_up: bool = False

    def log(self, topic: str) -> str:
        """Return this server's log of a topic."""
        return "".join(f"{self.name} <{topic}> & event {n}\n" for n in range(3))


@dataclass(frozen=True, slots=True)
class Reader:
    """The owner of a token. Locked readers are known, but refused."""

    name: str
    servers: tuple[LogServer, ...]
    is_locked: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """The data of all servers.

    Attributes:
        readers: by token.
        ticket: the ticket that log servers accept.
        status: of the authority's answers; it returns grants only with 200.
    """

    readers: dict[str, Reader]
    ticket: str = "ticket-1"
    status: int = 200


SERVERS = (LogServer("web-1"), LogServer("web-2"), LogServer("db <main>"), LogServer("old", 503))
EXAMPLE = World(
    {
        "token-ada": Reader("Ada & Co", SERVERS),
        "token-bob": Reader("Bob", SERVERS[:2]),
        "token-cyd": Reader("Cyd", ()),
        "token-dan": Reader("Dan", SERVERS, is_locked=True),
    }
)


@contextmanager
def serve_world(
    world: World = EXAMPLE, port: int = 0, seen: list[Request] | None = None
) -> Iterator[str]:
    """Serve a world.

    Args:
        world: the servers' data and behaviour.
        port: 0 chooses a free one.
        seen: every request is appended to it, in order.

    Yields:
        The URL of the authority; the URLs of log servers are below it.
    """
    closing = threading.Event()  # ends the delays of late answers

    def answer(request: Request) -> Answer | None:
        if seen is not None:
            seen.append(request)
        parts = urllib.parse.urlsplit(request.target)
        secret = request.headers.get("authorization", "")
        if parts.path == "/access":
            return _access(world, secret.removeprefix("Bearer "), request.headers.get("host", ""))
        name = urllib.parse.unquote(parts.path.removeprefix("/logs/"))
        topic = urllib.parse.parse_qs(parts.query).get("topic", [""])[0]
        server = _find(world, name)
        if server is None:
            return Answer(404, b"no such server\n")
        if secret != f"Ticket {world.ticket}":
            return Answer(403, b"no such ticket\n")
        if server.delay_s:
            closing.wait(server.delay_s)
        if server.hangs_up:
            return None
        return Answer(server.status, server.log(topic).encode())

    with serve(answer, port) as url:
        try:
            yield url
        finally:
            closing.set()


def _access(world: World, token: str, host: str) -> Answer:
    reader = world.readers.get(token)
    if world.status != 200:
        return Answer(world.status, b"out of order\n")
    if reader is None:
        return Answer(401, b"unknown token\n")
    if reader.is_locked:
        return Answer(403, f"{reader.name} is locked\n".encode())
    servers = [
        {"name": server.name, "url": f"http://{host}/logs/{urllib.parse.quote(server.name)}"}
        for server in reader.servers
    ]
    grant = {"reader": reader.name, "ticket": world.ticket, "servers": servers}
    return Answer(200, json.dumps(grant).encode(), "application/json")


def _find(world: World, name: str) -> LogServer | None:
    servers = (server for reader in world.readers.values() for server in reader.servers)
    return next((server for server in servers if server.name == name), None)
