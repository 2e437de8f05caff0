"""Opening and accepting the connections of links.

Both begin with the proof of membership. Only then the first message is read, a `Join`, and only
`PENDING_LIMIT` connections may be before that point at once, each for `JOIN_S` at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dandelion.cluster.call_messages import Load
from dandelion.cluster.exchange import Exchange
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.link import OutLink
from dandelion.cluster.messages import VERSION, Join, Message, Refuse, Welcome
from dandelion.cluster.serving import Host, InLink
from dandelion.cluster.settings import ClusterSettings, parsed_address
from dandelion.errors import InvalidInput

JOIN_S = 2.0
"""How long a connection may take to be accepted."""
CLOSE_S = 0.25
"""How long a connection may take to send its rest at the end."""
PENDING_LIMIT = 256

log = logging.getLogger("dandelion.cluster")


def bound_socket(listen: str) -> socket.socket:
    """Open the socket that others connect to.

    Raises:
        InvalidInput: the address cannot be listened on.
    """
    host, port = parsed_address("cluster_listen", listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(128)
    except OSError as error:
        opened.close()
        message = f"cannot listen on {listen}: {error.strerror or error}"
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = (
                "another program, perhaps another node, listens there; end it, or give another port"
            )
        raise InvalidInput("cluster_listen", message, hint) from None
    opened.setblocking(False)
    return opened


class Acceptance(Protocol):
    """What accepting needs of the cluster."""

    name: str
    incarnation: int
    voters: tuple[str, ...]

    def admits(self, name: str, incarnation: int) -> bool:
        """Whether a link of a node is accepted."""

    def accepted(self, link: InLink) -> None:
        """A node opened a link."""


class Door:
    """Accepts connections, and opens them.

    Args:
        settings: of the cluster.
        side: decides whom to accept.
        host: what links need.
        exchange: makes the exchange of a link to a node.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        side: Acceptance,
        host: Host,
        exchange: Callable[[str], Exchange],
    ) -> None:
        self._secret = settings.secret
        self._accepting, self._opening = settings.contexts()
        self._side = side
        self._host = host
        self._exchange = exchange
        self._server: asyncio.Server | None = None
        self._pending: dict[Frames, asyncio.TimerHandle] = {}
        self._links: dict[tuple[str, int], InLink] = {}
        self._count = 0
        self._open: set[Frames] = set()
        if self._accepting is not None:
            self._accepting.sslobject_class = ReportingTls

    # --- accepting --------------------------------------------------------------------------------

    async def listen(self, opened: socket.socket) -> None:
        """Accept connections on a socket, which belongs to this from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept,
            sock=opened,
            ssl=self._accepting,
            ssl_handshake_timeout=None if self._accepting is None else JOIN_S,
            start_serving=True,
        )

    def close(self) -> None:
        """Accept nothing any more."""
        if self._server is not None:
            self._server.close()
        for frames in list(self._pending):
            frames.close("the node shuts down")

    async def wait_closed(self) -> None:
        """Wait until all connections have ended; after `CLOSE_S` they are ended."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + CLOSE_S
        while self._open:
            if loop.time() > end_s:
                for frames in list(self._open):
                    frames.close("the node shuts down")
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)

    def _accept(self) -> Frames:
        frames = Frames(self._secret, False, self._open)
        if len(self._pending) >= PENDING_LIMIT:
            self._give_up(next(iter(self._pending)), "too many connections wait")
        loop = asyncio.get_running_loop()
        late = loop.call_later(JOIN_S, self._give_up, frames, "it did not join in time")
        self._pending[frames] = late
        frames.lost = partial(self._pending_lost, frames)
        frames.received = partial(self._join, frames)
        frames.sink = _no_data
        return frames

    def _give_up(self, frames: Frames, reason: str) -> None:
        """End a connection that has not joined. With TLS it may not have begun, and never begin."""
        self._admitted(frames)
        frames.close(reason)

    def _pending_lost(self, frames: Frames, reason: str) -> None:
        self._admitted(frames)
        if reason and not frames.is_proved:
            log.warning("a connection was not accepted: %s", reason)

    def _admitted(self, frames: Frames) -> None:
        late = self._pending.pop(frames, None)
        if late is not None:
            late.cancel()

    def _join(self, frames: Frames, message: Message, data: memoryview | None) -> None:
        if not isinstance(message, Join):
            raise BadPeer(f"it began with {type(message).__name__}")
        refusal = self._refusal(message)
        if refusal:
            frames.send(Refuse(refusal))
            frames.close(refusal, politely=True)
            return
        self._admitted(frames)
        key = (message.node, message.link)
        if message.data:
            self._attach(frames, self._links[key])
        else:
            link = InLink(message.node, frames, self._exchange(message.node), self._host)
            self._links[key] = link
            frames.received = link.received
            frames.sink = _heap
            frames.lost = partial(self._lost, key, link)
            self._side.accepted(link)
        side = self._side
        frames.send(Welcome(side.name, side.incarnation, self._host.load(0)))

    def _refusal(self, message: Join) -> str:
        """Return why a connection is not accepted; empty if it is."""
        if message.version != VERSION:
            return f"this node speaks version {VERSION} of the protocol, not {message.version}"
        if message.expected != self._side.name:
            return f"this node is {self._side.name}, not {message.expected}"
        if message.voters != self._side.voters:
            own, other = _kept_by(self._side.voters), _kept_by(message.voters)
            return f"{self._side.name} has {own}, the other node {other}; all nodes need the same"
        if message.node == self._side.name:
            return "it has the name of this node"
        key = (message.node, message.link)
        if message.data:
            link = self._links.get(key)
            if link is None or link.exchange.is_attached:
                return "there is no such link, or it has its connection for data"
            return ""
        if key in self._links:
            return "there is such a link already"
        if not self._side.admits(message.node, message.incarnation):
            return f"a newer incarnation of {message.node} is known"
        return ""

    def _attach(self, frames: Frames, link: InLink) -> None:
        frames.lost = link.close
        link.exchange.attach(frames)

    def _lost(self, key: tuple[str, int], link: InLink, reason: str) -> None:
        self._links.pop(key, None)
        link.close(reason)

    # --- opening ----------------------------------------------------------------------------------

    async def open(self, name: str) -> tuple[OutLink, int, Load]:
        """Open a link.

        Returns:
            The link, the incarnation of the other node, and what that has.

        Raises:
            OSError, TimeoutError, BadPeer: it cannot be opened.
        """
        self._count += 1
        number = self._count
        link: OutLink | None = None
        control: Frames | None = None
        try:
            async with asyncio.timeout(JOIN_S):
                control, welcome = await self._open_one(name, number, data=False)
                link = OutLink(name, control, self._exchange(name), self._host)
                control.received, control.sink, control.lost = link.received, _heap, link.close
                data, _ = await self._open_one(name, number, data=True)
                data.lost = link.close
                link.exchange.attach(data)
        except BaseException:
            if link is not None:
                link.close("it could not be opened")
            elif control is not None:
                control.close("it could not be opened")
            raise
        if link.closed or not (control.is_open and data.is_open):
            link.close("it could not be opened")
            raise BadPeer("it was closed while it was opened")
        return link, welcome.incarnation, welcome.load

    async def _open_one(self, name: str, link: int, data: bool) -> tuple[Frames, Welcome]:
        loop = asyncio.get_running_loop()
        host, port = parsed_address("peers", name)
        welcomed: asyncio.Future[Welcome] = loop.create_future()
        frames = Frames(self._secret, True, self._open)

        def proved() -> None:
            side = self._side
            mine = (side.name, side.incarnation)
            frames.send(Join(VERSION, *mine, name, link, data, side.voters))

        def received(message: Message, more: memoryview | None) -> None:
            if welcomed.done():
                return  # a vote, which is lost: it is sent again
            if isinstance(message, Refuse):
                raise BadPeer(f"{name} refused: {message.reason[:500]}")
            if not isinstance(message, Welcome) or message.node != name:
                raise BadPeer(f"{name} did not answer as a node does")
            welcomed.set_result(message)

        def lost(reason: str) -> None:
            if not welcomed.done():
                welcomed.set_exception(BadPeer(reason))

        frames.proved, frames.received, frames.lost = proved, received, lost
        frames.sink = _no_data
        try:
            await loop.create_connection(lambda: frames, host, port, ssl=self._opening)
            return frames, await welcomed
        except ssl.SSLError as error:
            raise BadPeer(tls_reason(error)) from None
        except (BadPeer, ConnectionError) as error:
            if (
                self._opening is None
                or frames.is_proved
                or isinstance(error, ConnectionRefusedError)
            ):
                raise
            hint = "it may refuse this node's certificate, or have none; its log says why"
            raise BadPeer(f"{str(error) or 'the connection was closed'}; {hint}") from None
        finally:
            if not welcomed.done() or welcomed.cancelled():
                frames.close("it was not needed")
            elif welcomed.exception() is not None:
                with contextlib.suppress(BadPeer):
                    welcomed.result()


class ReportingTls(ssl.SSLObject):
    """Tells why TLS could not begin on a connection that is accepted: the loop would not."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.warning("a connection was not accepted: %s", tls_reason(error))
            raise


def tls_reason(error: Exception) -> str:
    """Tell why TLS could not begin, in words."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate of the other node is refused: {error.verify_message}"
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in text:
        return "TLS: the other node shows no certificate"
    if "WRONG_VERSION" in text or "HTTP_REQUEST" in text or "UNEXPECTED_MESSAGE" in text:
        return "TLS: the other node does not speak TLS; give it certificates, too"
    return f"TLS: {text}"


def _no_data(message: Message, size: int) -> memoryview:
    raise BadPeer(f"{type(message).__name__} has data")


def _heap(message: Message, size: int) -> memoryview:
    return memoryview(bytearray(size))


def _kept_by(voters: Sequence[str]) -> str:
    """Say what keeps a catalogue: the peers, or a store that takes their place."""
    listed = ", ".join(voters)
    return f"the {listed}" if listed.startswith("store ") else f"the peers {listed}"
