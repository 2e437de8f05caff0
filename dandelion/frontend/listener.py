"""The listening socket of a server. Without tokens it is one that other machines cannot reach."""

from __future__ import annotations

import errno
import ipaddress
import socket

from dandelion.errors import InvalidInput
from dandelion.settings import Settings

BACKLOG = 65535
"""The kernel reduces it to its own limit."""


def bind(host: str, port: int, settings: Settings) -> socket.socket:
    """Open the listening socket.

    Raises:
        InvalidInput: the address does not belong to this machine, is in use or not permitted; or
            other machines reach it and callers need no token.
    """
    bound = _bound(host, port, settings)
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise refused(host, port, error) from None
    return bound


def reserve(host: str, port: int, settings: Settings) -> socket.socket:
    """Bind an address, for another process of this user to listen on.

    It has SO_REUSEPORT, which a socket of another program that asks for the port does not see
    before it is refused; see `dandelion.frontend_process.listeners`. Raises as `bind`.
    """
    bound = _bound(host, port, settings)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return bound


def refused(host: str, port: int, error: OSError) -> InvalidInput:
    """Make the error for an address on which this process cannot listen."""
    hint = {
        errno.EADDRINUSE: "another program listens there; end it, or give --port, 0 for a free one",
        errno.EACCES: "give a --port from 1024 on",
        errno.EADDRNOTAVAIL: "give an address of this machine with --host",
    }
    message = f"cannot listen on {host}:{port}: {error.strerror}"
    return InvalidInput("host", message, hint.get(error.errno or 0, ""))


def _bound(host: str, port: int, settings: Settings) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise InvalidInput("host", f"{host}:{port}: {error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        check_exposure(settings, str(address[0]))
        bound.bind(address)
    except InvalidInput:
        bound.close()
        raise
    except OSError as error:
        bound.close()
        raise refused(host, port, error) from None
    return bound


def url_of(host: str, port: int, *, secure: bool = False) -> str:
    """Return the URL of an address."""
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_exposure(settings: Settings, address: str) -> None:
    """Refuse to listen without tokens on an address that other machines reach.

    Args:
        settings: of the node.
        address: the IP address that is to be listened on.

    Raises:
        InvalidInput: with what to do.
    """
    if settings.tokens and settings.allow_anonymous:
        hint = "remove one of the two"
        raise InvalidInput("allow_anonymous", "with tokens no caller is anonymous", hint)
    if settings.tokens or settings.allow_anonymous or _is_loopback(address):
        return
    raise InvalidInput(
        "host",
        f"every machine that reaches {address} could register and run functions",
        "make tokens with `dandelion token new` and set `tokens`, or listen on 127.0.0.1, or allow"
        " it with --insecure (allow_anonymous = true)",
    )


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
