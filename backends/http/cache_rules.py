"""When a response may be stored, used again, validated and dropped: RFC 9111, without I/O or clock.

The cache is a private one of each tenant. Choices that the RFC leaves open:

- only GET is answered from the cache; requests with a range or with conditions pass it by;
- only whole responses of the statuses in `STORED_STATUSES` are stored. Redirects are not;
- no freshness is guessed (section 4.2.2): without ``max-age`` or ``Expires`` a response is stored
  if it has a validator, and is validated before each use;
- a stale response is never used, not even if the request allows it with ``max-stale``;
- ``no-cache`` and ``private`` with names of fields count for the whole response;
- a response is used again only for requests with the same ``authorization``, ``cookie`` and
  ``host``, as if ``Vary`` named them: a tenant may act for several users of a service.

Times are seconds since 1970, given by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime

from yarl import URL

from .request import HttpRequest, head_item, origin_of, read_url

RawHeaders = Sequence[tuple[bytes, bytes]]

STORED_STATUSES = frozenset({200, 203, 204, 404, 405, 410, 414, 501})
"""Final statuses whose meaning for caches is known (section 3), without redirects."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_PASSING = frozenset(
    {"range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"}
)
_ALWAYS_SELECTING = frozenset({"authorization", "cookie", "host"})
_NOT_STORED = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"proxy-connection", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization"}
)
_NOT_UPDATED = frozenset({"content-length", "content-encoding", "content-range", "content-type"})
_WEAK = "W/"  # of an entity tag
_MOST_S = 2**31
_DIRECTIVE = re.compile(
    r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:[ \t]*=[ \t]*(\"(?:[^\"\\]|\\.)*\"|[^,]*))?"
)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response in the cache.

    Attributes:
        version, status, headers, body: as received; `headers` are without those of the connection.
        selecting: fields of the request that select it, with their values.
        requested_s, received_s: when its request was sent and its head had arrived.
    """

    version: tuple[int, int]
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    selecting: Mapping[str, str | None]
    requested_s: float
    received_s: float

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        return 512 + len(self.body) + sum(len(n) + len(v) + 160 for n, v in self.headers)


def passes_by(request: HttpRequest) -> bool:
    """Tell whether the cache has nothing to do with a request, except for invalidation."""
    if request.method != "GET" or len(request.body):
        return True
    return any(name in _PASSING for name, _ in request.headers) or "no-store" in _directives(
        request
    )


def only_if_cached(request: HttpRequest) -> bool:
    """Return whether a request accepts only an answer of the cache (section 5.2.1.7)."""
    return "only-if-cached" in _directives(request)


# --- section 3: storing -------------------------------------------------------------------------


def stored(
    request: HttpRequest,
    version: tuple[int, int],
    status: int,
    headers: RawHeaders,
    body: bytes,
    times_s: tuple[float, float],
) -> StoredResponse | None:
    """Return what is to be stored of a whole response; None if it may not or need not be stored.

    Args:
        request: to which it is the answer; `passes_by` is False.
        version, status, headers, body: of the response.
        times_s: when the request was sent, and when the head arrived.
    """
    if status not in STORED_STATUSES or "no-store" in _response_directives(headers):
        return None
    vary = [name.strip().lower() for name in ",".join(_values(headers, "vary")).split(",")]
    if "*" in vary:
        return None
    kept = _storable(headers)
    selecting = {name: _value(request, name) for name in {*vary, *_ALWAYS_SELECTING} - {""}}
    made = StoredResponse(version, status, kept, body, selecting, *times_s)
    return made if lifetime_s(made) > 0 or validators(made) else None


def _storable(headers: RawHeaders) -> tuple[tuple[bytes, bytes], ...]:
    named = ",".join(_values(headers, "connection")).lower().split(",")
    left_out = _NOT_STORED | {name.strip() for name in named}
    return tuple((n, v) for n, v in headers if n.decode("latin-1").lower() not in left_out)


# --- section 4: using ---------------------------------------------------------------------------


def selected(found: Iterable[StoredResponse], request: HttpRequest) -> StoredResponse | None:
    """Return the newest response whose selecting fields are those of the request (4.1)."""
    fitting = [one for one in found if is_selected(one, request)]
    return max(fitting, key=_date_s, default=None)


def is_selected(one: StoredResponse, request: HttpRequest) -> bool:
    """Tell whether a response answers requests with these fields."""
    return all(_value(request, name) == value for name, value in one.selecting.items())


def is_usable(one: StoredResponse, request: HttpRequest, now_s: float) -> bool:
    """Tell whether a response may be used for a request without validation."""
    requested, said = _directives(request), _response_directives(one.headers)
    pragma = "cache-control" not in dict(request.headers) and "no-cache" in (
        _value(request, "pragma") or ""
    )
    if "no-cache" in requested or "no-cache" in said or pragma:
        return False
    left_s = lifetime_s(one) - age_s(one, now_s)
    if left_s <= 0:
        return False
    most_s, fresh_s = _seconds(requested.get("max-age")), _seconds(requested.get("min-fresh"))
    if most_s is not None and age_s(one, now_s) > most_s:
        return False
    return fresh_s is None or left_s >= fresh_s


def served_head(one: StoredResponse, now_s: float) -> bytes:
    """Write the headers item, with the age of the response (section 5.1)."""
    headers = [(n, v) for n, v in one.headers if n.lower() != b"age"]
    return head_item(
        one.version, one.status, [*headers, (b"age", b"%d" % min(_MOST_S, age_s(one, now_s)))]
    )


def lifetime_s(one: StoredResponse) -> float:
    """Return how long a response is fresh (4.2.1); 0 if it does not say so."""
    said = _response_directives(one.headers)
    if "max-age" in said:
        return _seconds(said["max-age"]) or 0
    expires = _values(one.headers, "expires")
    if not expires:
        return 0
    until_s = _time(expires[0]) if len(expires) == 1 else None
    return max(0.0, until_s - _date_s(one)) if until_s is not None else 0


def age_s(one: StoredResponse, now_s: float) -> float:
    """Return the age of a response (4.2.3)."""
    ages = ",".join(_values(one.headers, "age")).split(",")
    age_value_s = _seconds(ages[0].strip()) or 0
    apparent_s = max(0.0, one.received_s - _date_s(one))
    corrected_s = age_value_s + max(0.0, one.received_s - one.requested_s)
    return max(apparent_s, corrected_s) + max(0.0, now_s - one.received_s)


# --- section 4.3: validating --------------------------------------------------------------------


def validators(one: StoredResponse) -> tuple[tuple[str, str], ...]:
    """Return the fields of a request that asks whether a response is still right (4.3.1)."""
    tags, dates = _values(one.headers, "etag"), _values(one.headers, "last-modified")
    fields = []
    if len(tags) == 1:
        fields.append(("if-none-match", tags[0]))
    if len(dates) == 1 and _time(dates[0]) is not None:
        fields.append(("if-modified-since", dates[0]))
    return tuple(fields)


def freshened(
    one: StoredResponse, headers: RawHeaders, times_s: tuple[float, float]
) -> StoredResponse | None:
    """Return a response with the fields of a 304 (4.3.4); None if that is about another one.

    Whether the result may be stored is decided by `stored`, as for any response.
    """
    tags, own = _values(headers, "etag"), _values(one.headers, "etag")
    if tags and tags[0].startswith(_WEAK):
        own = [_WEAK + tag.removeprefix(_WEAK) for tag in own]
    if tags and tags[0] not in own:
        return None
    new = [(n, v) for n, v in _storable(headers) if _lower(n) not in _NOT_UPDATED]
    names = {_lower(name) for name, _ in new}
    kept = [(n, v) for n, v in one.headers if _lower(n) not in names | {"age"}]
    requested_s, received_s = times_s
    return replace(one, headers=(*kept, *new), requested_s=requested_s, received_s=received_s)


# --- section 4.4: invalidating ------------------------------------------------------------------


def invalidated(request: HttpRequest, status: int, headers: RawHeaders) -> list[URL]:
    """Return the addresses whose responses are dropped after an exchange."""
    if request.method in _SAFE or not 200 <= status < 400:
        return []
    found = [request.url]
    for field in ("location", "content-location"):
        for value in _values(headers, field)[:1]:
            try:
                url = request.url.join(read_url(value))
            except ValueError:
                continue
            if origin_of(url) == origin_of(request.url):
                found.append(url)
    return found


# --- fields ---------------------------------------------------------------------------------------


def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _values(headers: RawHeaders, name: str) -> list[str]:
    return [v.decode("latin-1").strip() for n, v in headers if _lower(n) == name]


def _value(request: HttpRequest, name: str) -> str | None:
    """Return the field of a request as one list, without optional white space."""
    given = [value for known, value in request.headers if known == name]
    if not given:
        return None
    return ",".join(part.strip() for part in ",".join(given).split(","))


def _parsed(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in _DIRECTIVE.finditer(text):  # of repeated ones the first counts
        found.setdefault(match[1].lower(), (match[2] or "").strip().strip('"'))
    return found


def _directives(request: HttpRequest) -> dict[str, str]:
    return _parsed(_value(request, "cache-control") or "")


def _response_directives(headers: RawHeaders) -> dict[str, str]:
    return _parsed(",".join(_values(headers, "cache-control")))


def _seconds(text: str | None) -> int | None:
    """Read a number of seconds; one that is too large counts as the largest (1.2.2)."""
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return min(_MOST_S, int(text[:12]))


def _time(text: str) -> float | None:
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _date_s(one: StoredResponse) -> float:
    dates = _values(one.headers, "date")
    found = _time(dates[0]) if dates else None
    return one.received_s if found is None else found
