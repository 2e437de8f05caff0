"""Documents that the converter reads, and connections that send them."""

from __future__ import annotations

import contextlib
import gc
import http.client
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from dandelion.data import SetSpec
from dandelion.documents import RegistrationDocument
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from tests.processes import command_of

from .frontend_processes import Processes
from .served import function

JSON, PACK = "application/json", "application/msgpack"


LARGE = 2_000_000
SETTINGS = Settings(
    backends=("null",), arena_bytes=256 << 20, body_limit_bytes=96 << 20, items_limit=20_000
)


NUMBERS = SetSpec("n", "float64", (-1,))
DOCUMENT = RegistrationDocument(
    functions=(
        function("echo", ("a",), ("a",)),
        function("pair", ("left", "right"), ("left", "right")),
        function("numbers", (NUMBERS,), (NUMBERS,)),
    )
)


@dataclass
class Server:
    """A server and its node.

    Attributes:
        process: that serves HTTP.
    """

    node: Node
    url: str
    process: int


def given_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "processes":
        with Processes(SETTINGS, [], 1) as processes:
            processes.node.register(DOCUMENT)
            (process,) = processes.supervisor.pids
            yield Server(processes.node, f"http://127.0.0.1:{processes.port}", process)
    else:
        with Node(SETTINGS) as node:
            node.register(DOCUMENT)
            with BackgroundServer(node) as server:
                yield Server(node, server.url, os.getpid())


def connection(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)


def post(
    server: Server, path: str, body: bytes, kind: str = JSON, accept: str = ""
) -> tuple[int, Any]:
    with contextlib.closing(connection(server)) as c:
        c.request("POST", path, body, {"content-type": kind, "accept": accept or kind})
        reply = c.getresponse()
        data = reply.read()
    plain = msgspec.msgpack.decode(data) if data[:1] != b"{" else msgspec.json.decode(data)
    return reply.status, plain


def is_converter(process: int) -> bool:
    return b"dandelion.frontend.conversion" in (command_of(process) or b"")


@contextlib.contextmanager
def nothing_left(node: Node) -> Iterator[None]:
    """Holds that the arena's memory comes back, also if the collector does not run."""
    gc.collect()
    before = node.info().arena.used_bytes
    gc.disable()
    try:
        yield
        wait_until(lambda: node.info().arena.used_bytes <= before)
    finally:
        gc.enable()


def filler(size: int = LARGE) -> str:
    return "z" * size
