"""Heads of requests, and those that were parsed lately.

A client that keeps its connection sends the same head again and again. What the parser finds in it
depends on nothing but its bytes, so it is kept: a request that arrives in one piece with a known
head is not parsed again. Only the head counts: host, origin, token, right and rate of each request
are checked as always.

Heads that do not come again, or whose body the parser has to find, are not kept: longer ones, with
a trace context, with transfer coding, upgrades or expectations, of connections that are closed.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from dandelion.frontend.asgi import (
    FIELDS,
    WHOLE_RESPONSE,
    Header,
    Message,
    header_fields,
)
from dandelion.frontend.cycle import Cycle

KNOWN_HEADS = 1024
KNOWN_BYTES = 2048
"""Longest head that is kept."""
_END = b"\r\n\r\n"
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_OF_HEAD = (
    "type",
    "http_version",
    "method",
    "path",
    "raw_path",
    "query_string",
    "headers",
    FIELDS,
)
_NOT_KEPT = frozenset(
    (b"transfer-encoding", b"upgrade", b"expect", b"traceparent", b"idempotency-key")
)


def connection_scope(transport: asyncio.Transport) -> Message:
    """Make the part of an ASGI scope that depends on the connection only."""
    is_secure = transport.get_extra_info("sslcontext") is not None
    return {
        "asgi": _ASGI,
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "scheme": "https" if is_secure else "http",
        "root_path": "",
        "extensions": {WHOLE_RESPONSE: {}},
    }


def head_scope(
    http_version: str, method: str, path: str, raw_path: bytes, query: bytes, headers: list[Header]
) -> Message:
    """Make the part of an ASGI scope that depends on the head only."""
    return {
        "type": "http",
        "http_version": http_version,
        "method": method,
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": headers,
        FIELDS: header_fields(headers),
    }


class KnownHeads:
    """Heads by their bytes. One for each server."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Message, int]] = {}

    def find(self, data: bytes) -> tuple[Message, int] | None:
        """Find the head that a request begins with.

        Returns:
            Its part of the ASGI scope, and where the body begins; None if it is not known, or if
            `data` is not exactly one request with it.
        """
        end = data.find(_END, 0, KNOWN_BYTES) + len(_END)
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known[1]:
            return None
        return known[0], end

    def add(self, data: bytes, cycle: Cycle) -> None:
        """Keep the head of a request, if it may come again.

        Args:
            data: the whole request, and nothing else.
            cycle: the request, as the parser found it; not begun yet.
        """
        end = data.find(_END, 0, KNOWN_BYTES) + len(_END)
        scope = cycle.scope
        body_bytes = len(data) - end
        if end < len(_END) or not cycle.keep_alive or cycle.more_body:
            return
        if scope["http_version"] != "1.1" or not _NOT_KEPT.isdisjoint(scope[FIELDS]):
            return
        if int(scope[FIELDS].get(b"content-length", b"0")) != body_bytes:
            return
        if len(self._known) >= KNOWN_HEADS:
            self._known.clear()
        self._known[data[:end]] = {name: scope[name] for name in _OF_HEAD}, body_bytes
