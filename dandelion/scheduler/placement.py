"""Which engines suit a call.

Where a device has both an engine of its own (sequential) and workers that share it (concurrent),
the rules are those of the thesis on GPU engines for Dandelion, section 5.5:

* a call that needs more device memory than an engine has never goes there;
* a call that fills the device alone runs on the sequential engine: one with a launch of so many
  blocks that no compute unit could hold another one (by threads; local memory is not counted);
* every other call runs on a worker; but a call whose constants only the sequential engine has room
  for runs there, else they would be copied with each call.

While no engine of the right kind is running, the other kind takes the call. An idle sequential
engine does not take workers' calls: it would take turns with the workers and slow all of them down
(measured with MPS: two workers had 1.14 times the throughput of none, and twice the throughput
alone). Workers in one fault domain fail together: if one was lost to a fault, the others are about
to report theirs.

Workers whose number the node chooses (`concurrency`) are in lanes when they are up, also while they
are inactive.

Engines that are equally suitable for a call form a **lane**; calls of one lane share its queues. A
function may have code in several formats: the first format with an engine is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dandelion.driver import Demand
from dandelion.errors import DandelionError, DeviceFull, NoEngine
from dandelion.scheduler.engine import LARGE_CONSTANTS_BYTES, EnginePhase, EngineState
from dandelion.scheduler.records import Flow, Lane

_KNOWN_NEEDS = 4096


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a call.

    Attributes:
        formats: formats of its function's code objects, best first.
        demand: of a device; None if engines do not differ.
        alone: it must not run in a shared fault domain.
        constants_bytes: of its function, if they are large.
        here: it must run on this node.
        barred: ids of engines that will never run it.
    """

    formats: tuple[str, ...]
    demand: Demand | None = None
    alone: bool = False
    constants_bytes: int = 0
    here: bool = False
    barred: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Engines:
    """All engines of a node, and the lanes that follow from them.

    Attributes:
        dormant: engines that are started when calls need them, and were not yet.
        differ: some engines take only calls whose demand is known.
        remote: those of other nodes that are up.
    """

    all: dict[int, EngineState] = field(default_factory=dict)
    lanes: dict[tuple[int, ...], Lane] = field(default_factory=dict)
    dormant: list[EngineState] = field(default_factory=list)
    differ: bool = False
    remote: tuple[EngineState, ...] = ()
    _of_needs: dict[tuple[object, ...], Lane] = field(default_factory=dict)
    _planners: dict[tuple[str, ...], tuple[EngineState, ...]] = field(default_factory=dict)

    def changed(self) -> list[Lane]:
        """Rebuild the lanes after a change of engines; return the old ones, with their calls."""
        old = list(self.lanes.values())
        self.lanes = {}
        self._of_needs.clear()
        self._planners.clear()
        for engine in self.all.values():
            engine.lanes = []
        up = [engine for engine in self.all.values() if engine.phase is EnginePhase.READY]
        self.differ = any(engine.planner for engine in up)
        self.remote = tuple([engine for engine in up if engine.remote])
        return old

    def lane(
        self,
        formats: tuple[str, ...],
        demand: Demand | None,
        alone: bool,
        constants_bytes: int = 0,
        here: bool = False,
        barred: tuple[int, ...] = (),
    ) -> Lane:
        """Return the lane of calls with these `Needs`. It is empty if no suitable engine is up."""
        if constants_bytes < LARGE_CONSTANTS_BYTES:
            constants_bytes = 0
        # A `Needs` is made for new ones.
        needs = (formats, demand, alone, constants_bytes, here, barred)
        found = self._of_needs.get(needs)
        if found is None:
            if len(self._of_needs) >= _KNOWN_NEEDS:
                self._of_needs.clear()
            found = self._of_needs[needs] = self._lane_for(Needs(*needs))
        return found

    def _lane_for(self, needs: Needs) -> Lane:
        engines = self._suitable(needs)
        key = tuple(engine.id for engine in engines)
        lane = self.lanes.get(key)
        if lane is None:
            pools = dict.fromkeys(e.pool for e in engines if e.pool is not None)
            lane = self.lanes[key] = Lane(tuple(engines), tuple(pools))
            lane.clock = max((other.clock for e in engines for other in e.lanes), default=0.0)
            for engine in engines:
                engine.lanes.append(lane)
        return lane

    def _suitable(self, needs: Needs) -> list[EngineState]:
        for name in needs.formats:
            there = self.running(name)
            up = [e for e in there if e.phase is EnginePhase.READY and admits(e, needs)]
            standing = _with_room(_without_suspects(up, there), needs.constants_bytes)
            preferred = [e for e in standing if _prefers(e, needs)]
            served = {e.device for e in preferred}
            preferred += [e for e in standing if e not in preferred and e.device not in served]
            if preferred:
                return preferred
        return []

    def running(self, format_name: str) -> list[EngineState]:
        """Engines that run a format, up or not."""
        return [e for e in self.all.values() if format_name in e.formats]

    def to_start(self, formats: Sequence[str]) -> EngineState | None:
        """Return an engine that is to be started for calls with code in some formats.

        One starts at a time, so that a few short calls do not start all.
        """
        for name in formats:
            suitable = self.running(name)
            if any(e.phase is EnginePhase.STARTING for e in suitable):
                return None
            dormant = next((e for e in self.dormant if e.active and name in e.formats), None)
            if dormant is not None:
                return dormant
        return None

    def planner(self, formats: tuple[str, ...]) -> EngineState | None:
        """Return an engine that computes demands, if engines for these formats differ."""
        planners = self._planners.get(formats)
        if planners is None:
            planners = self._planners[formats] = self._find_planners(formats)
        if not planners:
            return None
        return min(planners, key=lambda engine: len(engine.sent)) if planners[1:] else planners[0]

    def _find_planners(self, formats: Sequence[str]) -> tuple[EngineState, ...]:
        for name in formats:
            up = [e for e in self.running(name) if e.planner and e.phase is EnginePhase.READY]
            if up:
                return tuple(up)
        return ()

    def possible(self, needs: Needs) -> bool:
        """Tell whether any engine can run such a call, now or after its start."""
        there = [e for name in needs.formats for e in self.running(name)]
        return any(_may_run(engine, needs) for engine in there)

    def siblings(self, engine: EngineState) -> list[EngineState]:
        """Return the other engines in its fault domain."""
        return [
            other
            for other in self.all.values()
            if other is not engine and other.shared_fault_domain and other.device == engine.device
        ]


