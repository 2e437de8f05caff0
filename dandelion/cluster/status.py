"""What a node shows of its cluster, and whether it acknowledges changes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from dandelion.capacity import ClusterInfo, MemberInfo
from dandelion.cluster.call_messages import Load
from dandelion.cluster.control_end import ControlEnd
from dandelion.cluster.kept_keeper import KeptKeeper
from dandelion.cluster.link import OutLink
from dandelion.cluster.log_parts import CatalogLog
from dandelion.cluster.membership import Membership
from dandelion.cluster.node_side import NodeSide
from dandelion.cluster.placement import Placement
from dandelion.cluster.serving import InLink
from dandelion.cluster.shares import RecentUse, ToldShares, Used, seconds
from dandelion.cluster.store_driver import StoreDriver
from dandelion.errors import CatalogUnavailable, DandelionError


class Status(NodeSide):
    """The state of a `Cluster`, which has the attributes."""

    name: str
    voters: tuple[str, ...]
    _log: CatalogLog
    _kept: KeptKeeper
    _membership: Membership
    _placement: Placement
    _own_shares: ToldShares
    _own_use: RecentUse
    _links: dict[str, OutLink]
    _in_links: dict[str, InLink]
    _round_trips: dict[str, int]
    _has_majority: threading.Event
    _sent: int
    _lost: int
    _served: int
    _sent_bytes: int
    _received_bytes: int

    def check_acknowledges(self) -> None:
        """See `ClusterPart.check_acknowledges`."""
        self.catalog.check_current()
        if isinstance(self._log, StoreDriver):
            self._log.check()
        elif not self._has_majority.is_set():
            raise CatalogUnavailable(
                "cluster",
                "this node sees only a minority of the nodes, so it acknowledges nothing",
                "try another node, or again when they are connected",
            )

    def info(self) -> ClusterInfo:
        """See `ClusterPart.info`."""
        self._own_use.update(self._own_shares.next(self.tenants())[0])
        members = members_of(
            self.name,
            self.voters,
            self.load(0),
            self._own_use.used_ns,
            self._membership,
            self._placement,
            self._links,
            self._in_links,
            self._round_trips,
        )
        ends: list[ControlEnd] = [*self._links.values(), *self._in_links.values()]
        by_store, log_problem = isinstance(self._log, StoreDriver), self._log_problem
        return ClusterInfo(
            node=self.name,
            members=members,
            majority=not log_problem if by_store else self._membership.has_majority,
            registered=self._log.length,
            sent_calls=self._sent,
            served_calls=self._served + sum([link.count for link in self._in_links.values()]),
            lost_calls=self._lost,
            sent_bytes=self._sent_bytes + sum([end.sent_bytes for end in ends]),
            received_bytes=self._received_bytes + sum([end.received_bytes for end in ends]),
            kept_copies=self._kept.copies,
            taken_over=self._kept.taken_over,
            problem=str(self.catalog.blocked or log_problem or ""),
            kept_copies_bytes=self._kept.copies_bytes,
            full_voters=self._kept.full_voters,
        )

    @property
    def _log_problem(self) -> DandelionError | None:
        """Why the store of the log cannot be used; None with voters."""
        return self._log.problem if isinstance(self._log, StoreDriver) else None


def members_of(
    name: str,
    voters: Collection[str],
    own: Load,
    own_used_ns: Used,
    membership: Membership,
    placement: Placement,
    links: Mapping[str, ControlEnd],
    in_links: Mapping[str, ControlEnd],
    round_trips: Mapping[str, int],
) -> tuple[MemberInfo, ...]:
    """Describe all nodes, by name.

    Args:
        name, own, own_used_ns: of this node: its name, what it has, and what tenants used.
        voters: names of the voters.
        membership, placement: what is known of the others.
        links, in_links: to other nodes, and from them.
        round_trips: of the last heartbeats, in nanoseconds.
    """
    seen: list[tuple[str, str, Load, Used]] = [(name, "self", own, own_used_ns)]
    for member in membership.members.values():
        view = placement.views.get(member.name)
        if view is None:
            seen.append((member.name, member.state.value, Load(), {}))
            continue
        load = Load(tuple(view.groups.values()), waiting=view.waiting)
        seen.append((member.name, member.state.value, load, view.recent_use.used_ns))
    found = []
    for node, state, load, used_ns in sorted(seen, key=lambda one: one[0]):
        link, in_link = links.get(node), in_links.get(node)
        found.append(
            MemberInfo(
                node,
                state,
                node in voters,
                {group.backend: group.engines for group in load.groups},
                {group.backend: group.free for group in load.groups},
                0 if link is None else link.under_way,
                0 if in_link is None else in_link.under_way,
                round_trips.get(node, 0) / 1e9,
                load.waiting,
                seconds(used_ns),
            )
        )
    return tuple(found)
