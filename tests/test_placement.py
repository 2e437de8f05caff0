"""Placement: which engine of a device a call goes to, and which call an engine takes next."""

import itertools

import pytest

from dandelion.data import SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Run, Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity, Demand
from dandelion.function import CodeObject, FunctionSpec
from dandelion.policies.ordered import Fifo
from dandelion.scheduler import CallState, EngineState, Flow, InvocationState, Tenant
from dandelion.scheduler.engine import EnginePhase
from dandelion.scheduler.lines import Lines
from dandelion.scheduler.placement import Engines, Needs, best_free
from dandelion.scheduler.records import Lane, Presence

NUMBERS = itertools.count()


def engine(name: str, formats: str = "x", *, worker: bool = False, shared: bool = False,
           room: int = 0, blocks: int = 0, places: int = 1) -> EngineState:  # fmt: skip
    return EngineState(
        next(NUMBERS),
        frozenset(formats.split()),
        ("b", "0") if room or blocks or worker else ("b", name),
        places,
        worker,
        shared,
        name=name,
        capacity=Capacity(room, blocks),
        phase=EnginePhase.READY,
    )


def call_of(*formats: str, flow: Flow | None = None) -> CallState:
    code = tuple(CodeObject(name) for name in formats or ("x",))
    spec = FunctionSpec("f", (SetSpec("a"),), (SetSpec("b"),), code=code)
    walk = Walk(direct_plan(spec), Partitioning("auto", 1, 1))
    tenant = Tenant("t")
    invocation = InvocationState(str(next(NUMBERS)), tenant, walk, (None,), 0, 1.0)
    [run] = walk.start(invocation.inputs)
    assert isinstance(run, Run)
    return CallState(next(NUMBERS), invocation, run, flow or Flow(tenant, spec, Presence.PRESENT))


class Placement:
    """Engines, and calls that wait for them in the order in which they came."""

    def __init__(self, *engines: EngineState) -> None:
        self.engines = Engines({one.id: one for one in engines})
        self.lines = Lines(Fifo())
        self.engines.changed()

    def named(self, name: str) -> EngineState:
        [found] = [one for one in self.engines.all.values() if one.name == name]
        return found

    def busy(self, *names: str) -> None:
        for name in names:
            for _ in range(self.named(name).places):
                call = call_of()
                self.named(name).sent[call.id] = call

    def lane(self, needs: Needs) -> Lane:
        return self.engines.lane(needs.formats, needs.demand, needs.alone)

    def chosen(self, needs: Needs) -> str | None:
        """Name the engine that a call with these needs is sent to at once."""
        found = best_free(self.lane(needs).engines, call_of().flow)
        return None if found is None else found.name

    def wait(self, needs: Needs) -> CallState:
        call = call_of(*needs.formats)
        self.lines.add(call, self.lane(needs))
        return call

    def next_for(self, name: str) -> CallState | None:
        return self.lines.next_for(self.named(name))


def chosen(p: Placement, needs: Needs) -> str | None:
    return p.chosen(needs)


GPU = Needs(("x",), Demand(device_bytes=10, blocks=1))


def device(*, busy: str = "", down: str = "") -> Placement:
    """A device with a sequential engine and two workers that share their faults."""
    p = Placement(
        engine("sequential", room=100, blocks=50),
        engine("worker0", worker=True, shared=True, room=20, blocks=50),
        engine("worker1", worker=True, shared=True, room=20, blocks=50),
    )
    p.busy(*busy.split())
    for name in down.split():
        p.named(name).phase = EnginePhase.STARTING
    return p


def test_small_calls_go_to_workers_and_wait_for_them() -> None:
    assert chosen(device(), GPU) == "worker0"
    assert chosen(device(busy="worker0"), GPU) == "worker1"
    assert chosen(device(busy="worker0 worker1"), GPU) is None


def test_the_other_kind_takes_what_its_own_kind_cannot() -> None:
    assert chosen(device(down="worker0 worker1"), GPU) == "sequential"
    filling = Needs(("x",), Demand(device_bytes=1, blocks=50))
    assert chosen(device(down="sequential"), filling) == "worker0"


def test_workers_that_share_their_faults_are_used_when_all_are_up() -> None:
    assert chosen(device(down="worker1"), GPU) == "sequential"
    p = device(down="worker1", busy="sequential")
    assert chosen(p, GPU) is None
    call = p.wait(GPU)
    assert p.next_for("worker0") is None
    p.named("worker1").phase = EnginePhase.READY
    [waiting] = p.lines.drain(p.engines.changed())
    p.lines.add(waiting, p.lane(GPU))
    assert p.next_for("sequential") is None
    assert p.next_for("worker0") is call


def test_calls_that_need_more_memory_than_a_worker_has_are_sequential() -> None:
    large = Needs(("x",), Demand(device_bytes=21, blocks=1))
    assert chosen(device(), large) == "sequential"
    assert chosen(device(busy="sequential"), large) is None
    assert device(busy="sequential").engines.possible(large)
    assert not device().engines.possible(Needs(("x",), Demand(device_bytes=101)))


