"""Branches of a plan: what must wait for what, what is worth lanes, memory, whole calls."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.forks import Forks
from dandelion.backends.gpu.graph_parts import GraphPart, Width, graph_parts, use_of
from dandelion.backends.gpu.hazards import MemoryHazards, Use, is_chain
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.lanes import scheduled
from dandelion.backends.gpu.pacing import StepTimes
from dandelion.backends.gpu.plan import Launch, Plan, Pointer, Zero, plan

import dandelion.blueprint as bp
from dandelion.errors import Cancelled, InternalError
from dandelion.function import Function
from dandelion.testing import StoppedCall
from tests.test_gpu_engine import KERNELS, MODULES, POOL_BYTES, Runner, first, function, one

LONG_NS, SHORT_NS = 1_000_000, 1_000
PART_NS = 10 * LONG_NS
KIB = 1024


# --- what must wait for what ----------------------------------------------------------------

A, B, C = (0, 256), (256, 512), (512, 768)


def waits(*uses: Use) -> list[set[int]]:
    """What each step waits for; each has a lane of its own."""
    hazards = MemoryHazards()
    found = []
    for step, use in enumerate(uses):
        found.append(hazards.find(use))
        hazards.record(use, step, step)
    return found


def use(reads: tuple[Any, ...] = (), writes: tuple[Any, ...] = ()) -> Use:
    return Use(reads, writes)


@pytest.mark.parametrize(
    ("uses", "right"),
    [
        ([use((), (A,)), use((A,))], [set(), {0}]),
        ([use((A,)), use((), (A,))], [set(), {0}]),
        ([use((), (A,)), use((), (A,))], [set(), {0}]),
        ([use((A,)), use((A,))], [set(), set()]),
        ([use((), (A,)), use((), (B,))], [set(), set()]),
        ([use((), (A,)), use((A,)), use((A,)), use((), (A,))], [set(), {0}, {0}, {1, 2}]),
        ([use((), (A,)), use((), (B,)), use((A, B), (C,))], [set(), set(), {0, 1}]),
        ([use((), ((0, 512),)), use((), (A,)), use((B,)), use((A,))], [set(), {0}, {0}, {1}]),
        ([use((), (A,)), use((), (B,)), use((), ((128, 384),))], [set(), set(), {0, 1}]),
        ([use((), (A,)), use((), ((0, 512),)), use((A,)), use((B,))], [set(), {0}, {1}, {1}]),
        ([use(((0, 512),)), use((), (A,)), use((), (B,))], [set(), {0}, {0}]),
    ],
)
def test_dependencies_from_ranges(uses: list[Use], right: list[set[int]]) -> None:
    assert waits(*uses) == right


def test_what_a_launch_uses_is_what_is_declared() -> None:
    x, y, w = Pointer(0, 100), Pointer(256, 300), Pointer(0, 99, constant=True)
    declared = (bp.Access.READ, bp.Access.VALUE, bp.Access.WRITE, bp.Access.READ)
    shape = ((1, 1, 1), (1, 1, 1))
    launch = Launch("k", (x, b"12345678", y, w), *shape, access=declared)
    assert use_of(launch) == Use(((0, 256),), ((256, 768),))
    unknown = Launch("k", (x, b"12345678", y, w), *shape)
    assert use_of(unknown) == Use((), ((0, 256), (256, 768))), "constants are read-only anyway"
    assert use_of(Zero(512, 256)) == Use((), ((512, 768),))


def test_a_chain_is_seen_also_through_loops() -> None:
    there, back, other = use((A,), (B,)), use((B,), (A,)), use((), (C,))
    assert is_chain([there, back], [0, 1] * 1000)
    assert is_chain([], [])
    assert not is_chain([there, back, other], [0, 1, 2])
    assert is_chain([use((A,), (B,)), use((B,), (C,))], [0, 1, 0, 1]), "A is read before B is"
    assert not is_chain([use((), (A,)), use((A,)), use((), (B,))], [0, 1, 2, 0, 1, 2])


# --- lanes ----------------------------------------------------------------------------------


def branches(width: int, length: int, turn: bool = False, size: int = KIB) -> bp.GpuConfig:
    """Chains from one input, each through buffers of its own, joined in the end.

    Args:
        width: how many.
        length: of each, in launches.
        turn: each launch also reads and writes one more buffer.
        size: of all buffers but the last one of each chain, in bytes.
    """
    b = bp.Blueprint(inputs=["A"], outputs=["out"], modules=["m.c"])
    b.kernel("step", access=["read", "write", *["both"] * turn])
    b.kernel("join", access=[*["read"] * width, "write"])
    more = [b.buffer("turn", size=8, temporary=True)] if turn else []
    ends = []
    for branch in range(width):
        previous = b.A
        for i in range(length):
            bytes_ = size if i < length - 1 else KIB
            following = b.buffer(f"t{branch}_{i}", size=bytes_, temporary=True)
            b.launch("step", [previous, following, *more])
            previous = following
        ends.append(previous)
    b.launch("join", [*ends, b.buffer("out", size=KIB)])
    return b.build()


def planned(config: bp.GpuConfig, lanes: int = 8, limit_bytes: int | None = None) -> Plan:
    return plan(config, {"A": KIB}, lambda n, i: 0, limit_bytes, None, lanes, limit_bytes)


def parts(
    made: Plan, ns: int = LONG_NS, lanes: int = 8, brief: bool = True, units: int = 0
) -> list[GraphPart]:
    """The parts of a plan each of whose steps takes so long."""
    times = StepTimes(len(made.steps), PART_NS)
    for index in range(len(made.steps)):
        times.measured([index], ns)
    width = Width(lanes, units, 64 if units else 0)
    return graph_parts(made.steps, list(made.walk()), times, width, brief)


def test_branches_are_lanes_that_join() -> None:
    (part,) = parts(planned(branches(3, 4)))
    assert part.forks is not None
    lanes, joins = part.forks.lanes, part.forks.waits
    assert sorted(lanes.count(lane) for lane in set(lanes)) == [4, 4, 5]
    assert [len(found) for found in joins] == [0] * 12 + [2]
    assert {lanes[wait] for wait in joins[-1]} | {lanes[-1]} == {0, 1, 2}


def test_more_branches_than_lanes_take_turns() -> None:
    (part,) = parts(planned(branches(6, 3)), lanes=2)
    assert part.forks is not None
    assert sorted(part.forks.lanes.count(lane) for lane in (0, 1)) == [9, 10]


@pytest.mark.parametrize(
    ("config", "ns", "lanes"),
    [
        pytest.param(branches(1, 20), LONG_NS, 8, id="a chain"),
        pytest.param(branches(4, 5, turn=True), LONG_NS, 8, id="a buffer is used in turn"),
        pytest.param(branches(2, 1), SHORT_NS, 8, id="waits between lanes would cost more"),
        pytest.param(branches(4, 5), LONG_NS, 1, id="the device has no lanes"),
    ],
)
def test_what_stays_in_order_is_captured_as_ever(config: bp.GpuConfig, ns: int, lanes: int) -> None:
    made = planned(config)
    assert parts(made, ns, lanes) == [GraphPart(list(made.walk()))]


def test_parts_hold_all_branches_for_the_time_of_a_part() -> None:
    made = planned(branches(2, 30))
    found = parts(made, brief=False)
    assert [len(part.steps) for part in found] == [20, 20, 20, 1]
    assert [part.speedup for part in found] == [2, 2, 2, 1]
    for part in found[:-1]:
        assert part.forks is not None
        assert not any(part.forks.waits), "what it waits for is done, or in its lane"
    assert found[-1].forks is None
    chain = parts(planned(branches(1, 60)), brief=False)
    assert [len(part.steps) for part in chain] == [10] * 6 + [1]


def test_launches_that_fill_the_device_stay_in_order() -> None:
    """Each step has a block, and each unit runs one at a time."""
    made = planned(branches(4, 20))
    assert parts(made, units=1) == [GraphPart(list(made.walk()))]
    for units, steps in ((2, 20), (4, 40), (8, 40)):
        found = parts(made, brief=False, units=units)[0]
        assert found.forks is not None
        assert len(found.steps) == steps, "the lanes reach the time of a part sooner"


def test_a_kernel_beside_a_chain_of_brief_ones() -> None:
    """One step that takes as long as all others together runs beside them."""
    uses = [use((), (A,)), *[use((B,), (B,))] * 100]
    schedule = scheduled(uses, [100_000.0, *[1_000.0] * 100], 8)
    assert schedule.width == 2
    assert schedule.span_ns == 100_000
    assert schedule.pays()
    assert not schedule.pays(190_000), "the device is full"


# --- memory ---------------------------------------------------------------------------------


def test_branches_get_memory_of_their_own_where_that_is_cheap() -> None:
    config = branches(2, 5)
    serial, wide = planned(config, lanes=1), planned(config)
    assert parts(serial)[0].forks is None, "both use the same temporary buffers"
    assert parts(wide)[0].forks is not None
    assert serial.used_bytes < wide.used_bytes <= serial.used_bytes + 3 * KIB
    assert planned(config, limit_bytes=serial.used_bytes).slots == serial.slots, "no room"


def test_an_engine_takes_no_larger_pool_for_branches() -> None:
    """After a fault the pool is small until a call needs more."""
    runner = Runner(HostDevice(KERNELS, POOL_BYTES, graphs=True, lanes=4), first_bytes=4 * KIB)
    plans, config = runner.engine.plans, branches(2, 5)
    small, large = (planned(config, lanes).used_bytes for lanes in (1, 8))
    assert small <= 4 * KIB < large
    sizes = {"A": KIB}
    assert plans.get("f", config, (), sizes, lambda n, i: 0).used_bytes == small
    runner.run(doubled_apart(), one("x", np.arange(1024, dtype=np.int32)))
    assert runner.engine.pool.size_bytes == POOL_BYTES, "this call needs more"
    assert plans.get("g", config, (), sizes, lambda n, i: 0).used_bytes == large
    runner.engine.close()


def test_chains_get_no_more_memory() -> None:
    config = branches(1, 30)
    assert planned(config).slots == planned(config, lanes=1).slots


def test_with_less_room_fewer_branches_run_side_by_side() -> None:
    """Eight branches through 64 MiB each: the plan may double, not more."""
    config = branches(8, 4, size=64 << 20)
    serial, wide = planned(config, lanes=1), planned(config)
    assert serial.used_bytes < wide.used_bytes <= 2 * serial.used_bytes
    (part,) = parts(wide)
    assert part.forks is not None
    assert 2 <= len(set(part.forks.lanes)) < 8


# --- devices --------------------------------------------------------------------------------


def test_a_device_refuses_forks_that_do_not_fit() -> None:
    device = HostDevice(KERNELS, graphs=True, lanes=2)
    device.open()
    device.allocate(KIB)
    steps = [device.prepare_zero(Zero(0, 256))] * 2
    assert device.capture(steps, Forks((0, 1), ((), (0,)))) is not None
    for lanes, wrong in (
        ((0, 2), ((), ())),
        ((0, 1), ((1,), ())),
        ((1, 0), ((), ())),
        ((0,), ((),)),
    ):
        with pytest.raises(InternalError):
            device.capture(steps, Forks(lanes, wrong))
    device.close()


# --- whole calls ----------------------------------------------------------------------------

X = np.arange(256, dtype=np.int32)


def doubled_apart(times: int = 3) -> Function:
    """Two branches that only meet at the end: y = (1 + 2 ** times) * x."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules=MODULES)
    b.kernel("accumulate", access=["read", "both", "value"])
    count = bp.scalar("u64", b.x.elements("i32"))
    y = b.buffer("y", like="x")
    ends = []
    for branch in ("s", "t"):
        end = b.buffer(branch, like="x", temporary=True)
        b.launch("accumulate", [b.x, end, count])
        ends.append(end)
    for i in range(times):
        copy = b.buffer(f"copy{i}", like="x", temporary=True)
        b.launch("accumulate", [ends[0], copy, count])
        b.launch("accumulate", [copy, ends[0], count])
        b.launch("accumulate", [b.x, ends[1], count])
    for end in ends:
        b.launch("accumulate", [end, y, count])
    return function(b, ("y",))


