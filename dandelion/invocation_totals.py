"""How many invocations of each name there were, and how long they took."""

from __future__ import annotations

import time

import msgspec

TOTALS_LIMIT = 4096
"""So many names are kept; the one that is unused for longest goes first."""


class InvocationTotals(msgspec.Struct):
    """The invocations of one name that ended, of all versions, since the node started.

    Attributes:
        name: what was invoked.
        succeeded, failed: how many.
        succeeded_ns, failed_ns: their time from the call to the result.
        last_ms: when the last one ended, in milliseconds since 1970.
    """

    name: str
    succeeded: int = 0
    succeeded_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    last_ms: int = 0


class TotalsTable:
    """The totals of all tenants; for one thread."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], InvocationTotals] = {}

    def add(self, tenant: str, name: str, duration_ns: int, *, succeeded: bool) -> None:
        """Count an invocation that ended."""
        totals = self._totals.pop((tenant, name), None)
        if totals is None:
            totals = InvocationTotals(name)
            if len(self._totals) >= TOTALS_LIMIT:
                del self._totals[next(iter(self._totals))]
        self._totals[tenant, name] = totals  # behind all others
        if succeeded:
            totals.succeeded += 1
            totals.succeeded_ns += duration_ns
        else:
            totals.failed += 1
            totals.failed_ns += duration_ns
        totals.last_ms = time.time_ns() // 1_000_000

    def of(self, tenant: str) -> list[InvocationTotals]:
        """Copy the totals of a tenant."""
        return [msgspec.structs.replace(t) for (of, _), t in self._totals.items() if of == tenant]
