"""What a node shows of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dandelion.capacity import MemberInfo
from dandelion.cluster.call_messages import Load
from dandelion.cluster.control_end import ControlEnd
from dandelion.cluster.membership import Membership
from dandelion.cluster.placement import Placement
from dandelion.cluster.shares import Used, seconds


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
        seen.append((member.name, member.state.value, load, view.used_ns))
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
