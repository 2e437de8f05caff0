"""What an operator decides about outgoing HTTP."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dandelion.errors import InvalidInput, nearest

from .policy import Policy, read_policy


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the HTTP function.

    Attributes:
        policy: which addresses may be reached.
        concurrency: how many requests of all calls together are performed at the same time.
        connect_s: seconds for finding an address and connecting to it.
        retries: how often an idempotent request is repeated after its connection failed.
        redirects: how many redirects are followed.
    """

    policy: Policy = Policy()
    concurrency: int = 15
    connect_s: float = 10.0
    retries: int = 2
    redirects: int = 10


_LOWEST = {"concurrency": 1, "connect_s": 0.001, "retries": 0, "redirects": 0}


def read_settings(options: Mapping[str, str]) -> Settings:
    """Read settings as an operator writes them.

    Args:
        options: `Settings` by name, and instead of `policy`:
            ``allow``: addresses (``10.0.0.0/8``) and hosts (``*.example.org``) that may be reached
            though they are not public, separated by commas;
            ``public``: ``no`` leaves nothing but what ``allow`` names.

    Raises:
        InvalidInput: an option is unknown or its value cannot be read.
    """
    known = [*_LOWEST, "allow", "public"]
    for name in options:
        if name not in known:
            close = nearest(name, known)
            raise InvalidInput(
                f"options.http.{name}",
                "there is no such setting",
                f"did you mean '{close}'?" if close else f"there are {', '.join(known)}",
            )
    policy = read_policy(options.get("allow", ""), options.get("public", "yes"))
    numbers = {name: _number(name, options[name]) for name in _LOWEST if name in options}
    return msgspec.structs.replace(Settings(policy), **numbers)


def _number(name: str, text: str) -> int | float:
    try:
        value = float(text) if name.endswith("_s") else int(text)
    except ValueError:
        raise InvalidInput(f"options.http.{name}", f"'{text}' is no number") from None
    if not _LOWEST[name] <= value < 1e9:
        raise InvalidInput(f"options.http.{name}", f"{text} is too small or too large")
    return value
