"""Records of what a node has and what is free, for programs, HTTP and the command line."""

from __future__ import annotations

import msgspec

from dandelion.markup import Element, heading, page, table
from dandelion.settings import TenantSettings
from dandelion.sizes import size_text


class EngineCapacity(msgspec.Struct, frozen=True):
    """One engine, or the total of the engines of one backend in one state.

    Attributes:
        name: of the engine; empty for a total.
        engines: how many are counted.
        backend, state: as in ``GET /v1/engines``.
        device_bytes: device memory for one call; of a total the largest. 0 is unlimited.
        constants_used_bytes, constants_bytes: device memory for constants that stay there.
        running: calls on it.
        waiting: calls that wait for it or for engines like it.
        busy: part of the last seconds in which it ran a call, from 0 to 1; of a total the mean.
    """

    name: str
    engines: int
    backend: str
    state: str
    device_bytes: int
    constants_used_bytes: int
    constants_bytes: int
    running: int
    waiting: int
    busy: float


class CoresCapacity(msgspec.Struct, frozen=True):
    """How cores are divided now.

    Attributes:
        compute, io: cores of each side.
        moves: how many were moved since the node was started.
    """

    compute: int
    io: int
    moves: int


class WorkersCapacity(msgspec.Struct, frozen=True):
    """The workers of one device, where the node chooses how many of them run.

    Attributes:
        backend, resource: the device; for one tenant the resource is empty, and the numbers are
            those of all devices of the backend.
        most: how many there may be.
        started: how many are up or starting.
        active: how many take calls.
    """

    backend: str
    resource: str
    most: int
    started: int
    active: int


class TenantCapacity(msgspec.Struct, frozen=True):
    """One tenant: what it uses, and what it may use.

    Attributes:
        name: of the tenant.
        share: its weight, divided by the weights of all tenants that have calls now; its own is
            always counted.
        invocations: admitted and not ended.
        calls: on engines.
        waiting: calls that wait for an engine.
        arena_bytes: charged for inputs and results of its invocations.
        functions_bytes: code and constants of its functions in the node's memory.
        device_bytes: its constants on all devices, and the known demands of its calls there.
        quota: its weight and limits; None is no limit.
    """

    name: str
    share: float
    invocations: int
    calls: int
    waiting: int
    arena_bytes: int
    functions_bytes: int
    device_bytes: int
    quota: TenantSettings


class MemberInfo(msgspec.Struct, frozen=True):
    """A node of a cluster, as another one sees it.

    Attributes:
        name: its address for other nodes.
        state: ``self``, ``alive``, ``suspect``, ``dead``, ``draining`` or ``unknown``.
        voter: its vote counts when the catalogue is changed.
        engines: how many calls it runs at the same time, by backend.
        free: how many more it would begin, by backend.
        sent: calls of the asked node that it has.
        served: calls of it that the asked node has.
        round_trip_s: of the last heartbeat, in seconds; 0 if there was none.
        waiting: calls that wait there for engines.
        used_s: how long tenants have used its engines since its start, in seconds; the 1000 tenants
            that used them last.
    """

    name: str
    state: str
    voter: bool
    engines: dict[str, int] = {}
    free: dict[str, int] = {}
    sent: int = 0
    served: int = 0
    round_trip_s: float = 0.0
    waiting: int = 0
    used_s: dict[str, float] = {}


class ClusterInfo(msgspec.Struct, frozen=True):
    """What a node knows of its cluster.

    Attributes:
        node: name of the node that was asked.
        members: itself and all others.
        majority: it sees more than half of the voters, or can use the store that the cluster has
            instead of voters, so it acknowledges changes.
        registered: changes in the catalogue's log.
        sent_calls, served_calls: counters of calls that went to others, and came from them.
        lost_calls: of those that went, how many were lost with their node.
        sent_bytes, received_bytes: counters of all connections.
        kept_copies: asynchronous invocations, of any node, that this one has a copy of.
        taken_over: counter of those of lost nodes that this one has gone on with.
        problem: why this node acknowledges no changes though it could; empty if there is none.
        kept_copies_bytes: inputs and results of the copies.
        full_voters: names of the voters that have no room for copies of all that this node runs.
    """

    node: str
    members: tuple[MemberInfo, ...]
    majority: bool
    registered: int
    sent_calls: int
    served_calls: int
    lost_calls: int
    sent_bytes: int
    received_bytes: int
    kept_copies: int = 0
    taken_over: int = 0
    problem: str = ""
    kept_copies_bytes: int = 0
    full_voters: tuple[str, ...] = ()


class ArenaCapacity(msgspec.Struct, frozen=True):
    """The arena, in bytes.

    Attributes:
        total_bytes: its size.
        used_bytes: in contexts that are in use.
        largest_free_bytes: of the largest context that it has room for.
    """

    total_bytes: int
    used_bytes: int
    largest_free_bytes: int


class Admission(msgspec.Struct, frozen=True):
    """What would happen to a call now. It reserves nothing, and does not know the call's inputs.

    Attributes:
        function, version: which was asked for.
        state: ``now``, ``queued`` or ``refused``.
        before: waiting calls that may be sent before it; the policy may prefer it.
        reason: why it would wait or be refused.
    """

    function: str
    version: int
    state: str
    before: int = 0
    reason: str = ""


class NodeCapacity(msgspec.Struct, frozen=True):
    """A snapshot of a node.

    Attributes:
        engines: each engine; for one tenant the totals of each backend.
        tenants: all tenants, or the one that asks.
        arena: of the node.
        invocations, invocations_limit: admitted ones of all tenants, and how many may be.
        admission: the answer about one function, if it was asked for.
        workers: of devices where the node chooses how many workers run.
        cores: how compute and I/O engines divide cores; None if they do not.
    """

    engines: tuple[EngineCapacity, ...]
    tenants: tuple[TenantCapacity, ...]
    arena: ArenaCapacity
    invocations: int
    invocations_limit: int
    admission: Admission | None = None
    workers: tuple[WorkersCapacity, ...] = ()
    cores: CoresCapacity | None = None

    def _repr_html_(self) -> str:
        engines = [
            (e.name or f"{e.engines} of {e.backend}", e.state, e.running, e.waiting,
             f"{e.busy:.0%}", size_text(e.device_bytes) if e.device_bytes else "")
            for e in self.engines
        ]  # fmt: skip
        tenants = [
            (t.name, f"{t.share:.0%}", t.invocations, t.calls, t.waiting,
             size_text(t.arena_bytes), size_text(t.functions_bytes))
            for t in self.tenants
        ]  # fmt: skip
        arena = f"arena {size_text(self.arena.used_bytes)} of {size_text(self.arena.total_bytes)}"
        counted = f"{self.invocations} of {self.invocations_limit} invocations"
        return page(
            heading("node", arena, counted),
            table(("engine", "state", "running", "waiting", "busy", "device memory"), engines),
            table(("tenant", "share", "invocations", "calls", "waiting", "arena", "code"), tenants),
            None if self.admission is None else _admission(self.admission),
        )


def _admission(found: Admission) -> Element:
    words = (f"version {found.version}", found.state, f"{found.before} before it", found.reason)
    return heading("a call of", found.function, *words)
