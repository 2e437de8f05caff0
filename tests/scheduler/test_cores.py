"""Cores that move between compute and I/O engines: bounds, stability, what load does."""

from __future__ import annotations

import itertools
import random

import pytest

from dandelion.controllers.cores import (
    LOOKS,
    PAUSE_LOOKS,
    CoreController,
    CoreDivision,
    SideLoad,
    core_division,
)
from dandelion.errors import InvalidInput
from dandelion.scheduler import Scheduler
from dandelion.scheduler.cores import IO_CALLS, CoreSide
from dandelion.testing.scheduler_invariants import check_invariants
from tests.scheduler.virtual_node import MS, Caller, VirtualNode

S = 1000 * MS
CORES = 8
FORMATS = ("cpu",) * (CORES - 1) + ("net",)
COMPUTE_NS, IO_NS = 40 * MS, 400 * MS
CHECKED = 50
"""Invariants are checked after one event in so many."""
NOTHING = SideLoad(0, 0, 1)


def node(division: CoreDivision) -> VirtualNode:
    events = itertools.count()

    def check(scheduler: Scheduler) -> None:
        if next(events) % CHECKED == 0:
            check_invariants(scheduler)

    return VirtualNode("fair", FORMATS, places=0, cores=division, check=check)


def load(made: VirtualNode, kind: str, callers: int, begin_ns: int, end_ns: int) -> None:
    """Have callers that wait for their results invoke a function for some time."""
    tenant = made.tenant(f"{kind} {begin_ns}")
    format_name, duration_ns = {"compute": ("cpu", COMPUTE_NS), "io": ("net", IO_NS)}[kind]
    for _ in range(callers):
        caller = Caller(tenant, kind, itertools.repeat(duration_ns))
        made.caller(caller, begin_ns, format_name)
        made._later(end_ns, lambda caller=caller: setattr(caller, "again", False))  # type: ignore[misc]  # no result


def completed(made: VirtualNode, kind: str, begin_ns: int, end_ns: int) -> int:
    return sum(
        one.caller.function == kind and begin_ns <= one.ended_ns < end_ns for one in made.sent
    )


def cores_of(made: VirtualNode) -> tuple[int, int]:
    cores = made.scheduler.calls.sending.cores
    assert cores is not None
    return cores.controller.compute, cores.controller.io


def moves_of(made: VirtualNode) -> int:
    cores = made.scheduler.calls.sending.cores
    assert cores is not None
    return cores.controller.moves


PHASE_NS = 4 * S
PHASES = (("compute", 0), ("io", PHASE_NS), ("compute", 2 * PHASE_NS))


def phases(division: CoreDivision) -> tuple[VirtualNode, list[float]]:
    """Run three phases; give the calls a second of each, without its first second."""
    made = node(division)
    for kind, begin_ns in PHASES:
        load(made, kind, 64 if kind == "compute" else 240, begin_ns, begin_ns + PHASE_NS)
    rates = []
    for kind, begin_ns in PHASES:
        end_ns = begin_ns + PHASE_NS
        made.run(end_ns)
        rates.append(completed(made, kind, begin_ns + S, end_ns) / ((end_ns - begin_ns - S) / S))
    return made, rates


def test_cores_follow_the_load_and_then_stay() -> None:
    made = node(CoreDivision(4, 4, controlled=True))
    seen = []
    for kind, begin_ns in PHASES:
        load(made, kind, 64 if kind == "compute" else 240, begin_ns, begin_ns + PHASE_NS)
    for _, begin_ns in PHASES:
        made.run(begin_ns + 2 * S)
        moves = moves_of(made)
        made.run(begin_ns + PHASE_NS)
        seen.append(cores_of(made))
        assert moves_of(made) == moves, "no core moves after two seconds"
    assert seen == [(7, 1), (1, 7), (7, 1)]
    assert moves_of(made) == 3 + 6 + 6, "no core went to and fro"


def test_a_moved_core_is_as_good_as_one_from_the_start() -> None:
    _, controlled = phases(CoreDivision(4, 4, controlled=True))
    static = {split: phases(CoreDivision(*split))[1] for split in ((7, 1), (4, 4), (1, 7))}
    best = [max(rates[phase] for rates in static.values()) for phase in range(3)]
    assert controlled[0] >= 0.95 * best[0]
    assert controlled[1] >= 0.85 * best[1]
    assert controlled[2] >= 0.85 * best[2]
    for split, rates in static.items():
        worst = min(rate / top for rate, top in zip(rates, best, strict=True))
        assert worst < 0.7, f"{split} is not enough in one of the phases"


def test_cores_stay_where_both_sides_have_as_much_to_do() -> None:
    made = node(CoreDivision(7, 1, controlled=True))
    load(made, "compute", 32, 0, 6 * S)
    load(made, "io", 32 * IO_CALLS, 0, 6 * S)
    made.run(3 * S)
    moves = moves_of(made)
    made.run(6 * S)
    assert cores_of(made) == (4, 4)
    assert moves_of(made) == moves == 3


