"""The scheduler's state: tenants, flows, calls, invocations; engines are in `engine`.

A call has one record, from its walk's instruction until its trace is written. Wire messages, spans
and metrics are made from it. Only the scheduler changes these records, except for the fields marked
as written by executors, which describe what happened on the engine.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mypy_extensions import mypyc_attr

from dandelion.call_logs import PrintedLine
from dandelion.data import ItemSet
from dandelion.dispatcher import Run, Walk
from dandelion.driver import Demand, InstanceSets
from dandelion.errors import DandelionError
from dandelion.function import Function, FunctionSpec
from dandelion.scheduler.counts import FlowCounts
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.quota import NO_QUOTA, Quota
from dandelion.timers import Timer
from dandelion.trace_context import InvocationSpan

if TYPE_CHECKING:
    from dandelion.scheduler.concurrency import WorkerPool

DEFAULT_TENANT = "default"


@dataclass(slots=True, eq=False)
class Tenant:
    """The owner of functions and invocations.

    Attributes:
        name: of the tenant, the first part of ``tenant/function``.
        weight: its share relative to others, where the policy has shares.
        share_constants: equal constants of others and of its functions are stored once on a device.
        invocations: admitted and not ended.
        calls: on engines now.
        waiting: calls that wait for an engine.
        paused: instances that wait before they are run again.
        arena_bytes: charged for its invocations; at least what is in the arena for them now.
        results: charged since the results of its invocations were counted, see `Scheduler.recount`.
        counted: items of the last count.
        parked: its queues that may send no calls until others of its calls end.
        prioritized: how many of its waiting calls have a priority other than 0.
        used_ns: time of its calls on engines of this node, by backend; a counter.
    """

    name: str
    quota: Quota = NO_QUOTA
    weight: float = 1.0
    invocations: int = 0
    calls: int = 0
    waiting: int = 0
    arena_bytes: int = 0
    results: int = 0
    counted: int = 0
    parked: list[CallQueue] = field(default_factory=list)
    prioritized: int = 0
    share_constants: bool = True
    paused: int = 0
    used_ns: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For errors."""
        return f"tenant '{self.name}'"


class Presence(enum.Enum):
    """The state of a function's code and constants in the node's memory."""

    ABSENT = "absent"
    WAITING = "waiting"  # for room
    FETCHING = "fetching"
    PRESENT = "present"


@dataclass(slots=True, eq=False)
class Flow:
    """One function of one tenant: the unit of queueing, ordering and accounting.

    Attributes:
        spec: the function.
        quota: its limits of calls and waiting calls.
        presence: of its code and constants in the node's memory.
        size_bytes: their size there, known once they are fetched.
        constants_bytes: the part that a device would keep.
        constants: digest of their content; flows with equal ones share them on a device.
        scope: the tenant, if it shares constants with no other; else empty.
        pins: number of calls that use it; a pinned function is not evicted.
        calls, waiting, parked: as of `Tenant`.
        blocked: calls that wait until it is present.
        gathering: calls that wait for others, to be joined.
        wait: the timer until which they wait.
        queues: calls that wait for an engine, by lane.
        mean_ns: mean time of a call on its engine; 0 before the first.
        tags: of the policy, by lane.
        functions: written by executors: its loaded forms, by format.
        counts: counters of its calls.
        was_evicted: written by the node: it was evicted from memory, and not loaded since.
        removed: it is no longer registered, or is replaced; it leaves memory with its last call.
    """

    tenant: Tenant
    spec: FunctionSpec
    presence: Presence = Presence.ABSENT
    size_bytes: int = 0
    constants_bytes: int = 0
    constants: str = ""
    scope: str = ""
    pins: int = 0
    quota: Quota = NO_QUOTA
    calls: int = 0
    waiting: int = 0
    parked: list[CallQueue] = field(default_factory=list)
    blocked: dict[CallState, None] = field(default_factory=dict)
    gathering: dict[CallState, None] = field(default_factory=dict)
    wait: Timer[Flow] | None = None
    queues: dict[Lane, CallQueue] = field(default_factory=dict)
    mean_ns: float = 0.0
    tags: dict[Lane, float] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    counts: FlowCounts = field(default_factory=FlowCounts)
    was_evicted: bool = False
    removed: bool = False

    @property
    def name(self) -> str:
        """``tenant/function``, for errors and traces."""
        return f"{self.tenant.name}/{self.spec.name}"

    @property
    def label(self) -> str:
        """For errors."""
        return f"function '{self.name}'"


Owner: TypeAlias = Tenant | Flow
"""Limits its calls on engines and its waiting calls."""


@dataclass(slots=True, eq=False)
class Lane:
    """Calls for which the same engines are suitable.

    Attributes:
        engines: the suitable engines; empty while they are starting.
        pools: of the engines whose number is chosen.
        heap: of (key of the policy, entry number, queue); entries may be outdated. Empty if the
            policy chooses by engine.
        clock, turns: of the policy: virtual time; when each tenant had its last turn.
    """

    engines: tuple[EngineState, ...]
    pools: tuple[WorkerPool, ...] = ()
    heap: list[tuple[float, int, CallQueue]] = field(default_factory=list)
    queues: dict[Flow, CallQueue] = field(default_factory=dict)
    clock: float = 0.0
    turns: dict[Tenant, int] = field(default_factory=dict)


NO_LANE = Lane(())


