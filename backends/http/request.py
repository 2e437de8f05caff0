r"""Items to requests, and responses to items.

A request item is text with lines that end with LF (CRLF will do), then the body, byte for byte::

    POST http://example.org/path HTTP/1.1
    content-type: text/plain

    the body

Headers and body are optional. The headers item of the response is a status line and ``name:value``
lines, each ended by LF, names in lower case, without a final empty line.

Source: the format of the HTTP function of Dandelion, which this one can replace.
"""

from __future__ import annotations

import base64
import http
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes

from yarl import URL

from dandelion.data import Bytes
from dandelion.trace_context import TraceContext

from .policy import AnswerRefused, Refused

HEAD_LIMIT_BYTES = 64 * 1024
IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_VERSIONS = frozenset({"HTTP/0.9", "HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PLAIN_URL = re.compile(r"[!#-;=?-\[\]_a-z~]+")  # needs no quoting
_FRAMING = frozenset(
    {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"}
)
_OF_ORIGIN = frozenset({"host", "authorization", "cookie", "proxy-authorization"})
_OF_BODY = frozenset({"content-type", "content-encoding", "content-language", "content-location"})


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. The platform frames it: it has no headers for connection or length.

    Names of headers are in lower case, so that repeated ones are detected. User and password of the
    URL have become the header ``authorization``.
    """

    method: str
    url: URL
    headers: tuple[tuple[str, str], ...] = ()
    body: Bytes = b""

    def traced(self, context: TraceContext | None) -> HttpRequest:
        """Return the request with a trace context, unless it has one of its own."""
        if context is None or any(name == "traceparent" for name, _ in self.headers):
            return self
        kept = _without(self.headers, {"tracestate"})  # it belongs to a traceparent
        added = [("traceparent", context.traceparent)]
        if context.state:
            added.append(("tracestate", context.state))
        return replace(self, headers=(*kept, *added))

    def redirected(self, status: int, location: str) -> HttpRequest:
        """Return the request of a redirect.

        As in browsers, all but 307 and 308 become GET; credentials are not sent to other origins,
        and those of the location replace those of the request.

        Raises:
            AnswerRefused: the location is not an HTTP URL.
        """
        try:
            url = self.url.join(read_url(location))
            _check_url(url)
            url, credentials = _without_user(url)
        except (ValueError, Refused) as error:
            raise AnswerRefused(f"a redirect to a bad address: {error}") from None
        dropped = {name for name, _ in credentials}
        if origin_of(url) != origin_of(self.url):
            dropped |= _OF_ORIGIN
        repeated = status in (307, 308) or self.method == "HEAD"
        if not repeated and not (status in (301, 302) and self.method != "POST"):
            dropped |= _OF_BODY
            return HttpRequest("GET", url, _without(self.headers, dropped) + credentials)
        return replace(self, url=url, headers=_without(self.headers, dropped) + credentials)


def read_request(data: Bytes) -> HttpRequest:
    """Read a request item.

    Raises:
        Refused: it does not have the form above; the text says what was expected.
    """
    head, body = _split(data)
    if not head:
        raise Refused("the item is empty; expected METHOD URL HTTP/1.1")
    method, url = _request_line(head[0])
    url, credentials = _without_user(url)
    headers = list(credentials)
    for line in head[1:]:
        name, value = _header(line)
        if name == "content-length":
            if value != str(len(body)):
                raise Refused(f"content-length is {value}, but the body has {len(body)} bytes")
        elif name == "transfer-encoding":
            raise Refused("the platform sets transfer-encoding; give the plain body")
        elif name == "host" and any(known == "host" for known, _ in headers):
            raise Refused("header 'host' appears twice; servers disagree on which one counts")
        elif name == "authorization" and credentials:
            raise Refused("both the URL and the header 'authorization' have credentials")
        elif name not in _FRAMING:
            headers.append((name, value))
    return HttpRequest(method, url, tuple(headers), body)


def read_url(text: str) -> URL:
    """Read a URL. One that needs no quoting is not changed: a signed URL must stay the same.

    Raises:
        ValueError: it is not valid.
    """
    url = URL(text, encoded=_PLAIN_URL.fullmatch(text) is not None)
    _ = url.port  # raises here, and not later, if it is out of range
    return url


def origin_of(url: URL) -> str:
    """Return scheme, host and port, the same for all spellings."""
    return f"{url.scheme}://{url.raw_host}:{url.port}".lower()


def head_item(
    version: tuple[int, int], status: int, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Write the headers item of a response."""
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [b"HTTP/%d.%d %d %s\n" % (*version, status, phrase.encode())]
    lines += [b"%s:%s\n" % (name.lower(), value) for name, value in headers]
    return b"".join(lines)


def _split(data: Bytes) -> tuple[list[bytes], Bytes]:
    start = bytes(data[:HEAD_LIMIT_BYTES])
    lines: list[bytes] = []
    position = 0
    while position < len(start):
        end = start.find(b"\n", position)
        if end < 0:
            if len(start) < len(data):
                raise Refused(f"no empty line within {HEAD_LIMIT_BYTES} bytes")
            lines.append(start[position:].removesuffix(b"\r"))
            return lines, b""
        line = start[position:end].removesuffix(b"\r")
        position = end + 1
        if not line and lines:
            return lines, memoryview(data)[position:]
        lines.append(line)
    if len(start) < len(data):
        raise Refused(f"no empty line within {HEAD_LIMIT_BYTES} bytes")
    return lines, b""


def _request_line(line: bytes) -> tuple[str, URL]:
    try:
        tokens = line.decode().split()
    except UnicodeDecodeError:
        raise Refused("the first line is not UTF-8") from None
    if len(tokens) < 3:
        raise Refused("the first line is not METHOD URL HTTP/1.1")
    method, address, version = tokens[:3]
    if not _TOKEN.fullmatch(method):
        raise Refused(f"'{method}' is not a method")
    method = method.upper()  # it is sent so, and decides about retries, redirects and the cache
    if method == "CONNECT":
        raise Refused("method CONNECT opens a tunnel; it is not supported")
    if version not in _VERSIONS:
        raise Refused(f"'{version}' is not a version of HTTP; expected HTTP/1.1")
    try:
        url = read_url(address)
    except ValueError as error:
        raise Refused(f"'{address}' is not a valid URL: {error}") from None
    _check_url(url)
    return method, url


def _check_url(url: URL) -> None:
    if url.scheme not in ("http", "https"):
        raise Refused(f"'{url}' does not begin with http:// or https://")
    if not url.raw_host:
        raise Refused(f"'{url}' has no host")


def _without_user(url: URL) -> tuple[URL, tuple[tuple[str, str], ...]]:
    """Return a URL without user and password, and the header for them.

    Source: RFC 7617 (Basic authentication), 2.
    """
    if url.raw_user is None and url.raw_password is None:
        return url, ()
    user, password = (unquote_to_bytes(part or "") for part in (url.raw_user, url.raw_password))
    pair = user + b":" + password
    if b":" in user or _CONTROL.search(pair.decode("latin-1")):
        raise Refused("the URL's user has a ':', or user or password has a control character")
    return url.with_user(None), (("authorization", f"Basic {base64.b64encode(pair).decode()}"),)


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon:
        raise Refused(f"header line {line[:80]!r} has no ':'")
    try:
        pair = name.decode("ascii").lower(), value.decode().strip(" \t")
    except UnicodeDecodeError:
        raise Refused(f"header line {line[:80]!r} is not UTF-8") from None
    if not _TOKEN.fullmatch(pair[0]):
        raise Refused(f"'{pair[0]}' is not a valid header name")
    if _CONTROL.search(pair[1]):
        raise Refused(f"header '{pair[0]}' has a control character")
    return pair


def _without(headers: tuple[tuple[str, str], ...], names: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers if name not in names)
