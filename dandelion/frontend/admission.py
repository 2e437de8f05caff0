"""Limits of connections: their number, their time-outs, and which one is evicted.

A client can open connections and send nothing, a byte per second, or half a head. Other clients
must still be served:

- Each state of a connection has a time-out (`Wait`). A body and a response must also progress with
  a minimum rate, averaged over the time-out.
- Connections are counted in total and for each peer address. At a limit a new connection is
  admitted, and another one is evicted: the one that waits longest, first among closing connections,
  then among those without a whole head, then among idle ones, then among those below the minimum
  rate. At the limit of a peer, a connection of the same peer is evicted.
- If none can be evicted, all connections carry a request. Then the new connection is **surplus**:
  it gets an error or the health of the node (see `Protocol`) and is closed.

A new connection is evicted last, so a caller that sends its head at once is served even during a
flood of connections. If new connections were refused, old silent ones would keep their places.

A queue holds the connections in one state, ordered by the time they entered it. All have the same
time-out, so the first one expires first and is evicted first. Each step takes constant time.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import fcntl
import ipaddress
import itertools
import logging
import math
import socket
import struct
import sys
import termios
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dandelion.frontend.turns import Turns

log = logging.getLogger("dandelion.frontend")

LINGER_S = 10.0
"""How long the input of a closing connection is discarded."""
SWEEP_LIMIT = 256
"""Connections closed in one sweep; more would delay requests."""
_LOOKS = 16
_SLOW_AFTER_S = 1.0
_REPORT_S = 10.0
_LOOK_S = 0.1
_NO_LINGER = struct.pack("ii", 1, 0)
_ACKED = slice(120, 128)
"""Of the bytes of tcp_info: tcpi_bytes_acked."""


class Wait(enum.IntEnum):
    """What the node waits for on a connection, in the order of eviction."""

    LINGER = 0  # the client reading the last response; the connection is closing
    HEAD = 1  # a whole head
    IDLE = 2  # the next request
    BODY = 3  # the rest of a body
    RESPONSE = 4  # the client reading a response


_MOVING = (Wait.BODY, Wait.RESPONSE)


class Held(Protocol):
    """A connection. Only the table changes the attributes, except `address`.

    Attributes:
        address: of the peer.
        wait: what the node waits for; None while a request runs.
        since: when the wait started, or when progress was last seen.
        mark: value of `moved` at that time.
        peer: its peer; None if it is not counted.
    """

    address: str
    wait: Wait | None
    since: float
    mark: int
    peer: Peer | None

    def moved(self) -> int:
        """Return the number of bytes received, or read by the client, depending on `wait`."""

    def blocked(self) -> bool:
        """Return whether the node itself prevents progress."""

    def expire(self) -> None:
        """Close it after a time-out."""

    def abort(self) -> None:
        """Close it at once to evict it."""


_Queues: TypeAlias = tuple[OrderedDict[Held, None], ...]


def _queues() -> _Queues:
    return tuple(OrderedDict() for _ in Wait)


class Peer:
    """The connections of one peer."""

    __slots__ = ("count", "key", "queues")

    def __init__(self, key: str) -> None:
        self.key = key
        self.count = 0
        self.queues = _queues()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of connections.

    Attributes:
        connections: in total.
        per_peer: for each peer address; for IPv6, each network of 64 bits.
        head_s: time-out of a head, in seconds.
        idle_s: time-out between two requests, in seconds.
        moving_s: time over which the rate is averaged, in seconds.
        rate_bytes: minimum rate of a body and of a response, in bytes per second.
    """

    connections: int
    per_peer: int
    head_s: float
    idle_s: float
    moving_s: float
    rate_bytes: int