def test_loads_that_come_and_go_at_random_move_few_cores() -> None:
    made = node(CoreDivision(4, 4, controlled=True))
    source = random.Random(1)
    tenant = made.tenant("random")
    for kind, format_name, mean_ns in (("compute", "cpu", COMPUTE_NS), ("io", "net", IO_NS)):
        callers = 10 if kind == "compute" else 10 * IO_CALLS
        for _ in range(callers):
            times = (int(source.expovariate(1 / mean_ns)) + 1 for _ in itertools.count())
            pause_ns = mean_ns
            made.caller(Caller(tenant, kind, times, pause_ns), source.randrange(S), format_name)
    made.run(20 * S)
    assert moves_of(made) <= 10, "not more than one in two seconds"


def test_without_waiting_calls_nothing_is_looked_at() -> None:
    made = node(CoreDivision(4, 4, controlled=True))
    assert made.scheduler.next_tick_ns is None
    made.scheduler.tick(5 * S)
    assert cores_of(made) == (4, 4)
    fixed = node(CoreDivision(4, 4))
    load(fixed, "compute", 64, 0, S)
    fixed.run(S)
    assert cores_of(fixed) == (4, 4)
    assert moves_of(fixed) == 0


def test_engines_are_limited_by_the_cores_of_their_side() -> None:
    made = node(CoreDivision(3, 2))
    load(made, "compute", 64, 0, S)
    load(made, "io", 64, 0, S)
    made.run(S // 2)
    engines = made.scheduler.calls.engines.all.values()
    assert sum(bool(e.sent) for e in engines if e.side is CoreSide.COMPUTE) == 3
    assert [len(e.sent) for e in engines if e.side is CoreSide.IO] == [2 * IO_CALLS]


# --- the controller by itself ---------------------------------------------------------------


def test_a_small_difference_moves_nothing_and_a_lasting_one_does() -> None:
    controller = CoreController(4, 4)
    short = SideLoad(IO_CALLS * 2, IO_CALLS * 4, IO_CALLS)  # half a round
    for _ in range(LOOKS):
        assert not controller.look(NOTHING, short)
    lasting = SideLoad(IO_CALLS * 5, IO_CALLS * 4, IO_CALLS)
    assert until_it_moves(controller, lasting) <= LOOKS


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_and_no_core_comes_back_under_the_same_load(seed: int) -> None:
    source = random.Random(seed)
    total = source.randint(2, 12)
    controller = CoreController(total - 1, 1)
    for _ in range(200):
        compute = SideLoad(source.choice([0, 3, 50]), source.randrange(total), 1)
        io = SideLoad(source.choice([0, 9, 400]), source.randrange(15 * total), IO_CALLS)
        directions = set()
        for _ in range(source.choice([1, 5, 60])):
            before = controller.io
            moved = controller.look(compute, io)
            assert moved is (controller.io != before)
            assert controller.compute >= 1
            assert controller.io >= 1
            assert controller.compute + controller.io == total
            if moved:
                directions.add(controller.io > before)
        assert len(directions) <= 1


def until_it_moves(controller: CoreController, io: SideLoad) -> int:
    """Count the looks until a core moves."""
    return next(n for n in itertools.count(1) if controller.look(NOTHING, io))


def test_no_core_moves_soon_after_another() -> None:
    controller = CoreController(8, 1)
    crowd = SideLoad(1000 * IO_CALLS, IO_CALLS, IO_CALLS)
    assert until_it_moves(controller, crowd) == 1
    assert until_it_moves(controller, crowd) == PAUSE_LOOKS + 1


def test_what_was_seen_long_ago_is_forgotten() -> None:
    lasting = SideLoad(IO_CALLS * 5, IO_CALLS * 4, IO_CALLS)
    fresh = until_it_moves(CoreController(4, 4), lasting)
    made = node(CoreDivision(4, 4, controlled=True))
    cores = made.scheduler.calls.sending.cores
    assert cores is not None
    made.scheduler.tick(0)
    for _ in range(fresh - 1):
        assert not cores.controller.look(NOTHING, lasting)
    made.scheduler.tick(5 * S)
    assert until_it_moves(cores.controller, lasting) >= fresh


def test_calls_that_an_engine_took_ahead_count_as_waiting() -> None:
    made = node(CoreDivision(8, 1, controlled=True))
    cores = made.scheduler.calls.sending.cores
    assert cores is not None
    cores.controller.compute, cores.controller.io = 1, 8
    for engine in made.scheduler.calls.engines.all.values():
        engine.ahead, engine.short_call_ns = 7, 25 * MS
    cores.choose()
    tenant = made.tenant("short")
    for _ in range(8):
        made.caller(Caller(tenant, "short", itertools.repeat(3 * MS)))
    made.run(S // 2)
    assert not made.scheduler.calls.lines.waiting, "one engine has them all"
    assert cores.controller.compute > 2


def test_reading_the_setting() -> None:
    assert core_division("shared", 4) is None
    assert core_division("3:1", 2) == CoreDivision(3, 1)
    assert core_division("controlled", 4) == CoreDivision(3, 1, controlled=True)
    assert core_division("controlled", 1) == CoreDivision(1, 1, controlled=True)
    assert core_division("controlled:6", 1) == CoreDivision(5, 1, controlled=True)
    for bad in ("", "3", "3:", ":1", "0:1", "1:-1", "controlled:", "controlled:x", "static", "²:1"):
        with pytest.raises(InvalidInput):
            core_division(bad, 4)
