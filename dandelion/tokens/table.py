"""Finds the grant of a token, and limits its requests.

A rate limit is one number for each token: when its requests so far will have been paid for, at the
token's rate (generic cell rate algorithm). A request is refused if that is further ahead than the
burst allows. Several frontend processes share these numbers in memory, so the limit is that of the
node. They are not locked: two requests that processes count at the same instant may count as one.

The shared memory is a hash table. A token's key is the first 8 bytes of its SHA-256, so a limit
belongs to its token, wherever that is in the file. The lower half of the key is where the search
for its entry begins; the entry has the upper half, its *mark*. Positions are probed one after the
other. An entry is never emptied, so a mark is found before the first empty entry, or not at all; a
new one takes the entry of a token that is gone, if there is one before that. Each request compares
the mark of its entry, since another process may have given the entry away.

Source: ITU-T I.371, annex A (GCRA).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from dandelion.namespaces import DEFAULT_TENANT
from dandelion.tokens.records import LIMITED_TOKENS, Right, TokenRecord

TOKEN_LIMIT_BYTES = 256
"""A longer token is not hashed."""
BUCKETS_BYTES = 12 * LIMITED_TOKENS
_NO_KEY = 0
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Buckets:
    """The states of the rate limits: an entry for each token with one, zero at first.

    Attributes:
        marks: of the tokens; 0 is an empty entry.
        paid_s: when their requests will have been paid for, on `time.monotonic`.
    """

    marks: memoryview[int]
    paid_s: memoryview[float]

    @classmethod
    def within(cls, memory: memoryview) -> Buckets:
        """Make buckets of `BUCKETS_BYTES` of writable memory, aligned to 8 bytes."""
        end = BUCKETS_BYTES // 3
        return cls(memory[:end].cast("I"), memory[end:BUCKETS_BYTES].cast("d"))


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
        key: of the token in the buckets; 0 without a limit.
    """

    name: str
    tenant: str
    rights: tuple[Right, ...]
    expires_s: float = math.inf
    interval_s: float = 0.0
    ahead_s: float = 0.0
    key: int = _NO_KEY


ANONYMOUS = Grant("-", DEFAULT_TENANT, tuple(Right))
"""What every caller may do on a node without tokens."""


class TokenTable:
    """The grants of all tokens.

    Args:
        records: valid records, see `dandelion.tokens.records.check_records`.
        buckets: state of the rate limits. A table that takes the place of another one gets its
            buckets, so a limit does not start anew when the file is changed.
    """

    def __init__(self, records: Iterable[TokenRecord], buckets: Buckets) -> None:
        self._buckets = buckets
        self._grants: dict[bytes, Grant] = {}
        self._slots: dict[int, int] = {}
        for record in records:
            digest = bytes.fromhex(record.sha256)
            grant = self._grants[digest] = _grant(record, digest)
            if grant.key != _NO_KEY:
                self._slots[grant.key] = _home(grant.key)
        self._marks = frozenset(map(_mark, self._slots))

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
        key = grant.key
        if key == _NO_KEY:
            return 0.0
        now = time.monotonic()
        slot = self._slots.get(key, _home(key))
        if self._buckets.marks[slot] != _mark(key):
            slot = self._slots[key] = self._find_slot(key, now)
        latest = now + grant.ahead_s + grant.interval_s  # the token may have had another rate
        paid = min(max(now, self._buckets.paid_s[slot]), latest)
        wait_s: float = paid - now - grant.ahead_s
        if wait_s > _ROUNDING_S:
            return wait_s
        self._buckets.paid_s[slot] = paid + grant.interval_s
        return 0.0

    def _find_slot(self, key: int, now: float) -> int:
        """Find the entry of a token, or give it one: of a token that is gone, without debt first.

        If all entries are those of other tokens in use, which happens only while processes have
        different tables, one of them loses its state.
        """
        marks, paid_s = self._buckets.marks, self._buckets.paid_s
        mark, home = _mark(key), _home(key)
        best, best_rank = home, 3
        for number in range(LIMITED_TOKENS):
            slot = (home + number) % LIMITED_TOKENS
            found = marks[slot]
            if found == mark:
                return slot
            if not found:
                best, best_rank = (slot, 1) if best_rank > 1 else (best, best_rank)
                break
            rank = 3 if found in self._marks else 2 if paid_s[slot] > now else 0
            if rank < best_rank:
                best, best_rank = slot, rank
        marks[best], paid_s[best] = mark, 0.0
        return best


def new_buckets() -> Buckets:
    """Make buckets for one process."""
    return Buckets.within(memoryview(bytearray(BUCKETS_BYTES)))


def _home(key: int) -> int:
    return key % LIMITED_TOKENS


def _mark(key: int) -> int:
    return key >> 32


def _grant(record: TokenRecord, digest: bytes) -> Grant:
    expires_s = math.inf if record.expires is None else record.expires.timestamp()
    if record.rate is None:
        return Grant(record.name, record.tenant, record.rights, expires_s)
    burst = record.burst or max(1, math.floor(record.rate))
    interval_s = 1 / record.rate
    ahead_s = (burst - 1) * interval_s
    key = int.from_bytes(digest[:8], "big") | 1 << 32  # its mark is not 0
    return Grant(record.name, record.tenant, record.rights, expires_s, interval_s, ahead_s, key)
