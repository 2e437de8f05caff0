"""The invariants after every event, for tests and simulations; too expensive for a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from dandelion.scheduler.cores import IO_CALLS, CoreSide
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.function_memory import FunctionMemory
from dandelion.scheduler.lines import busy_owner
from dandelion.scheduler.policy import NEVER
from dandelion.scheduler.records import CallState, Flow, Owner, Phase, Presence
from dandelion.scheduler.scheduler import Scheduler


def check_invariants(scheduler: Scheduler) -> None:
    """Check the consistency of the scheduler's records.

    Raises:
        AssertionError: names the violated invariant.
    """
    calls = _check_calls(scheduler)
    _check_pauses(scheduler)
    _check_engines(scheduler)
    _check_workers(scheduler)
    _check_cores(scheduler)
    _check_tenants(scheduler)
    _check_lines(scheduler)
    _check_memory(scheduler, calls)


def _check_calls(scheduler: Scheduler) -> list[CallState]:
    """Every call of a running invocation is in exactly one place, that of its phase."""
    wanted = [c for i in scheduler.invocations.values() for c in i.calls.values()]
    sent = {c.id for e in scheduler.calls.engines.all.values() for c in e.sent.values()}
    for call in wanted:
        assert not call.cancelled, f"{_name(call)} is cancelled and still listed"
        assert call.phase is not Phase.ENDED, f"{_name(call)} has ended and is still listed"
        places = (
            (Phase.QUEUED, call.queue is not None and call in call.queue.calls),
            (Phase.BLOCKED, call in call.flow.blocked),
            (Phase.GATHERING, call in call.flow.gathering),
            (Phase.JOINED, call.batch is not None and call in call.batch.members),
            (Phase.SENT, call.id in sent),
        )
        for phase, there in places:
            right = there == (call.phase is phase)
            assert right, f"{_name(call)} is {call.phase}, {phase}: {there}"
    for invocation in scheduler.invocations.values():
        assert not invocation.ended, f"invocation {invocation.id} has ended and is kept"
        waits = invocation.calls or invocation.resuming or invocation.pauses
        assert waits, f"invocation {invocation.id} waits for nothing"
    return wanted


def _name(call: CallState) -> str:
    return f"call {call.id} of {call.invocation.id}"


def _check_pauses(scheduler: Scheduler) -> None:
    """Pauses are those of running invocations, and counted; every instance in flight is one."""
    by_tenant: Counter[object] = Counter()
    for invocation in scheduler.invocations.values():
        paused = len(invocation.pauses)
        by_tenant[invocation.tenant] += paused
        for instance, timer in invocation.pauses.items():
            assert timer.value == (invocation, instance), f"{invocation.id}: a pause never ends"
        expected = invocation.walk.in_flight
        if not invocation.resuming:  # else instructions may still have to be carried out
            in_flight = len(invocation.calls) + paused
            assert in_flight == expected, f"{invocation.id}: {expected} are in flight"
    assert len(scheduler.pauses) == by_tenant.total(), "pauses of invocations that ended are kept"
    for tenant in scheduler.tenants.values():
        assert tenant.paused == by_tenant[tenant], f"{tenant.name}: {tenant.paused} pauses"
        assert tenant.paused <= tenant.quota.queue_length, f"{tenant.name}: too many pauses"


def _check_engines(scheduler: Scheduler) -> None:
    """Engines have no more calls than places, and none is idle while a suitable call waits."""
    policy = scheduler.calls.sending.policy
    for engine in scheduler.calls.engines.all.values():
        for call in engine.sent.values():
            assert call.phase is Phase.SENT, f"call {call.id} on {engine.id} is {call.phase}"
            for member in call.members:
                assert member.phase is Phase.JOINED, f"a member of {call.id} is {member.phase}"
                assert member.flow is call.flow, f"a member of {call.id} is of another function"
                assert engine.joins, f"engine {engine.id} cannot run batches"
            assert call.engine is engine, f"call {call.id} refers to another engine"
            both = engine.remote and call.invocation.served
            assert not both, f"call {call.id} came from another node and was sent to one"
        if engine.places and not engine.remote and engine.side is None:
            assert len(engine.sent) <= engine.places, f"engine {engine.id} has too many calls"
        if engine.phase is not EnginePhase.READY:
            assert engine.phase is EnginePhase.STARTING or not engine.sent
        if engine.free > 0 and not engine.remote:
            for lane in engine.lanes:
                for queue in lane.queues.values():
                    waits = busy_owner(queue.flow) is not None
                    if not waits and policy.by_engine:
                        waits = policy.cost(engine, queue.flow, lane) == NEVER
                    assert waits, f"engine {engine.id} is free while {queue.flow.name} waits"


def _check_workers(scheduler: Scheduler) -> None:
    """As many workers are active as were chosen, and every lane has an active engine."""
    for pool in scheduler.calls.sending.concurrency.pools.values():
        ready = [e for e in pool.workers if e.phase is EnginePhase.READY]
        expected = min(len(ready), pool.climber.target)
        assert pool.active == expected, f"{pool.device}: {pool.active} are active"
        for engine in pool.workers:
            assert not engine.active or engine in ready, f"engine {engine.id} is active"
            dormant = engine.phase is EnginePhase.DORMANT
            assert not (dormant and engine.sent), f"engine {engine.id} is dormant and has calls"
        reserve = pool.reserve
        if reserve is not None:
            assert pool.reserves, "the policy does not let calls overtake others"
            assert not reserve.active, f"the reserve {reserve.id} is active"
            assert len(reserve.sent) == 1, f"the reserve {reserve.id} has {len(reserve.sent)} calls"
    for lane in scheduler.calls.engines.lanes.values():
        active = any(engine.active for engine in lane.engines)
        assert active or not lane.engines, "no engine of a lane takes calls"


def _check_cores(scheduler: Scheduler) -> None:
    """Each side has a core at least, and each backend as many active engines as it may have."""
    cores = scheduler.calls.sending.cores
    if cores is None:
        return
    controller = cores.controller
    assert min(controller.compute, controller.io) >= 1, "a side has no core"
    backends: dict[str, list[EngineState]] = {}
    for engine in scheduler.calls.engines.all.values():
        if engine.side is CoreSide.COMPUTE:
            backends.setdefault(engine.device[0], []).append(engine)
        elif engine.side is CoreSide.IO:
            assert engine.places == controller.io * IO_CALLS, f"engine {engine.id}: other places"
    for name, engines in backends.items():
        active = sum(engine.active for engine in engines)
        assert active == min(len(engines), controller.compute), f"{name}: {active} are active"


def _check_tenants(scheduler: Scheduler) -> None:
    """Counts of tenants and flows are right and within quotas, and what is needed is charged."""
    invocations = Counter(i.tenant for i in scheduler.invocations.values())
    arena: Counter[object] = Counter()
    for invocation in scheduler.invocations.values():
        arena[invocation.tenant] += invocation.arena_bytes
        held_bytes, _ = invocation.walk.held()
        assert invocation.arena_bytes >= held_bytes, f"{invocation.id}: bytes are not charged"
    for tenant in scheduler.tenants.values():
        assert tenant.invocations == invocations[tenant], f"{tenant.name}: invocations"
        assert tenant.arena_bytes == arena[tenant], f"{tenant.name}: arena"
    sent = [c for e in scheduler.calls.engines.all.values() for c in e.sent.values()]
    waiting = [
        c
        for lane in scheduler.calls.engines.lanes.values()
        for queue in lane.queues.values()
        for c in queue.calls
    ]
    on_engines, queued, new = (
        Counter([owner for c in calls for owner in (c.flow, c.flow.tenant)])
        for calls in (sent, waiting, [c for c in waiting if not c.requeued])
    )
    owners: list[Owner] = [*scheduler.tenants.values(), *scheduler.calls.flows.values()]
    for owner in owners:
        quota = owner.quota
        counted = owner.calls == on_engines[owner] <= quota.calls
        assert counted, f"{owner.label}: {owner.calls} calls"
        assert owner.waiting == queued[owner], f"{owner.label}: {owner.waiting} wait"
        assert new[owner] <= quota.queue_length, f"{owner.label}: too many calls wait"
        for queue in owner.parked:
            assert queue.parked is owner, f"{owner.label}: a parked queue does not know it"
            assert queue.calls, f"{owner.label}: an empty queue is parked"
            assert owner.calls >= quota.calls, f"{owner.label} is parked without reason"
    for call in sent:
        needed = sum([c.demand.device_bytes for c in call.members or (call,) if c.demand])
        assert needed <= call.flow.tenant.quota.call_device_bytes, f"{call.id} takes too much"


def _check_lines(scheduler: Scheduler) -> None:
    """Every queue is in order, and is parked or has one valid entry in its lane's heap."""
    waiting = []
    by_engine = scheduler.calls.sending.policy.by_engine
    for lane in scheduler.calls.engines.lanes.values():
        entries = {entry for _, entry, _ in lane.heap}
        for flow, queue in lane.queues.items():
            calls, slots = list(queue.calls), list(queue.slots)
            waiting += calls
            assert calls, f"an empty queue of {flow.name} is kept"
            assert flow.queues[lane] is queue, f"{flow.name} does not know its queue"
            known = queue.entry in entries or by_engine or queue.parked
            assert known, f"a queue of {flow.name} is lost"
            for call in calls:
                assert call.queue is queue, f"call {call.id} is in another queue"
            assert calls == sorted(calls, key=lambda call: call.rank), f"order of {flow.name}"
            assert slots == sorted(slots), f"slots of {flow.name}"
            assert len(slots) == len(calls), f"{flow.name}: {len(slots)} slots"
    assert len(waiting) == scheduler.calls.lines.waiting, f"{len(waiting)} calls wait"
    prioritized = Counter([c.flow.tenant for c in waiting if c.rank[0] != 0])
    for tenant in scheduler.tenants.values():
        found = prioritized[tenant]
        assert tenant.prioritized == found, f"{tenant.name}: {tenant.prioritized} priorities"


