"""The servers that the example talks to: an authority and log servers, as one server on loopback.

``/access`` takes a token and gives a grant; ``/logs/NAME?topic=TOPIC`` takes the grant's ticket and
gives lines of a log. What each does is told beforehand: answer, answer late, fail, hang up.
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
        name: also its path; it need not be fit for HTML.
        status: what it answers; its log is only shown with 200.
        delay_s: how long it takes.
        hangs_up: whether it closes the connection instead.
    """

    name: str
    status: int = 200
    delay_s: float = 0.0
    hangs_up: bool = False

    def log(self, topic: str) -> str:
        """Write the log that this server has of a topic."""
        return "".join(f"{self.name} <{topic}> & event {n}\n" for n in range(3))


@dataclass(frozen=True, slots=True)
class Reader:
    """Someone with a token. Locked readers are known, and refused."""

    name: str
    servers: tuple[LogServer, ...]
    is_locked: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """All that the servers know.

    Attributes:
        readers: by token.
        ticket: what log servers take.
        status: what the authority answers; grants are only given with 200.
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
        world: who may see what, and what each server does.
        port: 0 takes a free one.
        seen: gets every request, in the order in which they came.

    Yields:
        The URL of the authority; log servers lie below it.
    """
    closing = threading.Event()  # so that nobody waits for an answer that is late

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
        return Answer(401, b"nobody has this token\n")
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
