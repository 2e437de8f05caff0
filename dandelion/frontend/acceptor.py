"""Takes new connections from the listening socket, many in one turn of the loop.

libuv, below uvloop, takes one connection a turn. A turn with thousands of busy connections takes
tenths of a second, so newcomers would wait for minutes behind each other while those who are in are
served again and again.

Running out of descriptors or memory is no end: the acceptor pauses and tries again. The connections
wait in the kernel meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

log = logging.getLogger("dandelion.frontend")

BATCH = 128
"""So many connections are taken in one turn; more would keep requests waiting."""
_PAUSE_S = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections until it is closed. For the loop's thread alone.

    Args:
        loop: the running loop.
        listener: a listening socket; it is neither copied nor closed here.
        factory: makes the protocol of a connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        factory: Callable[[], asyncio.Protocol],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._factory = factory
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.is_open = True
        listener.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("cannot take connections, trying again", extra={"why": str(error)})
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(_PAUSE_S, self._resume)
                    return
                continue  # that connection is gone already
            connection.setblocking(False)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError:
            connection.close()

    def close(self) -> None:
        """Take no more connections. May be called twice."""
        if self._pause is not None:
            self._pause.cancel()
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Wait for the connections that are being opened."""
        if self._opening:
            await asyncio.wait(self._opening)
