"""``dandelion cluster status``: the nodes of a cluster, as one of them sees it."""

from __future__ import annotations

from dandelion.capacity import ClusterInfo, MemberInfo
from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.sizes import size_text


def run(arguments: Arguments, out: Output) -> int:
    """Show the nodes of the cluster."""
    with connect(arguments) as client:
        info = client.cluster()
    if out.as_json:
        out.document(info)
    elif info is None:
        out.line("the node is in no cluster; see 'dandelion serve --peers'")
    else:
        _show(info, out)
    return 0


def _show(info: ClusterInfo, out: Output) -> None:
    out.table(
        ("node", "state", "voter", "free engines", "waiting", "sent", "served", "round trip"),
        [_row(member) for member in info.members],
    )
    tenants = sorted({name for member in info.members for name in member.used_s})
    if tenants:
        out.line("")
        rows = [
            (tenant, *[f"{m.used_s.get(tenant, 0.0):.1f} s" for m in info.members])
            for tenant in tenants
        ]
        out.table(("engine time of tenant", *[member.name for member in info.members]), rows)
    if not info.majority and any(member.voter for member in info.members):
        out.line("\nonly a minority of the voters is seen: changes are not acknowledged")
    if info.problem:
        out.line(f"\n{info.problem}")
    if info.full_voters:
        names = ", ".join(info.full_voters)
        out.line(f"\nno room for all copies of asynchronous invocations of this node: {names}")
    out.line(
        f"\n{info.node}: {info.registered} changes of the catalogue; {info.sent_calls} calls sent, "
        f"{info.lost_calls} lost, {info.served_calls} served; {size_text(info.sent_bytes)} sent, "
        f"{size_text(info.received_bytes)} received; copies of {info.kept_copies} asynchronous "
        f"invocations ({size_text(info.kept_copies_bytes)}), {info.taken_over} taken over"
    )


def _row(member: MemberInfo) -> tuple[str, ...]:
    free = [f"{name} {member.free.get(name, 0)} of {n}" for name, n in member.engines.items()]
    return (
        member.name,
        member.state,
        "yes" if member.voter else "no",
        ", ".join(free),
        str(member.waiting),
        str(member.sent),
        str(member.served),
        f"{member.round_trip_s * 1e3:.2f} ms" if member.round_trip_s else "",
    )
