"""What a confined process may say: its answers are checked as those of a stranger."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from dandelion.driver import Demand
from dandelion.engine_process.messages import (
    Begun,
    Done,
    Failed,
    Load,
    Planned,
    Reply,
    Run,
    WireItem,
    WireSet,
)
from dandelion.errors import ContextFull, DeviceFault, EngineDied, Exited, NoEngine, TimedOut
from dandelion.executors import ConfinedExecutor, StartedEngine
from dandelion.executors.confined import ConfinedStager
from dandelion.function import Function, Limits
from dandelion.scheduler import CallState, Flow

from .harness import READY, Bench, call_of, engine_state, flow_of, text_of


class ConfinedBench(Bench):
    """A bench whose process is confined."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.binaries: list[str] = []
        self.executor = ConfinedExecutor(
            engine_state(),
            StartedEngine("", "played", "0"),
            self.around,
            self.processes,
            self.loop,
            self._binary,
        )

    def _binary(self, function: Function) -> bytes:
        self.binaries.append(function.spec.name)
        return b"machine code"

    def begin(self, *calls: CallState) -> list[tuple[Run, bytes]]:
        """Send calls, prepare what a thread prepares, and give what the process got."""
        for call in calls:
            self.executor.send(call)
        self.executor.flush()
        while self.pool.jobs:
            self.pool.run()
            self.loop.turn()
        return self.received()

    def received(self) -> list[tuple[Run, bytes]]:
        """Take the calls that the process got, with their data."""
        found: list[tuple[Run, bytes]] = []
        node = self.peer.node
        while (request := node.take()) is not None:
            data = bytearray(request.data_bytes if isinstance(request, Run | Load) else 0)
            assert node.fill(memoryview(data)) == len(data)
            if isinstance(request, Run):
                found.append((request, bytes(data)))
            if isinstance(request, Load):
                assert request.binary is not None
                start = request.binary.offset
                assert data[start : start + request.binary.size] == b"machine code"
        return found

    def answer(self, reply: Reply, data: bytes = b"") -> None:
        """Say something, with data behind it."""
        rest = self.peer.node.post(reply, data)
        if rest:
            self.peer.node.push(rest)


@pytest.fixture
def bench() -> Iterator[ConfinedBench]:
    made = ConfinedBench()
    made.start()
    yield made
    made.close()


def done(run: Run, *items: WireItem, data_bytes: int, name: str = "b") -> Done:
    return Done(run.call, (WireSet(name, items),), {"run": 7}, data_bytes)


def test_inputs_and_outputs_follow_the_messages(bench: ConfinedBench) -> None:
    flow = flow_of()
    first, second = call_of(flow, b"one", b"", b"three"), call_of(flow, b"two")
    (run, data), (other, more) = bench.begin(first, second)
    assert bench.binaries == ["f"]
    assert run.inputs[0] is not None
    assert [(i.offset, i.size) for i in run.inputs[0].items] == [(0, 3), (0, 0), (3, 5)]
    assert (data, more) == (b"onethree", b"two")
    bench.answer(done(run, WireItem("b", 0, 0, 5), data_bytes=5), b"reply")
    bench.answer(done(other, WireItem("b", 0, 1, 3999), data_bytes=4000), bytes(4000))
    bench.loop.until(lambda: bench.loop.has_answers(2))
    assert text_of(bench.loop.outputs[first.id]) == b"reply"
    assert text_of(bench.loop.outputs[second.id]) == bytes(3999)
    assert first.stages == {"run": 7}


def test_types_that_the_process_claims_are_ignored(bench: ConfinedBench) -> None:
    call = call_of(flow_of())
    [(run, _)] = bench.begin(call)
    item = WireItem("b", 0, 0, 3, "float64", (1 << 40,))
    reply = Done(run.call, (WireSet("x", (item,), "int8", (7,)),), {"x" * 99: 1, "run": -5}, 3)
    bench.answer(reply, b"abc")
    bench.loop.until(lambda: bench.loop.has_answers(1))
    [made] = bench.loop.outputs[call.id]
    assert made is not None
    assert (made.name, made.dtype, made.items[0].dtype) == ("b", None, None)
    assert call.stages == {"run": 0}