def expected(times: int = 3) -> bytes:
    return ((2**times + 1 + times) * X).tobytes()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """Each step takes long, so that lanes are worth it however fast this machine is."""
    monkeypatch.setattr(StepTimes, "expected_ns", lambda self, index: float(LONG_NS))
    return HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True, lanes=4)


@pytest.mark.parametrize("part_ns", [1, 4 * LONG_NS, 10**9])
def test_calls_with_branches_give_the_serial_result(device: HostDevice, part_ns: int) -> None:
    runner = Runner(device, part_ns=part_ns)
    for _ in range(5):
        assert first(runner.run(doubled_apart(), one("x", X))).bytes() == expected()
    assert bool(device.forked) == (part_ns > 1), "a part of one step has no branches"
    runner.engine.close()
    assert (device.modules, device.graphs) == (0, 0)


def test_a_call_with_branches_can_be_stopped_between_parts(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepTimes, "expected_ns", lambda self, index: 1.0)
    runner = Runner(device, part_ns=3)  # so no call is brief
    for _ in range(2):
        runner.run(doubled_apart(), one("x", X))
    assert device.forked
    for looks in range(3):
        with pytest.raises(Cancelled):
            call = runner.call(doubled_apart(), one("x", X))
            runner.engine.run(StoppedCall.like(call, looks))
        assert first(runner.run(doubled_apart(), one("x", X))).bytes() == expected()
    runner.engine.close()


# --- speed ----------------------------------------------------------------------------------


def test_long_plans_are_put_on_lanes_quickly() -> None:
    """It is done once for each plan, at its second call; measured: 0.05 s."""
    made = planned(branches(8, 500))
    started = time.thread_time()
    (part,) = parts(made)
    assert part.forks is not None
    assert time.thread_time() - started < 2
