"""Which requests are served: checks of the Host and Origin headers.

A node without tokens trusts every program of its machine. But a browser on that machine runs
untrusted pages, and two checks refuse their requests:

- **Host.** A page can point its own host name at the address of the node (DNS rebinding). The
  browser then treats both as one origin, but the request still names the host of the page. Only
  requests that name the node are served. An IP address cannot be rebound.
- **Origin.** A page can send requests to another origin without a preflight if they look like a
  form. The browser names the page in `Origin`, or at least sets `Sec-Fetch-Site`. Only requests of
  the node's own pages and of the listed origins are served.

Programs that are not browsers send neither `Origin` nor `Sec-Fetch-Site`.

Source: RFC 9110, 7.2 (Host); RFC 6454 (Origin); W3C Fetch Metadata Request Headers; WHATWG Fetch,
3.2 (CORS protocol).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import Header, Request, Response, clipped
from dandelion.frontend.problem import ForeignHost, ForeignOrigin

ANY_HOST = "*"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Served under any host name and to any page: they only report that the node is up."""

_HOST = r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s\[\]/?#@:,\\*]+))(?::(?P<port>\d{0,5}))?"
_HOST_HEADER = re.compile(_HOST)
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://" + _HOST)
_PORTS = {"http": 80, "https": 443}
_KNOWN_LIMIT = 1024
_PREFLIGHT_AGE_S = 600
_ALLOWED_HEADERS = (
    "authorization content-type accept dandelion-deadline dandelion-priority dandelion-dtype "
    "dandelion-shape traceparent tracestate prefer idempotency-key dandelion-callback last-event-id"
)
_PREFLIGHT = (
    (b"access-control-allow-headers", ", ".join(_ALLOWED_HEADERS.split()).encode()),
    (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
)
_EXPOSED_HEADERS = (
    "dandelion-invocation dandelion-dtype dandelion-shape retry-after traceparent location "
    "preference-applied"
)
_EXPOSED = (
    b"access-control-expose-headers",
    ", ".join(_EXPOSED_HEADERS.split()).encode(),
)
_VARY = (b"vary", b"origin")

_Origin: TypeAlias = tuple[str, str, int | None]
"""Scheme, host and port; the scheme's default port is None."""
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Access:
    """Decides whether a request is served.

    Args:
        bound: host names and addresses that the node listens on. A wildcard address (``0.0.0.0``,
            ``::``) accepts every IP address as the node's.
        hosts: further names, without ports; ``*`` accepts all.
        cors_origins: origins of pages that may call, such as ``https://app.example.org``.

    Raises:
        InvalidInput: an entry of `hosts` or `cors_origins` cannot be one.
    """

    def __init__(
        self, bound: Iterable[str], hosts: Sequence[str] = (), cors_origins: Sequence[str] = ()
    ) -> None:
        self._any_host = ANY_HOST in hosts
        self._origins = frozenset(map(_listed_origin, cors_origins))
        names = [*bound, *(_listed_host(host) for host in hosts if host != ANY_HOST)]
        addresses = [address for name in names if (address := _address(name)) is not None]
        self._any_address = any(address.is_unspecified for address in addresses)
        self._names = frozenset({"localhost", *map(_normal, names)})
        self._known: set[bytes] = set()  # Host headers that were accepted

    def check(self, request: Request) -> None:
        """Refuse a request that names another host or comes from a page of another origin.

        Headers that allow the page to read the response are added to `request.response_headers`.

        Raises:
            InvalidInput: the Host header is missing, repeated or malformed.
            ForeignHost: the Host header is not a name of this node.
            ForeignOrigin: the page's origin is not allowed.
        """
        headers = request.headers
        host = headers.get(b"host")
        if host not in self._known or len(headers) != len(request.scope["headers"]):
            self._check_host(request, host)
        if self._origins:
            request.response_headers.append(_VARY)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_origin(request)

    def _check_host(self, request: Request, host: bytes | None) -> None:
        if request.path in OPEN_PATHS:
            return
        given = [value for name, value in request.scope["headers"] if name == b"host"]
        if len(given) > 1:
            raise InvalidInput("header.host", "it is given more than once")
        if not host:
            if request.scope.get("http_version") == "1.0" and host is None:
                return  # browsers do not use HTTP/1.0
            raise InvalidInput("header.host", "it is missing")
        text = host.decode("latin-1")
        match = _HOST_HEADER.fullmatch(text)
        if match is None:
            raise InvalidInput("header.host", f"'{clipped(text)}' is not HOST or HOST:PORT")
        if not self._accepts(match):
            raise ForeignHost(clipped(text))
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        self._known.add(host)

    def _accepts(self, match: re.Match[str]) -> bool:
        name = _normal(match["ipv6"] or match["name"])
        if self._any_host or name in self._names:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or self._any_address)

    def _check_origin(self, request: Request) -> None:
        text = request.header(b"origin")
        if not text:
            if _is_foreign_load(request) and request.path not in OPEN_PATHS:
                raise ForeignOrigin(request.header(b"sec-fetch-site"))
            return
        origin = _origin(text)
        if origin in self._origins:
            request.response_headers += [
                (b"access-control-allow-origin", text.encode("latin-1")),
                _EXPOSED,
            ]
        elif origin is None or not _is_own(origin, request.header(b"host")):
            if not self._origins:
                request.response_headers.append(_VARY)
            if request.path not in OPEN_PATHS:
                raise ForeignOrigin(clipped(text))

    def is_preflight(self, request: Request) -> bool:
        """Return whether this is the preflight of a listed page."""
        if request.method != "OPTIONS" or b"access-control-request-method" not in request.headers:
            return False
        return _origin(request.header(b"origin")) in self._origins


def preflight_response(methods: Iterable[str]) -> Response:
    """Respond to a preflight with the methods and headers that a listed page may use."""
    allowed: Header = (b"access-control-allow-methods", ", ".join(methods).encode())
    return Response([b""], b"text/plain", 200, [allowed, *_PREFLIGHT])


def _is_foreign_load(request: Request) -> bool:
    """Return whether a page of another origin loads this. Following a link does not count."""
    if request.header(b"sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    followed = (
        request.method in ("GET", "HEAD")
        and request.header(b"sec-fetch-mode") == "navigate"
        and request.header(b"sec-fetch-dest") == "document"
    )
    return not followed


def _is_own(origin: _Origin, host: str) -> bool:
    """Return whether an origin is the one that the request was sent to."""
    own = _origin(f"{origin[0]}://{host}")
    return origin[0] in _PORTS and own == origin


def _origin(text: str) -> _Origin | None:
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else None
    return (
        scheme,
        _normal(match["ipv6"] or match["name"]),
        None if port == _PORTS.get(scheme) else port,
    )


def _normal(name: str) -> str:
    """Return the canonical spelling of a host name or address."""
    address = _address(name)
    return str(address) if address is not None else name.lower().removesuffix(".")


def _address(name: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _listed_host(text: str) -> str:
    match = _HOST_HEADER.fullmatch(text)
    if _address(text) is None and (match is None or match["port"] is not None):
        hint = "write a name or an address without scheme and port, such as node.example.org"
        raise InvalidInput("hosts", f"'{text}' is not a host name", hint)
    return text.strip("[]")


def _listed_origin(text: str) -> _Origin:
    origin = _origin(text)
    if origin is None:
        hint = "write SCHEME://HOST or SCHEME://HOST:PORT, such as https://app.example.org"
        raise InvalidInput("cors_origins", f"'{text}' is not an origin", hint)
    return origin
