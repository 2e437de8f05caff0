"""What tenants use on other nodes: pure.

Nodes tell each other with heartbeats how long each tenant has used their engines, as counters. What
a node ran for the reader is left out: the reader has charged its tenants for that itself.
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
        self.total: dict[str, int] = {}

    def joined(self, name: str) -> None:
        """There is a new link to a node: its next counters are where counting begins."""
        self._last.pop(name, None)

    def heard(self, name: str, used: Used) -> list[tuple[str, str, int]]:
        """A node told its counters; return what is new: tenant, backend, nanoseconds."""
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
                    self.total[tenant] = self.total.get(tenant, 0) + more_ns
        return found


def used_here(tenants: Iterable[Tenant], served: Used) -> dict[str, dict[str, int]]:
    """Return the counters of a node for one reader.

    Args:
        tenants: of the node.
        served: what calls of the reader have used.
    """
    found: dict[str, dict[str, int]] = {}
    for tenant in tenants:
        mine = served.get(tenant.name, {})
        left = {b: used - mine.get(b, 0) for b, used in tenant.used_ns.items()}
        if any(used > 0 for used in left.values()):
            found[tenant.name] = {b: max(0, used) for b, used in left.items()}
    if len(found) > TENANTS:
        names = sorted(found, key=lambda name: sum(found[name].values()), reverse=True)
        found = {name: found[name] for name in names[:TENANTS]}
    return found
