"""Deliberate bugs of every kind: the simulation finds each of them."""

from collections.abc import Callable

import pytest

from dandelion.scheduler.calls import Calls
from dandelion.scheduler.lines import Lines
from dandelion.scheduler.policies.ordered import Fifo
from dandelion.scheduler.records import CallQueue, EngineState
from dandelion.scheduler.residency import FunctionMemory, Residency
from dandelion.scheduler.scheduler import Scheduler
from tests.scheduler.simulation import Simulation

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
    patch.setattr(Calls, "_after", nothing)


def tenant_is_never_unparked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "unpark", nothing)


def quota_of_calls_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Lines._top

    def top(self: Lines, lane: object) -> object:
        queue = original(self, lane)  # type: ignore[arg-type]
        if queue is not None:
            queue.flow.tenant.calls -= 1
        return queue

    patch.setattr(Lines, "_top", top)


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


BUGS: list[Plant] = [
    call_is_lost_with_its_engine,
    queue_is_lost_when_engines_change,
    engine_takes_too_many,
    engine_is_left_idle,
    tenant_is_never_unparked,
    quota_of_calls_is_ignored,
    memory_is_overcommitted,
    pins_are_never_given_back,
    pins_are_not_taken,
    line_for_memory_is_forgotten,
    cancelled_call_stays_queued,
    bytes_are_charged_for_ever,
    deadline_is_forgotten,
    queue_starves,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(40):
        simulation = Simulation(seed, "fifo")
        try:
            simulation.run(800)
        except (AssertionError, KeyError, ValueError, IndexError):
            return
    pytest.fail("no run found it")
