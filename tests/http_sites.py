"""Servers for the HTTP function, and calls of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractResolver

from dandelion.data import Item, ItemSet
from dandelion.driver import AsyncEngine, Call, InstanceSets
from dandelion.function import Function, FunctionSpec, Limits
from dandelion.memory import HeapDomain, MemoryDomain

http = importlib.import_module("dandelion.backends.http")
settings = importlib.import_module("dandelion.backends.http.settings")
HttpEngine = importlib.import_module("dandelion.backends.http.engine").HttpEngine
LOCAL = {"allow": "127.0.0.0/8"}
MIB = 1024 * 1024


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario; anything that it leaves open is a warning, and so a failure."""
    asyncio.run(scenario)
    gc.collect()


@contextlib.asynccontextmanager
async def engine(
    options: dict[str, str] | None = None, resolver: AbstractResolver | None = None
) -> AsyncIterator[AsyncEngine]:
    made = HttpEngine(settings.read_settings(LOCAL if options is None else options), resolver)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def site(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A well-behaved server; returns its URL."""
    app = web.Application(client_max_size=64 * MIB)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


@dataclass
class Raw:
    """A server that sends given answers, and records its requests."""

    answers: list[bytes]
    stay: bool = False
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    open: dict[asyncio.StreamWriter, asyncio.Event] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = self.open[writer] = asyncio.Event()
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            self.arrived.set()
            answer = self.answers.pop(0) if self.answers else b""
            writer.write(answer)
            await writer.drain()
            if self.stay:
                await reader.read()  # until the client leaves
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            writer.close()
            ended.set()

    async def leave(self) -> None:
        """End the connections that are still open."""
        for writer, ended in self.open.items():
            writer.transport.abort()
            await ended.wait()


@contextlib.asynccontextmanager
async def raw(*answers: bytes, host: str = "127.0.0.1", stay: bool = False) -> AsyncIterator[Raw]:
    """A server for one answer a connection, after which it closes or, with `stay`, waits."""
    served = Raw(list(answers), stay)
    server = await asyncio.start_server(served.serve, host, 0)
    served.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        await served.leave()
        await server.wait_closed()


def a_call(
    *items: bytes | Item,
    domain: MemoryDomain | None = None,
    limits: Limits | None = None,
    seconds: float = 20.0,
) -> Call:
    named = (i if isinstance(i, Item) else Item(f"r{n}", n, i) for n, i in enumerate(items))
    requests = ItemSet("requests", tuple(named)) if items else None
    spec = FunctionSpec(
        "HTTP", http.HTTP.inputs, http.HTTP.outputs, limits=limits or Limits(), kind="io"
    )
    function = Function(spec, http.HTTP.code[0])
    deadline = time.monotonic_ns() + int(seconds * 1e9)
    return Call(1, function, (requests,), domain or HeapDomain(64 * MIB), deadline)


def get(url: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    return "\n".join([f"{method} {url} HTTP/1.1", *lines, "", ""]).encode() + body


def only(outputs: InstanceSets) -> tuple[bytes, bytes]:
    heads, bodies = outputs
    assert heads is not None
    assert bodies is not None
    return heads.bytes(), bodies.bytes()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
