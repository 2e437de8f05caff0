"""A node with tokens of several tenants, and raw requests to it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from dandelion.documents import FunctionDocument, RegistrationDocument
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.tokens import Right, TokenRecord
from dandelion.tokens.file import write_tokens
from dandelion.tokens.records import digest_of

from .frontend_processes import Processes
from .served import SETTINGS, function

ALL = tuple(Right)
TENANTS = ("default", "acme", "beta")
TIMEOUT_S = 20.0


def token(name: str) -> str:
    """The token of a name: any text is one, and this one is easy to read in failures."""
    return f"token-of-{name}"


def record(name: str, **fields: object) -> TokenRecord:
    """The record of `token(name)`."""
    given: dict[str, object] = {"rights": ALL, **fields}
    return TokenRecord(name=name, sha256=digest_of(token(name)), **given)  # type: ignore[arg-type]  # of tests


RECORDS = (
    *(record(tenant, tenant=tenant) for tenant in TENANTS),
    *(record(f"only-{right.value}", tenant="acme", rights=(right,)) for right in Right),
    record("expired", tenant="acme", expires=datetime.now(UTC) - timedelta(days=1)),
    record("slow", tenant="acme", rate=0.01, burst=3),
)


@dataclass
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The class of the problem."""
        found: str = msgspec.json.decode(self.body)["type"]
        return found.rpartition(":")[2]

    @property
    def place(self) -> str:
        """Path of the asynchronous invocation that was accepted."""
        return urllib.parse.urljoin("/v1/invoke/name", self.headers["location"])


class Guarded:
    """A node that is served to callers with tokens.

    Attributes:
        node: the node.
        port: of its frontends.
        tokens: its file of tokens.
    """

    def __init__(self, node: Node, port: int, tokens: Path) -> None:
        self.node = node
        self.port = port
        self.tokens = tokens

    def ask(
        self,
        method: str,
        path: str,
        caller: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request with the token of a name."""
        given = dict(headers or {})
        if caller is not None:
            given["Authorization"] = f"Bearer {token(caller)}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, given)
            return answer_of(connection.getresponse())

    def raw(self, request: bytes) -> Answer:
        """Send bytes as they are; HOST in them is the node's address."""
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S) as connection:
            connection.sendall(request.replace(b"HOST", b"127.0.0.1:%d" % self.port))
            response = http.client.HTTPResponse(connection, method=request.split()[0].decode())
            response.begin()
            return answer_of(response)


def answer_of(response: http.client.HTTPResponse) -> Answer:
    """Read a response, without the headers that change."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


@contextlib.contextmanager
def guarded(folder: Path, frontends: int, **settings: object) -> Iterator[Guarded]:
    """Serve a node with tokens."""
    path = folder / "tokens.toml"
    write_tokens(path, RECORDS)
    changed: Settings = msgspec.structs.replace(
        SETTINGS, tokens=str(path), frontends=frontends, **settings
    )
    if frontends > 1:
        with Processes(changed, [], frontends) as processes:
            yield Guarded(processes.node, processes.port, path)
        return
    with Node(changed) as node, BackgroundServer(node) as server:
        yield Guarded(node, int(server.url.rpartition(":")[2]), path)


def named(name: str) -> FunctionDocument:
    """A function that returns its input."""
    return function(name, ("a",), ("b",))


COMPOSITION = (
    "function secret(a) => (b); composition plan(a) => (b) { secret(a = all a) => (b = b); }"
)
SECRETS = RegistrationDocument(
    functions=(named("secret"),), libraries={"lib/secret": "text"}, compositions=(COMPOSITION,)
)


@contextlib.contextmanager
def with_secrets(folder: Path, frontends: int) -> Iterator[Guarded]:
    """Serve a node whose tenants have a function, and whose tenant `acme` has more."""
    origins = ("https://app.example.org",)
    with guarded(folder, frontends, cors_origins=origins) as opened:
        for tenant in TENANTS:
            opened.node.register(named("echo"), tenant=tenant)
        opened.node.register(SECRETS, tenant="acme")
        assert opened.node.wait_ready()
        yield opened
