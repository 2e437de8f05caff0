"""The number of workers that take calls follows from measured throughput, on a virtual device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from dandelion.controllers import climbing
from dandelion.controllers.climbing import Climber
from dandelion.controllers.throughput import Kind, Window
from dandelion.scheduler import concurrency
from dandelion.scheduler.concurrency import Concurrency, WorkerPool
from dandelion.scheduler.engine import EnginePhase
from dandelion.testing.scheduler_invariants import check_invariants
from tests.scheduler.shared_device import (
    FILLING,
    MEDIUM,
    MS,
    NEARLY_FULL,
    SMALL,
    Curve,
    Load,
    S,
    SharedDevice,
    best_fixed,
    jittered,
    scales_to,
    steady,
)
from tests.scheduler.sources import from_sources

Loads = Callable[[], list[Load]]
Plant = Callable[[pytest.MonkeyPatch], None]


def tenants(curve: Curve, alone_ms: float, count: int = 32) -> list[Load]:
    """Tenants with one caller each, as in the experiments on KaaS."""
    return [Load(f"t{i}", curve, steady(int(alone_ms * MS)), 1) for i in range(count)]


SHAPES: dict[str, Loads] = {
    "resnet50": partial(tenants, SMALL, 4.4),
    "bert": partial(tenants, MEDIUM, 20),
    "jacobi": partial(tenants, NEARLY_FULL, 54),
    "cGEMM": partial(tenants, FILLING, 39),
    "short": partial(tenants, SMALL, 2.0),
}
MIXES: dict[str, Loads] = {
    "small and filling": lambda: [
        Load("small", SMALL, steady(4 * MS), 16),
        Load("filling", FILLING, steady(20 * MS), 16),
    ],
    "small and medium": lambda: [
        Load("small", SMALL, steady(4 * MS), 16),
        Load("medium", MEDIUM, jittered(10 * MS, 0.3, 1), 16),
    ],
    "all lengths": lambda: [Load("all", SMALL, jittered(5 * MS, 0.9, 2), 32)],
}


def run(loads: Loads, until_ns: int, policy: str = "fair") -> SharedDevice:
    device = SharedDevice(policy)
    for load in loads():
        device.add(load)
    device.run(until_ns)
    return device


def is_nearly_the_best(loads: Loads, begin_ns: int = 5 * S // 2, part: float = 0.95) -> None:
    """The throughput is nearly that with the best fixed number."""
    device = run(loads, begin_ns + 3 * S)
    best = best_fixed(loads, 3 * S // 2)
    speed = device.speed(begin_ns, begin_ns + 3 * S)
    assert speed >= part * best, f"{speed:.2f} of {best:.2f}: {device.counts}"


@pytest.mark.parametrize("name", SHAPES)
def test_the_best_number_is_found(name: str) -> None:
    is_nearly_the_best(SHAPES[name])


@pytest.mark.parametrize("name", MIXES)
def test_the_best_number_for_a_mix_is_found(name: str) -> None:
    is_nearly_the_best(MIXES[name], part=0.92)  # a trial more or less is 5 %


@pytest.mark.parametrize("name", ["resnet50", "bert", "short"])
def test_it_takes_about_a_second(name: str) -> None:
    is_nearly_the_best(SHAPES[name], 5 * S // 4)


def trying_costs_little(names: Sequence[str] = ("resnet50", "cGEMM")) -> None:
    """In the long run less than 2 % of the work is lost, and the number seldom changes."""
    for name in names:
        device = run(SHAPES[name], 32 * S)
        best = best_fixed(SHAPES[name], 3 * S // 2)
        speed = device.speed(12 * S, 32 * S)
        assert speed >= 0.98 * best, f"{name}: {speed:.3f} of {best:.3f}"
        changes = [at_ns for at_ns, _ in device.counts if at_ns >= 12 * S]
        assert len(changes) <= 24, f"{name}: {len(changes)} changes in 20 s"


def test_trying_costs_little() -> None:
    trying_costs_little()


def change_is_noticed(before: Curve, after: Curve, after_ms: float) -> None:
    """2 s after the load changed, the throughput is nearly the best for the new load."""
    device = SharedDevice()
    for number in range(16):
        device.add(Load(f"a{number}", before, steady(4 * MS), 2, until_ns=6 * S))
    device.run(6 * S)
    later: Loads = partial(tenants, after, after_ms)
    for load in later():
        device.add(load)
    device.run(11 * S)
    speed, best = device.speed(8 * S, 11 * S), best_fixed(later, 3 * S // 2)
    assert speed >= 0.95 * best, f"{speed:.2f} of {best:.2f}: {device.counts[-12:]}"


@pytest.mark.parametrize(
    ("before", "after", "after_ms"), [(SMALL, FILLING, 10), (FILLING, SMALL, 2), (SMALL, MEDIUM, 9)]
)
def test_a_change_of_load_is_noticed(before: Curve, after: Curve, after_ms: float) -> None:
    change_is_noticed(before, after, after_ms)


def test_without_a_queue_nothing_changes() -> None:
    device = SharedDevice()
    device.add(Load("one", SMALL, steady(2 * MS), 1))
    device.add(Load("rare", SMALL, steady(MS), 1, pause_ns=3 * MS))
    device.run(3 * S)
    assert device.pool.active == concurrency.FIRST_WORKERS
    assert len(device.starts) == concurrency.FIRST_WORKERS


def more_callers() -> SharedDevice:
    """Some callers for 5 s, then more with calls of the same kind for 3 s."""
    device = SharedDevice()
    few, more = tenants(scales_to(6), 54, 2), tenants(scales_to(6), 54, 14)
    for load in few:
        device.add(load)
    device.run(5 * S)
    for number, load in enumerate(more):
        load.name, load.begin_ns = f"later{number}", device.now_ns
        device.add(load)
    device.run(8 * S)
    return device


def test_a_pause_ends_when_calls_begin_to_wait() -> None:
    device = more_callers()
    best = best_fixed(partial(tenants, scales_to(6), 54, 16), 3 * S // 2)
    speed = device.speed(27 * S // 4, 8 * S)
    assert speed >= 0.9 * best, f"{speed:.2f} of {best:.2f}: {device.counts}"


def test_a_pause_does_not_end_when_calls_wait_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts = []
    restart = Climber._restart
    monkeypatch.setattr(Climber, "_restart", lambda *a: (restarts.append(a), restart(*a)))
    run(SHAPES["cGEMM"], 20 * S)
    assert len(restarts) <= 1


# --- light calls --------------------------------------------------------------------------------


def greedy_and_light(curve: Curve, policy: str = "fair") -> tuple[SharedDevice, Load, Load]:
    """32 callers of 4 ms; from 1 s on, a light tenant with one caller of 0.1 ms."""
    device = SharedDevice(policy, check=check_invariants)
    greedy = device.add(Load("greedy", curve, steady(4 * MS), 32))
    light = device.add(Load("light", curve, steady(MS // 10), 1, S))
    device.run(3 * S)
    return device, greedy, light


def light_calls_do_not_wait(policy: str = "fair") -> None:
    for curve in (SMALL, MEDIUM):
        device, greedy, light = greedy_and_light(curve, policy)
        waits = sorted(device.waits(light, 3 * S // 2))
        assert len(waits) > 1000
        assert waits[int(0.99 * len(waits))] <= MS // 10, f"{waits[-20:]}"
        before, after = device.speed(S // 2, S), device.speed(2 * S, 3 * S)
        assert after >= 0.9 * before, f"throughput: {after:.2f} after {before:.2f}"
        assert device.speed(2 * S, 3 * S, greedy) >= 0.5 * after, "the light one has its share only"


def test_light_calls_do_not_wait() -> None:
    light_calls_do_not_wait()


def test_light_calls_wait_where_calls_may_not_overtake_others() -> None:
    with pytest.raises(AssertionError):
        light_calls_do_not_wait("fifo")


def short_calls_have_their_share_only() -> None:
    """Many callers of short calls are not light: the reserve does not favour them."""
    device = SharedDevice(check=check_invariants)
    device.add(Load("long", FILLING, steady(8 * MS), 16), 9.0)
    device.add(Load("short", FILLING, steady(MS // 5), 16))
    device.run(3 * S)
    long, short = (
        sum(alone for load, end, alone, _ in device.answered if load.name == name and end > S)
        for name in ("long", "short")
    )
    assert abs(long / (long + short) - 0.9) < 0.08, f"{long / (long + short):.2f}"


def test_short_calls_have_their_share_only() -> None:
    short_calls_have_their_share_only()


@pytest.mark.parametrize("policy", ["fair", "fifo", "affinity", "exclusive", "balance", "deadline"])
def test_no_tenant_starves(policy: str) -> None:
    device = SharedDevice(policy, check=check_invariants)
    loads = [
        device.add(Load("long", FILLING, steady(20 * MS), 8)),
        device.add(Load("short", SMALL, steady(MS // 2), 2)),
        device.add(Load("rare", MEDIUM, steady(MS), 1, pause_ns=20 * MS)),
    ]
    device.run(4 * S)
    for load in loads:
        waits = device.waits(load)
        assert len(waits) > 5, f"{load.name}: {len(waits)} calls"
        assert max(waits) <= 700 * MS, f"{load.name} waited {max(waits) / MS} ms"


# --- starting workers ---------------------------------------------------------------------------


def test_workers_are_started_when_they_are_needed() -> None:
    device = SharedDevice(start_ns=300 * MS, check=check_invariants)
    assert [number for _, number in device.starts] == [0, 1]
    for load in SHAPES["resnet50"]():
        device.add(load)
    device.run(3 * S)
    assert [number for _, number in device.starts] == list(range(8))
    assert device.pool.active == 8
    assert device.speed(2 * S, 3 * S) >= 7.5


def test_workers_that_would_not_help_stay_dormant() -> None:
    device = run(SHAPES["cGEMM"], 10 * S)
    assert device.pool.started <= 4
    assert sum(e.phase is EnginePhase.DORMANT for e in device.engines) >= 4


def test_a_worker_that_cannot_be_started_is_tried_again_later() -> None:
    device = SharedDevice(start_ns=50 * MS, broken=frozenset({3}), check=check_invariants)
    for load in SHAPES["resnet50"]():
        device.add(load)
    device.run(5 * S)
    assert device.engines[3].phase is EnginePhase.DORMANT
    assert device.pool.active == 3, "the third could be started"
    device.broken = frozenset()
    device.run(5 * S + concurrency.RETRY_NS + 3 * S)
    assert device.pool.active == 8


def test_static_tenants_have_all_workers() -> None:
    device = SharedDevice("static", check=check_invariants)
    assert len(device.starts) == 8
    assert all(engine.active and engine.pool is None for engine in device.engines)


# --- planted bugs -------------------------------------------------------------------------------


def busy_time_is_throughput(patch: pytest.MonkeyPatch) -> None:
    original = Window.add

    def add(self: Window, kind: Kind, units: int, cycle_ns: int, engine_ns: int) -> None:
        original(self, kind, units, int(kind.alone_ns), engine_ns)

    patch.setattr(Window, "add", add)


def there_are_no_pauses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Climber, "_pause", lambda self, now_ns: self._tried.clear())


def changes_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "change", lambda self, other: 0.0)
    patch.setattr(climbing, "FIRST_PAUSE_NS", climbing.LAST_PAUSE_NS)


def higher_is_always_better(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(climbing, "UP_GAIN", -1.0)
    patch.setattr(climbing, "DOWN_GAIN", 1.0)


def there_is_no_reserve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerPool, "free_reserve", lambda self: None)


def reserve_is_for_all_short_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(concurrency, "SHARE_PART", 1e9)


BUGS: list[tuple[Plant, Callable[[], None]]] = [
    (busy_time_is_throughput, partial(is_nearly_the_best, SHAPES["cGEMM"])),
    (higher_is_always_better, partial(is_nearly_the_best, SHAPES["bert"])),
    (there_are_no_pauses, partial(trying_costs_little, ["cGEMM"])),
    (changes_are_not_noticed, partial(change_is_noticed, SMALL, FILLING, 10)),
    (there_is_no_reserve, light_calls_do_not_wait),
    (reserve_is_for_all_short_calls, short_calls_have_their_share_only),
]


@pytest.mark.parametrize("number", range(len(BUGS)), ids=[plant.__name__ for plant, _ in BUGS])
def test_a_bug_is_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check = from_sources(__name__).BUGS[number]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_engines_without_a_choice_have_no_pool() -> None:
    device = SharedDevice(fixed=True)
    assert all(engine.pool is None and engine.active for engine in device.engines)
    concurrency_ = device.scheduler.calls.sending.concurrency
    assert isinstance(concurrency_, Concurrency)
    assert not concurrency_.pools


# --- lost engines -------------------------------------------------------------------------------


def test_an_inactive_worker_replaces_a_lost_one() -> None:
    device = SharedDevice(check=check_invariants)
    load = device.add(Load("t", MEDIUM, steady(4 * MS), 32))
    device.run(2 * S)
    active = [engine for engine in device.engines if engine.active]
    assert len(active) == 3
    lost = active[0]
    device.lose(lost)
    assert not lost.active
    assert device.pool.active == 3
    device.run(3 * S)
    assert lost.phase is EnginePhase.READY
    assert device.speed(2 * S + S // 10, 3 * S, load) >= 2.5


def test_a_worker_that_starts_for_the_first_time_does_not_stop_the_others() -> None:
    device = SharedDevice(start_ns=S, shared_faults=True, check=check_invariants)
    device.add(Load("t", SMALL, steady(4 * MS), 32))
    device.run(S)
    starting = [e for e in device.engines if e.phase is EnginePhase.STARTING]
    assert starting
    assert device.speed(S // 2, S) >= 1.9
