"""``dandelion capacity``: what a node has and what is free."""

from __future__ import annotations

from dandelion.capacity import Admission, EngineCapacity, NodeCapacity, TenantCapacity
from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.sizes import size_text


def run(arguments: Arguments, out: Output) -> int:
    """Show the capacity of a node, and perhaps what would happen to a call."""
    with connect(arguments) as client:
        capacity = client.capacity(arguments.name or None, arguments.version_)
    if out.as_json:
        out.document(capacity)
        return 0
    show(capacity, out)
    return 0


def show(capacity: NodeCapacity, out: Output) -> None:
    """Print tables of engines and tenants, and lines of what belongs to the node."""
    out.table(
        ("engines", "state", "number", "running", "waiting", "busy", "device", "constants"),
        [_engine(engine) for engine in capacity.engines],
    )
    out.line("")
    out.table(
        ("tenant", "share", "invocations", "calls", "waiting", "arena", "device"),
        [_tenant(tenant) for tenant in capacity.tenants],
    )
    if capacity.workers:
        out.line("")
        out.table(
            ("workers", "active", "started", "most"),
            [
                (
                    f"{w.backend}:{w.resource}".rstrip(":"),
                    str(w.active),
                    str(w.started),
                    str(w.most),
                )
                for w in capacity.workers
            ],
        )
    if capacity.cores is not None:
        cores = capacity.cores
        moved = f"; {cores.moves} were moved" if cores.moves else ""
        out.line(f"\ncores: {cores.compute} compute, {cores.io} for I/O{moved}")
    arena = capacity.arena
    out.line(
        f"\narena: {size_text(arena.used_bytes)} of {size_text(arena.total_bytes)} used, "
        f"{size_text(arena.largest_free_bytes)} free in one piece"
    )
    out.line(f"invocations: {capacity.invocations} of {capacity.invocations_limit}")
    if capacity.admission is not None:
        out.line(_admission(capacity.admission))


def _engine(engine: EngineCapacity) -> tuple[str, ...]:
    constants = f"{size_text(engine.constants_used_bytes)} of {size_text(engine.constants_bytes)}"
    return (
        engine.name or engine.backend,
        engine.state,
        str(engine.engines),
        str(engine.running),
        str(engine.waiting),
        f"{engine.busy:.0%}",
        size_text(engine.device_bytes) if engine.device_bytes else "",
        constants if engine.constants_bytes else "",
    )


def _tenant(tenant: TenantCapacity) -> tuple[str, ...]:
    quota = tenant.quota
    arena = _of(size_text(tenant.arena_bytes), quota.arena_bytes, size=True)
    return (
        tenant.name,
        f"{tenant.share:.0%}",
        _of(str(tenant.invocations), quota.invocations),
        _of(str(tenant.calls), quota.calls),
        _of(str(tenant.waiting), quota.queue_length),
        arena,
        size_text(tenant.device_bytes),
    )


def _of(used: str, limit: int | None, size: bool = False) -> str:
    if limit is None:
        return used
    return f"{used} of {size_text(limit) if size else limit}"


def _admission(found: Admission) -> str:
    happens = {"now": "run now", "queued": f"wait behind {found.before}", "refused": "be refused"}
    what = happens.get(found.state, found.state)
    text = f"{found.function}, version {found.version}: a call would {what}"
    return f"{text} ({found.reason})" if found.reason else text
