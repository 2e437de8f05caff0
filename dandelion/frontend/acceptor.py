"""Accepts connections and waits for the first head of each.

libuv (used by uvloop) accepts one connection in an iteration of the event loop. An iteration with
thousands of busy connections takes tenths of a second, so new connections would wait for minutes.
This acceptor accepts many in one iteration.

A transport and a protocol cost twenty times as much as a system call. So a connection is only a
socket until its first head is complete. The head is peeked at and stays in the kernel. If it is
long or arrives in many pieces, the connection gets a protocol earlier. A connection that ends
before its head is complete is closed without one.

Most clients send their head with the connection, so a connection is examined as soon as it is
accepted. Those that have not sent it are watched in an epoll of their own. Where thousands of them
send something or end at once, the order matters: a new connection must not wait behind them. So an
iteration of the loop first examines the connections that are new and have sent nothing before.
The others are **late**, and a limited number of them is examined in each iteration.

With TLS, a connection is opened at its first byte. It stays in the table as a connection without a
head until the handshake is complete, so it can expire and be evicted meanwhile.

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
import time
from collections import deque
from collections.abc import Callable

from dandelion.frontend.admission import ConnectionTable, Peer, Wait, reset
from dandelion.frontend.problem import Stalled
from dandelion.frontend.problem_response import closing_response
from dandelion.frontend.tls import Certificate

log = logging.getLogger("dandelion.frontend")

ACCEPT_S = 0.004
"""For how long connections are accepted in one iteration of the loop; longer would delay requests,
and the opening of a connection, which takes several iterations."""
EVENTS = 1024
"""Connections in which something has happened, taken from the epoll in one iteration."""
LATE_BATCH = 64
"""Late connections examined in one iteration of the loop."""
LATE_S = 1.0
"""After how long a silent connection is late."""
LOOK_BYTES = 4096
"""A longer head is left to the parser."""
LOOKS = 32
"""A head in more pieces is left to the parser."""
_PAUSE_S = 0.1
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_SHUTDOWN_S = 86400.0
"""How long TLS waits for the end of a connection, which includes all unsent data: the table ends it
before, when the client reads no more."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Newcomer:
    """A connection whose first head is incomplete.

    Attributes:
        socket: of the connection.
        surplus: whether it exceeds the limits, see `ConnectionTable.admit`.
        looks: how often its input was examined.
        has_begun: whether part of a head has arrived.
        has_ended: whether the client sends no more.
        is_queued: whether it is to be examined with the late ones.
        opening: makes its protocol; None before.
    """

    __slots__ = (
        "_acceptor",
        "address",
        "has_begun",
        "has_ended",
        "is_queued",
        "looks",
        "mark",
        "opening",
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
        self.has_ended = False
        self.is_queued = False
        self.opening: asyncio.Task[None] | None = None
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
        if self.has_begun and self._acceptor.certificate is None:
            error = Stalled("head", self.table.limits.head_s)
            self.discard_input()
            with contextlib.suppress(OSError):
                self.socket.send(closing_response(error), socket.MSG_DONTWAIT)
        self._acceptor.drop(self)

    def discard_input(self) -> None:
        """Read what has arrived: unread input would reset the connection when it is closed."""
        with contextlib.suppress(OSError):
            while self.socket.recv(LOOK_BYTES, socket.MSG_DONTWAIT):
                pass

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
        certificate: of the connections, for TLS; None for plain TCP.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        table: ConnectionTable,
        factory: Callable[[Newcomer], asyncio.Protocol],
        certificate: Certificate | None = None,
    ) -> None:
        self.table = table
        self.certificate = certificate
        self._loop = loop
        self._listener = listener
        self._factory = factory
        self._newcomers: dict[int, Newcomer] = {}
        self._poll = select.epoll()
        self._late: deque[Newcomer] = deque()
        self._late_turn: asyncio.Handle | None = None
        self._opening: dict[asyncio.Task[None], Newcomer] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = True
        listener.setblocking(False)
        loop.add_reader(self._poll, self._on_events)
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        now = self._loop.time()
        end = time.monotonic() + ACCEPT_S
        while time.monotonic() < end:
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
            newcomer.surplus = not self.table.admit(newcomer, now)
            if not self._examine(newcomer):
                self._newcomers[connection.fileno()] = newcomer
                self._poll.register(connection.fileno(), _EVENTS)

    def _on_events(self) -> None:
        oldest = self._loop.time() - LATE_S
        for number, events in self._poll.poll(0, EVENTS):
            newcomer = self._newcomers.get(number)
            if newcomer is None:
                continue
            if events & _ENDED:
                newcomer.has_ended = True
            if not newcomer.has_begun and newcomer.since > oldest:
                self._examine(newcomer)
            elif not newcomer.is_queued:
                newcomer.is_queued = True
                self._late.append(newcomer)
        if self._late_turn is None:
            self._examine_late()

    def _examine_late(self) -> None:
        late = self._late
        for _ in range(min(LATE_BATCH, len(late))):
            newcomer = late.popleft()
            newcomer.is_queued = False
            if newcomer.socket.fileno() >= 0:  # else it was evicted
                self._examine(newcomer)
        self._late_turn = self._loop.call_soon(self._examine_late) if late else None

    def _examine(self, newcomer: Newcomer) -> bool:
        """Open or drop the connection if that can be decided; return whether it could."""
        try:
            begun = newcomer.socket.recv(LOOK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            begun = b""
        newcomer.looks += 1
        head = begun.lstrip(b"\r\n")  # allowed before a request
        newcomer.has_begun = bool(head)
        if begun and self.certificate is not None:
            self._start_opening(newcomer)
            return True
        if begun and (_is_over(head) or newcomer.looks >= LOOKS or len(begun) == LOOK_BYTES):
            self.table.enter(newcomer, None, 0.0)  # its protocol takes its place
            self._start_opening(newcomer)
            return True
        if not begun or newcomer.has_ended:
            newcomer.discard_input()
            self.drop(newcomer)
            return True
        return False

    def _unwatch(self, newcomer: Newcomer) -> None:
        number = newcomer.socket.fileno()
        if self._newcomers.pop(number, None) is not None:
            self._poll.unregister(number)

    def _start_opening(self, newcomer: Newcomer) -> None:
        self._unwatch(newcomer)
        newcomer.opening = opening = self._loop.create_task(self._open(newcomer))
        self._opening[opening] = newcomer
        opening.add_done_callback(self._opening.pop)

    async def _open(self, newcomer: Newcomer) -> None:
        certificate = self.certificate
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._factory(newcomer),
                newcomer.socket,
                ssl=None if certificate is None else certificate.context,
                ssl_handshake_timeout=None if certificate is None else self.table.limits.head_s,
                ssl_shutdown_timeout=None if certificate is None else _SHUTDOWN_S,
            )
        except OSError:
            self.table.forget(newcomer)
            newcomer.socket.close()

    def drop(self, newcomer: Newcomer) -> None:
        """Close a connection that has no protocol; a handshake under way ends."""
        self.table.forget(newcomer)
        if newcomer.opening is not None:
            newcomer.opening.cancel()
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
        if self._late_turn is not None:
            self._late_turn.cancel()
        handshakes = [] if self.certificate is None else list(self._opening.values())
        for newcomer in [*self._newcomers.values(), *handshakes]:
            self.drop(newcomer)
        self._poll.close()

    async def wait_closed(self) -> None:
        """Wait for connections that are being opened."""
        if self._opening:
            await asyncio.wait(self._opening)


def _is_over(head: bytes) -> bool:
    """Return whether the parser can decide: the head is complete, or not a head at all."""
    return b"\r\n\r\n" in head or b"\n\n" in head or not (head[:1] or b"A").isupper()
