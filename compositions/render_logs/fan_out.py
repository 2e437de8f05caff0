"""Compute function `fan_out`: a grant becomes a request for each log server. It runs in a sandbox.

A grant is JSON: ``{"reader": NAME, "ticket": TEXT, "servers": [{"name": NAME, "url": URL}]}``. Log
servers get the ticket, never the token.
"""

import json
import re
import urllib.parse
from typing import Any

from dandelion.data import Item

REFUSALS = ("401", "403")


def fan_out(reply: Any, grant: Any, topic: Any) -> dict[str, Any]:
    """Make a request for each server in the grant, or return the refusal.

    Args:
        reply: headers of the authority's answer.
        grant: its body.
        topic: of the logs.

    Returns:
        set `requests`: an HTTP request for each server; name and key are its name and its index in
        the grant. Set `reader`: the name of the token's owner. If the token was refused, only set
        `refusal`: status and reason in one line.
    """
    _, _, status = reply.text().partition("\n")[0].partition(" ")
    if status[:3] in REFUSALS:
        return {"refusal": f"{status}: {grant.text().strip()}"}
    if status[:3] != "200":
        raise ValueError(f"the authority answered {status!r}")
    granted = json.loads(grant.bytes())
    ticket = checked("ticket", r"[!-~]+", granted["ticket"])
    query = urllib.parse.quote(topic.text(), safe="")
    requests = [
        Item(server["name"], place, request(server["url"], query, ticket))
        for place, server in enumerate(granted["servers"])
    ]
    return {"requests": requests, "reader": granted["reader"]}


def request(url: str, query: str, ticket: str) -> bytes:
    """Write the request for one server."""
    address = checked("url", r"https?://[!-~]+", url)
    return f"GET {address}?topic={query} HTTP/1.1\nauthorization: Ticket {ticket}\n\n".encode()


def checked(field: str, pattern: str, value: Any) -> str:
    """Refuse a value that does not fit on its line of a request."""
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f"the grant's {field} is {value!r:.80}")
    return value
