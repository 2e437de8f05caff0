"""Which connections are kept: how many, for how long, and which one goes when there is no place.

A client that reaches the port can open connections and send nothing, a byte a second, or half a
head. None of that may keep others out, so

- what a connection is waited for has a time-out (`Wait`), and what takes long has to move: at
  least so many bytes a second, averaged over a time-out;
- connections are counted, in all and for each peer address. When one of the two limits is reached,
  a newcomer is admitted all the same, and the connection goes that is waited for longest: first of
  those that are closing, then of those that have sent no whole head, then of idle ones, then of
  those that hardly move. One peer's newcomers take the places of its own connections;
- if none of these can go, all places are taken by requests under way, and the newcomer is a
  **surplus** one: it is told so, or how the node is (see `Protocol`), and closed.

A newcomer is the last to go, so a caller that sends its head at once is served even while
connections arrive without end. Refusing newcomers instead would leave the places to who came first.

A queue holds the connections of one kind of waiting in the order in which it began, and the
time-out is the same for all in it, so the first one is the first to expire and the first to go.
Each step costs the same however many connections there are.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import itertools
import logging
import socket
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol, TypeAlias

log = logging.getLogger("dandelion.frontend")

LINGER_S = 10.0
"""How long a connection that is closing may go on sending what is not read."""
SWEEP_LIMIT = 256
"""So many connections are closed in one go; more would keep requests waiting."""
_LOOKS = 16
_SLOW_AFTER_S = 1.0
_REPORT_S = 10.0
_NO_LINGER = struct.pack("ii", 1, 0)


class Wait(enum.IntEnum):
    """What a connection is waited for, in the order in which connections have to go."""

    LINGER = 0  # it is closing; its client is given time to read the last answer
    HEAD = 1  # it was opened, or a head has begun: no whole head has come
    IDLE = 2  # the next request, after an answered one
    BODY = 3  # the rest of a body
    REPLY = 4  # its client is to read a reply


_MOVING = (Wait.BODY, Wait.REPLY)


class Held(Protocol):
    """A connection, as this file sees it. All attributes but `address` are the table's own.

    Attributes:
        address: of the peer.
        wait: what it is waited for; None while a request is under way.
        since: when that began, or when it was last found moving.
        mark: what `moved` was then.
        peer: its peer; None once it is no longer counted.
    """

    address: str
    wait: Wait | None
    since: float
    mark: int
    peer: Peer | None

    def moved(self) -> int:
        """Count bytes that came, or that the client has read, whichever is waited for."""

    def blocked(self) -> bool:
        """Tell whether it cannot move since the node does not let it."""

    def expire(self) -> None:
        """End it, since it was waited for too long."""

    def abort(self) -> None:
        """End it at once, since its place is needed."""


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
    """What is allowed.

    Attributes:
        connections: in all.
        per_peer: of one peer address; of IPv6, of one network of 64 bits.
        head_s: for a whole head, in seconds.
        idle_s: between two requests, in seconds.
        moving_s: over which the rate is averaged, in seconds.
        rate_bytes: a second, of a body that comes and of a reply that is read.
    """

    connections: int
    per_peer: int
    head_s: float
    idle_s: float
    moving_s: float
    rate_bytes: int


class ConnectionTable:
    """All connections of a server, and what each is waited for. For the loop's thread alone."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.count = 0
        self._peers: dict[str, Peer] = {}
        self._queues = _queues()
        self._times = (LINGER_S, limits.head_s, limits.idle_s, limits.moving_s, limits.moving_s)
        self._evicted = 0
        self._reported = 0.0

    def admit(self, connection: Held, now: float) -> bool:
        """Count a new connection, and make a place for it; False if it is a surplus one."""
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
        """Begin to wait for something, also if it is the same as before; None waits for nothing."""
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
        """Give one connection's place to another, which is waited for from now on."""
        self.enter(old, None, now)
        new.peer, old.peer = old.peer, None
        self.enter(new, Wait.HEAD, now)

    def forget(self, connection: Held) -> None:
        """Count a connection no longer. May be called twice."""
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
        """End what was waited for too long; to be called several times a second."""
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
                "too many connections, silent ones were closed",
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
    """Let the kernel drop, when a connection is closed, what is not yet sent."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _peer_key(address: str) -> str:
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or found.packed[:8].hex())
