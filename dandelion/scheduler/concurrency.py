"""How many workers of a device are started, and how many of them take calls.

Workers whose number is chosen by the node form a `WorkerPool` for each device. A worker is dormant
(not started), ready and active (takes calls from its lanes), or ready and inactive: it keeps its
memory and its place in the lanes, and finishes what it has, but takes nothing from a queue. So a
change of the number of active workers costs nothing, and all queues stay as they are.

A `Climber` chooses the number. Workers are started when it requests more, twice as many each time.
If one cannot be started, no others are for `RETRY_NS`.

**Reserve.** One inactive worker may take a call that waits if calls of its flow are short compared
to all running ones (`SHORT_PART`), and its tenant has used less than half of its fair share of the
device's time lately (`SHARE_PART`). So such a call does not wait for the end of long calls. There
is one at a time for each device, and the second condition limits how much of the device it takes.
While there are such calls, one worker is left for them. It overtakes calls of other tenants, so
only policies that share engine time do this (`Policy.reserves`).

Nothing here is called for engines without a pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr

from dandelion.controllers.climbing import LEAST_NS, Climber, Limits
from dandelion.controllers.throughput import Kind, Window
from dandelion.driver import Demand
from dandelion.scheduler.actions import Action, Start
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.records import CallState, Flow, Tenant

FIRST_WORKERS = 2
"""So many are started and active at first."""
LOOK_NS = 10_000_000
RETRY_NS = 10_000_000_000
SHORT_PART, SHARE_PART = 0.25, 0.5
FORGET_NS = 250_000_000
"""Used time counts less by a factor of e after this time."""
LIGHT_NS = 1_000_000_000
"""One worker is left for light calls for so long after the last one,"""
LEAST_SHARED = 4
"""if so many can be had; of fewer ones it would be too large a part."""
_SMOOTHED = 0.2
_RISE = 1.001
"""By how much a kind's time alone may rise for each window, as calls may become longer."""
_KINDS = 256
_ALIKE = 2.5
"""Calls of different flows with equal demands are alike if their times differ by less."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, eq=False)
class WorkerPool:
    """The workers of one device.

    Attributes:
        workers: all of them, dormant ones too.
        climber: chooses how many are active.
        reserve: the inactive worker that has a call which did not wait for an active one.
        look_ns: when the climber looks next.
    """

    device: tuple[str, str]
    reserves: bool
    workers: list[EngineState] = field(default_factory=list)
    climber: Climber = field(default_factory=lambda: Climber(FIRST_WORKERS))
    reserve: EngineState | None = None
    look_ns: int = 0
    window: Window = field(default_factory=lambda: Window(0))
    _steady_since_ns: int = 0
    _kinds: dict[tuple[Flow, int], Kind] = field(default_factory=dict)
    _like: dict[Demand | None, list[Kind]] = field(default_factory=dict)
    _used: dict[Tenant, float] = field(default_factory=dict)
    _used_ns: float = 0.0
    _weights: float = 0.0
    _forgot_ns: int = 0
    _light_ns: int = -LIGHT_NS
    _retry_ns: int = 0

    # --- calls ----------------------------------------------------------------------------------

    def ended(self, call: CallState, engine: EngineState, duration_ns: int, now_ns: int) -> None:
        """Count a call that ended on one of the workers."""
        cycle_began_ns, engine.cycle_ns = engine.cycle_ns, now_ns
        tenant, used = call.flow.tenant, self._used
        self._used_ns += duration_ns
        if tenant in used:
            used[tenant] += duration_ns
        else:
            used[tenant] = duration_ns
            self._weights += tenant.weight
        units = len(call.members) or 1
        demand = call.demand
        size = 0 if demand is None else (demand.device_bytes // units).bit_length()
        kind = self._kinds.get((call.flow, size))
        each_ns = duration_ns / units
        if kind is None:
            kind = self._kind_of(call, size, max(1.0, each_ns))
        else:
            kind.mean_ns += _SMOOTHED * (max(1.0, each_ns) - kind.mean_ns)
            if kind.mean_ns < kind.alone_ns:
                kind.alone_ns = kind.mean_ns
        if not engine.active:
            if engine is not self.reserve:  # one that takes no more calls; others are faster now
                self._steady_since_ns = now_ns
        elif self._steady_since_ns <= cycle_began_ns < now_ns:
            self.window.add(kind, units, now_ns - cycle_began_ns, duration_ns)

    def _kind_of(self, call: CallState, size: int, each_ns: float) -> Kind:
        """Find the kind of calls that are new: one with the same demand, if they take as long."""
        if len(self._kinds) >= _KINDS:
            self._kinds.clear()
            self._like.clear()
        alike = self._like.setdefault(call.demand, [])
        for kind in alike:
            if 1 / _ALIKE < each_ns / kind.mean_ns < _ALIKE:
                break
        else:
            kind = Kind(each_ns, each_ns)
            alike.append(kind)
        self._kinds[call.flow, size] = kind
        return kind

    def is_light(self, flow: Flow, now_ns: int) -> bool:
        """Tell whether a waiting call of a flow may take the reserve."""
        mean_ns = flow.mean_ns
        if not self.reserves or not mean_ns:
            return False
        least_ns = mean_ns / SHORT_PART
        for engine in self.workers:
            if engine.active and engine.mean_ns <= least_ns:
                running = next(iter(engine.sent.values()), None)
                if running is None or running.flow.mean_ns <= least_ns:
                    return False  # it ends soon
        tenant = flow.tenant
        used_ns, weights = self._used.get(tenant), self._weights
        if used_ns is None:
            used_ns, weights = 0.0, weights + tenant.weight
        if used_ns * weights > SHARE_PART * self._used_ns * tenant.weight:
            return False
        self._light_ns = now_ns
        return True

    def free_reserve(self) -> EngineState | None:
        """Return a worker that is ready and not needed, unless another one is in use as reserve."""
        if self.reserve is not None:
            return None
        for engine in self.workers:
            if not engine.active and engine.phase is EnginePhase.READY and not engine.sent:
                return engine
        return None

    # --- the number of workers ------------------------------------------------------------------

    @property
    def started(self) -> int:
        """How many are up or on their way."""
        phases = (EnginePhase.READY, EnginePhase.STARTING)
        return sum(engine.phase in phases for engine in self.workers)

    @property
    def active(self) -> int:
        """How many take calls."""
        return sum(engine.active for engine in self.workers)

    def look(self, now_ns: int) -> bool:
        """Look whether another number of workers is better. True if other workers are active."""
        self.look_ns = now_ns + LOOK_NS
        if now_ns - self._forgot_ns > LEAST_NS:
            self._forget(now_ns)
        up = sum(engine.phase is EnginePhase.READY for engine in self.workers)
        later = self.started if now_ns < self._retry_ns else len(self._usable())
        if now_ns - self._light_ns < LIGHT_NS and later >= LEAST_SHARED:
            later -= 1
            up = min(up, later)
        window = self.window
        window.engines = sum(
            engine.active and (engine.cycle_ns > window.began_ns or bool(engine.sent))
            for engine in self.workers
        )
        if not self.climber.look(window, Limits(up, later), now_ns):
            return False
        self.window = Window(now_ns)
        for kind in window.kinds:
            kind.seen_ns = now_ns
            if kind.alone_ns < kind.mean_ns:
                kind.alone_ns *= _RISE
        return self.choose(now_ns)

    def choose(self, now_ns: int) -> bool:
        """Make so many of the workers active as the climber requests; True if they are others."""
        ready = [engine for engine in self.workers if engine.phase is EnginePhase.READY]
        ready.sort(key=_first_active)
        chosen = ready[: self.climber.target]
        changed = False
        for engine in self.workers:
            active = engine in chosen
            changed = changed or active is not engine.active
            engine.active = active
        reserve = self.reserve
        if reserve is not None and (reserve.active or not reserve.sent):
            self.reserve = None
        if changed:
            self._steady_since_ns = now_ns
            self.window = Window(now_ns)
        return changed

    def to_start(self, now_ns: int) -> list[EngineState]:
        """Return the dormant workers that are needed now."""
        started, wanted = self.started, self.climber.wanted
        if wanted > started:
            wanted = max(wanted, 2 * started)
        elif now_ns - self._light_ns < LIGHT_NS and started <= self.climber.target:
            wanted = started + 1
        if wanted <= started or now_ns < self._retry_ns:
            return []
        dormant = [e for e in self.workers if e.phase is EnginePhase.DORMANT]
        return dormant[: wanted - started]

    def failed(self, now_ns: int) -> None:
        """A dormant worker could not be started."""
        self._retry_ns = now_ns + RETRY_NS

    def _usable(self) -> list[EngineState]:
        return [e for e in self.workers if e.phase is not EnginePhase.UNAVAILABLE]

    def _forget(self, now_ns: int) -> None:
        """Let engine time that tenants used count less."""
        part = math.exp((self._forgot_ns - now_ns) / FORGET_NS)
        self._forgot_ns = now_ns
        self._used = {t: part * used for t, used in self._used.items() if part * used > 1000.0}
        self._used_ns = sum(self._used.values())
        self._weights = sum(tenant.weight for tenant in self._used)


def is_extra(engine: EngineState) -> bool:
    """Tell whether an engine is a worker that is started when it is needed, and never was up."""
    pool = engine.pool
    return pool is not None and not engine.name and engine not in pool.workers[:FIRST_WORKERS]


def _first_active(engine: EngineState) -> tuple[int, int]:
    """Order workers: the one with the most memory is active, so every lane has an active one."""
    return -engine.capacity.device_bytes, engine.id


class Concurrency:
    """The pools of a node.

    Args:
        elastic: whether the policy lets the number of active workers vary.
        reserves: whether light calls may overtake others.
        actions: receives the actions for executors.
    """

    def __init__(self, elastic: bool, reserves: bool, actions: Callable[[Action], None]) -> None:
        self.pools: dict[tuple[str, str], WorkerPool] = {}
        self._elastic = elastic
        self._reserves = reserves
        self._act = actions

    def added(self, engine: EngineState) -> bool:
        """Take a new engine; True if it is to be started now."""
        if not engine.elastic or not self._elastic:
            return True
        pool = self.pools.get(engine.device)
        if pool is None:
            pool = self.pools[engine.device] = WorkerPool(engine.device, self._reserves)
        pool.workers.append(engine)
        engine.pool = pool
        engine.active = False
        if len(pool.workers) <= FIRST_WORKERS:
            return True
        engine.phase = EnginePhase.DORMANT
        return False

    def closed(self, engine: EngineState) -> None:
        """Forget an engine."""
        if engine.pool is not None:
            engine.pool.workers.remove(engine)

    def changed(self, now_ns: int) -> None:
        """Engines are up or lost."""
        for pool in self.pools.values():
            pool.choose(now_ns)

    def start(self, pool: WorkerPool, now_ns: int) -> None:
        """Start the workers that a pool needs."""
        for engine in pool.to_start(now_ns):
            engine.phase = EnginePhase.STARTING
            self._act(Start(engine))
