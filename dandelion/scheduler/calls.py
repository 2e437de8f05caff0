"""The life of calls, from a walk's instruction to the end. See the package's text.

Handles the executors' events about functions and calls. The end of a call is reported to the
scheduler, which steps its walk; this may start further calls or cancel others at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from dandelion.dispatcher import Run
from dandelion.driver import Demand, InstanceSets
from dandelion.errors import ContextFull, DandelionError, DeviceFull, EngineDied, NoEngine
from dandelion.function import FunctionSpec
from dandelion.scheduler.actions import Action, Look, Plan, Send, Stop
from dandelion.scheduler.lines import Lines
from dandelion.scheduler.placement import Engines, Needs, best_free
from dandelion.scheduler.policy import NEVER, Policy
from dandelion.scheduler.records import (
    CallState,
    EnginePhase,
    EngineState,
    Flow,
    InvocationState,
    Lane,
    Phase,
    Presence,
    Tenant,
)
from dandelion.scheduler.residency import Residency
from dandelion.scheduler.retries import PLAN_ATTEMPTS, blamed, may_run_again

Sizes = Callable[[Flow], tuple[int, int]]
"""Returns the bytes of a function's code and constants in the node's memory, and the part of them
that a device would keep."""


class Walks(Protocol):
    """Receives the end of every call that was not cancelled."""

    def finished(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        """The call has returned its outputs."""

    def gave_up(self, call: CallState, error: DandelionError, now_ns: int) -> None:
        """The call has failed and is not retried."""


class Calls:
    """All calls of a node.

    Args:
        policy: orders waiting calls.
        memory_bytes: the node's memory for code and constants of functions.
        sizes: of functions.
        actions: receives the actions for executors.
        walks: receives the ends of calls.
    """

    def __init__(
        self,
        policy: Policy,
        memory_bytes: int,
        sizes: Sizes,
        actions: Callable[[Action], None],
        walks: Walks,
    ) -> None:
        self.engines = Engines()
        self.lines = Lines(policy)
        self.residency = Residency(memory_bytes, actions)
        self.flows: dict[tuple[str, str, int], Flow] = {}
        self.policy = policy
        self._sizes = sizes
        self._act = actions
        self._walks = walks
        self._number = 0
        self._making_room = False

    # --- the scheduler's side -----------------------------------------------------------------

    def want(self, invocation: InvocationState, run: Run, now_ns: int) -> None:
        """Make the call of a walk's instance."""
        self._number += 1
        function = run.function
        flow = self.flows.get((invocation.tenant.name, function.name, function.version))
        if flow is None:
            flow = self._new_flow(invocation.tenant, function)
        call = CallState(self._number, invocation, run, flow)
        invocation.calls[run.instance] = call
        if function.cache:
            call.phase = Phase.LOOKING
            self._act(Look(call))
        else:
            self._need(call, now_ns)

    def cancel(self, call: CallState, now_ns: int) -> None:
        """Cancel a call; its result is no longer needed."""
        del call.invocation.calls[call.run.instance]
        call.cancelled = True
        if call.phase is Phase.SENT:
            self._act(Stop(call))
            return
        if call.queue is not None:
            self.lines.remove(call)
        elif call.phase is Phase.BLOCKED:
            call.flow.blocked.pop(call, None)
        self._leave(call, now_ns)

    def removed(self, tenant: Tenant, name: str, version: int) -> None:
        """Forget a function that is no longer registered; running calls are not affected."""
        flow = self.flows.pop((tenant.name, name, version), None)
        if flow is not None:
            self.residency.forget(flow)

    def unpark(self, tenant: Tenant, now_ns: int) -> None:
        """Send calls of a tenant that is below its quota again."""
        if tenant.parked and tenant.calls < tenant.quota.calls:
            for lane in self.lines.unpark(tenant):
                self._feed_lane(lane, now_ns)

    def tenant_changed(self, tenant: Tenant, now_ns: int) -> None:
        """A tenant is new, or its quota or weight changed: its calls may have other engines."""
        self.policy.tenant_changed(tenant)
        self.unpark(tenant, now_ns)
        if self.lines.waiting:
            self._feed_all(now_ns)

    def engines_changed(self, now_ns: int) -> None:
        """Engines were added, lost or changed: rebuild the lanes with all waiting calls."""
        waiting = self.lines.drain(self.engines.changed())
        for call in waiting:
            if not call.cancelled:  # the failure of another one may have cancelled it
                self._plan(call, now_ns)
        self._feed_all(now_ns)

    # --- events of executors --------------------------------------------------------------------

    def fetched(self, flow: Flow, now_ns: int) -> None:
        """A function's code and constants are in memory."""
        self.residency.fetched(flow)
        self._room(now_ns)

    def fetch_failed(self, flow: Flow, error: DandelionError, now_ns: int) -> None:
        """They could not be loaded: fail the calls that wait for them."""
        for call in self.residency.fetch_failed(flow):
            if call.phase is Phase.BLOCKED:
                self._fail(call, replace(error), now_ns)
        self._room(now_ns)

    def found(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        """A cached result of a call was found."""
        if call.phase is Phase.LOOKING:
            self._finish(call, outputs, now_ns)

    def missed(self, call: CallState, now_ns: int) -> None:
        """There is no cached result of a call."""
        if call.phase is Phase.LOOKING:
            self._need(call, now_ns)

    def planned(self, call: CallState, demand: Demand, now_ns: int) -> None:
        """The demand of a call is known."""
        if call.phase is Phase.PLANNING:
            call.demand = demand
            call.attempt = 1  # what died while it was planned says nothing about running it
            self._queue(call, now_ns)

    def done(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        """A sent call has returned its outputs."""
        engine = self._off(call, now_ns)
        self._finish(call, outputs, now_ns)
        self._after(call, engine, now_ns)

    def failed(
        self, call: CallState, error: DandelionError, now_ns: int, begun: bool = True
    ) -> None:
        """A call failed, where it was sent or while it was planned.

        Args:
            call: the call.
            error: the cause.
            now_ns: now.
            begun: its engine may have started it.
        """
        if call.phase is Phase.PLANNING:
            self._unplanned(call, error, begun, now_ns)
            return
        if call.phase is not Phase.SENT:
            return
        engine = self._off(call, now_ns)
        engine.failures += 1
        call.flow.counts.failures += 1
        if not call.cancelled and may_run_again(call, engine, error, begun):
            self._again(call, engine, begun, now_ns)
        else:
            self._fail(call, blamed(call, error), now_ns)
        self._after(call, engine, now_ns)

    # --- private: nothing below is an event -----------------------------------------------------

    def _new_flow(self, tenant: Tenant, spec: FunctionSpec) -> Flow:
        flow = self.flows[tenant.name, spec.name, spec.version] = Flow(tenant, spec)
        flow.size_bytes, flow.constants_bytes = self._sizes(flow)
        if not flow.size_bytes:
            flow.presence = Presence.PRESENT
        return flow

    def _need(self, call: CallState, now_ns: int) -> None:
        """Continue a call when its function is in memory."""
        if self.residency.pin(call):
            self._plan(call, now_ns)
        else:
            self._room(now_ns)

    def _plan(self, call: CallState, now_ns: int) -> None:
        """Continue a call whose function is in memory."""
        if call.demand is None and self.engines.differ:
            planner = self.engines.planner(call.run.application.formats)
            if planner is not None:
                call.phase = Phase.PLANNING
                self._act(Plan(call, planner))
                return
        self._queue(call, now_ns)

    def _unplanned(self, call: CallState, error: DandelionError, begun: bool, now_ns: int) -> None:
        """A call could not be planned: have another engine plan it if this one died."""
        if isinstance(error, EngineDied) and (not begun or call.attempt < PLAN_ATTEMPTS):
            call.attempt += begun
            self._plan(call, now_ns)
        else:
            self._fail(call, blamed(call, error), now_ns)

    def _queue(self, call: CallState, now_ns: int) -> None:
        """Send a call, or queue it for an engine."""
        lane = self.engines.lane(call.run.application.formats, call.demand, call.alone)
        flow = call.flow
        if not lane.engines:
            needs = Needs(call.run.application.formats, call.demand, call.alone)
            if not self.engines.possible(needs):
                self._fail(call, self._no_engine(needs, call.run.function.name), now_ns)
                return
        if lane not in flow.queues:
            self.policy.waits(flow, lane)
        call.phase = Phase.QUEUED
        call.lane = lane
        if not call.queued_ns:
            call.queued_ns = now_ns
        by_engine = self.policy.by_engine
        waiting = lane.queues if by_engine else lane.heap
        if not waiting and flow.tenant.calls < flow.tenant.quota.calls:
            engine = self._cheapest(lane, flow) if by_engine else best_free(lane.engines, flow)
            if engine is not None:
                self._send(call, engine, now_ns)
                return
        self.lines.add(call, lane)
        self._feed_lane(lane, now_ns)

    def _cheapest(self, lane: Lane, flow: Flow) -> EngineState | None:
        """Choose the free engine of the least cost."""
        free = [(self.policy.cost(e, flow, lane), e) for e in lane.engines if e.free > 0]
        least = min((cost for cost, _ in free), default=NEVER)
        return best_free([e for cost, e in free if cost == least < NEVER], flow)

    def _feed_all(self, now_ns: int) -> None:
        for engine in list(self.engines.all.values()):
            self._feed(engine, now_ns)

    def _feed_lane(self, lane: Lane, now_ns: int) -> None:
        for engine in lane.engines:
            self._feed(engine, now_ns)

    def _feed(self, engine: EngineState, now_ns: int) -> None:
        """Send waiting calls to an engine."""
        while engine.free > 0:
            call = self.lines.next_for(engine)
            if call is None:
                return
            self._send(call, engine, now_ns)

    def _send(self, call: CallState, engine: EngineState, now_ns: int) -> None:
        flow = call.flow
        tenant = flow.tenant
        needed = (call.demand.output_bytes or 0) if call.demand is not None else 0
        if tenant.arena_bytes + needed > tenant.quota.arena_bytes:
            left = max(0, tenant.quota.arena_bytes - tenant.arena_bytes)
            self._fail(call, ContextFull(f"tenant '{tenant.name}'", needed, left), now_ns)
            return
        call.phase = Phase.SENT
        call.engine = engine
        call.sent_ns = now_ns
        flow.counts.queued_ns += now_ns - call.queued_ns
        engine.sent[call.id] = call
        engine.last = flow
        tenant.calls += 1
        self.policy.sent(call, engine)
        if self.residency.devices:
            self._act(Send(call, *self.residency.keep_on_device(engine, flow)))
        else:
            self._act(Send(call))

    def _off(self, call: CallState, now_ns: int) -> EngineState:
        """Remove a call from its engine."""
        engine = call.engine
        assert engine is not None, "it was sent"
        del engine.sent[call.id]
        call.flow.tenant.calls -= 1
        duration_ns = now_ns - (call.started_ns or call.sent_ns)
        if duration_ns < 0:  # it was lost before it was known to have started
            duration_ns = 0
        engine.measured(duration_ns)
        call.flow.measured(duration_ns)
        self.policy.ended(call, engine, duration_ns)
        turn = call.turn or call.flow
        if turn.queues:
            self.lines.reorder(turn)
        return engine

    def _after(self, call: CallState, engine: EngineState, now_ns: int) -> None:
        """Continue other calls after a call was removed from its engine."""
        if self.lines.waiting:
            self.unpark(call.flow.tenant, now_ns)
            self._feed(engine, now_ns)

    def _again(self, call: CallState, engine: EngineState, begun: bool, now_ns: int) -> None:
        """Retry a call: behind all others and alone, if it may be the cause of the fault."""
        call.started_ns = call.queued_ns = 0
        call.engine = call.turn = None
        if begun:
            call.attempt += 1
            call.alone = call.alone or engine.shared_fault_domain
            self._number += 1
            call.id = self._number
        self._queue(call, now_ns)

    def _finish(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        self._leave(call, now_ns)
        if not call.cancelled:
            self._walks.finished(call, outputs, now_ns)

    def _fail(self, call: CallState, error: DandelionError, now_ns: int) -> None:
        self._leave(call, now_ns)
        if not call.cancelled:
            self._walks.gave_up(call, error, now_ns)

    def _leave(self, call: CallState, now_ns: int) -> None:
        """End a call, with a result or an error."""
        call.phase = Phase.ENDED
        calls = call.invocation.calls
        if calls.get(call.run.instance) is call:
            del calls[call.run.instance]
        if call.pinned:
            self.residency.unpin(call)
        if self.residency.line and not call.flow.pins:
            self._room(now_ns)

    def _room(self, now_ns: int) -> None:
        """Fetch functions that wait for memory, and continue calls whose functions are present."""
        if self._making_room:
            return  # the loop below looks again
        self._making_room = True
        try:
            while (step := self.residency.step()) is not None:
                calls, error = step
                for call in calls:
                    if call.phase is not Phase.BLOCKED:
                        continue  # the failure of another one cancelled it
                    if error is not None:
                        self._fail(call, replace(error), now_ns)
                    else:
                        self._need(call, now_ns)
        finally:
            self._making_room = False

    def _no_engine(self, needs: Needs, function: str) -> DandelionError:
        """Return why no engine runs a call: it is too large, or an engine's error."""
        there = [e for name in needs.formats for e in self.engines.running(name)]
        rooms = [e for e in there if e.capacity.device_bytes]
        if rooms and needs.demand is not None:
            best = max(rooms, key=lambda engine: engine.capacity.device_bytes)
            if needs.demand.device_bytes > best.capacity.device_bytes:
                room = best.capacity.device_bytes
                return DeviceFull(best.name, needs.demand.device_bytes, room)
        for engine in there:
            if engine.error is not None:
                return replace(engine.error)
        ready = {
            name
            for engine in self.engines.all.values()
            if engine.phase is EnginePhase.READY
            for name in engine.formats
        }
        return NoEngine(function, needs.formats, tuple(sorted(ready)))
