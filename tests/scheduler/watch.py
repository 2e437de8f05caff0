"""Checks of each choice that the scheduler makes in a simulation, apart from the policies' code."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dandelion.policies import policy_of
from dandelion.policies.affinity import AWAY_CALLS
from dandelion.policies.fair import COPIED_BYTES_PER_NS, FIRST_CALL_NS, STICKY_NS
from dandelion.scheduler import CallState, EngineState, Scheduler
from dandelion.scheduler.lines import Lines, busy_owner
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.records import CallQueue, Flow

PLACES: dict[str, Callable[[CallState], float]] = {
    "fifo": lambda call: call.id,
    "lifo": lambda call: -call.id,
    "deadline": lambda call: call.invocation.deadline_ns,
    "balance": lambda call: call.id,
}


class Watch:
    """Looks at each call that leaves a queue, and at each that is sent.

    Args:
        scheduler: has a policy of `watched_policy`, and is changed, so that its lines call this.
        policy: its name.
        priorities: calls have priorities; then only the slots are in the policy's order.
    """

    def __init__(self, scheduler: Scheduler, policy: str, priorities: bool) -> None:
        self._policy = policy
        self._priorities = priorities
        self._scheduler = scheduler
        calls = scheduler.calls
        calls.sending.policy.watch = self  # type: ignore[attr-defined]
        calls.lines = WatchedLines(calls.lines._policy, self)
        calls.sending._lines = calls.sending.batches._lines = calls.lines

    def chosen(
        self, engine: EngineState, choose: Callable[[EngineState], CallState | None]
    ) -> CallState | None:
        queues = [
            queue
            for lane in engine.lanes
            for queue in lane.queues.values()
            if not queue.parked and busy_owner(queue.flow) is None
        ]
        rivals = [(queue, list(queue.calls), queue.slots[0]) for queue in queues]
        leads = [_lead_ns(queue.flow) for queue in queues if engine.lacks(queue.flow)]
        call = choose(engine)
        if call is None:
            allowed = self._policy in ("exclusive", "static")
            assert allowed or not rivals, f"engine {engine.id} is left idle"
            return None
        tenant = call.flow.tenant
        priority = call.invocation.priority
        for queue, calls, _ in rivals:
            if queue.flow.tenant is tenant:
                highest = max(other.invocation.priority for other in calls)
                assert priority >= highest, f"call {call.id} overtakes one of higher priority"
        if any(other.attempt > 1 for _, calls, _ in rivals for other in calls):
            return call  # calls that did no harm go before those
        place = PLACES.get(self._policy)
        if place is not None:
            first = min(slot for _, _, slot in rivals)
            tenants = [queue.flow.tenant for queue, _, slot in rivals if slot == first]
            assert tenant in tenants, f"call {call.id} has the turn of another tenant"
            if not self._priorities:
                expected = min(place(other) for _, calls, _ in rivals for other in calls)
                assert place(call) == expected, f"call {call.id} is out of order"
        elif self._policy in ("fair", "affinity"):
            self._check_share(call, [queue for queue, _, _ in rivals], max(leads, default=0.0))
        return call

    def _check_share(self, call: CallState, queues: list[CallQueue], lead_ns: float) -> None:
        """The flow whose turn it is is at most so far ahead of each other flow."""
        tag = (call.turn or call.flow).tags[call.lane]
        for queue in queues:
            flow = queue.flow
            ahead = max(STICKY_NS, lead_ns)
            if self._policy == "affinity":
                ahead = AWAY_CALLS * (flow.mean_ns or FIRST_CALL_NS) / flow.tenant.weight
            behind = flow.tags[queue.lane]
            assert tag <= behind + ahead + 1, f"call {call.id} is before {flow.name}"

    def check_engine(self, call: CallState, engine: EngineState) -> None:
        """Check that the engine to which a call is sent may run it."""
        tenant = call.flow.tenant
        if self._policy == "exclusive" and engine.places < 2:
            owners = {other.flow.tenant.name for other in engine.sent.values()}
            assert owners <= {tenant.name}, f"engine {engine.id} has calls of {owners}"
        if self._policy == "static":
            engines = call.lane.engines
            assert engine in self._part(tenant.name, engines), f"engine {engine.id} is not its own"

    def _part(self, name: str, engines: tuple[EngineState, ...]) -> tuple[EngineState, ...]:
        """Return the engines of a tenant, by exact arithmetic."""
        tenants = self._scheduler.tenants
        total = sum(Fraction(one.weight) for one in tenants.values())
        below = sum(Fraction(one.weight) for one in tenants.values() if one.name < name)
        begin = below / total * len(engines)
        end = begin + Fraction(tenants[name].weight) / total * len(engines)
        first, after = int(begin + Fraction(1, 2)), int(end + Fraction(1, 2))
        if first < after:
            return engines[first:after]
        return (engines[min(int((begin + end) / 2), len(engines) - 1)],)


def watched_policy(name: str) -> Policy:
    """Make a policy, which shows a watch each call that is sent."""
    kind: type[Policy] = type(policy_of(name))

    class Watched(kind):  # type: ignore[misc, valid-type]
        watch: Watch

        def sent(self, call: CallState, engine: EngineState) -> None:
            self.watch.check_engine(call, engine)
            super().sent(call, engine)

    return Watched()


class WatchedLines(Lines):
    """The real lines; a watch checks what they choose."""

    def __init__(self, policy: Policy, watch: Watch) -> None:
        super().__init__(policy)
        self._watch = watch

    def next_for(self, engine: EngineState) -> CallState | None:
        return self._watch.chosen(engine, super().next_for)


def _lead_ns(flow: Flow) -> float:
    """How far others may be ahead of a flow whose constants are missing."""
    return (STICKY_NS + flow.constants_bytes / COPIED_BYTES_PER_NS) / max(1.0, flow.tenant.weight)
