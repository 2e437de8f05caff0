"""Calls of GPU functions that are stopped, and the parts that they are cut into for that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu import pacing
from dandelion.backends.gpu.device import Handle
from dandelion.backends.gpu.host import HostDevice, Memory
from dandelion.backends.gpu.modules import Modules
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.pacing import BRIEF_PARTS, StepTimes
from dandelion.backends.gpu.plan import Launch, Loop, Plan
from dandelion.backends.gpu.ready_plans import Ready

import dandelion.blueprint as bp
from dandelion.errors import BackendUnavailable, Cancelled, TimedOut
from dandelion.function import Function
from dandelion.testing import StoppedCall
from tests.test_gpu_engine import KERNELS, MODULES, POOL_BYTES, Runner, first, function, one, totals

PART_NS = 1_000_000
TINY_NS = 1  # each launch is a part
X = np.arange(256, dtype=np.int32)
LAUNCHES = 200


def chain(times: int = LAUNCHES // 2) -> Function:
    """Adds x and t to each other in turn: its result depends on the order of all launches."""
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=MODULES)
    t = b.buffer("t", like="x", temporary=True)
    count = b.x.elements("i32")
    shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
    with b.repeat(times):
        b.launch("accumulate", [b.x, t, bp.scalar("u64", count)], **shape)
        b.launch("accumulate", [t, b.x, bp.scalar("u64", count)], **shape)
    return function(b, ("x",))


def chained(times: int = LAUNCHES // 2) -> bytes:
    x, t = X.copy(), np.zeros_like(X)
    for _ in range(times):
        t += x
        x += t
    return x.tobytes()


class CountingDevice(HostDevice):
    """Counts the launches that it carried out, and the graphs that were launched."""

    def __init__(self, **abilities: bool) -> None:
        self.carried_out = self.replays = 0

        def accumulate(launch: Launch, x: Memory, total: Memory, count: bytes) -> None:
            self.carried_out += 1
            total.view(np.int32)[:] += x.view(np.int32)

        super().__init__({**KERNELS, "accumulate": accumulate}, POOL_BYTES, **abilities)

    def _replay(self, graph: Handle) -> None:
        self.replays += 1
        super()._replay(graph)

    def pool(self) -> bytes:
        """What is in its memory."""
        return self._memory().tobytes()


def stopped(runner: Runner, wanted: Function, looks: int) -> None:
    """Run a call that is stopped at that look."""
    with pytest.raises(Cancelled):
        runner.engine.run(StoppedCall.like(runner.call(wanted, one("x", X)), looks))


@pytest.fixture(params=["steps", "graphs", "at-once"])
def device(request: pytest.FixtureRequest) -> CountingDevice:
    return CountingDevice(lazy=request.param != "at-once", graphs=request.param == "graphs")


@pytest.mark.parametrize("calls_before", [0, 1, 2])
def test_a_stopped_call_launches_no_further_part(device: CountingDevice, calls_before: int) -> None:
    runner = Runner(device, part_ns=TINY_NS)
    for _ in range(calls_before):
        assert first(runner.run(chain(), one("x", X))).bytes() == chained()
    before = device.carried_out
    stopped(runner, chain(), looks=10)
    assert device.carried_out - before == 10, "what was launched has ended"
    device.synchronize()
    assert device.pool()[: 2 * X.nbytes] == bytes(2 * X.nbytes), "nothing of the call is left"
    assert runner.domain.alive == []
    for _ in range(3):
        assert first(runner.run(chain(), one("x", X))).bytes() == chained()
    runner.engine.close()
    assert (device.modules, device.graphs) == (0, 0)


def test_parts_give_the_bits_that_the_whole_gives(device: CountingDevice) -> None:
    for part_ns in (TINY_NS, 20_000, 10**9):
        runner = Runner(device, part_ns=part_ns)
        for _ in range(4):
            assert first(runner.run(chain(), one("x", X))).bytes() == chained()
        runner.engine.close()


def test_a_short_call_is_one_graph_and_is_not_interrupted(device: CountingDevice) -> None:
    if not device.abilities.graphs:
        pytest.skip("only devices with graphs")
    runner = Runner(device)
    runner.run(chain(), one("x", X))
    for count in range(1, 4):
        call = StoppedCall.like(runner.call(chain(), one("x", X)), looks=0)
        assert first(runner.engine.run(call)).bytes() == chained()
        runner.engine.clean_up()
        assert device.replays == count
    runner.engine.close()


def test_a_deadline_ends_a_call_between_two_parts(device: CountingDevice) -> None:
    runner = Runner(device, part_ns=TINY_NS)
    with pytest.raises(TimedOut):
        runner.engine.run(runner.call(chain(400_000), one("x", X), left_ns=20_000_000))
    assert device.carried_out < 400_000
    assert first(runner.run(totals(), one("x", X))).bytes() == (3 * X).tobytes()
    runner.engine.close()


def on_opencl(shared: bool, part_ns: int) -> Runner:
    try:
        return Runner(OpenClDevice(shared=shared), part_ns=part_ns)
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=[True, False], ids=["shared", "buffers"])
def opencl(request: pytest.FixtureRequest) -> Iterator[Runner]:
    made = on_opencl(request.param, TINY_NS)
    yield made
    made.engine.close()


def test_a_stopped_call_on_opencl(opencl: Runner) -> None:
    for _ in range(3):
        assert first(opencl.run(chain(), one("x", X))).bytes() == chained()
        stopped(opencl, chain(), looks=5)
        assert opencl.domain.alive == []
        assert not opencl.engine.pool.dirty_bytes
    assert first(opencl.run(chain(), one("x", X))).bytes() == chained()


@pytest.mark.parametrize("shared", [True, False])
def test_a_call_of_seconds_ends_soon_after_it_is_not_wanted(shared: bool) -> None:
    runner = on_opencl(shared, pacing.PART_NS)
    wanted = chain(450_000)
    lasted_ns = []
    for _ in range(5):  # this machine may be busy
        call = StoppedCall.like(runner.call(wanted, one("x", X)), looks=50)
        with pytest.raises(Cancelled):
            runner.engine.run(call)
        lasted_ns.append(time.monotonic_ns() - call.stopped_ns)
    assert min(lasted_ns) < 2_000_000_000
    assert first(runner.run(chain(), one("x", X))).bytes() == chained()
    runner.engine.close()


# --- how calls are cut ----------------------------------------------------------------------


def run_parts(times: StepTimes, order: list[int], cost: Callable[[int], int]) -> list[list[int]]:
    """Cut and measure as a device would; returns the parts."""
    parts = []
    for part in times.cut(order):
        parts.append(part)
        times.measured(part, sum(map(cost, part)))
    return parts


def test_steps_that_never_ran_are_launched_with_few_others() -> None:
    times = StepTimes(1000, PART_NS)
    parts = run_parts(times, list(range(1000)), lambda step: 1000)
    assert [len(part) for part in parts[:2]] == [1, 16]
    assert max(map(len, parts)) == 16
    assert len(list(times.cut(range(1000)))) <= 2


def test_long_steps_stay_alone() -> None:
    times = StepTimes(100, PART_NS)
    assert all(len(part) == 1 for part in run_parts(times, list(range(100)), lambda step: PART_NS))
    assert all(len(part) == 1 for part in times.cut(range(100)))


def test_the_steps_of_a_loop_are_known_after_their_first_turn() -> None:
    times = StepTimes(2, PART_NS)
    parts = run_parts(times, [0, 1] * 5000, lambda step: 10_000)
    assert max(map(len, parts)) == PART_NS // 10_000
    assert len(parts) < 120


def test_a_first_run_that_was_slow_is_forgotten() -> None:
    """A driver loads a kernel's code when it is first launched."""
    times = StepTimes(1, PART_NS)
    times.measured([0], 50 * PART_NS)
    assert len(run_parts(times, [0] * 1000, lambda step: 5_000)) < 20