class ConnectionTable:
    """All connections of a server and their states. Use it only on the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.turns = Turns()
        self.count = 0
        self._peers: dict[str, Peer] = {}
        self._queues = _queues()
        self._times = (LINGER_S, limits.head_s, limits.idle_s, limits.moving_s, limits.moving_s)
        self._evicted = 0
        self._reported = 0.0

    def admit(self, connection: Held, now: float) -> bool:
        """Count a new connection and evict another if necessary; return False if it is surplus."""
        key = _peer_key(connection.address)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(key)
        connection.peer = peer
        peer.count += 1
        self.count += 1
        has_place = True
        if peer.count > self.limits.per_peer:
            has_place = self._make_place(peer.queues, now)
        elif self.count > self.limits.connections:
            has_place = self._make_place(self._queues, now)
        self.enter(connection, Wait.HEAD, now)
        return has_place

    def enter(self, connection: Held, wait: Wait | None, now: float) -> None:
        """Start a wait, also if it is the same as before; None ends the wait."""
        peer = connection.peer
        if peer is None:
            return
        before = connection.wait
        if before is not None:
            del self._queues[before][connection]
            del peer.queues[before][connection]
        connection.wait = wait
        if wait is None:
            return
        self._queues[wait][connection] = None
        peer.queues[wait][connection] = None
        connection.since = now
        if wait in _MOVING:
            connection.mark = connection.moved()

    def replace(self, old: Held, new: Held, now: float) -> None:
        """Replace a connection by another, whose wait for a head starts now."""
        self.enter(old, None, now)
        new.peer, old.peer = old.peer, None
        self.enter(new, Wait.HEAD, now)

    def forget(self, connection: Held) -> None:
        """Remove a connection. May be called twice."""
        peer = connection.peer
        if peer is None:
            return
        self.enter(connection, None, 0.0)
        connection.peer = None
        self.count -= 1
        peer.count -= 1
        if not peer.count:
            del self._peers[peer.key]

    def sweep(self, now: float) -> None:
        """Close expired connections. Call this several times a second."""
        left = SWEEP_LIMIT
        for wait, seconds in zip(Wait, self._times, strict=True):
            queue = self._queues[wait]
            while queue and left:
                connection = next(iter(queue))
                if now - connection.since < seconds:
                    break
                left -= 1
                if wait in _MOVING and self._moves(connection, now):
                    self.enter(connection, wait, now)
                    continue
                self.enter(connection, None, now)
                connection.expire()
        if self._evicted and now - self._reported >= _REPORT_S:
            log.warning(
                "too many connections; silent connections were closed",
                extra={"closed": self._evicted, "connections": self.count},
            )
            self._evicted, self._reported = 0, now

    def _make_place(self, queues: _Queues, now: float) -> bool:
        for wait in (Wait.LINGER, Wait.HEAD, Wait.IDLE):
            if queues[wait]:
                self._evict(next(iter(queues[wait])))
                return True
        for wait in _MOVING:
            for connection in list(itertools.islice(queues[wait], _LOOKS)):
                if now - connection.since < _SLOW_AFTER_S:
                    break
                if not self._moves(connection, now):
                    self._evict(connection)
                    return True
                self.enter(connection, wait, now)
        return False

    def _evict(self, connection: Held) -> None:
        self._evicted += 1
        self.forget(connection)
        connection.abort()

    def _moves(self, connection: Held, now: float) -> bool:
        needed = self.limits.rate_bytes * (now - connection.since)
        return connection.blocked() or connection.moved() - connection.mark >= max(1, needed)


def reset(connection: socket.socket) -> None:
    """Make the kernel drop unsent data when the connection is closed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return how much of what was sent on a connection has reached the client so far.

    Buffers on this side do not tell it: the kernel takes megabytes, and then nothing before a third
    of that was read.

    Source: tcp_info in linux/tcp.h, since Linux 4.1.
    """
    connection = transport.get_extra_info("socket")
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
    except (AttributeError, OSError):  # it is closed
        return 0
    return int.from_bytes(info[_ACKED], sys.byteorder)


def close_gently(
    transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, limit_s: float = math.inf
) -> None:
    """Close a connection when its client has got everything, after ``limit_s`` in any case.

    Without TLS the kernel does this. TLS would also wait for the client's own end, and a client
    that keeps the connection for a later request reads nothing, so it sends none.
    """
    transport.close()
    if transport.get_extra_info("sslcontext") is not None:
        loop.call_later(_LOOK_S, _end_read, transport, loop, loop.time() + limit_s, -1)


def _end_read(
    transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, deadline: float, before: int
) -> None:
    """Close it if everything has arrived and nothing did since the look `before`.

    Below TLS the loop keeps data of its own, whose size it does not tell. Between two looks it
    gives some to the kernel if that has none.
    """
    arrived = acknowledged_bytes(transport)
    unread = transport.get_write_buffer_size() or _unread_bytes(transport) or arrived != before
    if unread and loop.time() < deadline:
        loop.call_later(_LOOK_S, _end_read, transport, loop, deadline, arrived)
    else:
        transport.abort()


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Return how much the kernel has sent or will send that has not reached the client."""
    connection = transport.get_extra_info("socket")
    try:
        found = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except (AttributeError, OSError, ValueError):  # it is closed
        return 0
    return int.from_bytes(found, sys.byteorder)


def _peer_key(address: str) -> str:
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or found.packed[:8].hex())
