"""Accepts connections and waits for the first head of each.

libuv (used by uvloop) accepts one connection in an iteration of the event loop. An iteration with
thousands of busy connections takes tenths of a second, so new connections would wait for minutes.
This acceptor accepts many in one iteration.

A transport and a protocol cost several times as much as a system call. So a connection is only a
socket until its first head is complete. The head is peeked at and stays in the kernel. If it is
long or arrives in many pieces, the connection gets a protocol earlier. Thousands of connections
that are silent or send half a head then cause little delay for others.

When descriptors or memory are exhausted, the acceptor pauses and tries again. Meanwhile connections
wait in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import select
import socket
from collections.abc import Callable

from dandelion.frontend.admission import ConnectionTable, Peer, Wait, reset
from dandelion.frontend.problem import Stalled, closing_response

log = logging.getLogger("dandelion.frontend")

BATCH = 512
"""Connections accepted in one iteration of the loop; more would delay requests."""
LOOK_BATCH = 256
"""Connections examined in one iteration of the loop."""
LOOK_BYTES = 4096
"""A longer head is left to the parser."""
LOOKS = 32
"""A head in more pieces is left to the parser."""
_PAUSE_S = 0.1
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Newcomer:
    """A connection whose first head is incomplete.

    Attributes:
        socket: of the connection.
        surplus: whether it exceeds the limits, see `ConnectionTable.admit`.
        looks: how often its input was examined.
        has_begun: whether part of a head has arrived.
    """

    __slots__ = (
        "_acceptor",
        "address",
        "has_begun",
        "looks",
        "mark",
        "peer",
        "since",
        "socket",
        "surplus",
        "wait",
    )

    def __init__(self, acceptor: Acceptor, connection: socket.socket, address: str) -> None:
        self._acceptor = acceptor
        self.socket = connection
        self.surplus = False
        self.looks = 0
        self.has_begun = False
        # Used by the table:
        self.address = address
        self.wait: Wait | None = None
        self.since = 0.0
        self.mark = 0
        self.peer: Peer | None = None

    @property
    def table(self) -> ConnectionTable:
        """The table that counts it."""
        return self._acceptor.table

    def moved(self) -> int:
        """Bytes of a head are not counted."""
        return 0

    def blocked(self) -> bool:
        """The node never blocks it."""
        return False

    def expire(self) -> None:
        """Close it, with an error response if part of a head has arrived."""
        if self.has_begun:
            error = Stalled("head", self.table.limits.head_s)
            with contextlib.suppress(OSError):
                while self.socket.recv(LOOK_BYTES, socket.MSG_DONTWAIT):
                    pass  # unread input would reset the connection
            with contextlib.suppress(OSError):
                self.socket.send(closing_response(error), socket.MSG_DONTWAIT)
        self._acceptor.drop(self)

    def abort(self) -> None:
        """Close it at once."""
        reset(self.socket)
        self._acceptor.drop(self)


class Acceptor:
    """Accepts connections until it is closed. Use it only on the event loop.

    Args:
        loop: the running loop.
        listener: a listening socket; it is not closed here.
        table: counts connections.
        factory: makes the protocol of a connection; it takes the newcomer's place.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        table: ConnectionTable,
        factory: Callable[[Newcomer], asyncio.Protocol],
    ) -> None:
        self.table = table
        self._loop = loop
        self._listener = listener
        self._factory = factory
        self._newcomers: dict[int, Newcomer] = {}
        self._poll = select.epoll()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = True
        listener.setblocking(False)
        loop.add_reader(self._poll, self._look_at_all)
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        now = self._loop.time()
        for _ in range(BATCH):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("cannot accept connections, trying again", extra={"why": str(error)})
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(_PAUSE_S, self._resume)
                    return
                continue  # the client has closed the connection
            connection.setblocking(False)
            newcomer = Newcomer(self, connection, peer[0])
            self._newcomers[connection.fileno()] = newcomer
            self._poll.register(connection.fileno(), _EVENTS)
            newcomer.surplus = not self.table.admit(newcomer, now)

    def _look_at_all(self) -> None:
        for number, events in self._poll.poll(0, LOOK_BATCH):
            newcomer = self._newcomers.get(number)
            if newcomer is not None:
                self._look(newcomer, is_all=bool(events & _ENDED))

    def _look(self, newcomer: Newcomer, *, is_all: bool) -> None:
        try:
            begun = newcomer.socket.recv(LOOK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            begun = b""
        if not begun:
            self.drop(newcomer)
            return
        newcomer.looks += 1
        head = begun.lstrip(b"\r\n")  # allowed before a request
        newcomer.has_begun = bool(head)
        if is_all or newcomer.looks >= LOOKS or len(begun) == LOOK_BYTES or _is_over(head):
            number = newcomer.socket.fileno()
            self._poll.unregister(number)
            del self._newcomers[number]
            self.table.enter(newcomer, None, 0.0)  # its protocol takes its place
            opening = self._loop.create_task(self._open(newcomer))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, newcomer: Newcomer) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._factory(newcomer), newcomer.socket
            )
        except OSError:
            self.table.forget(newcomer)
            newcomer.socket.close()

    def drop(self, newcomer: Newcomer) -> None:
        """Close a connection that has no protocol."""
        self.table.forget(newcomer)
        self._newcomers.pop(newcomer.socket.fileno(), None)
        newcomer.socket.close()  # also removes it from the poll

    def close(self) -> None:
        """Stop accepting, and close connections without a whole head. May be called twice."""
        if not self._is_open:
            return
        self._is_open = False
        if self._pause is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pause.cancel()
        self._loop.remove_reader(self._poll)
        for newcomer in list(self._newcomers.values()):
            self.drop(newcomer)
        self._poll.close()

    async def wait_closed(self) -> None:
        """Wait for connections that are being opened."""
        if self._opening:
            await asyncio.wait(self._opening)


def _is_over(head: bytes) -> bool:
    """Return whether the parser can decide: the head is complete, or not a head at all."""
    return b"\r\n\r\n" in head or b"\n\n" in head or not (head[:1] or b"A").isupper()
