"""Reading requests of HTTP/1.1 from the bytes of a connection, with httptools.

A request may ask for another protocol (``Connection: upgrade``). The node serves no other one, so
it answers as if the request did not ask, as RFC 9110 allows. httptools stops behind the head of
such a request, since another protocol could follow; parsed as usual, the body would be the next
request. So the parser gets the part of the head that determines the body's end once more, without
the upgrade, and then the rest. CONNECT is refused, since what follows it has no end.

Trailers of a chunked body are discarded: as headers, they could change the meaning of a request
that was already checked.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, Protocol

import httptools
from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade

from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.asgi import FIELDS, Header, Message, clipped
from dandelion.frontend.cycle import Cycle
from dandelion.frontend.heads import head_scope
from dandelion.frontend.problem import HeadTooLong, NoTunnel, RequestError

HEAD_LIMIT_BYTES = 64 * 1024
"""Longest head of a request, see `RequestParser`."""
PIECE_BYTES = 4 * 1024
"""Input that is parsed at a time; it has at most some hundreds of requests."""
BODY_PIECE_BYTES = 64 * 1024
"""The same of a body whose length is known, so no request begins in it."""
_CODING = b"transfer-encoding"
_FRAMING = (b"content-length", _CODING)
_AUTHORITY = re.compile(rb"[^:/]+://(?:[^/?#]*@)?([^/?#]*)")
"""Host and port of an absolute URL."""


class ReceivesRequests(Protocol):
    """What requests are read for: a connection."""

    cycle: Cycle | None

    def begin_request(self, head: Message, *, keep_alive: bool, expects_continue: bool) -> None:
        """Take a head; sets `cycle`, which gets the body."""


class RequestParser:
    """Parses the input of one connection.

    The length of a head is limited, since the parser assembles long heads in quadratic time. Input
    is parsed in pieces. The pieces that one head is in count, if they end within it, so up to one
    piece more than the limit is held. Heads that are complete no longer count.

    Args:
        connection: gets the requests. The parser refers to it until `close`.

    Attributes:
        in_head: the head of a request is not complete.
        in_body: the body of a request is not complete.
    """

    __slots__ = (
        "_connection",
        "_framing",
        "_head_bytes",
        "_headers",
        "_left_bytes",
        "_parser",
        "_url",
        "in_body",
        "in_head",
    )

    def __init__(self, connection: ReceivesRequests) -> None:
        self._connection = connection
        self._parser = httptools.HttpRequestParser(self)
        # A request is answered although the client has closed its half of the connection.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._url = b""
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._left_bytes = 0  # of a body whose length is known
        self._framing: bytes | None = None
        self.in_head = False
        self.in_body = False

    def close(self) -> None:
        """Parse no more; breaks the reference cycle."""
        self._parser = None  # type: ignore[assignment]  # nothing is parsed from here on

    @property
    def piece_bytes(self) -> int:
        """How much may be parsed next."""
        if self.in_body and self._left_bytes > PIECE_BYTES:
            return min(self._left_bytes, BODY_PIECE_BYTES)
        return PIECE_BYTES

    @property
    def in_open_body(self) -> bool:
        """Whether the body of a request is not complete, and its end is not known."""
        return self.in_body and self._left_bytes <= 0

    def parse(self, piece: Any) -> None:
        """Parse a piece of `piece_bytes` or less.

        Raises:
            RequestError, InvalidInput: the connection cannot go on; see `problem`.
        """
        self._feed(piece)
        if not (self.in_head or self.in_body):
            self._head_bytes = 0
            return
        self._head_bytes += len(piece)
        if self._head_bytes > HEAD_LIMIT_BYTES + PIECE_BYTES:
            raise HeadTooLong(HEAD_LIMIT_BYTES)

    def _feed(self, piece: Any) -> None:
        """Parse a piece; an upgrade is ignored."""
        at = 0
        try:
            while True:
                try:
                    return self._parser.feed_data(memoryview(piece)[at:] if at else piece)
                except HttpParserUpgrade as stopped:
                    at += stopped.args[0]
                    if self._framing is not None:
                        self._parser.feed_data(self._framing)
        except HttpParserError as error:
            raise _reason(error) from None

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of a head."""
        self.in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Called by the parser with a part of the target of a request."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser with a header, or with a trailer."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of a head, and of the part of it that is repeated."""
        self.in_head = False
        self.in_body = True
        self._head_bytes = 0
        if self._framing is not None:
            self._framing = None
            return
        parser = self._parser
        if parser.should_upgrade():
            self._framing = self._framing_again()
        version = parser.get_http_version()
        url = httptools.parse_url(self._url)
        if url.host is not None:  # it counts in place of the header: RFC 9112, 3.2.2
            named = _AUTHORITY.match(self._url)
            authority = b"" if named is None else named[1]
            self._headers = [(n, authority if n == b"host" else v) for n, v in self._headers]
        path = url.path.decode("ascii")
        head = head_scope(
            version,
            parser.get_method().decode("ascii"),
            urllib.parse.unquote(path) if "%" in path else path,
            url.path,
            url.query or b"",
            self._headers,
        )
        if _CODING in head[FIELDS]:
            _check_coding(self._headers)
        length = head[FIELDS].get(b"content-length")
        self._left_bytes = 0 if length is None else int(length)
        self._headers = []  # for trailers
        self._connection.begin_request(
            head,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=head[FIELDS].get(b"expect", b"").lower() == b"100-continue",
        )

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a part of a body."""
        self._head_bytes = 0
        self._left_bytes -= len(body)
        assert self._connection.cycle is not None, "its head is complete"
        self._connection.cycle.feed(body)

    def _framing_again(self) -> bytes:
        """Return a head with the same body as the current one, without its upgrade.

        Raises:
            NoTunnel: the method is CONNECT.
        """
        if self._parser.get_method() == b"CONNECT":
            raise NoTunnel
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] in _FRAMING]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of a request, and where it stops at an upgrade."""
        if self._framing is not None:
            return
        self.in_body = False
        assert self._connection.cycle is not None, "its head is complete"
        self._connection.cycle.end_body()


def _check_coding(headers: list[Header]) -> None:
    """Refuse transfer codings before the chunks, which the parser leaves in the body.

    Raises:
        InvalidInput: there is one.
    """
    codings = b", ".join([value for name, value in headers if name == _CODING])
    if codings.strip().lower() != b"chunked":
        given = clipped(codings.decode("latin-1"))
        raise InvalidInput("header.transfer-encoding", f"'{given}'", "send chunked alone")


def _reason(error: HttpParserError) -> DandelionError:
    """Return why a request is refused. The caller has no variable for it: that would be a cycle."""
    cause = error.__context__
    if isinstance(cause, RequestError | InvalidInput):
        return cause
    if isinstance(error, HttpParserInvalidMethodError):  # it has not read the path, so no 405
        message = "it does not begin with a method that the node knows"
        return InvalidInput(
            "request", message, "send it in plain HTTP/1.1, with a method such as GET or POST"
        )
    return InvalidInput("request", "not valid HTTP/1.1")
