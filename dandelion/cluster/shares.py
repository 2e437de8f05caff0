"""What tenants use on other nodes: pure.

Nodes tell each other with heartbeats how long each tenant has used their engines, as counters, and
how much of that the reader does not charge: what was for its own calls, since it has charged its
tenants for that itself, and what was before the link began.

A heartbeat has at most `TENANTS` tenants, those that have used most since they were last told. The
others are told later, so nothing is left out. The first counters of a tenant are new since the link
began, like all later ones: a reader never charges what was before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from dandelion.scheduler import Tenant

Used = Mapping[str, Mapping[str, int]]
"""Nanoseconds on engines, by tenant and backend."""
Counters = dict[str, dict[str, int]]
"""The same, of one message."""
TENANTS = 1000
"""In one heartbeat, and in `RecentUse`."""
KNOWN_LIMIT = 100_000
"""Tenants of one other node whose counters are remembered; a node has fewer."""


class UsedElsewhere:
    """Finds what is new in the counters of other nodes."""

    def __init__(self) -> None:
        self._known: dict[str, Counters] = {}

    def joined(self, name: str) -> None:
        """There is a new link to a node, whose counters begin anew."""
        self._known[name] = {}

    def left(self, name: str) -> None:
        """The link to a node has ended."""
        self._known.pop(name, None)

    def heard(self, name: str, totals: Used, uncharged: Used) -> list[tuple[str, str, int]]:
        """A node told counters; return what is new: tenant, backend, nanoseconds.

        Args:
            name: of the node.
            totals: all that its engines did.
            uncharged: what of it was for this node, or before the link began.
        """
        known = self._known.setdefault(name, {})
        found = []
        for tenant, backends in totals.items():
            if tenant not in known and len(known) >= KNOWN_LIMIT:
                continue
            before = known.setdefault(tenant, {})
            left_out = uncharged.get(tenant, {})
            for backend, total_ns in backends.items():
                used_ns = total_ns - left_out.get(backend, 0)
                more_ns = used_ns - before.get(backend, 0)
                if more_ns > 0:
                    before[backend] = used_ns
                    found.append((tenant, backend, more_ns))
        return found


class ToldShares:
    """What this node tells one other one of its tenants' engine time.

    Args:
        tenants: of this node, when the link begins.

    Attributes:
        uncharged: what the other node does not charge, by tenant and backend. The scheduler adds
            the time of its calls (`InvocationState.served_ns`).
    """

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self.uncharged: Counters = {one.name: dict(one.used_ns) for one in tenants if one.used_ns}
        self._told: dict[str, int] = {}

    def next(self, tenants: Iterable[Tenant]) -> tuple[Counters, Counters]:
        """Return the counters of the next heartbeat, and what of them is not charged."""
        changed = []
        for tenant in tenants:
            total_ns = sum(tenant.used_ns.values())
            more_ns = total_ns - self._told.get(tenant.name, 0)
            if more_ns > 0:
                changed.append((more_ns, tenant.name, total_ns, tenant.used_ns))
        if len(changed) > TENANTS:
            changed = heapq.nlargest(TENANTS, changed, key=lambda one: one[:2])
        used = {}
        for _, name, total_ns, used_ns in changed:
            self._told[name] = total_ns
            used[name] = dict(used_ns)
        return used, {name: self.uncharged[name] for name in used if name in self.uncharged}


class RecentUse:
    """Counters of the tenants that used a node's engines last, at most `TENANTS`.

    Attributes:
        used_ns: by tenant and backend; the tenants that used them last are at the end.
    """

    __slots__ = ("used_ns",)

    def __init__(self) -> None:
        self.used_ns: dict[str, Mapping[str, int]] = {}

    def update(self, changed: Used) -> None:
        """Take counters that have changed."""
        for tenant, backends in changed.items():
            self.used_ns.pop(tenant, None)
            self.used_ns[tenant] = backends
        for tenant in list(self.used_ns)[: max(0, len(self.used_ns) - TENANTS)]:
            del self.used_ns[tenant]


def seconds(used: Used) -> dict[str, float]:
    """Return what each tenant has used, of all backends, in seconds."""
    return {tenant: sum(backends.values()) / 1e9 for tenant, backends in used.items()}
