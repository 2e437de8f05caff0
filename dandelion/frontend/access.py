"""Which requests are answered: the names of the node, and the pages that may call it.

There is no authentication, so a node on a loopback address trusts every program of its machine. A
browser on that machine runs pages of strangers, and two checks keep those out:

- **Host.** A page can give its own name the address of the node (DNS rebinding). The browser then
  takes both for one origin, but the request still names the page's host. Only names of the node are
  answered. An IP address cannot be rebound.
- **Origin.** A page can send requests to another origin without asking, as long as they look like a
  form. The browser names the page in `Origin`, or at least says `Sec-Fetch-Site`. Only the node's
  own pages and the listed origins are answered.

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
from dandelion.frontend.asgi import Exchange, Header, Reply, clipped
from dandelion.frontend.problem import ForeignHost, ForeignOrigin

ANY_HOST = "*"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered under any name and to any page: they say nothing but that the node is up."""

_HOST = r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s\[\]/?#@:,\\*]+))(?::(?P<port>\d{0,5}))?"
_HOST_HEADER = re.compile(_HOST)
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://" + _HOST)
_PORTS = {"http": 80, "https": 443}
_KNOWN_LIMIT = 1024
_PREFLIGHT_AGE_S = 600
_PREFLIGHT = (
    (
        b"access-control-allow-headers",
        b"content-type, accept, dandelion-deadline, dandelion-dtype, dandelion-shape, traceparent",
    ),
    (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
)
_EXPOSED = (
    b"access-control-expose-headers",
    b"dandelion-invocation, dandelion-dtype, dandelion-shape, retry-after, traceparent",
)
_VARY = (b"vary", b"origin")

_Origin: TypeAlias = tuple[str, str, int | None]
"""Scheme, host and port; the scheme's default port is None."""
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class Access:
    """Decides whether a request may be answered.

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
        self._known: set[bytes] = set()  # Host headers that were found to be right

    def check(self, exchange: Exchange) -> None:
        """Refuse a request that names another host, or comes from a page of another origin.

        Headers that let the page read the answer are put into `exchange.answer_headers`.

        Raises:
            InvalidInput: there is no Host, more than one, or it is malformed.
            ForeignHost, ForeignOrigin: as the names say.
        """
        headers = exchange.headers
        host = headers.get(b"host")
        if host not in self._known or len(headers) != len(exchange.scope["headers"]):
            self._check_host(exchange, host)
        if self._origins:
            exchange.answer_headers.append(_VARY)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._check_origin(exchange)

    def _check_host(self, exchange: Exchange, host: bytes | None) -> None:
        if exchange.path in OPEN_PATHS:
            return
        given = [value for name, value in exchange.scope["headers"] if name == b"host"]
        if len(given) > 1:
            raise InvalidInput("header.host", "there is more than one")
        if not host:
            if exchange.scope.get("http_version") == "1.0" and host is None:
                return  # no browser speaks HTTP/1.0
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

    def _check_origin(self, exchange: Exchange) -> None:
        text = exchange.header(b"origin")
        if not text:
            if _is_foreign_load(exchange) and exchange.path not in OPEN_PATHS:
                raise ForeignOrigin(exchange.header(b"sec-fetch-site"))
            return
        origin = _origin(text)
        if origin in self._origins:
            exchange.answer_headers += [
                (b"access-control-allow-origin", text.encode("latin-1")),
                _EXPOSED,
            ]
        elif origin is None or not _is_own(origin, exchange.header(b"host")):
            if not self._origins:
                exchange.answer_headers.append(_VARY)
            if exchange.path not in OPEN_PATHS:
                raise ForeignOrigin(clipped(text))

    def is_preflight(self, exchange: Exchange) -> bool:
        """Tell whether the browser of a listed page asks what the page may send."""
        if exchange.method != "OPTIONS" or b"access-control-request-method" not in exchange.headers:
            return False
        return _origin(exchange.header(b"origin")) in self._origins


def preflight_reply(methods: Iterable[str]) -> Reply:
    """Answer a preflight: which methods and headers a listed page may use on this path."""
    allowed: Header = (b"access-control-allow-methods", ", ".join(methods).encode())
    return Reply([b""], b"text/plain", 200, [allowed, *_PREFLIGHT])


def _is_foreign_load(exchange: Exchange) -> bool:
    """Tell whether a page of another origin loads this; following a link to it is no such load."""
    if exchange.header(b"sec-fetch-site") not in ("cross-site", "same-site"):
        return False
    followed = (
        exchange.method in ("GET", "HEAD")
        and exchange.header(b"sec-fetch-mode") == "navigate"
        and exchange.header(b"sec-fetch-dest") == "document"
    )
    return not followed


def _is_own(origin: _Origin, host: str) -> bool:
    """Tell whether an origin is the very place that the request was sent to."""
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
    """Give the one spelling of a host name or address."""
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
