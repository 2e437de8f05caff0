"""Which node gets a call: pure, from what is known of the others' load and of where data lies.

The scheduler decides when a call is sent to another node at all; this decides to which one. A node
knows of the others what they said last, with answers of calls and of heartbeats, so it may be out
of date. Calls that were sent since then are counted, so one node never gets more calls at once than
it had free engines. If nothing waits there, it gets one more for each engine, *ahead*: it begins as
soon as the one before it ends, and not one round trip later. The scheduler decides for which calls
that pays.

A node sends calls to a bounded number of others, its *partners*, which are chosen by a hash. So the
cost of a decision does not grow with the cluster. Each node has about as many others of which it is
a partner, hence no node is preferred by many.

Cost of a node for a call: the bytes that it lacks, by the bandwidth, and a constant for a function
that it does not have yet. Of equal ones the node with the largest free part is best; a counter
takes turns among those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from dandelion.cluster.call_messages import EngineGroup, Load
from dandelion.cluster.discovery import wanted_nodes
from dandelion.cluster.shares import RecentUse, Used

PARTNERS = 16
NS_PER_BYTE = 1.0
"""Of a transfer: 1 GB/s. It is only compared with other parts of the cost."""
LOAD_FUNCTION_NS = 2_000_000.0
"""A node that does not have a function yet has to load its code first."""
BUSY_NS = 10_000_000.0
"""Of a node without free engines, for each call that waits there."""


@dataclass(slots=True)
class View:
    """What one node knows of another one.

    Attributes:
        groups: its engines by backend, as it said last.
        sent: calls that were sent to it in all.
        seen: how many of them it had received when it said that.
        under_way: calls that it has, by backend.
        functions: functions that it has been sent.
        open: it takes calls.
        refused: it refused a call since it last said what it has.
        turn: when it last got a call, as a count.
        recent_use: how long tenants have used its engines.
    """

    groups: dict[str, EngineGroup] = field(default_factory=dict)
    sent: int = 0
    seen: int = 0
    under_way: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    functions: set[Hashable] = field(default_factory=set)
    open: bool = True
    refused: bool = False
    waiting: int = 0
    turn: int = 0
    recent_use: RecentUse = field(default_factory=RecentUse)

    def free(self, backend: str) -> int:
        """How many more calls it takes for all that is known."""
        group = self.groups.get(backend)
        if group is None or not self.open or self.refused:
            return 0
        free = group.free - self.unseen.get(backend, 0)
        return max(0, min(free, group.engines - self.under_way.get(backend, 0)))

    def ahead(self, backend: str) -> int:
        """How many calls it takes beyond those, which wait there for the ones that run."""
        group = self.groups.get(backend)
        if group is None or not self.open or self.refused:
            return 0
        waiting = self.waiting + max(0, self.unseen.get(backend, 0) - group.free)
        under_way = max(0, self.under_way.get(backend, 0) - group.engines)
        return max(0, group.engines - max(waiting, under_way))


class Placement:
    """The other nodes as one sees them.

    Args:
        me: name of the node.
        partners: how many others it sends calls to.
    """

    def __init__(self, me: str, partners: int = PARTNERS) -> None:
        self._me = me
        self._limit = partners
        self._turn = 0
        self.views: dict[str, View] = {}
        self._partners: list[tuple[str, View]] = []
        self._free: dict[str, tuple[int, int]] = {}

    def joined(self, name: str) -> None:
        """Another node takes calls."""
        self.views[name] = View()
        self._choose()

    def left(self, name: str) -> None:
        """Another node takes no calls any more; those that it had are lost."""
        self.views.pop(name, None)
        self._choose()

    def changed(self) -> None:
        """Views were opened or closed."""
        self._free.clear()

    def _choose(self) -> None:
        names = partners_of(self._me, self.views, self._limit)
        self._partners = [(name, self.views[name]) for name in names]
        self._free.clear()

    def backends(self) -> dict[str, frozenset[str]]:
        """Return the backends of all partners, with the formats that each of them runs."""
        found: dict[str, frozenset[str]] = {}
        for _, view in self._partners:
            for backend, group in view.groups.items():
                if view.open and group.engines:
                    found[backend] = found.get(backend, frozenset()) | set(group.formats)
        return found

    def loaded(self, name: str, load: Load) -> None:
        """A node said what it has."""
        view = self.views.get(name)
        if view is None:
            return
        view.groups = {group.backend: group for group in load.groups}
        view.waiting = load.waiting
        view.refused = False
        if load.received >= view.sent:
            view.unseen.clear()
        else:  # it is not said of which backend those are that it has not seen
            left = view.sent - load.received
            total = sum(view.unseen.values())
            if left < total:
                view.unseen = {b: -(-n * left // total) for b, n in view.unseen.items()}
        view.seen = load.received
        self._free.clear()

    def wanted(self, own: Load) -> int:
        """Return how many nodes the calls of the cluster would keep busy.

        Args:
            own: what this node has.
        """
        loads = [own.groups, *[tuple(v.groups.values()) for v in self.views.values() if v.open]]
        waiting = own.waiting + sum([view.waiting for view in self.views.values()])
        engines: dict[str, int] = {}
        free: dict[str, int] = {}
        for group in (group for groups in loads for group in groups):
            engines[group.backend] = engines.get(group.backend, 0) + group.engines
            free[group.backend] = free.get(group.backend, 0) + group.free
        used = [b for b, count in engines.items() if count]
        if not used:
            return wanted_nodes(len(loads), 0, 0, waiting)
        fullest = min(used, key=lambda backend: free[backend] / engines[backend])
        return wanted_nodes(len(loads), engines[fullest], free[fullest], waiting)

    def used(self, name: str, used_ns: Used) -> None:
        """A node said how long some tenants have used its engines."""
        view = self.views.get(name)
        if view is not None:
            view.recent_use.update(used_ns)

    def free(self, backend: str) -> int:
        """How many more calls the partners begin at once, together."""
        return self._room(backend)[0]

    def ahead(self, backend: str) -> int:
        """How many they take beyond those, together."""
        return self._room(backend)[1]

    def _room(self, backend: str) -> tuple[int, int]:
        known = self._free.get(backend)
        if known is None:
            free = sum([view.free(backend) for _, view in self._partners])
            ahead = sum([view.ahead(backend) for _, view in self._partners])
            known = self._free[backend] = free, ahead
        return known

    def under_way(self, backend: str) -> int:
        """How many calls they have from here."""
        return sum([view.under_way.get(backend, 0) for _, view in self._partners])

    def choose(
        self,
        backend: str,
        function: Hashable,
        size_bytes: int = 0,
        there_bytes: Mapping[str, int] | None = None,
        format_name: str = "",
        without: Collection[str] = (),
    ) -> str | None:
        """Choose the node for a call, and count the call as sent.

        Args:
            backend: whose engines it needs.
            function: that it calls.
            size_bytes: of its inputs.
            there_bytes: how many of them lie on other nodes already, by node.
            format_name: of the code; a node of the backend may not run it.
            without: nodes that are not chosen.

        Returns:
            The node; None if there is none at all. One without a free engine is chosen only if no
            other has one, and one that takes no call ahead only if no other does.
        """
        best: tuple[str, View] | None = None
        best_rank = (0.0, 0.0, 0)
        there = there_bytes or {}
        for name, view in self._partners:
            group = view.groups.get(backend)
            if group is None or not view.open or not group.engines or name in without:
                continue
            if format_name and format_name not in group.formats:
                continue
            cost = NS_PER_BYTE * max(0, size_bytes - there.get(name, 0))
            if function not in view.functions:
                cost += LOAD_FUNCTION_NS
            free = view.free(backend)
            if not free:
                line = view.waiting + view.under_way.get(backend, 0)
                cost += BUSY_NS * (1 + line / group.engines)
                cost += BUSY_NS * 1000 * (view.refused + (not view.ahead(backend)))
            rank = (cost, -free / group.engines, view.turn)
            if best is None or rank < best_rank:
                best, best_rank = (name, view), rank
        if best is None:
            return None
        name, view = best
        self._turn += 1
        view.turn = self._turn
        view.sent += 1
        view.under_way[backend] = view.under_way.get(backend, 0) + 1
        view.unseen[backend] = view.unseen.get(backend, 0) + 1
        view.functions.add(function)
        self._free.clear()
        return name

    def forget(self, function: Hashable) -> None:
        """A function is not called any more."""
        for view in self.views.values():
            view.functions.discard(function)

    def not_sent(self, name: str, backend: str) -> None:
        """A call for which a node was chosen was not sent there after all."""
        view = self.views.get(name)
        if view is not None:
            view.sent -= 1
            view.unseen[backend] = max(0, view.unseen.get(backend, 0) - 1)
            self.ended(name, backend)

    def ended(self, name: str, backend: str, refused: bool = False) -> None:
        """A call ended, or was refused."""
        view = self.views.get(name)
        if view is not None:
            view.under_way[backend] = max(0, view.under_way.get(backend, 0) - 1)
            view.refused = view.refused or refused
            self._free.clear()


def partners_of(me: str, others: Iterable[str], limit: int = PARTNERS) -> list[str]:
    """Choose the nodes that a node sends calls to: all, or some by the hash of both names."""
    names = sorted(others)
    if len(names) <= limit:
        return names
    return sorted(names, key=lambda name: _weight(me, name))[:limit]


def _weight(me: str, other: str) -> bytes:
    return hashlib.blake2b(f"{me}\n{other}".encode(), digest_size=8).digest()
