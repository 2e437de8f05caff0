"""The life of calls, from a walk's instruction to the end. See the package's text.

Handles the executors' events about functions and calls. The end of a call is reported to the
scheduler, which steps its walk; this may start further calls or cancel others at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from dandelion.dispatcher import Run
from dandelion.driver import Demand, InstanceSets
from dandelion.errors import DandelionError, EngineDied, PackagesLost
from dandelion.function import FunctionSpec, FusedFunction, digest_of
from dandelion.scheduler.actions import Action, Look, Plan, Stop
from dandelion.scheduler.lines import Lines
from dandelion.scheduler.placement import Engines
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.quota import quota_of_function
from dandelion.scheduler.records import CallState, Flow, InvocationState, Phase, Presence, Tenant
from dandelion.scheduler.residency import Residency
from dandelion.scheduler.retries import PLAN_ATTEMPTS, blamed, may_run_again
from dandelion.scheduler.sending import Sending

FUSED_FLOWS = 1024
"""With so many functions made of others, those that no call uses are forgotten."""
Sizes = Callable[[Flow], tuple[int, int]]
"""Returns the bytes of a function's code and constants in the node's memory, and the part of them
that a device would keep."""


class Walks(Protocol):
    """Receives the end of every call that was not cancelled."""

    def shortage(
        self, tenant: Tenant, needed_bytes: int, invocation: InvocationState | None = None
    ) -> DandelionError | None:
        """Return why a tenant, whose quota seems exhausted, may not use so many more bytes."""

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
        self._policy = policy
        self.lines = Lines(policy)
        self.residency = Residency(memory_bytes, actions)
        self.sending = Sending(
            self.engines, self.lines, self.residency, policy, actions, self._fail, walks.shortage
        )
        self.flows: dict[tuple[str, str, int], Flow] = {}
        self.sizes = sizes
        self._act = actions
        self._walks = walks
        self._making_room = False

    # --- the scheduler's side -----------------------------------------------------------------

    def want(self, invocation: InvocationState, run: Run, now_ns: int) -> None:
        """Make the call of a walk's instance."""
        function = run.function
        flow = self.flows.get((invocation.tenant.name, function.name, function.version))
        if flow is None:
            flow = self._new_flow(invocation.tenant, function)
        call = CallState(next(self.sending.numbers), invocation, run, flow)
        invocation.calls[run.instance] = call
        if run.attempt > 1:
            call.single = True  # in a batch it might fail others again
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
        if call.phase is Phase.JOINED:
            self._left_batch(call)
            return
        if call.queue is not None:
            self.lines.remove(call)
        elif call.phase is Phase.GATHERING:
            self.sending.batches.leave(call)
        elif call.phase is Phase.BLOCKED:
            self.residency.unblock(call)
        self._leave(call, now_ns)

    def tenant_changed(self, tenant: Tenant, now_ns: int) -> None:
        """A tenant is new, or its quota or weight changed."""
        self.sending.tenant_changed(tenant, now_ns)
        self._room(now_ns)

    def removed(self, tenant: Tenant, name: str, version: int) -> None:
        """Forget a function that is no longer registered; running calls are not affected."""
        flow = self.flows.pop((tenant.name, name, version), None)
        gone = [flow] if flow is not None else []
        users = [key for key, f in self.flows.items() if _is_made_of(f, tenant, name, version)]
        gone += [self.flows.pop(key) for key in users]
        for flow in gone:
            self._forget(flow)

    def engines_changed(self, now_ns: int) -> None:
        """Engines were added, lost or changed: rebuild the lanes with all waiting calls."""
        self.sending.choose_engines(now_ns)
        waiting = self.lines.drain(self.engines.changed())
        for call in waiting:
            if not call.cancelled:  # the failure of another one may have cancelled it
                call.requeued = True
                self._plan(call, now_ns)
        self.sending.feed_all(now_ns)

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
        engine = self.sending.off(call, now_ns)
        self._finish(call, outputs, now_ns)
        self.sending.after(call, engine, now_ns)

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
        engine = self.sending.off(call, now_ns)
        engine.failures += 1
        call.flow.counts.failures += 1
        if isinstance(error, PackagesLost):
            self._fetch_again(call.flow, now_ns)
        if call.members:
            self._separate(call, error, begun, now_ns)
        elif not call.cancelled and may_run_again(call, engine, error, begun):
            self._again(call, begun, engine.shared_fault_domain, now_ns)
        else:
            self._fail(call, blamed(call, error), now_ns)
        self.sending.after(call, engine, now_ns)

    def batch_done(self, batch: CallState, parts: Sequence[InstanceSets], now_ns: int) -> None:
        """A sent batch has returned its outputs: a part for each member, in their order."""
        engine = self.sending.off(batch, now_ns)
        batch.phase = Phase.ENDED
        batch.flow.counts.calls += len(parts) - 1
        batch.flow.counts.batches += 1
        for call, outputs in zip(_released(batch), parts, strict=True):
            self._finish(call, outputs, now_ns)
        self.sending.after(batch, engine, now_ns)

    # --- private: nothing below is an event -----------------------------------------------------

    def _new_flow(self, tenant: Tenant, spec: FunctionSpec) -> Flow:
        if isinstance(spec, FusedFunction):
            self._forget_idle_fused()
        flow = Flow(tenant, spec, quota=quota_of_function(spec))
        self.flows[tenant.name, spec.name, spec.version] = flow
        flow.scope = "" if tenant.share_constants else tenant.name
        flow.constants = _constants_of(spec, flow.scope)
        flow.size_bytes, flow.constants_bytes = self.sizes(flow)
        if not flow.size_bytes:
            flow.presence = Presence.PRESENT
        return flow

    def _forget_idle_fused(self) -> None:
        """Forget functions made of others if they are many: none of them is ever removed itself."""
        fused = [(key, f) for key, f in self.flows.items() if isinstance(f.spec, FusedFunction)]
        if len(fused) < FUSED_FLOWS:
            return
        for key, flow in fused:
            if not (flow.pins or flow.blocked):
                del self.flows[key]
                self._forget(flow)

    def _forget(self, flow: Flow) -> None:
        self.residency.forget(flow)
        self._policy.forgotten(flow)

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

    def _again(self, call: CallState, begun: bool, shared: bool, now_ns: int) -> None:
        """Retry a call: behind all others, if it may be the cause of a fault.

        Args:
            call: the call.
            begun: its engine may have started it.
            shared: the engine shares its faults with others, so it is run alone.
            now_ns: now.
        """
        call.started_ns = call.queued_ns = 0
        call.requeued = True
        call.engine = call.turn = None
        if begun:
            call.attempt += 1
            call.alone = call.alone or shared
            call.id = next(self.sending.numbers)
        self._queue(call, now_ns)

    def _queue(self, call: CallState, now_ns: int) -> None:
        """Queue a call; if its function is to be fetched again, it waits for that first."""
        if call.flow in self.residency.outdated:
            self.residency.unpin(call)
            self._need(call, now_ns)
        else:
            self.sending.queue(call, now_ns)

    def _fetch_again(self, flow: Flow, now_ns: int) -> None:
        """Something that a function needs is gone: its waiting calls would fail too."""
        if not self.residency.mark_outdated(flow):
            return
        for queue in tuple(flow.queues.values()):
            for call in tuple(queue.calls):
                self.lines.remove(call)
                self._queue(call, now_ns)
        for call in tuple(flow.gathering):
            self.sending.batches.leave(call)
            self._queue(call, now_ns)

    def _left_batch(self, call: CallState) -> None:
        """A member was cancelled: cancel its batch if it was the last one."""
        batch = call.batch
        if batch is not None and all(member.cancelled for member in batch.members):
            batch.cancelled = True
            self._act(Stop(batch))

    def _separate(self, batch: CallState, error: DandelionError, begun: bool, now_ns: int) -> None:
        """Run the members of a batch again: one by one, unless it had not begun."""
        batch.phase = Phase.ENDED
        died = isinstance(error, EngineDied)
        shared = batch.engine is not None and batch.engine.shared_fault_domain
        for call in _released(batch):
            call.single = begun or not died
            if call.cancelled:
                self._leave(call, now_ns)
            else:
                self._again(call, begun and died, shared, now_ns)

    def _finish(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        self._leave(call, now_ns)
        if not call.cancelled:
            self._walks.finished(call, outputs, now_ns)

    def _fail(self, call: CallState, error: DandelionError, now_ns: int) -> None:
        if call.members:
            self._separate(call, error, False, now_ns)
            return
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


def _constants_of(spec: FunctionSpec, scope: str) -> str:
    """Return a digest of the content of a function's constants; empty if there are none."""
    if not spec.static:
        return ""
    digests = [(name, [item.digest for item in spec.static[name]]) for name in sorted(spec.static)]
    return digest_of(msgspec.msgpack.encode((scope, digests)))


def _is_made_of(flow: Flow, tenant: Tenant, name: str, version: int) -> bool:
    spec = flow.spec
    return (
        flow.tenant is tenant and isinstance(spec, FusedFunction) and (name, version) in spec.parts
    )


def _released(batch: CallState) -> tuple[CallState, ...]:
    """Part a batch that ended from its members, and return them.

    Else they would refer to each other, and the collector does not look at calls.
    """
    members, batch.members = batch.members, ()
    for call in members:
        call.batch = None
    return members