def test_a_function_may_fail(bench: ConfinedBench) -> None:
    call = call_of(flow_of())
    [(run, _)] = bench.begin(call)
    bench.answer(Failed(run.call, Exited("f", 3, "").record()))
    bench.loop.until(lambda: call.id in bench.loop.failures)
    assert isinstance(bench.loop.failures[call.id][0], Exited)


ANSWERS = {
    "another call": lambda run: done(
        Run(run.call + 1, "", (), 0, 0, 0, 1.0), WireItem("b", 0, 0, 1), data_bytes=1
    ),
    "too many bytes": lambda run: done(run, WireItem("b", 0, 0, 4097), data_bytes=4097),
    "a negative size of all": lambda run: done(run, data_bytes=-1),
    "a part outside": lambda run: done(run, WireItem("b", 0, 1, 8), data_bytes=8),
    "a negative offset": lambda run: done(run, WireItem("b", 0, -1, 1), data_bytes=8),
    "a negative part": lambda run: done(run, WireItem("b", 0, 4, -1), data_bytes=8),
    "a part without data": lambda run: done(run, WireItem("b", 0, 0, 1), data_bytes=0),
    "two sets": lambda run: Done(run.call, (None, None), {}),
    "no set": lambda run: Done(run.call, (), {}),
    "a name that is not allowed": lambda run: done(run, WireItem("a\0b", 0, 0, 1), data_bytes=1),
    "a key that is not allowed": lambda run: done(run, WireItem("a", -1, 0, 1), data_bytes=1),
    "more time": lambda run: Begun(run.call),
    "a plan": lambda run: Planned(run.call, Demand(), ()),
    "readiness": lambda run: READY,
    "a fault of the device": lambda run: Failed(run.call, DeviceFault("f", "x", "y").record()),
    "the death of an engine": lambda run: Failed(run.call, EngineDied("x", "y").record()),
    "an error of the node": lambda run: Failed(run.call, NoEngine("f", (), ()).record()),
    "a fatal error": lambda run: Failed(
        run.call, TimedOut("f", "wall", 1.0).record(), {}, fatal=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_a_process_that_says_something_else_is_ended(bench: ConfinedBench, what: str) -> None:
    call = call_of(flow_of())
    [(run, _)] = bench.begin(call)
    reply = ANSWERS[what](run)
    size = reply.data_bytes if isinstance(reply, Done) else 0
    bench.answer(reply, bytes(max(0, size)))
    _, begun = bench.lose()
    assert isinstance(begun[call.id], EngineDied)
    assert not bench.loop.outputs


def test_large_inputs_wait_until_the_process_reads(bench: ConfinedBench) -> None:
    flow = flow_of()
    bench.begin(call_of(flow))
    [small, large] = [call_of(flow), call_of(flow, bytes(1 << 20))]
    [(run, _)] = bench.begin(small)
    assert bench.begin(large) == []
    assert run.call == small.id


def test_outputs_that_find_no_room_fail_their_call_alone(bench: ConfinedBench) -> None:
    flow = flow_of()
    full = bench.arena.acquire(bench.arena.stats().capacity_bytes)
    call = call_of(large_flow())
    [(run, _)] = bench.begin(call)
    bench.answer(done(run, WireItem("b", 0, 0, 100_000), data_bytes=100_000), bytes(100_000))
    bench.loop.until(lambda: call.id in bench.loop.failures)
    assert isinstance(bench.loop.failures[call.id][0], ContextFull)
    del full
    after = call_of(flow)
    [(run, _)] = bench.begin(after)
    bench.answer(done(run, WireItem("b", 0, 0, 2), data_bytes=2), b"ok")
    bench.loop.until(lambda: bench.loop.has_answers(1))
    assert text_of(bench.loop.outputs[after.id]) == b"ok"


def large_flow() -> Flow:
    flow = flow_of("large")
    limits = Limits(output_bytes=1 << 20)
    flow.spec = msgspec.structs.replace(flow.spec, limits=limits)
    flow.functions["x"] = Function(flow.spec, flow.spec.code[0])
    return flow


def test_the_death_of_the_compiler_counts_as_an_attempt(bench: ConfinedBench) -> None:
    def dies(function: Function) -> bytes:
        raise EngineDied("compiler", "it was killed")

    assert isinstance(bench.executor.stager, ConfinedStager)
    bench.executor.stager.binary = dies
    call = call_of(flow_of())
    bench.begin(call)
    error, begun = bench.loop.failures[call.id]
    assert isinstance(error, EngineDied)
    assert begun
