"""Where a client sends its requests, and what requests and responses are."""

from __future__ import annotations

import re
import ssl
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from dandelion.data import Bytes
from dandelion.errors import InvalidInput
from dandelion.frontend.client_tls import Tls, tls_context
from dandelion.priority import shown

T = TypeVar("T")
URL = "http://127.0.0.1:8080"
TIMEOUT_S = 75.0
SECONDS_LIMIT = 10**9
"""Longest time-out; more does not fit the clock of every system."""
CONNECTIONS = 100
_JOIN_BYTES = 64 * 1024
"""Bodies up to this size are joined."""
_PIECE_BYTES = 1024 * 1024
"""Larger bodies are sent in pieces of this size at most, each within the time-out."""
POLL_S = 0.05
"""Interval of the requests of `ready`, in seconds."""
NO_MEMORY = "there is no memory for a response of the stated size"
"""Why a response cannot be received, for `Unreachable`."""
CUT = "the connection broke in the middle of the response"
NOT_HTTP = "the answer is not valid HTTP"
AUTOMATIC_HEADERS = ("Accept-Encoding", "User-Agent")
"""Headers that HTTP libraries add and that a node does not use."""

_HOST = re.compile(r"[^\x00-\x20\x7f]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class ClientTarget:
    """Where a client sends its requests, and how.

    Attributes:
        url: as the caller gave it, for messages.
        secure: whether over TLS.
        host, port: of the node; no port means that of the scheme.
        path: is put before the path of each request.
        timeout_s: how long a request may go without progress, in seconds.
        headers: additional headers of each request, also the token.
        tls: of connections over TLS; None without it.
        connections: how many connections there may be; further requests wait for one.
    """

    url: str
    secure: bool
    host: str
    port: int | None
    path: str
    timeout_s: float
    headers: Mapping[str, str] = field(repr=False)
    connections: int
    tls: ssl.SSLContext | None

    @classmethod
    def of(
        cls,
        url: str,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        connections: int,
        token: str | None,
        tls: Tls,
    ) -> ClientTarget:
        """Check what a caller gave. No error contains the token or the value of a header.

        Raises:
            InvalidInput: the URL is not that of a node, the token or a header is malformed, the
                certificates cannot be read, `timeout_s` is not one that `check_seconds` accepts,
                `connections` is not positive, or a value has a wrong type.
        """
        if not isinstance(url, str):
            hint = "write it like http://127.0.0.1:8080"
            raise InvalidInput("url", f"{shown(url)} is not a text", hint)
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")  # else connecting raises what is no OSError
        except ValueError as error:
            raise InvalidInput("url", f"'{url}': {error}") from None
        if "@" in parts.netloc:
            hint = "give a token with token="
            raise InvalidInput("url", "it has a user or password, which a node does not use", hint)
        has_more = parts.query or parts.fragment
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or has_more:
            hint = "write it like http://127.0.0.1:8080"
            raise InvalidInput("url", f"'{url}' is not the URL of a node", hint)
        given = checked_headers({} if headers is None else headers, token)
        check_seconds("timeout_s", timeout_s)
        if not isinstance(connections, int) or isinstance(connections, bool) or connections < 1:
            raise InvalidInput("connections", f"{shown(connections)} is not a positive integer")
        path = parts.path.rstrip("/")
        url = url.rstrip("/")
        secure = parts.scheme == "https"
        context = tls_context(tls) if secure else None
        return cls(url, secure, host, port, path, timeout_s, given, connections, context)


def closed_connection(*, has_answered: bool) -> str:
    """Say that a connection was closed, by a server that has answered other requests or not."""
    end = "before it answered" if has_answered else "without an answer"
    return f"the server closed the connection {end}"


def check_seconds(where: str, seconds: float) -> None:
    """Refuse a time that sockets cannot wait for.

    Raises:
        InvalidInput: it is not a positive number up to `SECONDS_LIMIT`.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 < seconds <= SECONDS_LIMIT):
        message = f"{shown(seconds)} is not a number of seconds from 0 to {SECONDS_LIMIT}"
        raise InvalidInput(where, message, "for a very long time, give a day: 86400")


def checked_headers(headers: Mapping[str, str], token: str | None) -> dict[str, str]:
    """Return headers with the token.

    Raises:
        InvalidInput: one is malformed; the error has no value and no token.
    """
    if not isinstance(headers, Mapping):
        hint = 'write {"name": "value"}'
        raise InvalidInput("headers", f"expected a mapping, found {type(headers).__name__}", hint)
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidInput("headers", f"{name!r} or its value is not a text")
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise InvalidInput("headers", f"{name!r} or its value is not valid in HTTP")
    if token is None:
        return dict(headers)
    if any(name.lower() == "authorization" for name in headers):
        raise InvalidInput("token", "the headers have an Authorization, too", "give one of them")
    hint = "give what `dandelion token new` printed, without spaces and line breaks"
    if not isinstance(token, str):
        raise InvalidInput("token", f"expected a text, found {type(token).__name__}", hint)
    if _TOKEN.fullmatch(token) is None:
        raise InvalidInput("token", "it has characters that no token has", hint)
    return {**headers, "Authorization": f"Bearer {token}"}


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request to a node.

    Attributes:
        method, path, headers: of the request; Content-Length is added.
        chunks: the body in pieces. Large ones are sent without a copy.
        timeout_s: time-out in seconds, instead of that of the client.
        sent: is told how many bytes of a large body were given to the connection.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Sequence[Bytes] = ()
    timeout_s: float | None = None
    sent: Callable[[int], None] | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the body."""
        return sum(map(len, self.chunks))

    @property
    def small_body(self) -> bytes | None:
        """The whole body; None if it is too large to be joined."""
        return b"".join(self.chunks) if self.size_bytes <= _JOIN_BYTES else None

    def pieces(self) -> Iterator[memoryview]:
        """Cut the body into pieces, without copying it."""
        done_bytes = 0
        for chunk in self.chunks:
            view = memoryview(chunk)
            for start in range(0, len(view), _PIECE_BYTES):
                yield view[start : start + _PIECE_BYTES]
                done_bytes += min(_PIECE_BYTES, len(view) - start)
                if self.sent is not None:
                    self.sent(done_bytes)


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """The response of a node.

    Attributes:
        url: of the client, for messages.
        status: the HTTP status.
        body: the whole body, read-only.
        location: where a redirect leads.
    """

    url: str
    status: int
    body: memoryview
    location: str = ""


Steps: TypeAlias = Generator[ClientRequest, ClientResponse, T]
"""Yields requests, is sent their responses, returns a result."""
