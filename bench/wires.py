"""The network between nodes on one machine, which can be cut: a relay before each node.

Each node has an address here, under which the others know it; what comes there is passed on to the
port where the node listens. Who opened a connection is read from its first message, which names the
sender first. While a node is cut off, nothing of its connections is passed on in either direction,
and none of them is closed: as if packets were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from .processes import Closeable, free_port

_FIRST_BYTES = 4096
"""The sender is named within so many bytes."""
_READ_BYTES = 1 << 18


class Wires(Closeable):
    """Relays for some nodes, which run in a thread. Use it with ``with``.

    Args:
        count: of nodes.

    Attributes:
        addresses: of the nodes, for each other.
        listens: where each node is to listen.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(count)]
        self.addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in self._sockets]
        self.listens = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self._cut: frozenset[str] = frozenset()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="wires")
        self._thread.start()

    def cut(self, number: int) -> None:
        """Pass nothing on from a node or to it."""
        self._on_loop(lambda: self._set(self._cut | {self.addresses[number]}))

    def repair(self) -> None:
        """Pass everything on, also what was held back."""
        self._on_loop(lambda: self._set(frozenset()))

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _on_loop(self, change: Callable[[], None]) -> None:
        done = threading.Event()

        def work() -> None:
            change()
            done.set()

        self._loop.call_soon_threadsafe(work)
        done.wait()

    def _set(self, cut: frozenset[str]) -> None:
        self._cut = cut
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self) -> None:
        with contextlib.closing(self._loop) as loop:
            servers = [
                loop.run_until_complete(self._serve(number, one))
                for number, one in enumerate(self._sockets)
            ]
            loop.run_forever()
            for server in servers:
                server.close()
            loop.run_until_complete(self._end())

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, number: int, opened: socket.socket) -> asyncio.Server:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "it runs in one"
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with contextlib.closing(writer), contextlib.suppress(OSError):
                await self._relay(number, reader, writer)

        return await asyncio.start_server(accepted, sock=opened)

    async def _relay(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on what a connection to a node has, in both directions, until one side ends it."""
        host, _, port = self.listens[number].rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        ends = {self.addresses[number]}
        with contextlib.closing(there_writer):
            directions = [
                asyncio.ensure_future(self._pass(reader, there_writer, ends, names_sender=True)),
                asyncio.ensure_future(self._pass(there_reader, writer, ends)),
            ]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in directions:
                    one.cancel()
                await asyncio.gather(*directions, return_exceptions=True)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: set[str],
        names_sender: bool = False,
    ) -> None:
        first = b""
        while data := await reader.read(_READ_BYTES):
            if names_sender and len(ends) == 1 and len(first) < _FIRST_BYTES:
                first += data
                ends |= self._sender(first)
            while ends & self._cut:
                await self._changed.wait()
            writer.write(data)
            await writer.drain()

    def _sender(self, first: bytes) -> set[str]:
        """Find the address that is named first."""
        places = {name: first.find(name.encode()) for name in self.addresses}
        found = [name for name in places if places[name] >= 0]
        return set(sorted(found, key=lambda name: places[name])[:1])
