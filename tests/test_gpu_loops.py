"""Loops that end by a word on the device, and outputs that may be absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from dandelion.backends.cuda import CudaDevice
from dandelion.backends.gpu import sections
from dandelion.backends.gpu.adaptive_wait import LONG_NS as LONG_WAIT_NS
from dandelion.backends.gpu.device import Handle, Variables
from dandelion.backends.gpu.host import HostDevice, Memory
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.plan import Launch, plan
from dandelion.backends.gpu.program import make_program

import dandelion.blueprint as bp
from dandelion.driver import InstanceSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    InvalidBlueprint,
    InvalidInput,
    TimedOut,
)
from dandelion.function import Batching, Function
from dandelion.testing import StoppedCall
from tests.fake_driver.loops import SOURCE
from tests.test_gpu_engine import LONG_NS, POOL_BYTES, Runner, function, one

TINY_NS = 1  # each launch is a part
X = np.arange(64, dtype=np.int32)


def _add_one(launch: Launch, x: Memory, count: bytes) -> None:
    x.view(np.int32)[:] += 1


def _below(launch: Launch, x: Memory, limit: Memory, word: Memory) -> None:
    word.view(np.uint32)[0] = x.view(np.int32)[0] < limit.view(np.int64)[0]


KERNELS: dict[str, Callable[..., None]] = {"add_one": _add_one, "below": _below}
FILES = {"loop.c": SOURCE.encode(), "loop.host": " ".join(KERNELS).encode()}
MODULES = {"loop": ["loop.c", "loop.host"]}


DEVICES: dict[str, Callable[[], Any]] = {
    "steps": lambda: HostDevice(KERNELS, POOL_BYTES, lazy=True),
    "at-once": lambda: HostDevice(KERNELS, POOL_BYTES),
    "graphs": lambda: HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True),
    "opencl": OpenClDevice,
    "opencl-buffers": lambda: OpenClDevice(shared=False),
    "cuda": CudaDevice,
}


@pytest.fixture(params=[TINY_NS, LONG_NS], ids=["parts", "whole"])
def part_ns(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=DEVICES)
def runner(request: pytest.FixtureRequest, part_ns: int) -> Iterator[Runner]:
    try:
        made = Runner(DEVICES[request.param](), part_ns=part_ns)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.engine.close()
    assert made.domain.alive == []


class Counter:
    """A blueprint that counts in x; `word` says whether x[0] is below the limit."""

    def __init__(self, **fields: Any) -> None:
        self.b = bp.Blueprint(inputs=["x", "limit"], modules=MODULES, **fields)
        self.word = self.b.buffer("word", 4, temporary=True)

    def count(self) -> None:
        size = self.b.x.elements("i32")
        self.b.launch("add_one", [self.b.x, bp.scalar("u64", size)], grid=1, block=64)

    def look(self) -> None:
        self.b.launch("below", [self.b.x, self.b.limit, self.word])

    def function(self, *outputs: str) -> Function:
        return function(self.b, outputs, FILES)


def simple(most: int = 10) -> Function:
    made = Counter(outputs=["x", "more"])
    more = made.b.buffer("more", 8)
    with made.b.repeat_while(made.word, at_most=most):
        made.count()
        made.look()
    made.b.present_if(more, made.word)
    return made.function("x", "more")


def nested() -> Function:
    """Three times: counts to a multiple of its own, of the loop around it, and of the limit."""
    made = Counter(outputs=["x"])
    made.count()
    with made.b.repeat(3):
        made.count()
        with made.b.repeat_while(made.word, at_most=4):
            with made.b.repeat_while(made.word, at_most=5):
                made.count()
                made.look()
            made.count()
        made.count()
    return made.function("x")


def counted(x: int, limit: int) -> int:
    x += 1
    for _ in range(3):
        x += 1
        for _ in range(4):
            for _ in range(5):
                x += 1
                if x >= limit:
                    break
            going = x < limit
            x += 1
            if not going:
                break
        x += 1
    return x


def run(runner: Runner, wanted: Function, limit: int) -> InstanceSets:
    return runner.run(wanted, one("x", X), one("limit", np.array([limit], np.int64)))


def added(outputs: InstanceSets) -> int:
    assert outputs[0] is not None
    (value,) = set(outputs[0].numpy(np.int32) - X)
    return int(value)


def test_a_loop_ends_where_its_word_says(runner: Runner) -> None:
    wanted = simple()
    for limit in (4, 0, 1, 10, 11, 4):
        outputs = run(runner, wanted, limit)
        assert added(outputs) == min(max(limit, 1), 10)
        assert (outputs[1] is not None) is (limit > 10)


def test_loops_within_loops(runner: Runner) -> None:
    wanted = nested()
    for limit in (0, 2, 12, 13, 30, 31, 70, 1000, 13):
        assert added(run(runner, wanted, limit)) == counted(0, limit), limit


def test_loops_are_stopped_between_iterations(runner: Runner) -> None:
    wanted = simple(1_000_000 // 2)
    limit = one("limit", np.array([1 << 30], np.int64))
    for looks in (0, 3, 50):
        call = runner.call(wanted, one("x", X), limit)
        with pytest.raises(Cancelled):
            runner.engine.run(StoppedCall.like(call, looks))
        assert not runner.engine.pool.dirty_bytes
    with pytest.raises(TimedOut):
        runner.engine.run(runner.call(wanted, one("x", X), limit, left_ns=10_000_000))
    assert added(run(runner, wanted, 5)) == 5


def test_an_iteration_is_captured_within_the_first_call() -> None:
    replays = 0

    class Counting(HostDevice):
        def _replay(self, graph: Any) -> None:
            nonlocal replays
            replays += 1
            super()._replay(graph)

    device = Counting(KERNELS, POOL_BYTES, lazy=True, graphs=True)
    runner = Runner(device)
    run(runner, simple(), 10)
    assert (device.graphs, replays) == (1, 9)
    run(runner, simple(), 10)
    assert (device.graphs, replays) == (1, 19)
    runner.engine.close()
    assert (device.graphs, device.modules) == (0, 0)


def test_modules_with_variables_are_in_no_graph() -> None:
    class Stateful(HostDevice):
        def _variables(self, module: object) -> Variables:
            return Variables.UNKNOWN

    device = Stateful(KERNELS, POOL_BYTES, lazy=True, graphs=True)
    runner = Runner(device)
    for _ in range(2):
        assert added(run(runner, simple(), 5)) == 5
        assert device.graphs == 0
    run(runner, simple(), 5)
    runner.engine.close()
    assert device.modules == 0


def test_a_section_that_turns_out_long_is_cut_into_parts() -> None:
    device = HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True)
    runner = Runner(device, part_ns=LONG_NS)
    run(runner, simple(), 3)
    runner.engine._brief_ns = 1
    run(runner, simple(), 10)
    ready = next(iter(runner.engine._known.values())).ready
    (loop,) = ready.sections
    assert not loop.sections[0].brief  # type: ignore[union-attr]  # a round
    runner.engine.close()


def test_long_iterations_are_waited_for_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    now_ns = 0

    class Timed(HostDevice):
        def _synchronize(self) -> None:
            waits.append("awake")
            self.pass_time()

        def _wait(self, mark: Handle) -> None:
            waits.append("asleep")
            self.pass_time()

        def pass_time(self) -> None:
            nonlocal now_ns
            now_ns += durations.pop(0)
            super()._synchronize()

    durations = [10, 2 * LONG_WAIT_NS, 2 * LONG_WAIT_NS, 10, 10]
    monkeypatch.setattr(sections.time, "perf_counter_ns", lambda: now_ns)
    device = Timed(KERNELS, POOL_BYTES, lazy=True)
    device.allocate(256)
    reader = sections.WordReader(device)
    device.copy_in(8, (7).to_bytes(4, "little"))
    assert [reader.read(8) for _ in range(5)] == [7] * 5
    assert waits == ["awake", "awake", "asleep", "asleep", "awake"]


# --- what is checked ------------------------------------------------------------------------


def problems(change: Callable[[dict[str, Any]], None]) -> dict[str, str]:
    """Change a blueprint; give the places of its problems with their kinds."""
    document = json.loads(bytes(simple().main))
    change(document["blueprint"])
    try:
        bp.parse_blueprint(json.dumps(document))
    except InvalidBlueprint as error:
        return {p.where.removeprefix("blueprint."): p.code for p in error.problems}
    return {}


def loop(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        content = body["control_flow"][0]["RepeatWhile"]
        for name, value in fields.items():
            content[("times", "word", "actions").index(name)] = value

    return change


def test_what_is_wrong_with_a_loop_is_said_at_registration() -> None:
    assert problems(loop()) == {}
    assert problems(loop(times=0)) == {"control_flow[0].times": "out-of-range"}
    assert problems(loop(word="wrod")) == {"control_flow[0].word": "unknown-buffer"}
    assert problems(loop(word=3)) == {"control_flow[0].word": "type"}
    assert problems(loop(times=500_001)) == {"control_flow": "too-many-launches"}
    assert problems(lambda body: body["control_flow"][0]["RepeatWhile"].pop()) == {
        "control_flow[0]": "type"
    }
    assert problems(lambda body: body["buffers"].update(word=2)) == {
        "control_flow[0].word": "out-of-range",
        "present_if.more": "out-of-range",
    }
    weights = {"inputs": ["x"], "weights": ["limit"], "present_if": {"more": "limit"}}
    assert problems(lambda body: body.update(weights)) == {"present_if.more": "constant-word"}
    assert problems(lambda body: body.update(present_if={"word": "word"})) == {
        "present_if.word": "unknown-output"
    }
    assert problems(lambda body: body.update(present_if=["more"])) == {"present_if": "type"}


def test_a_word_that_has_no_room_is_refused_before_the_call(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["x", "limit"], outputs=["x"], modules=MODULES)
    with b.repeat_while(b.limit, at_most=b.x[0]):
        b.launch("add_one", [b.x, bp.scalar("u64", 1)])
    wanted = function(b, ("x",), FILES)
    with pytest.raises(InvalidInput, match=r"control_flow\[0\].word"):
        runner.run(wanted, one("x", np.array([1, 0], np.int64)), one("limit", b"abc"))
    with pytest.raises(InvalidInput, match=r"control_flow\[0\].times"):
        runner.run(wanted, one("x", np.array([0, 0], np.int64)), one("limit", b"abcd"))


def test_outputs_that_may_be_absent_are_not_batched() -> None:
    wanted = simple()
    wanted.spec = msgspec.structs.replace(wanted.spec, batching=Batching(("x",)))
    with pytest.raises(InvalidBlueprint, match="batch"):
        make_program(wanted)


def test_older_spellings_have_no_conditions() -> None:
    body = bp.parse_blueprint(bytes(simple().main)).blueprint
    with pytest.raises(InvalidInput, match="absent"):
        bp.print_blueprint(bp.GpuConfig((), (), body), bp.Spelling.ORIGINAL)
    loop = bp.RepeatWhile(bp.Absolute(2), "word", ())
    body = msgspec.structs.replace(body, present_if={}, control_flow=(loop,))
    with pytest.raises(InvalidInput, match="condition"):
        bp.print_blueprint(bp.GpuConfig((), (), body), bp.Spelling.ORIGINAL)


def test_conditions_are_shown() -> None:
    made = Counter()
    with made.b.repeat_while(made.word, at_most=7):
        made.look()
    shown = made.b._repr_html_()
    assert "up to 7 times" in shown
    assert "while word" in shown
    sizes = {"x": 4, "limit": 8}
    assert "below" in plan(made.b.build(), sizes, lambda name, index: 0)._repr_html_()
