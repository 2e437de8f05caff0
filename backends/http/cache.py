"""The responses that an engine keeps, bounded in bytes, apart for each tenant.

A tenant never sees a response of another one, nor by the time of a request whether there is one.
When memory is full, the response that was used least recently goes, of the tenant that has most.
"""

from __future__ import annotations

import re
import string
from collections import OrderedDict
from dataclasses import dataclass, field

from yarl import URL

from . import cache_rules as rules
from .cache_rules import StoredResponse
from .request import HttpRequest, origin_of

_VARIANTS = 8
"""How many responses are kept for one address."""
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")


@dataclass(slots=True)
class TenantResponses:
    """The responses of one tenant, by address, see `_address`; the last one was used last."""

    by_address: OrderedDict[str, list[StoredResponse]] = field(default_factory=OrderedDict)
    size_bytes: int = 0


class ResponseCache:
    """Responses by tenant and address.

    Args:
        limit_bytes: of all responses together.
        entry_bytes: largest body that is stored.
    """

    def __init__(self, limit_bytes: int, entry_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.entry_bytes = min(entry_bytes, limit_bytes // 2)
        self._tenants: dict[str, TenantResponses] = {}
        self.size_bytes = 0

    def find(self, tenant: str, request: HttpRequest) -> StoredResponse | None:
        """Return the response that a request selects, fresh or not."""
        own = self._tenants.get(tenant)
        address = _address(request.url)
        if own is None or address not in own.by_address:
            return None
        own.by_address.move_to_end(address)
        return rules.selected(own.by_address[address], request)

    def put(self, tenant: str, request: HttpRequest, response: StoredResponse) -> None:
        """Store a response in place of those that the same request selects."""
        own = self._tenants.setdefault(tenant, TenantResponses())
        address = _address(request.url)
        before = own.by_address.pop(address, [])
        others = [one for one in before if not rules.is_selected(one, request)]
        kept = [*others[-(_VARIANTS - 1) :], response]
        own.by_address[address] = kept
        self._count(own, _size(address, kept) - (_size(address, before) if before else 0))
        while self.size_bytes > self._limit_bytes:
            self._evict()

    def drop(self, tenant: str, url: URL) -> None:
        """Drop all responses of an address."""
        own = self._tenants.get(tenant)
        address = _address(url)
        if own is not None and address in own.by_address:
            self._drop(tenant, own, address)

    def _evict(self) -> None:
        tenant, own = max(self._tenants.items(), key=lambda entry: entry[1].size_bytes)
        self._drop(tenant, own, next(iter(own.by_address)))

    def _drop(self, tenant: str, own: TenantResponses, address: str) -> None:
        self._count(own, -_size(address, own.by_address.pop(address)))
        if not own.by_address:
            del self._tenants[tenant]

    def _count(self, own: TenantResponses, size_bytes: int) -> None:
        own.size_bytes += size_bytes
        self.size_bytes += size_bytes


def _address(url: URL) -> str:
    """Return a URL without fragment, the same for all spellings.

    Dot segments stay, since they are sent and servers differ about them.

    Source: RFC 9110, 4.2.3; RFC 3986, 6.2.2.
    """
    return origin_of(url) + _ESCAPE.sub(_unescaped, url.raw_path_qs)


def _unescaped(escape: re.Match[str]) -> str:
    char = chr(int(escape[1], 16))
    return char if char in _UNRESERVED else escape[0].upper()


def _size(address: str, responses: list[StoredResponse]) -> int:
    return 2 * len(address) + 256 + sum(one.size_bytes for one in responses)
