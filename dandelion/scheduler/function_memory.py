"""What is in one memory for functions: the node's, or that for constants on one device.

An entry takes room once, however many flows hold it. In the node's memory each flow has an entry of
its own. On a device flows with equal constants share one (`Flow.constants`). It is charged in full
to the quota of each tenant that has a flow among its holders, and to the place once. Removing a
flow gives up its hold; the entry goes with the last one.

When memory is full, the entries with the least use for their reload cost are evicted (greedy-dual
with frequency: an evicted entry sets the level from which the others must fall). The uses of all
holders count. Entries that calls need are pinned. On a device they may be evicted for a call that
is sent, since each engine runs its calls in order, but only after those that no call needs.

Source: greedy-dual-size with frequency, Cherkasova, HPL-98-69R1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import Flow, Tenant

_FIXED_US = 100.0
_BYTES_PER_US = 5_000.0


@dataclass(slots=True, eq=False)
class _Entry:
    key: Hashable
    size_bytes: int
    level: float
    uses: int
    holders: dict[Flow, None] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        """Whether a call needs it."""
        return any(flow.pins for flow in self.holders)

    def held_by(self, tenant: Tenant) -> bool:
        """Tell whether it is charged to a tenant."""
        return any(flow.tenant is tenant for flow in self.holders)


@dataclass(slots=True, eq=False)
class FunctionMemory:
    """Memory for functions in one place: the node's, or one device's.

    Args:
        capacity_bytes: of all entries together.
        shares: flows with equal constants share an entry.

    Attributes:
        used_bytes: of all entries.
        by_tenant: bytes charged to each tenant.
        loading: the engine whose next call copies the content of a new entry; of a device.
    """

    capacity_bytes: int
    shares: bool = False
    used_bytes: int = 0
    by_tenant: dict[Tenant, int] = field(default_factory=dict)
    loading: dict[Hashable, EngineState] = field(default_factory=dict)
    _entries: dict[Hashable, _Entry] = field(default_factory=dict)
    _flows: OrderedDict[Flow, _Entry] = field(default_factory=OrderedDict)
    _level: float = 0.0

    def __contains__(self, flow: Flow) -> bool:
        return flow in self._flows

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def flows(self) -> tuple[Flow, ...]:
        """Return the present flows."""
        return tuple(self._flows)

    @property
    def held(self) -> Collection[Flow]:
        """Return the present flows, as they change."""
        return self._flows.keys()

    @property
    def contents(self) -> Collection[Hashable]:
        """Return the contents of all entries, as they change; of a device."""
        return self._entries.keys()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of all entries."""
        return tuple(entry.size_bytes for entry in self._entries.values())

    def has_content(self, flow: Flow) -> bool:
        """Tell whether there is an entry that a flow can share."""
        return flow in self._flows or self._key(flow) in self._entries

    def touch(self, flow: Flow) -> None:
        """Count a use of an entry."""
        entry = self._flows[flow]
        entry.uses += 1
        entry.level = self._level + entry.uses * _cost_us(entry.size_bytes) / entry.size_bytes

    def add(self, flow: Flow, size_bytes: int) -> None:
        """Add a flow, which is used now; there is room for it."""
        key = self._key(flow)
        entry = self._entries.get(key)
        if entry is None:
            size = max(1, size_bytes)
            entry = self._entries[key] = _Entry(key, size, self._level + _cost_us(size) / size, 0)
            self.used_bytes += size
        if not entry.held_by(flow.tenant):
            self.by_tenant[flow.tenant] = self.by_tenant.get(flow.tenant, 0) + entry.size_bytes
        entry.holders[flow] = None
        self._flows[flow] = entry
        self.touch(flow)

    def remove(self, flow: Flow) -> None:
        """Remove a flow, and its entry if no other flow holds it."""
        entry = self._flows.pop(flow)
        del entry.holders[flow]
        tenant = flow.tenant
        if not entry.held_by(tenant):
            left = self.by_tenant[tenant] - entry.size_bytes
            if left:
                self.by_tenant[tenant] = left
            else:
                del self.by_tenant[tenant]
        if not entry.holders:
            del self._entries[entry.key]
            self.loading.pop(entry.key, None)
            self._level = max(self._level, entry.level)
            self.used_bytes -= entry.size_bytes

    def size_of(self, flow: Flow) -> int:
        """Bytes of a flow's entry."""
        return self._flows[flow].size_bytes

    def victims(
        self, flow: Flow, size_bytes: int, tenant_bytes: int, pinned: bool = False
    ) -> list[Flow] | None:
        """Choose the flows to remove for a new one, cheapest first.

        Args:
            flow: the new one.
            size_bytes: of the new entry.
            tenant_bytes: its tenant's limit here.
            pinned: also choose pinned entries.

        Returns:
            Flows to remove, perhaps none; None if evictions cannot make enough room.
        """
        size = max(1, size_bytes)
        shared = self._entries.get(self._key(flow))
        over = self.used_bytes + size - self.capacity_bytes if shared is None else 0
        charged = shared is not None and shared.held_by(flow.tenant)
        over_tenant = 0 if charged else self.by_tenant.get(flow.tenant, 0) + size - tenant_bytes
        if over <= 0 and over_tenant <= 0:
            return []
        if size > tenant_bytes or size > self.capacity_bytes:
            return None
        need = (over, over_tenant)
        chosen: list[_Eviction] = []
        for entry in self._candidates(pinned):
            if entry is shared:
                continue
            eviction = _eviction(entry, flow.tenant, over > 0)
            if over <= 0 and not eviction.tenant_bytes:
                continue
            chosen.append(eviction)
            over -= eviction.place_bytes
            over_tenant -= eviction.tenant_bytes
            if over <= 0 and over_tenant <= 0:
                return [one for kept in _needed(chosen, *need) for one in kept.flows]
        return None

    def _candidates(self, pinned: bool) -> Iterable[_Entry]:
        """Give the entries that may be evicted, in the order of eviction."""
        entries = [e for e in self._entries.values() if pinned or not e.pinned]
        if self.shares and pinned:
            return sorted(entries, key=lambda e: (e.pinned, e.level))
        return sorted(entries, key=lambda e: e.level)

    def _key(self, flow: Flow) -> Hashable:
        return flow.constants if self.shares and flow.constants else flow


@dataclass(frozen=True, slots=True, eq=False)
class _Eviction:
    """An entry, or the hold of one tenant on it; bytes that its end frees in the place's and the
    tenant's account."""

    flows: tuple[Flow, ...]
    place_bytes: int
    tenant_bytes: int


def _eviction(entry: _Entry, tenant: Tenant, whole: bool) -> _Eviction:
    """Give what to evict of an entry: all, or what counts for a tenant's quota."""
    own = tuple([flow for flow in entry.holders if flow.tenant is tenant])
    of_tenant = entry.size_bytes if own else 0
    if whole or len(own) == len(entry.holders):
        return _Eviction(tuple(entry.holders), entry.size_bytes, of_tenant)
    return _Eviction(own, 0, of_tenant)


def _needed(chosen: list[_Eviction], over: int, over_tenant: int) -> list[_Eviction]:
    """Omit those that need not be evicted because a larger one was chosen later."""
    total = sum(one.place_bytes for one in chosen)
    own = sum(one.tenant_bytes for one in chosen)
    needed = []
    for one in chosen:
        if total - one.place_bytes >= over and own - one.tenant_bytes >= over_tenant:
            total -= one.place_bytes
            own -= one.tenant_bytes
        else:
            needed.append(one)
    return needed


def _cost_us(size_bytes: int) -> float:
    return _FIXED_US + size_bytes / _BYTES_PER_US