def no_engine(engines: Engines, needs: Needs, function: str) -> DandelionError:
    """Return why no engine runs a call: it is too large, or an engine's error."""
    there = [e for name in needs.formats for e in engines.running(name)]
    there = [e for e in there if not (needs.here and e.remote)]
    rooms = [e for e in there if e.capacity.device_bytes]
    if rooms and needs.demand is not None:
        best = max(rooms, key=lambda engine: engine.capacity.device_bytes)
        room = best.capacity.device_bytes
        if needs.demand.device_bytes > room:
            return DeviceFull(best.name, needs.demand.device_bytes, room)
    for engine in there:
        if engine.error is not None:
            return replace(engine.error)
    ready = {f for e in engines.all.values() if e.phase is EnginePhase.READY for f in e.formats}
    return NoEngine(function, needs.formats, tuple(sorted(ready)))


def _may_run(engine: EngineState, needs: Needs) -> bool:
    if (needs.here and engine.remote) or engine.id in needs.barred:
        return False
    if engine.phase is EnginePhase.DORMANT and engine.on_demand:
        return True
    if engine.phase in (EnginePhase.DORMANT, EnginePhase.UNAVAILABLE, EnginePhase.CLOSED):
        return False
    never_up = engine.phase is EnginePhase.STARTING and not engine.name
    return never_up or admits(engine, needs)


def admits(engine: EngineState, needs: Needs) -> bool:
    """Tell whether an engine is able to run a call."""
    if (needs.alone and engine.shared_fault_domain) or (needs.here and engine.remote):
        return False
    if engine.id in needs.barred:
        return False
    room = engine.capacity.device_bytes
    return needs.demand is None or not room or needs.demand.device_bytes <= room


def _prefers(engine: EngineState, needs: Needs) -> bool:
    """Tell whether an engine is of the right kind for a call: worker or sequential."""
    if needs.demand is None:
        return True
    return engine.worker != engine.capacity.saturated_by(needs.demand)


def _with_room(engines: list[EngineState], constants_bytes: int) -> list[EngineState]:
    """Omit workers without room for constants for which their sequential engine has room."""
    if not constants_bytes:
        return engines
    sizes = {e.id: e.capacity.bytes_of_constants(constants_bytes) for e in engines}
    have_room = [e for e in engines if 0 < sizes[e.id] <= e.capacity.constants_bytes]
    served = {e.device for e in have_room if not e.worker}
    return [e for e in engines if e in have_room or not (e.worker and e.device in served)]


def _without_suspects(
    engines: list[EngineState], among: Iterable[EngineState]
) -> list[EngineState]:
    """Omit engines that share a fault domain with one that was lost and is not up again."""
    lost = {
        e.device
        for e in among
        if e.shared_fault_domain and e.name and e.phase is EnginePhase.STARTING
    }
    if not lost:
        return engines
    return [e for e in engines if not e.shared_fault_domain or e.device not in lost]


def best_free(engines: Sequence[EngineState], flow: Flow) -> EngineState | None:
    """Choose among the free ones of some engines.

    One of this node is best, then one that copies the flow's constants now, then an idle one, then
    one whose device has them, then the one that ran it last.
    """
    if len(engines) == 1:
        return engines[0] if engines[0].free > 0 else None
    best: EngineState | None = None
    best_rank = (False, False, False, False, 0, 0)
    for engine in engines:
        free = engine.free
        if free > 0:
            last = 2 if engine.last is flow else 0
            copies = engine.loading.get(flow.constants) is engine
            idle, lacks = not engine.sent, engine.lacks(flow)
            rank = (not engine.remote, copies, idle, not lacks, last, free)
            if best is None or rank > best_rank:
                best, best_rank = engine, rank
    return best