def test_one_disturbance_changes_little() -> None:
    times = StepTimes(1, PART_NS)
    order = [0] * 1000
    run_parts(times, order, lambda step: 10_000)
    before = len(list(times.cut(order)))
    times.measured(order[:100], 100 * PART_NS)
    assert len(list(times.cut(order))) <= 1.6 * before + 1


def ready_plan(launches: int = 100) -> Ready:
    plan = Plan({}, (), (Loop(launches, (0,)),), launches, 0, {}, 1, 1)
    steps = [Handle(lambda: None)]
    return Ready(plan, "f", None, steps, frozenset(), steps * launches, StepTimes(1, PART_NS))


def test_a_plan_is_captured_after_its_first_call_and_only_then() -> None:
    ready = ready_plan()
    assert not ready.capture_due
    ready.ran([PART_NS])
    assert ready.capture_due
    assert ready.brief
    ready.capture_due = False
    ready.ran([BRIEF_PARTS * PART_NS + 1])
    assert not ready.capture_due
    assert not ready.brief


def test_a_kernel_alone_cannot_be_cut() -> None:
    ready = ready_plan(launches=1)
    ready.ran([100 * PART_NS])
    assert ready.brief
    ready.took_long()
    assert ready.brief


def test_parts_of_the_wrong_size_are_cut_anew_and_ever_more_rarely() -> None:
    device = HostDevice(KERNELS, graphs=True)
    modules = Modules(device, part_ns=PART_NS)
    ready = ready_plan()
    modules._ready[ready.key] = ready
    run_parts(ready.times, [0] * 100, lambda step: PART_NS)
    ready.ran([100 * PART_NS])
    cuts = []
    for call in range(200):
        modules.use(ready, ())
        cuts.append(len(ready.segments))
        quick = call // 20 % 2 == 0  # the device is shared now and then
        each = [PART_NS // 50 if quick else PART_NS] * 100
        took = [sum(each[: len(s.part.steps)]) for s in ready.segments]
        for segment, ns in zip(ready.segments, took, strict=True):
            ready.times.measured(segment.part.steps, ns)
        ready.ran(took)
    assert cuts[0] == 100
    assert cuts[5] == 1
    changes = sum(a != b for a, b in itertools.pairwise(cuts))
    assert 2 <= changes <= 8
    modules.close()
    assert device.graphs == 0
