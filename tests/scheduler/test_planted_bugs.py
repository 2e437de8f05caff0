"""Deliberate bugs of every kind: the simulation finds each of them."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dandelion.dispatcher import Instruction, Pause, Walk
from dandelion.driver import InstanceSets
from dandelion.policies.ordered import Fifo
from dandelion.scheduler import batches, function_memory, lines, sending
from dandelion.scheduler.batches import Batches
from dandelion.scheduler.calls import Calls
from dandelion.scheduler.concurrency import Concurrency, WorkerPool
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.function_memory import FunctionMemory
from dandelion.scheduler.lines import Lines
from dandelion.scheduler.records import CallQueue, CallState, Flow, InvocationState, Tenant
from dandelion.scheduler.residency import Residency
from dandelion.scheduler.scheduler import Scheduler
from dandelion.scheduler.sending import Sending
from tests.scheduler.simulation import Simulation
from tests.scheduler.sources import from_sources

Plant = Callable[[pytest.MonkeyPatch], None]


def nothing(*_: object, **__: object) -> None:
    """Make a method do nothing."""


def call_is_lost_with_its_engine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_again", nothing)


def queue_is_lost_when_engines_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lines, "drain", lambda self, lanes: [])


def engine_takes_too_many(patch: pytest.MonkeyPatch) -> None:
    original = EngineState.free.fget
    assert original is not None
    patch.setattr(EngineState, "free", property(lambda self: original(self) + 1))


def engine_is_left_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sending, "after", nothing)


def tenant_is_never_unparked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sending, "unpark", nothing)


def quota_of_calls_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lines, "busy_owner", lambda flow: None)


def quota_of_a_tenants_calls_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def busy(flow: Flow) -> Flow | None:
        return flow if flow.calls >= flow.quota.calls else None

    patch.setattr(lines, "busy_owner", busy)
    patch.setattr(sending, "busy_owner", busy)


def concurrency_of_a_function_is_ignored(patch: pytest.MonkeyPatch) -> None:
    def busy(flow: Flow) -> Tenant | None:
        return flow.tenant if flow.tenant.calls >= flow.tenant.quota.calls else None

    patch.setattr(lines, "busy_owner", busy)
    patch.setattr(sending, "busy_owner", busy)


def calls_of_a_function_are_never_discounted(patch: pytest.MonkeyPatch) -> None:
    original = Sending.off

    def off(self: Sending, call: CallState, now_ns: int) -> EngineState:
        call.flow.calls += 1
        return original(self, call, now_ns)

    patch.setattr(Sending, "off", off)


def function_is_never_unparked(patch: pytest.MonkeyPatch) -> None:
    original = Sending.unpark
    patch.setattr(
        Sending, "unpark", lambda self, owners, now_ns: original(self, owners[:1], now_ns)
    )


def waiting_calls_are_never_discounted(patch: pytest.MonkeyPatch) -> None:
    original = Lines._count
    patch.setattr(Lines, "_count", lambda self, flow, more: original(self, flow, max(0, more)))


def queue_length_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sending, "overfull", lambda flow: None)


def device_memory_of_a_call_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Sending.queue

    def queue(self: Sending, call: CallState, now_ns: int) -> None:
        tenant = call.flow.tenant
        quota = tenant.quota
        tenant.quota = quota._replace(call_device_bytes=1 << 62)
        original(self, call, now_ns)
        tenant.quota = quota

    patch.setattr(Sending, "queue", queue)


def results_that_are_needed_are_discharged(patch: pytest.MonkeyPatch) -> None:
    def recount(self: Scheduler, tenant: Tenant) -> None:
        for invocation in self.invocations.values():
            if invocation.tenant is tenant:
                self._charge(invocation, -invocation.arena_bytes)

    patch.setattr(Scheduler, "recount", recount)


def memory_is_overcommitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FunctionMemory, "victims", lambda self, *_, **__: [])


def pins_are_never_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Residency, "unpin", nothing)


def pins_are_not_taken(patch: pytest.MonkeyPatch) -> None:
    original = Residency.pin

    def pin(self: Residency, call: object) -> bool:
        went_on = original(self, call)  # type: ignore[arg-type]
        self.unpin(call)  # type: ignore[arg-type]
        return went_on

    patch.setattr(Residency, "pin", pin)


def line_for_memory_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_room", nothing)


def cancelled_call_stays_queued(patch: pytest.MonkeyPatch) -> None:
    original = Lines.remove
    patch.setattr(Lines, "remove", lambda self, c: None if c.cancelled else original(self, c))


def bytes_are_charged_for_ever(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._charge
    patch.setattr(Scheduler, "_charge", lambda self, i, size: original(self, i, max(0, size)))


def deadline_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "tick", lambda self, now_ns: self.fleet.tick(now_ns))


def batches_take_too_much_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "_Room", lambda call, engine: SimpleNamespace(takes=lambda other: True))


def engines_that_join_nothing_get_batches(patch: pytest.MonkeyPatch) -> None:
    original = Batches.members

    def members(self: Batches, call: CallState, engine: EngineState) -> tuple[CallState, ...]:
        return original(self, call, replace(engine, joins=True))

    patch.setattr(Batches, "members", members)


def gathered_calls_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sending, "due", nothing)


def members_of_a_failed_batch_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_separate", nothing)


def cancelled_members_keep_their_pins(patch: pytest.MonkeyPatch) -> None:
    original = Calls.batch_done

    def done(self: Calls, batch: CallState, parts: list[InstanceSets], now_ns: int) -> None:
        kept = [
            (call, part)
            for call, part in zip(batch.members, parts, strict=True)
            if not call.cancelled
        ]
        batch.members = tuple(call for call, _ in kept)
        original(self, batch, [part for _, part in kept], now_ns)

    patch.setattr(Calls, "batch_done", done)


def shared_constants_are_charged_for_each_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(function_memory._Entry, "held_by", lambda self, tenant: False)


def shared_constants_leave_with_their_first_function(patch: pytest.MonkeyPatch) -> None:
    original = FunctionMemory.remove

    def remove(self: FunctionMemory, flow: Flow) -> None:
        for other in list(self._flows[flow].holders):
            original(self, other)

    patch.setattr(FunctionMemory, "remove", remove)


def copied_constants_count_as_being_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Residency, "loaded", nothing)


def removed_functions_stay_until_room_is_needed(patch: pytest.MonkeyPatch) -> None:
    def unpin(self: Residency, call: CallState) -> None:
        if call.pinned:
            call.pinned = False
            call.flow.pins -= 1

    patch.setattr(Residency, "unpin", unpin)


def queue_starves(patch: pytest.MonkeyPatch) -> None:
    def key(self: Fifo, queue: CallQueue) -> float:
        return float("inf") if queue.flow.spec.name == "gpu" else queue.calls[0].id

    patch.setattr(Fifo, "key", key)
    patch.setattr(Lines, "_top", _top_that_skips(Lines._top))


def _top_that_skips(original: Callable[..., CallQueue | None]) -> Callable[..., CallQueue | None]:
    def top(self: Lines, lane: object) -> CallQueue | None:
        queue = original(self, lane)
        starving = queue is not None and self._policy.key(queue) == float("inf")
        return None if starving else queue

    return top


def lost_workers_are_not_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Concurrency, "changed", nothing)


def inactive_workers_take_calls(patch: pytest.MonkeyPatch) -> None:
    original = Sending._adjust

    def adjust(self: Sending, pool: WorkerPool, engine: EngineState, now_ns: int) -> None:
        pool.workers[-1].active = pool.workers[-1].phase is EnginePhase.READY
        original(self, pool, engine, now_ns)

    patch.setattr(Sending, "_adjust", adjust)


def instances_are_forgotten_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_again", nothing)


def pauses_of_ended_invocations_are_kept(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._end_pause

    def end(self: Scheduler, invocation: InvocationState, instance: int) -> None:
        if not invocation.walk.done:
            original(self, invocation, instance)

    patch.setattr(Scheduler, "_end_pause", end)


def pauses_are_never_discounted(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._end_pause

    def end(self: Scheduler, invocation: InvocationState, instance: int) -> None:
        original(self, invocation, instance)
        invocation.tenant.paused += 1

    patch.setattr(Scheduler, "_end_pause", end)


def limit_of_pauses_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._refused_pause

    def refused(
        self: Scheduler, invocation: InvocationState, instructions: list[Instruction], now_ns: int
    ) -> Pause | None:
        tenant = invocation.tenant
        quota = tenant.quota
        tenant.quota = quota._replace(queue_length=1 << 30)
        found = original(self, invocation, instructions, now_ns)
        tenant.quota = quota
        return found

    patch.setattr(Scheduler, "_refused_pause", refused)


def refused_pauses_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Walk, "give_up", lambda self, instance, error: [])


def errors_sets_are_not_charged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Walk, "caught_bytes", property(lambda self: 0, nothing), raising=False)


BUGS: list[Plant] = [
    instances_are_forgotten_after_a_pause,
    pauses_of_ended_invocations_are_kept,
    pauses_are_never_discounted,
    limit_of_pauses_is_ignored,
    refused_pauses_are_forgotten,
    errors_sets_are_not_charged,
    lost_workers_are_not_replaced,
    inactive_workers_take_calls,
    call_is_lost_with_its_engine,
    queue_is_lost_when_engines_change,
    engine_takes_too_many,
    engine_is_left_idle,
    tenant_is_never_unparked,
    quota_of_calls_is_ignored,
    quota_of_a_tenants_calls_is_ignored,
    concurrency_of_a_function_is_ignored,
    calls_of_a_function_are_never_discounted,
    function_is_never_unparked,
    waiting_calls_are_never_discounted,
    queue_length_is_ignored,
    device_memory_of_a_call_is_ignored,
    results_that_are_needed_are_discharged,
    memory_is_overcommitted,
    pins_are_never_given_back,
    pins_are_not_taken,
    line_for_memory_is_forgotten,
    cancelled_call_stays_queued,
    bytes_are_charged_for_ever,
    deadline_is_forgotten,
    batches_take_too_much_memory,
    engines_that_join_nothing_get_batches,
    gathered_calls_are_forgotten,
    members_of_a_failed_batch_are_lost,
    cancelled_members_keep_their_pins,
    shared_constants_are_charged_for_each_function,
    shared_constants_leave_with_their_first_function,
    copied_constants_count_as_being_copied,
    removed_functions_stay_until_room_is_needed,
    queue_starves,
]

LIKELY: dict[Plant, int] = {
    instances_are_forgotten_after_a_pause: 2,
    pauses_of_ended_invocations_are_kept: 2,
    pauses_are_never_discounted: 2,
    limit_of_pauses_is_ignored: 2,
    refused_pauses_are_forgotten: 2,
    errors_sets_are_not_charged: 2,
    inactive_workers_take_calls: 5,
    pins_are_not_taken: 2,
    results_that_are_needed_are_discharged: 2,
    batches_take_too_much_memory: 8,
    members_of_a_failed_batch_are_lost: 8,
    shared_constants_are_charged_for_each_function: 37,
    shared_constants_leave_with_their_first_function: 10,
    copied_constants_count_as_being_copied: 4,
}
"""Seeds that found a bug before, and are tried first."""


@pytest.mark.parametrize("name", [plant.__name__ for plant in BUGS])
def test_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from_sources(__name__).find(name, monkeypatch)


def find(name: str, patch: pytest.MonkeyPatch) -> None:
    plant: Plant = globals()[name]
    plant(patch)
    for seed in (LIKELY.get(plant, 0), *range(40)):
        simulation = Simulation(seed, "fifo")
        try:
            simulation.run(800)
        except (AssertionError, KeyError, ValueError, IndexError):
            return
    pytest.fail("no run found it")
