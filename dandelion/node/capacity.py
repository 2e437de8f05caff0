"""What a node has and what is free. All of it is for the loop's thread."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from dandelion.capacity import (
    Admission,
    ArenaCapacity,
    CoresCapacity,
    EngineCapacity,
    NodeCapacity,
    TenantCapacity,
    WorkersCapacity,
)
from dandelion.executors import Executor
from dandelion.function import FunctionSpec
from dandelion.memory import SharedDomain
from dandelion.scheduler import EngineState, Flow, Quota, Scheduler, Tenant
from dandelion.scheduler.engine import EnginePhase
from dandelion.scheduler.lines import busy_owner, overfull
from dandelion.scheduler.placement import Needs, no_engine
from dandelion.scheduler.quota import NO_QUOTA, quota_of_function
from dandelion.scheduler.records import Lane, Presence
from dandelion.settings import TenantSettings

SAMPLE_NS = 1_000_000_000
SAMPLES = 5


class BusyMeter:
    """Measures which part of the last seconds engines were busy.

    It keeps a sample of their busy time for each second.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, dict[int, int]]] = deque(maxlen=SAMPLES)

    def sample(self, engines: Iterable[EngineState], now_ns: int) -> None:
        """Take a sample, unless the last one is younger than a second."""
        if not self._samples or now_ns - self._samples[-1][0] >= SAMPLE_NS:
            self._samples.append((now_ns, {e.id: _busy_ns(e, now_ns) for e in engines}))

    def busy(self, engine: EngineState, now_ns: int) -> float:
        """Return the part of the last seconds in which an engine ran a call, from 0 to 1."""
        if not self._samples or now_ns <= self._samples[0][0]:
            return 0.0
        then_ns, busy_ns = self._samples[0]
        passed_ns = _busy_ns(engine, now_ns) - busy_ns.get(engine.id, 0)
        return min(1.0, max(0.0, passed_ns / (now_ns - then_ns)))


def _busy_ns(engine: EngineState, now_ns: int) -> int:
    """Return the time of all calls of an engine; those that run are included."""
    return engine.busy_ns + sum(
        max(0, now_ns - (call.started_ns or call.sent_ns)) for call in engine.sent.values()
    )


def _waiting(lanes: Iterable[Lane]) -> int:
    return sum(len(queue.calls) for lane in lanes for queue in lane.queues.values())


class Running(Protocol):
    """What is asked of a `Runtime`."""

    scheduler: Scheduler
    executors: dict[int, Executor]
    meter: BusyMeter


def capacity_of(
    runtime: Running,
    arena: SharedDomain,
    tenants: Sequence[Tenant],
    asking: Tenant,
    spec: FunctionSpec | None,
    shows_all: bool,
) -> NodeCapacity:
    """Take a snapshot of a node.

    Args:
        runtime, arena: of the node.
        tenants: all of them.
        asking: the tenant that it is for.
        spec: a function of this tenant: tell what would happen to a call of it.
        shows_all: all tenants and single engines, not only what `asking` may see.
    """
    scheduler, executors = runtime.scheduler, list(runtime.executors.values())
    engines = engine_capacities(scheduler, executors, runtime.meter, time.monotonic_ns())
    stats = arena.stats()
    return NodeCapacity(
        engines if shows_all else engine_totals(executors, engines),
        tenant_capacities(scheduler, tenants, tenants if shows_all else [asking]),
        ArenaCapacity(stats.capacity_bytes, stats.used_bytes, arena.largest_free_bytes),
        len(scheduler.invocations),
        scheduler.limit,
        admission(scheduler, asking, spec) if spec is not None else None,
        workers_capacities(scheduler, shows_all),
        cores_capacity(scheduler),
    )


def cores_capacity(scheduler: Scheduler) -> CoresCapacity | None:
    """Tell how cores are divided; None if they are not."""
    cores = scheduler.calls.sending.cores
    if cores is None:
        return None
    found = cores.controller
    return CoresCapacity(found.compute, found.io, found.moves)


def workers_capacities(scheduler: Scheduler, shows_all: bool) -> tuple[WorkersCapacity, ...]:
    """Describe the workers of each device, or of all devices of each backend."""
    found: dict[tuple[str, str], WorkersCapacity] = {}
    for pool in scheduler.calls.sending.concurrency.pools.values():
        backend, resource = pool.device
        key = (backend, resource if shows_all else "")
        before = found.get(key, WorkersCapacity(*key, 0, 0, 0))
        found[key] = WorkersCapacity(
            *key,
            before.most + len(pool.workers),
            before.started + pool.started,
            before.active + pool.active,
        )
    return tuple(found.values())


