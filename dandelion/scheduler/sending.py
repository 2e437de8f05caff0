"""From the queues to the engines: where a call waits, which engine takes it, and when."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice

from dandelion.controllers.cores import CoreDivision
from dandelion.errors import DandelionError, QuotaExceeded
from dandelion.scheduler.actions import Action, Send, Start
from dandelion.scheduler.batches import Batches
from dandelion.scheduler.concurrency import Concurrency, WorkerPool
from dandelion.scheduler.cores import CoreShares
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.lines import Lines, busy_owner, overfull
from dandelion.scheduler.placement import Engines, Needs, best_free, no_engine
from dandelion.scheduler.policy import NEVER, Policy
from dandelion.scheduler.records import (
    CallQueue,
    CallState,
    Flow,
    InvocationState,
    Lane,
    Owner,
    Phase,
    Tenant,
)
from dandelion.scheduler.residency import Residency

AHEAD_CALL_NS = 200_000_000
"""Calls that take less are sent to other nodes while others run there."""
_MEAN_WEIGHT = 0.2
"""Of the newest call in the mean time of calls."""
_RESERVE_LOOKS = 16
"""How many queues are looked at for a call that may use the reserve."""
_LINE_LOOKS = 64
"""How many queues are counted for the wait that a call of another node saves."""


class Sending:
    """Queues calls and sends them.

    Args:
        engines: of the node.
        lines: the waiting calls.
        residency: decides about constants on devices.
        policy: orders waiting calls.
        actions: receives the actions for executors.
        fail: ends a call that cannot be sent.
        shortage: returns why a tenant may not use so many more bytes, None if it may.

    Attributes:
        batches: joins calls.
        concurrency: chooses how many workers take calls.
        cores: divides cores between compute and I/O; None if they are not divided.
        numbers: ids of new calls, and of those that are moved behind all others.
    """

    def __init__(
        self,
        engines: Engines,
        lines: Lines,
        residency: Residency,
        policy: Policy,
        actions: Callable[[Action], None],
        fail: Callable[[CallState, DandelionError, int], None],
        shortage: Callable[[Tenant, int, InvocationState | None], DandelionError | None],
    ) -> None:
        self.batches = Batches(lines)
        self.concurrency = Concurrency(policy.elastic, policy.reserves, actions)
        self.cores: CoreShares | None = None
        self._engines = engines
        self._lines = lines
        self._residency = residency
        self.policy = policy
        self._act = actions
        self._fail = fail
        self._shortage = shortage
        self.numbers = count(1)

    def divide_cores(self, division: CoreDivision) -> None:
        """Divide cores between compute and I/O engines, before any is added."""
        self.cores = CoreShares(division, self._engines, self._feed)

    def choose_engines(self, now_ns: int) -> None:
        """Choose the engines that take calls, after some were added, lost or changed."""
        self.concurrency.changed(now_ns)
        if self.cores is not None:
            self.cores.choose()

    def unpark(self, owners: tuple[Owner, ...], now_ns: int) -> None:
        """Send calls of tenants and flows that are below their quotas again."""
        lanes: list[Lane] = []
        for owner in owners:
            if owner.parked and owner.calls < owner.quota.calls:
                lanes += self._lines.unpark(owner)
        for lane in lanes:
            self._feed_lane(lane, now_ns)

    def tenant_changed(self, tenant: Tenant, now_ns: int) -> None:
        """A tenant is new, or its quota or weight changed: its calls may have other engines."""
        self.policy.tenant_changed(tenant)
        self.unpark((tenant,), now_ns)
        if self._lines.waiting:
            self.feed_all(now_ns)

    def used_elsewhere(self, tenant: Tenant, backend: str, used_ns: int) -> None:
        """A tenant has used engines of other nodes: its waiting calls count that much more."""
        for lane in self._engines.lanes.values():
            if any(backend in engine.device for engine in lane.engines):
                flows = [flow for flow in lane.queues if flow.tenant is tenant]
                for flow in flows:
                    self.policy.used_elsewhere(flow, lane, used_ns // len(flows))

    def due(self, now_ns: int) -> None:
        """Queue the calls that have waited long enough for others."""
        while (flow := self.batches.waits.take_due(now_ns)) is not None:
            self._queue_gathered(flow, now_ns)

    def queue(self, call: CallState, now_ns: int) -> None:
        """Send a call, or queue it for an engine or until others come."""
        flow = call.flow
        batching = flow.spec.batching
        if batching is not None and self.batches.gather(call, now_ns):
            if len(flow.gathering) >= batching.calls:
                self._queue_gathered(flow, now_ns)
            return
        lane = self._lane_of(call, now_ns)
        if lane is None:
            return
        by_engine = self.policy.by_engine
        waiting = lane.queues if by_engine else lane.heap
        if not waiting and busy_owner(flow) is None:
            engine = self._cheapest(lane, flow) if by_engine else best_free(lane.engines, flow)
            if engine is not None and (not engine.remote or self._pays(engine, call)):
                self._send(call, engine, now_ns)
                if self._engines.dormant and len(engine.sent) > 1:
                    self._start_dormant(call)
                return
        self._lines.add(call, lane)
        self._feed_lane(lane, now_ns)
        if self._engines.dormant and call.queue is not None:
            self._start_dormant(call)
        if lane.pools and call.queue is not None:
            self._use_reserve(call.queue, now_ns)
        self._refuse_overfull(call, now_ns)

    def _queue_gathered(self, flow: Flow, now_ns: int) -> None:
        """Queue calls that waited for others, all before one is sent."""
        calls: list[CallState] = []
        lanes: dict[Lane, None] = {}
        while flow.gathering:  # the failure of one may cancel others
            call = next(iter(flow.gathering))
            self.batches.leave(call)
            lane = self._lane_of(call, now_ns)
            if lane is not None:
                self._lines.add(call, lane)
                calls.append(call)
                lanes[lane] = None
        for lane in lanes:
            self._feed_lane(lane, now_ns)
        if self._engines.dormant:
            for call in calls:
                if call.queue is not None:
                    self._start_dormant(call)
        for call in calls:
            self._refuse_overfull(call, now_ns)

    def _start_dormant(self, call: CallState) -> None:
        """Start an engine that is not started before calls wait for it."""
        engine = self._engines.to_start(call.run.application.formats)
        if engine is not None:
            self._engines.dormant.remove(engine)
            engine.phase = EnginePhase.STARTING
            self._act(Start(engine))

    def _lane_of(self, call: CallState, now_ns: int) -> Lane | None:
        """Return the lane where a call is queued now; None if it failed."""
        flow = call.flow
        lane = self._engines.lane(
            call.run.application.formats,
            call.demand,
            call.alone,
            flow.constants_bytes,
            call.invocation.served,
            call.barred,
        )
        if not lane.engines:
            formats = call.run.application.formats
            here = call.invocation.served
            needs = Needs(formats, call.demand, call.alone, here=here, barred=call.barred)
            if not self._engines.possible(needs):
                refusal = next(iter((call.refusals or {}).values()), None)
                error = refusal or no_engine(self._engines, needs, call.run.function.name)
                self._fail(call, error, now_ns)
                return None
        if call.demand is not None:
            needed, quota = call.demand.device_bytes, flow.tenant.quota.call_device_bytes
            if needed > quota:
                what = f"device memory for one call of '{flow.spec.name}'"
                self._fail(call, QuotaExceeded(flow.tenant.label, what, needed, quota), now_ns)
                return None
        if lane not in flow.queues:
            self.policy.waits(flow, lane)
        call.phase = Phase.QUEUED
        call.lane = lane
        if not call.queued_ns:
            call.queued_ns = now_ns
        return lane

    def _refuse_overfull(self, call: CallState, now_ns: int) -> None:
        """Fail a new call that waits if too many do."""
        if call.queue is not None and not call.requeued:
            error = overfull(call.flow)
            if error is not None:
                self._lines.remove(call)
                self._fail(call, error, now_ns)

    def _cheapest(self, lane: Lane, flow: Flow) -> EngineState | None:
        """Choose the free engine of the least cost; another node's only if none here is free."""
        free = [(self.policy.cost(e, flow, lane), e) for e in lane.engines if e.free > 0]
        free = [pair for pair in free if not pair[1].remote] or free
        least = min((cost for cost, _ in free), default=NEVER)
        return best_free([e for cost, e in free if cost == least < NEVER], flow)

    def feed_all(self, now_ns: int) -> None:
        """Send waiting calls to all engines that are free."""
        for engine in list(self._engines.all.values()):
            self._feed(engine, now_ns)

    def _feed_lane(self, lane: Lane, now_ns: int) -> None:
        for engine in lane.engines:
            self._feed(engine, now_ns)

    def _feed(self, engine: EngineState, now_ns: int) -> None:
        """Send waiting calls to an engine."""
        while engine.free > 0:
            if engine.remote and not self._next_pays(engine):
                return
            call = self._lines.next_for(engine)
            if call is None:
                return
            if call.flow.spec.batching is not None:
                members = self.batches.members(call, engine)
                if members:
                    call = self.batches.batch(members, next(self.numbers))
            self._send(call, engine, now_ns)

    def feed_remote(self, now_ns: int) -> None:
        """Send waiting calls to other nodes."""
        for engine in self._engines.remote:
            self._feed(engine, now_ns)

    def _next_pays(self, engine: EngineState) -> bool:
        call = self._lines.head_for(engine)
        return call is not None and self._pays(engine, call)

    def _pays(self, engine: EngineState, call: CallState) -> bool:
        """Tell whether sending a call to another node takes less time than its line here.

        The whole line counts, not only the wait of this call, since what leaves shortens the wait
        of all behind it. A function whose time is not known yet is run here first. A call that
        would wait there for another one is sent only if it is short: of a long one, the round trip
        that it saves is a small part.
        """
        lane = call.lane
        here = sum([not other.remote and other.active for other in lane.engines])
        mean_ns = call.flow.mean_ns
        is_behind = engine.free <= engine.behind
        if is_behind and not 0 < mean_ns < AHEAD_CALL_NS:
            return False
        if not here:
            return True
        moved_bytes = sum([s.size_bytes for s in call.run.inputs if s is not None])
        cost_ns = engine.transfer_ns + engine.transfer_ns_per_byte * moved_bytes
        line_ns = mean_ns
        for queue in islice(lane.queues.values(), _LINE_LOOKS):
            line_ns += queue.flow.mean_ns * len(queue.calls)
        return cost_ns + is_behind * 2 * mean_ns < line_ns / here

    def _send(self, call: CallState, engine: EngineState, now_ns: int) -> None:
        flow = call.flow
        tenant = flow.tenant
        calls = call.members or (call,)
        needed = 0
        for one in calls:
            if one.demand is not None:
                needed += one.demand.output_bytes or 0
        if tenant.arena_bytes + needed > tenant.quota.arena_bytes:
            error = self._shortage(tenant, needed, None if call.members else call.invocation)
            if error is not None:
                self._fail(call, error, now_ns)
                return
        call.phase = Phase.SENT
        call.engine = engine
        call.sent_ns = now_ns
        for one in calls:
            flow.counts.queued_ns += now_ns - one.queued_ns
        engine.sent[call.id] = call
        engine.last = flow
        tenant.calls += 1
        flow.calls += 1
        self.policy.sent(call, engine)
        if self._residency.devices:
            self._act(Send(call, *self._residency.keep_on_device(engine, flow)))
        else:
            self._act(Send(call))

    def off(self, call: CallState, now_ns: int) -> EngineState:
        """Take a call that ended off its engine."""
        engine = call.engine
        assert engine is not None, "it was sent"
        del engine.sent[call.id]
        flow = call.flow
        flow.calls -= 1
        flow.tenant.calls -= 1
        duration_ns = now_ns - (call.started_ns or call.sent_ns)
        if duration_ns < 0:  # it was lost before it was known to have started
            duration_ns = 0
        engine.calls += 1
        engine.busy_ns += duration_ns
        flow.counts.measured(duration_ns)
        mean_ns = engine.mean_ns
        engine.mean_ns += _MEAN_WEIGHT * (duration_ns - mean_ns) if mean_ns else duration_ns
        mean_ns = flow.mean_ns
        flow.mean_ns += _MEAN_WEIGHT * (duration_ns - mean_ns) if mean_ns else duration_ns
        if engine.loading:
            self._residency.loaded(engine, flow)
        if not engine.remote:
            used_ns, backend = flow.tenant.used_ns, engine.device[0]
            used_ns[backend] = used_ns.get(backend, 0) + duration_ns
            served_ns = call.invocation.served_ns
            if served_ns is not None:
                served_ns[backend] = served_ns.get(backend, 0) + duration_ns
        if engine.pool is not None:
            engine.pool.ended(call, engine, duration_ns, now_ns)
        self.policy.ended(call, engine, duration_ns)
        turn = call.turn or flow
        if turn.queues:
            self._lines.reorder(turn)
        return engine

    def after(self, call: CallState, engine: EngineState, now_ns: int) -> None:
        """Continue other calls after a call was removed from its engine."""
        if self._lines.waiting:
            flow = call.flow
            if flow.parked or flow.tenant.parked:
                self.unpark((flow.tenant, flow), now_ns)
            self._feed(engine, now_ns)
            if self._engines.remote:
                self.feed_remote(now_ns)
        if engine.pool is not None:
            self._adjust(engine.pool, engine, now_ns)

    # --- workers whose number is chosen ---------------------------------------------------------

    def _adjust(self, pool: WorkerPool, engine: EngineState, now_ns: int) -> None:
        """A call of a worker has ended: perhaps use another number of workers."""
        if engine.sent:
            pool.window.followed += engine.active
        elif engine is pool.reserve:
            pool.reserve = None
            self._refill_reserve(engine, now_ns)
        if now_ns >= pool.look_ns:
            if pool.look(now_ns):
                for other in pool.workers:
                    self._feed(other, now_ns)
            self.concurrency.start(pool, now_ns)

    def _refill_reserve(self, engine: EngineState, now_ns: int) -> None:
        """Send the next call that may use the reserve."""
        for lane in engine.lanes:
            for queue in list(islice(lane.queues.values(), _RESERVE_LOOKS)):
                if self._use_reserve(queue, now_ns):
                    return

    def _use_reserve(self, queue: CallQueue, now_ns: int) -> bool:
        """Send a call that waits to an inactive worker, if it is light."""
        for pool in queue.lane.pools:
            if not pool.is_light(queue.flow, now_ns):
                continue
            engine = pool.free_reserve()
            if engine is None:
                self.concurrency.start(pool, now_ns)
            elif engine in queue.lane.engines:
                call = self._lines.take_first(queue)
                if call is not None:
                    pool.reserve = engine
                    self._send(call, engine, now_ns)
                    if not engine.sent:  # it was refused
                        pool.reserve = None
                    return True
        return False
