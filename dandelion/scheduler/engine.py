"""The scheduler's record of an engine."""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dandelion.driver import Capacity
from dandelion.errors import DandelionError
from dandelion.timers import Timer

if TYPE_CHECKING:
    from dandelion.scheduler.concurrency import WorkerPool
    from dandelion.scheduler.cores import CoreSide
    from dandelion.scheduler.records import CallState, Flow, Lane, Tenant

SHORT_CALL_NS = 2_000_000
"""An engine whose calls are shorter on average gets its next call while one runs. With longer ones
the pause between calls is a small part, and the second one would keep others from their turn."""
LARGE_CONSTANTS_BYTES = 4 << 20
"""Copying constants of this size takes as long as a short call."""
UNKNOWN_CAPACITY = Capacity()


class EnginePhase(enum.Enum):
    """The state of an engine."""

    DORMANT = "dormant"  # it is started when it is needed
    STARTING = "starting"  # also again, after it was lost
    READY = "ready"
    UNAVAILABLE = "unavailable"  # it is tried again
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class EngineState:
    """One engine of any hosting.

    Attributes:
        id: unique within the node.
        formats: of code objects that it runs.
        device: backend and resource; engines of one device are its sequential one and its workers.
        places: how many calls it takes at once; with 0 this depends on the duration of calls.
        short_call_ns: while one call runs, it takes the next ones that take so long together.
        ahead: how many it takes then at most; one after a call that may be a batch.
        worker: it shares its device with others and runs concurrently with them.
        shared_fault_domain: a fault of one worker ends the calls of all workers of the device.
        on_demand: it is not started before a call needs it.
        elastic: how many such workers of the device are started and active is chosen by the node.
        remote: it stands for engines of other nodes: calls that were sent by other nodes never go
            there, and others do if that is worth `transfer_ns`.
        transfer_ns, transfer_ns_per_byte: what it costs to run a call there instead of here.
        behind: in how many of its places a call waits there for one that runs.
        pool, cycle_ns: of `concurrency`, for such workers; the end of its last call.
        active: it takes calls from its lanes.
        side: of the division of cores, if they are divided.
        held, contents: flows whose constants its device has, or will have when the calls before the
            next one have begun, and the content of these constants.
        loading: which of its device's engines copies them now, by content.
        capacity: known when it is ready.
        planner: calls must have a demand before they are placed, since engines differ.
        joins: it runs batches.
        sent: its calls, in the order in which they were sent.
        lanes: the lanes that it takes calls from.
        last: the flow that was sent last.
        owner, held_ns: of the policy: the tenant that it serves, and for how much engine time.
        failed_starts, restart: number of failed starts in a row, and the timer of the next one.
        calls, failures, busy_ns: counters since it was added.
    """

    id: int
    formats: frozenset[str]
    device: tuple[str, str] = ("", "")
    places: int = 0
    worker: bool = False
    shared_fault_domain: bool = False
    planner: bool = False
    joins: bool = False
    name: str = ""
    capacity: Capacity = UNKNOWN_CAPACITY
    phase: EnginePhase = EnginePhase.STARTING
    error: DandelionError | None = None
    sent: dict[int, CallState] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    last: Flow | None = None
    owner: Tenant | None = None
    held_ns: int = 0
    short_call_ns: int = SHORT_CALL_NS
    ahead: int = 1
    mean_ns: float = 0.0
    failed_starts: int = 0
    restart: Timer[EngineState] | None = None
    calls: int = 0
    failures: int = 0
    busy_ns: int = 0
    on_demand: bool = False
    elastic: bool = False
    remote: bool = False
    transfer_ns: float = 0.0
    transfer_ns_per_byte: float = 0.0
    behind: int = 0
    pool: WorkerPool | None = None
    cycle_ns: int = 0
    active: bool = True
    side: CoreSide | None = None
    held: Collection[Flow] = ()
    contents: Collection[Hashable] = ()
    loading: Mapping[Hashable, EngineState] = field(default_factory=dict)

    def lacks(self, flow: Flow) -> bool:
        """Tell whether a flow has constants that its device lacks, or another engine copies now."""
        if not LARGE_CONSTANTS_BYTES <= flow.constants_bytes <= self.capacity.constants_bytes:
            return False
        if flow not in self.held and flow.constants not in self.contents:
            return True
        return self.loading.get(flow.constants, self) is not self

    @property
    def free(self) -> int:
        """How many more calls it takes now."""
        if not self.active or self.phase is not EnginePhase.READY:
            return 0
        places = self.places
        if not places:
            mean_ns, last = self.mean_ns, self.last
            # A batch grows while it waits in its queue, but not behind others on the engine.
            ahead = self.ahead if last is None or last.spec.batching is None else 1
            places = 1 + min(ahead, int(self.short_call_ns / mean_ns)) if mean_ns else 1
        return places - len(self.sent)
