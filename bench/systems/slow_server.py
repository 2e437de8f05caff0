"""A server on this machine that answers each request after a fixed time, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextlib.contextmanager
def slow_server(delay_s: float) -> Iterator[int]:
    """Serve for the time of a block; gives the port."""
    started = threading.Event()
    ports: list[int] = []
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(delay_s)
                writer.write(_ANSWER)
                await writer.drain()
        writer.close()

    async def serve() -> None:
        end = asyncio.Event()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ends.append((asyncio.get_running_loop(), end))
        started.set()
        async with server:
            await end.wait()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="slow-server")
    thread.start()
    try:
        if not started.wait(10):
            raise OSError("the slow server does not start")
        yield ports[0]
    finally:
        for loop, end in ends:
            loop.call_soon_threadsafe(end.set)
        thread.join()