def engine_capacities(
    scheduler: Scheduler, executors: Iterable[Executor], meter: BusyMeter, now_ns: int
) -> tuple[EngineCapacity, ...]:
    """Describe each engine."""
    rows = []
    stated: set[int] = set()
    for executor in executors:
        engine = executor.engine
        constants = scheduler.calls.residency.devices.get(engine)
        if id(constants) in stated:  # its device's engines share it
            constants = None
        stated.add(id(constants))
        rows.append(
            EngineCapacity(
                engine.name or executor.info.name,
                1,
                executor.info.backend,
                engine.phase.value,
                engine.capacity.device_bytes,
                constants.used_bytes if constants is not None else 0,
                constants.capacity_bytes if constants is not None else 0,
                len(engine.sent),
                _waiting(engine.lanes),
                meter.busy(engine, now_ns),
            )
        )
    return tuple(rows)


def engine_totals(
    executors: Iterable[Executor], rows: Iterable[EngineCapacity]
) -> tuple[EngineCapacity, ...]:
    """Sum the engines of each backend in each state, so that single engines are not shown."""
    groups: dict[tuple[str, str], list[EngineCapacity]] = defaultdict(list)
    lanes: dict[tuple[str, str], dict[int, Lane]] = defaultdict(dict)
    for executor, row in zip(executors, rows, strict=True):
        key = (row.backend, row.state)
        groups[key].append(row)
        lanes[key].update((id(lane), lane) for lane in executor.engine.lanes)
    return tuple(
        EngineCapacity(
            "",
            len(group),
            *key,
            max(row.device_bytes for row in group),
            sum(row.constants_used_bytes for row in group),
            sum(row.constants_bytes for row in group),
            sum(row.running for row in group),
            _waiting(lanes[key].values()),
            sum(row.busy for row in group) / len(group),
        )
        for key, group in groups.items()
    )


def tenant_capacities(
    scheduler: Scheduler, tenants: Sequence[Tenant], wanted: Iterable[Tenant]
) -> tuple[TenantCapacity, ...]:
    """Describe what tenants use and may use.

    Args:
        scheduler: of the node.
        tenants: all tenants.
        wanted: those to describe.
    """
    residency = scheduler.calls.residency
    device_bytes: Counter[Tenant] = Counter()
    for place in {id(place): place for place in residency.devices.values()}.values():
        device_bytes.update(place.by_tenant)
    for engine in scheduler.calls.engines.all.values():
        for call in engine.sent.values():
            if call.demand is not None:
                device_bytes[call.flow.tenant] += call.demand.device_bytes
    active = sum(tenant.weight for tenant in tenants if tenant.calls or tenant.waiting)
    return tuple(
        TenantCapacity(
            tenant.name,
            tenant.weight / (active if tenant.calls or tenant.waiting else active + tenant.weight),
            tenant.invocations,
            tenant.calls,
            tenant.waiting,
            tenant.arena_bytes,
            residency.node.by_tenant.get(tenant, 0),
            device_bytes[tenant],
            _settings_of(tenant),
        )
        for tenant in wanted
    )


def _settings_of(tenant: Tenant) -> TenantSettings:
    given = zip(Quota._fields, tenant.quota, NO_QUOTA, strict=True)
    limits = {name: value for name, value, none in given if value != none}
    return TenantSettings(weight=tenant.weight, share_constants=tenant.share_constants, **limits)


def admission(scheduler: Scheduler, tenant: Tenant, spec: FunctionSpec) -> Admission:
    """Tell whether a call of a function would run now, wait or be refused."""
    state, before, reason = _admission(scheduler, tenant, spec)
    return Admission(spec.name, spec.version, state, before, reason)


def _admission(scheduler: Scheduler, tenant: Tenant, spec: FunctionSpec) -> tuple[str, int, str]:
    calls = scheduler.calls
    error = scheduler.refusal(tenant)
    if error is not None:
        return "refused", 0, str(error)
    flow = calls.flows.get((tenant.name, spec.name, spec.version))
    if flow is None:
        flow = Flow(tenant, spec, quota=quota_of_function(spec))
        flow.size_bytes, _ = calls.sizes(flow)
        is_loaded = not flow.size_bytes
    else:
        is_loaded = flow.presence is Presence.PRESENT
    misfit = None if is_loaded else calls.residency.misfit(flow)
    if misfit is not None:
        return "refused", 0, str(misfit)
    needs = Needs(tuple(code.format for code in spec.code))
    there = [calls.engines.running(name) for name in needs.formats]
    ready = [[e for e in engines if e.phase is EnginePhase.READY] for engines in there]
    suitable = next((engines for engines in ready if engines), [])
    if not suitable and not calls.engines.possible(needs):
        return "refused", 0, str(no_engine(calls.engines, needs, spec.name))
    owner = busy_owner(flow)
    if owner is None and any(engine.free > 0 for engine in suitable):
        return ("now", 0, "") if is_loaded else ("queued", 0, "its code is to be loaded first")
    error = overfull(flow, more=1)
    if error is not None:
        return "refused", 0, str(error)
    if owner is not None:
        return "queued", owner.waiting, f"{owner.label} has {owner.calls} calls on engines"
    before = _waiting({id(lane): lane for e in suitable for lane in e.lanes}.values())
    return "queued", before, "all engines are busy" if suitable else "its engine is starting"
