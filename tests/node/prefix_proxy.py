"""A reverse proxy that serves a node below a path, which it removes from requests."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Self

import aiohttp
from aiohttp import web

PREFIX = "/some/node"
_OF_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")


class PrefixProxy:
    """A proxy in a thread. Everything outside of its path is 404.

    Args:
        target: URL of the node.

    Attributes:
        url: of the node, as clients of the proxy use it.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{PREFIX}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_route("*", PREFIX + "/{rest:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            await runner.setup()
            await web.SockSite(runner, self._socket).start()
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        async with self._session.request(
            request.method,
            self._target + request.raw_path.removeprefix(PREFIX),
            headers=[(name, value) for name, value in request.headers.items()],
            data=await request.read() if request.can_read_body else None,
            allow_redirects=False,
        ) as answer:
            made = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _OF_CONNECTION:
                    made.headers.add(name, value)
            await made.prepare(request)
            async for piece in answer.content.iter_any():
                await made.write(piece)
            await made.write_eof()
            return made