def _check_memory(scheduler: Scheduler, wanted: list[CallState]) -> None:
    """Memory is never over-committed; what calls need is there; what waits is in line."""
    residency = scheduler.calls.residency
    for place in (residency.node, *residency.devices.values()):
        assert place.used_bytes == sum(place.sizes), "used bytes do not add up"
        assert place.used_bytes <= place.capacity_bytes, "memory is over-committed"
        charged = Counter[object]()
        for tenant, _, size in {
            (f.tenant, _content(place, f), place.size_of(f)) for f in place.flows
        }:
            charged[tenant] += size
        assert place.by_tenant == charged, "tenants' bytes do not add up"
    for engine, place in residency.devices.items():
        assert engine.phase is EnginePhase.READY, f"constants on {engine.id}, which is not up"
        for content, source in place.loading.items():
            assert content in place.contents, "constants are copied that were evicted"
            if source is engine:
                copies = any(c.flow.constants == content for c in engine.sent.values())
                assert copies, f"{engine.id} copies constants for no call"
        for tenant, size in place.by_tenant.items():
            over = size - tenant.quota.device_bytes
            assert over <= 0, f"{tenant.name} has too much of {engine.id}"
    for flow in residency.node.flows:
        needed = flow.pins or flow.blocked or flow.presence is Presence.FETCHING
        assert needed or not flow.removed, f"{flow.name} was removed and stays in memory"
    for tenant, size in residency.node.by_tenant.items():
        assert size <= tenant.quota.arena_bytes, f"{tenant.name} has too much memory"
    sent = [c for e in scheduler.calls.engines.all.values() for c in e.sent.values()]
    joined = [member for call in sent for member in call.members]
    pins = Counter(c.flow for c in {*wanted, *sent, *joined} if c.pinned)
    for flow in {*scheduler.calls.flows.values(), *pins}:
        expected = pins[flow] + (flow.presence is Presence.FETCHING)
        assert flow.pins == expected, f"{flow.name}: {flow.pins} pins, not {expected}"
        if pins[flow] and flow.size_bytes:
            assert flow.presence is Presence.PRESENT, f"{flow.name} is needed and not there"
        if flow.size_bytes and flow.presence in (Presence.PRESENT, Presence.FETCHING):
            assert flow in residency.node, f"{flow.name} takes memory that is not counted"
        in_line = flow in residency.line
        assert in_line == (flow.presence is Presence.WAITING), f"{flow.name}: line"
        if flow.blocked and flow.presence is Presence.PRESENT:
            leaves = flow in residency.leaving or flow in residency.outdated
            assert leaves, f"calls of {flow.name} wait for nothing"
        if flow.presence is Presence.ABSENT:
            assert not flow.blocked, f"calls of {flow.name} wait and it is not fetched"
    for flow in residency.outdated:
        assert flow.pins, f"{flow.name} is not fetched again"
        waiting = flow.waiting or flow.gathering
        assert not waiting, f"calls of {flow.name} do not wait for it"
    if residency.line:
        first = next(iter(residency.line))
        room = residency.node.victims(first, first.size_bytes, first.tenant.quota.arena_bytes)
        assert room is None, f"there is room for {first.name}, which waits for it"
    else:
        assert not residency.leaving, "flows leave for no reason"


def _content(place: FunctionMemory, flow: Flow) -> Hashable:
    return flow.constants if place.shares and flow.constants else flow
