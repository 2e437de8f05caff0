"""The operator's settings of outgoing HTTP."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dandelion.errors import InvalidInput, nearest

from .policy import SETTING, AddressPolicy, read_policy

WHOLE_RESPONSE = "whole_response"
"""Option of a code object: the first output is head, empty line and body."""


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """HttpSettings of the HTTP function.

    Attributes:
        policy: which addresses may be reached.
        concurrency: how many requests of all calls together are sent at the same time.
        connect_s: seconds for resolving a name and connecting.
        retries: how often an idempotent request is repeated after its connection failed.
        redirects: how many redirects are followed.
        cache_bytes: memory for responses that may be used again; with 0 there is no cache.
        cache_entry_bytes: largest body that is stored there.
    """

    policy: AddressPolicy = AddressPolicy(setting=SETTING)
    concurrency: int = 15
    connect_s: float = 10.0
    retries: int = 2
    redirects: int = 10
    cache_bytes: int = 0
    cache_entry_bytes: int = 1 << 20


_LOWEST = {
    "concurrency": 1,
    "connect_s": 0.001,
    "retries": 0,
    "redirects": 0,
    "cache_bytes": 0,
    "cache_entry_bytes": 1,
}


def read_settings(options: Mapping[str, str]) -> HttpSettings:
    """Read settings as an operator writes them.

    Args:
        options: `HttpSettings` by name, and instead of `policy`:
            ``allow``: addresses (``10.0.0.0/8``) and hosts (``*.example.org``) that may be reached
            though they are not public, separated by commas;
            ``public``: ``no`` allows only what ``allow`` lists.

    Raises:
        InvalidInput: an option is unknown or its value cannot be read.
    """
    known = [*_LOWEST, "allow", "public"]
    for name in options:
        if name not in known:
            close = nearest(name, known)
            raise InvalidInput(
                f"options.http.{name}",
                "unknown setting",
                f"did you mean '{close}'?" if close else f"the settings are {', '.join(known)}",
            )
    policy = read_policy(options.get("allow", ""), options.get("public", "yes"))
    numbers = {name: _number(name, options[name]) for name in _LOWEST if name in options}
    return msgspec.structs.replace(HttpSettings(policy), **numbers)


def _number(name: str, text: str) -> int | float:
    try:
        value = float(text) if name.endswith("_s") else int(text)
    except ValueError:
        raise InvalidInput(f"options.http.{name}", f"'{text}' is not a number") from None
    most = 1e12 if name == "cache_bytes" else 1e9
    if not _LOWEST[name] <= value < most:
        raise InvalidInput(f"options.http.{name}", f"{text} is too small or too large")
    return value
