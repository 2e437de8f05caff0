"""What a caller may do: bearer tokens, the right of each route, rate limits.

A `Route` cannot be made without its right. A caller is checked in the process that parsed its
request, before the body is read and before anything is asked of the node, in this order: token,
route, right, rate. A name is looked up only after that, among those of the token's tenant. So no
response depends on names that the caller may not see.

A missing, malformed, unknown and expired token take the same path and get the same response.

Source: RFC 6750, 2.1 and 3 (bearer tokens); RFC 9110, 11.6 (`WWW-Authenticate`, `Authorization`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dandelion.frontend.asgi import Request
from dandelion.frontend.problem import MissingRight, RateLimited, RequestError, Unauthenticated
from dandelion.tokens import ANONYMOUS, Grant, Right, TokenRecord, TokenTable
from dandelion.tokens.table import Buckets, new_buckets

_SCHEME = b"bearer "


class Guard:
    """Finds out what the caller of a request may do.

    Args:
        records: the tokens; None allows every caller everything.
        buckets: state of the rate limits, shared by all frontends of a node.

    Attributes:
        is_closed: whether callers need tokens.
    """

    def __init__(
        self, records: Sequence[TokenRecord] | None = None, buckets: Buckets | None = None
    ) -> None:
        self.is_closed = records is not None
        self._buckets = buckets if buckets is not None else new_buckets()
        self._table = TokenTable(records or (), self._buckets)

    def replace(self, records: Sequence[TokenRecord]) -> None:
        """Use other tokens from the next request on."""
        self._table = TokenTable(records, self._buckets)

    def identify(self, request: Request) -> None:
        """Set the request's grant to that of its token.

        Raises:
            Unauthenticated: it has not exactly one valid token.
        """
        grant = self._grant_of(request)
        if grant is None:
            request.close = True  # its body is not read
            raise Unauthenticated
        request.grant = grant

    def _grant_of(self, request: Request) -> Grant | None:
        headers = request.headers
        given = headers.get(b"authorization", b"")
        if len(headers) != len(request.scope["headers"]):
            names = [name for name, _ in request.scope["headers"]]
            if names.count(b"authorization") != 1:
                return None
        return self.find(given)

    def find(self, authorization: bytes) -> Grant | None:
        """Find the grant of the token in an ``Authorization`` header; None without a valid one."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._table.find(authorization[len(_SCHEME) :].rstrip(b" \t"))

    def allows_still(self, request: Request) -> bool:
        """Whether a request that takes long would be allowed now: its token may be gone."""
        if not self.is_closed or request.grant is ANONYMOUS:
            return True
        found, before = self._grant_of(request), request.grant
        return found is not None and (found.tenant, found.rights) == (before.tenant, before.rights)

    def require_still(self, needed: Sequence[Right | None], request: Request) -> None:
        """Refuse a request that takes long if its token is gone or has lost a right.

        Else the request has the token's grant of now.

        Args:
            needed: rights of its route; None is no right.

        Raises: as `Request.require_still`.
        """
        if self.is_closed and request.grant is not ANONYMOUS:
            request.grant = grant_still(self._grant_of(request), request.grant, needed)

    def authorize(self, request: Request, right: Right | None, also: Right | None = None) -> None:
        """Refuse a request that its grant does not allow, or not now.

        Raises:
            MissingRight: the grant does not have one of the rights.
            RateLimited: the token is used too often.
        """
        try:
            self.check(request.grant, right, also)
        except RequestError:
            request.close = True
            raise

    def check(self, grant: Grant, right: Right | None, also: Right | None = None) -> None:
        """Refuse what a grant does not allow, or not now; raises as `authorize`."""
        if right is None or grant is ANONYMOUS:
            return
        _require(grant, (right, also))
        wait_s = self._table.count(grant)
        if wait_s:
            raise RateLimited(math.ceil(wait_s))


def grant_still(found: Grant | None, before: Grant, needed: Sequence[Right | None]) -> Grant:
    """Return the grant that a token has now, if it still has what it had.

    Args:
        found: its grant now; None if it is gone.
        before: its grant when the request began.
        needed: rights of the route; None is no right.

    Raises:
        Unauthenticated: it is gone, or another tenant's now.
        MissingRight: it has lost a right.
    """
    if found is None or found.tenant != before.tenant:
        raise Unauthenticated
    _require(found, needed)
    return found


def _require(grant: Grant, needed: Sequence[Right | None]) -> None:
    for right in needed:
        if right is not None and right not in grant.rights:
            raise MissingRight(right.value)
