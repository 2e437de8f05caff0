"""What tenants use on other nodes: pure.

Nodes tell each other with heartbeats how long each tenant has used their engines, as counters, and
how much of that was for calls of the reader. The latter is left out: the reader has charged its
tenants for that itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dandelion.scheduler import Tenant

Used = Mapping[str, Mapping[str, int]]
"""Nanoseconds on engines, by tenant and backend."""
TENANTS = 1000
"""Only the tenants that have used most are told."""


class UsedElsewhere:
    """Finds what is new in the counters of other nodes."""

    def __init__(self) -> None:
        self._last: dict[str, Used] = {}

    def joined(self, name: str) -> None:
        """There is a new link to a node: its next counters are where counting begins."""
        self._last.pop(name, None)

    def heard(self, name: str, totals: Used, served: Used) -> list[tuple[str, str, int]]:
        """A node told its counters; return what is new: tenant, backend, nanoseconds.

        Args:
            name: of the node.
            totals: all that its engines did.
            served: what of it was for this node.
        """
        used = _without(totals, served)
        last = self._last.get(name)
        self._last[name] = used
        if last is None:
            return []
        found = []
        for tenant, backends in used.items():
            before = last.get(tenant, {})
            for backend, used_ns in backends.items():
                more_ns = used_ns - before.get(backend, 0)
                if more_ns > 0:
                    found.append((tenant, backend, more_ns))
        return found


def used_here(tenants: Iterable[Tenant]) -> dict[str, dict[str, int]]:
    """Return the counters of a node, of those tenants that have used most."""
    found = {tenant.name: dict(tenant.used_ns) for tenant in tenants if tenant.used_ns}
    if len(found) > TENANTS:
        names = sorted(found, key=lambda name: sum(found[name].values()), reverse=True)
        found = {name: found[name] for name in names[:TENANTS]}
    return found


def _without(totals: Used, served: Used) -> dict[str, dict[str, int]]:
    return {
        tenant: {b: max(0, ns - served.get(tenant, {}).get(b, 0)) for b, ns in backends.items()}
        for tenant, backends in totals.items()
    }


def seconds(used: Used) -> dict[str, float]:
    """Return what each tenant has used, of all backends, in seconds."""
    return {tenant: sum(backends.values()) / 1e9 for tenant, backends in used.items()}