@dataclass(slots=True, eq=False)
class CallQueue:
    """Calls of one flow that wait in one lane.

    Attributes:
        calls: by priority, then by place.
        slots: when the queue has its turns, one for each call; ascending. They are the places of
            the calls, unless calls with other priorities used slots of each other.
        entry: the number of its valid entry in the lane's heap; 0 if it has none.
        parked: at its tenant or flow, which has as many calls on engines as it may have.
    """

    flow: Flow
    lane: Lane
    calls: deque[CallState] = field(default_factory=deque)
    slots: deque[float] = field(default_factory=deque)
    entry: int = 0
    parked: Owner | None = None


class Phase(enum.Enum):
    """The state of a call; see the diagram in `dandelion.scheduler`."""

    BLOCKED = "blocked"  # its function is not in memory
    LOOKING = "looking"  # for a cached result
    GATHERING = "gathering"  # it waits for others of its function
    PLANNING = "planning"  # its demand is being computed
    QUEUED = "queued"
    SENT = "sent"
    JOINED = "joined"  # it is a member of a batch, which is sent
    ENDED = "ended"


@mypyc_attr(allow_interpreted_subclasses=True)
class InvocationState:
    """One invocation: its walk, and its calls that have not ended.

    Attributes:
        deadline_ns: on the clock of `now_ns`.
        priority: among the calls of its tenant; higher first.
        input_bytes: size of its inputs in the arena.
        arena_bytes: bytes charged to its tenant's quota, inputs included.
        calls: by the walk's instance number.
        outputs, error: one of them is set when `ended` is.
        deadline, pauses: timers, the latter by the walk's instance number.
        resuming: its walk stopped after a slice and has its next turn in the queue.
        span: its span, if it has one; the scheduler does not use it.
        served: it is one call of an invocation of another node, and runs on engines of this one.
        served_ns: if it is served, receives the time on engines, by backend; its node's counters.
    """

    def __init__(
        self,
        id_: str,
        tenant: Tenant,
        walk: Walk,
        inputs: tuple[ItemSet | None, ...],
        deadline_ns: int,
        deadline_s: float,
        input_bytes: int = 0,
        priority: int = 0,
        served: bool = False,
        served_ns: dict[str, int] | None = None,
    ) -> None:
        self.id = id_
        self.tenant = tenant
        self.walk = walk
        self.inputs = inputs
        self.deadline_ns = deadline_ns
        self.deadline_s = deadline_s
        self.input_bytes = input_bytes
        self.priority = priority
        self.arena_bytes = 0
        self.started_ns = 0
        self.ended_ns = 0
        self.calls: dict[int, CallState] = {}
        self.deadline: Timer[InvocationState] | None = None
        self.pauses: dict[int, Timer[tuple[InvocationState, int]]] = {}
        self.outputs: InstanceSets | None = None
        self.error: DandelionError | None = None
        self.ended = False
        self.resuming = False
        self.span: InvocationSpan | None = None
        self.served = served
        self.served_ns = served_ns


class CallState:
    """One call: one instance of one function, from the walk to the trace.

    Attributes:
        id: unique within the node, in ascending order of creation.
        attempt: 1, and 2 if an engine died under it.
        alone: it must not run in a shared fault domain.
        demand: of a device, where engines differ.
        engine: its current or last engine.
        lane: where it waits or waited, or the lane of its turn.
        rank: its priority and place; the smallest of its queue is next.
        turn: the flow in whose turn it was sent, if another one of its tenant.
        expected_ns: the policy's estimate of its duration.
        queued_ns, sent_ns: when it was last queued, and sent to its engine.
        started_ns, ended_ns, stages: written by the executor.
        printed: written by the executor: what the function wrote.
        span_id: written by the executor: of its span, if other services are told it.
        placed: of the executors: where its inputs are for engine processes, once that is known.
        content: written by the executor: the digest of its inputs, if results are cached.
        pinned: its function stays in memory for it.
        members: the calls that it stands for, if it is a batch.
        batch: that it is a member of.
        single: it is run by itself, since a batch with it has failed.
        requeued: it was in a queue or on an engine before, so a full queue does not refuse it.
        cancelled: its result is not needed; if it was sent, a `Stop` was sent too.
        refusals: written by the executor: nodes that will never run it, with their errors.
        barred: written by the executor: ids of engines that will never run it.
    """

    def __init__(
        self,
        id_: int,
        invocation: InvocationState,
        run: Run,
        flow: Flow,
        demand: Demand | None = None,
        members: tuple[CallState, ...] = (),
        single: bool = False,
    ) -> None:
        self.id = id_
        self.invocation = invocation
        self.run = run
        self.flow = flow
        self.phase: Phase = Phase.BLOCKED
        self.attempt = 1
        self.alone = False
        self.pinned = False
        self.demand = demand
        self.engine: EngineState | None = None
        self.queue: CallQueue | None = None
        self.lane: Lane = NO_LANE
        self.rank: tuple[int, float] = (0, 0.0)
        self.turn: Flow | None = None
        self.expected_ns = 0.0
        self.queued_ns = 0
        self.sent_ns = 0
        self.started_ns = 0
        self.ended_ns = 0
        self.stages: dict[str, int] = {}
        self.printed: tuple[PrintedLine, ...] = ()
        self.span_id = ""
        self.placed: object = None
        self.content = b""
        self.members = members
        self.batch: CallState | None = None
        self.single = single
        self.requeued = False
        self.cancelled = False
        self.refusals: dict[str, DandelionError] | None = None
        self.barred: tuple[int, ...] = ()
