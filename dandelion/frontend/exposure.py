"""Refuses settings under which strangers could use the node."""

from __future__ import annotations

import ipaddress

from dandelion.errors import InvalidInput
from dandelion.settings import Settings


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
