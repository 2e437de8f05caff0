"""Reading the operator's settings of addresses; the policy itself is `dandelion.addresses`."""

from __future__ import annotations

import ipaddress
import re

from dandelion.addresses import AddressPolicy as AddressPolicy
from dandelion.addresses import Refused as Refused
from dandelion.errors import InvalidInput

SETTING = "the option 'http.allow'"
"""By which addresses are admitted, for errors."""

_PATTERN = re.compile(r"[a-z0-9_*.-]+")


class AnswerRefused(Refused):
    """A server's answer is refused, after the request was sent."""


def read_policy(allow: str, public: str) -> AddressPolicy:
    """Read the settings ``allow`` and ``public``; see `settings.read_settings`.

    Raises:
        InvalidInput: an entry is neither a network nor a pattern of names.
    """
    networks, hosts = [], []
    for entry in filter(None, (part.strip().lower() for part in allow.split(","))):
        try:
            networks.append(str(ipaddress.ip_network(entry)))
        except ValueError as error:
            if "/" in entry or not _PATTERN.fullmatch(entry):
                raise InvalidInput("options.http.allow", str(error)) from None
            hosts.append(entry)
    if public not in ("yes", "no"):
        raise InvalidInput("options.http.public", f"'{public}' is neither 'yes' nor 'no'")
    return AddressPolicy(tuple(networks), tuple(hosts), public == "yes", SETTING)
