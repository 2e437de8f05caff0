"""Which version of HTTP a new connection speaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeAlias

import uvicorn
from uvicorn.server import ServerState

from dandelion.errors import BackendUnavailable
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.heads import KnownHeads
from dandelion.frontend.protocol import Protocol
from dandelion.settings import Settings

ProtocolFactory: TypeAlias = Callable[[Newcomer], asyncio.Protocol]
_PREFACE = b"PRI * HTTP/2.0\r\n"


class NegotiatedProtocol(asyncio.Protocol):
    """The beginning of a TLS connection, which then has the protocol that was negotiated.

    Args:
        http1, http2: make the protocols.
    """

    def __init__(
        self, http1: Callable[[], asyncio.Protocol], http2: Callable[[], asyncio.Protocol]
    ) -> None:
        self._http1 = http1
        self._http2 = http2

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's
        """Replace this protocol."""
        tls = transport.get_extra_info("ssl_object")
        chosen = self._http2() if tls.selected_alpn_protocol() == "h2" else self._http1()
        transport.set_protocol(chosen)
        chosen.connection_made(transport)


def alpn_protocols(settings: Settings) -> list[str]:
    """Return the protocols that TLS offers, best first."""
    return ["h2", "http/1.1"] if settings.http2 else ["http/1.1"]


def protocol_factory(
    settings: Settings,
    config: uvicorn.Config,
    server_state: ServerState,
    *,
    has_tls: bool,
) -> ProtocolFactory:
    """Return what makes the protocol of a connection.

    Raises:
        BackendUnavailable: HTTP/2 is wanted, and the library h2 is not installed.
    """

    heads = KnownHeads()

    def http1(newcomer: Newcomer) -> asyncio.Protocol:
        return Protocol(config, server_state, heads, newcomer=newcomer)

    if not settings.http2:
        return http1
    check_http2(settings)
    from dandelion.frontend.http2 import Http2Protocol

    def http2(newcomer: Newcomer) -> asyncio.Protocol:
        return Http2Protocol(config, server_state, newcomer=newcomer)

    def either(newcomer: Newcomer) -> asyncio.Protocol:
        return http2(newcomer) if _begins_with_preface(newcomer.socket) else http1(newcomer)

    def negotiated(newcomer: Newcomer) -> asyncio.Protocol:
        return NegotiatedProtocol(lambda: http1(newcomer), lambda: http2(newcomer))

    return negotiated if has_tls else either


def check_http2(settings: Settings) -> None:
    """Refuse to serve HTTP/2 without its library.

    Raises:
        BackendUnavailable: with how to get it.
    """
    if not settings.http2:
        return
    try:
        import h2.connection  # noqa: F401
    except ModuleNotFoundError as error:
        remedy = "pip install 'dandelion-engine[http2]', or leave out http2"
        raise BackendUnavailable("http2", f"no module '{error.name}'", remedy) from None


def _begins_with_preface(connection: socket.socket) -> bool:
    try:
        return connection.recv(len(_PREFACE), socket.MSG_PEEK | socket.MSG_DONTWAIT) == _PREFACE
    except OSError:
        return False