@pytest.mark.parametrize(("blocks", "expected"), [(49, "worker0"), (50, "sequential")])
def test_calls_that_fill_the_device_are_sequential(blocks: int, expected: str) -> None:
    assert chosen(device(), Needs(("x",), Demand(device_bytes=1, blocks=blocks))) == expected


@pytest.mark.parametrize(
    ("blocks", "threads", "fills"),
    [
        (256, 66, False),  # of 2048 threads a unit holds 31 such blocks
        (49, 1024, False),
        (264, 1024, True),  # two in each of 132 units
        (263, 1024, False),
        (132, 2048, True),
        (132 * 32, 1, True),  # small blocks count as 64 threads
        (132 * 32 - 1, 32, False),
    ],
)
def test_a_launch_fills_a_device_that_holds_no_more_of_its_blocks(
    blocks: int, threads: int, fills: bool
) -> None:
    h200 = Capacity(1 << 30, 132, ("sm_90",), 2048)
    assert h200.saturated_by(Demand(blocks=blocks, block_threads=threads)) is fills


def test_a_device_that_does_not_tell_is_full_with_a_block_for_each_unit() -> None:
    assert Capacity(0, 2).saturated_by(Demand(blocks=2, block_threads=8))
    assert not Capacity(0, 2).saturated_by(Demand(blocks=1, block_threads=1024))
    assert not Capacity().saturated_by(Demand(blocks=10**6, block_threads=1024))


def test_an_idle_worker_that_ran_the_function_comes_first() -> None:
    p = device()
    f, g = call_of().flow, call_of().flow
    p.named("worker0").last, p.named("worker1").last = g, f
    lane = p.lane(GPU)
    assert best_free(lane.engines, f) is p.named("worker1")
    assert best_free(lane.engines, g) is p.named("worker0")
    p.busy("worker1")
    assert best_free(lane.engines, f) is p.named("worker0")


def test_filling_calls_take_a_worker_where_there_is_nothing_else() -> None:
    workers = Placement(
        engine("worker0", worker=True, blocks=50), engine("worker1", worker=True, blocks=50)
    )
    assert chosen(workers, Needs(("x",), Demand(blocks=500))) == "worker0"


def test_calls_that_must_run_alone_avoid_shared_fault_domains() -> None:
    alone = Needs(("x",), Demand(device_bytes=1), alone=True)
    assert chosen(device(), alone) == "sequential"
    assert chosen(device(busy="sequential"), alone) is None


def test_the_oldest_call_that_fits_comes_first() -> None:
    p = Placement(engine("a", "x"), engine("b", "y"), engine("both", "x y"))
    calls = [p.wait(Needs(formats)) for formats in [("y",), ("x",), ("y",), ("x",), ("y",)]]
    assert p.next_for("a") is calls[1]
    assert p.next_for("b") is calls[0]
    assert p.next_for("both") is calls[2]
    assert p.next_for("b") is calls[4]
    assert p.next_for("b") is None
    assert p.lines.waiting == 1
    p.lines.remove(calls[3])
    assert p.lines.waiting == 0
    assert p.next_for("a") is None


def test_a_call_that_does_not_fit_does_not_hold_up_the_line() -> None:
    p = Placement(engine("sequential", room=100), engine("worker", worker=True, room=20))
    p.wait(Needs(("x",), Demand(device_bytes=90)))
    small = p.wait(Needs(("x",), Demand(device_bytes=5)))
    assert p.next_for("worker") is small
    assert p.next_for("worker") is None
    assert p.lines.waiting == 1


def test_the_first_format_with_an_engine_is_taken() -> None:
    p = Placement(engine("a", "x"), engine("b", "y"))
    needs = Needs(("y", "x"))
    assert chosen(p, needs) == "b"
    p.named("b").phase = EnginePhase.STARTING
    p.engines.changed()
    assert chosen(p, needs) == "a"


def test_constants_that_only_the_sequential_engine_has_room_for() -> None:
    def made(name: str, worker: bool, constants_bytes: int) -> EngineState:
        one = engine(name, worker=worker, room=1 << 30, blocks=100)
        one.capacity = Capacity(
            1 << 30, 100, constants_bytes=constants_bytes, constants_unit_bytes=1 << 21
        )
        return one

    whole, part = made("whole", False, 1 << 30), made("part", True, 64 << 20)
    engines = Placement(whole, part).engines
    small = Demand(1 << 20, blocks=1, block_threads=32)

    def chosen(constants_bytes: int) -> tuple[EngineState, ...]:
        return engines.lane(("x",), small, False, constants_bytes).engines

    assert chosen(0) == chosen(64 << 20) == (part,)
    assert chosen(65 << 20) == (whole,)
    assert chosen(2 << 30) == (part,), "no engine has room, so workers run it as all others"
    assert chosen(3 << 20) == (part,), "small constants do not matter"
