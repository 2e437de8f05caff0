"""Finds the grant of a token, and limits its requests.

A rate limit is one number for each token: when its requests so far will have been paid for, at the
token's rate (generic cell rate algorithm). A request is refused if that is further ahead than the
burst allows. Several frontend processes share these numbers in memory, so the limit is that of the
node. They are not locked: two requests that processes count at the same instant may count as one.

Source: ITU-T I.371, annex A (GCRA).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from dandelion.namespaces import DEFAULT_TENANT
from dandelion.tokens.records import LIMITED_TOKENS, Right, TokenRecord

TOKEN_LIMIT_BYTES = 256
"""A longer token is not hashed."""
BUCKETS_BYTES = 8 * LIMITED_TOKENS
_NO_SLOT = -1
_ROUNDING_S = 1e-6

Buckets: TypeAlias = "memoryview[float]"
"""One float64 for each token with a rate limit, on `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a caller may do.

    Attributes:
        name: of the token, for logs.
        tenant: of the request.
        rights: what the caller may do.
        expires_s: end of the grant, on `time.time`.
        interval_s: time between two requests at the token's rate.
        ahead_s: by how much requests may be ahead of the rate.
        slot: its number in the buckets; -1 without a limit.
    """

    name: str
    tenant: str
    rights: tuple[Right, ...]
    expires_s: float = math.inf
    interval_s: float = 0.0
    ahead_s: float = 0.0
    slot: int = _NO_SLOT


ANONYMOUS = Grant("-", DEFAULT_TENANT, tuple(Right))
"""What every caller may do on a node without tokens."""


class TokenTable:
    """The grants of all tokens.

    Args:
        records: valid records, see `dandelion.tokens.records.check_records`.
        buckets: state of the rate limits; zero at first. A table that takes the place of another
            one gets its buckets, so a limit does not start anew when the file is changed.
    """

    def __init__(self, records: Iterable[TokenRecord], buckets: Buckets) -> None:
        self._buckets = buckets
        self._grants: dict[bytes, Grant] = {}
        slot = 0
        for record in records:
            digest = bytes.fromhex(record.sha256)
            self._grants[digest] = _grant(record, slot)
            slot += record.rate is not None

    def find(self, token: bytes) -> Grant | None:
        """Find the grant of a token; None if it is unknown or has expired."""
        if len(token) > TOKEN_LIMIT_BYTES:
            return None
        grant = self._grants.get(sha256(token).digest())
        return grant if grant is not None and time.time() < grant.expires_s else None

    def count(self, grant: Grant) -> float:
        """Count a request.

        Returns:
            0.0, or in how many seconds the request may be repeated; then it was not counted.
        """
        slot = grant.slot
        if slot == _NO_SLOT:
            return 0.0
        now = time.monotonic()
        latest = now + grant.ahead_s + grant.interval_s  # the slot may have been another token's
        paid = min(max(now, self._buckets[slot]), latest)
        wait_s: float = paid - now - grant.ahead_s
        if wait_s > _ROUNDING_S:
            return wait_s
        self._buckets[slot] = paid + grant.interval_s
        return 0.0


def new_buckets() -> Buckets:
    """Make buckets for one process."""
    return memoryview(bytearray(BUCKETS_BYTES)).cast("d")


def _grant(record: TokenRecord, slot: int) -> Grant:
    expires_s = math.inf if record.expires is None else record.expires.timestamp()
    if record.rate is None:
        return Grant(record.name, record.tenant, record.rights, expires_s)
    burst = record.burst or max(1, math.floor(record.rate))
    interval_s = 1 / record.rate
    ahead_s = (burst - 1) * interval_s
    return Grant(record.name, record.tenant, record.rights, expires_s, interval_s, ahead_s, slot)
