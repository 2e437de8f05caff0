"""A device with a sequential engine and workers; here a processor through OpenCL."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.matmul import bundle as matmul

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Call, Capacity, Engine, InstanceSets
from dandelion.errors import DandelionError, DeviceFull, EngineDied, Faulted
from dandelion.executors import Events, ThreadExecutor
from dandelion.node import Node, Settings
from dandelion.scheduler import EngineState
from dandelion.testing import Script, ScriptedDriver

MIB = 1 << 20


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    options = {"opencl": {"workers": "2", "pool_bytes": "8M"}}
    with Node(Settings(backends=("opencl",), options=options)) as node:
        assert node.wait_ready()
        # Workers are started when the first engine is up, so they may not have been known yet.
        while len(node.engines()) < 3 or not node.ready():
            node.wait_ready(0.05)
        node.register(matmul.document())
        node.register(inference.document())
        yield node


def calls(node: Node) -> dict[str, int]:
    return {e.name.removeprefix("opencl:cpu"): e.calls for e in node.engines()}


def test_workers_are_engines_of_their_own(node: Node) -> None:
    names = sorted(calls(node))
    assert names == ["", "/0", "/1"]
    assert any("take turns" in e.description for e in node.engines())


def test_all_engines_give_the_same_results(node: Node) -> None:
    before = calls(node)

    def call(seed: int) -> bool:
        inputs = matmul.example_inputs(seed)
        outputs = node.invoke("matmul", **inputs)
        return bool(matmul.agrees(matmul.results(outputs), matmul.expected(inputs)))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(40)))
    after = calls(node)
    assert sum(after.values()) - sum(before.values()) == 40


def test_what_no_engine_has_room_for_is_refused_at_once(node: Node) -> None:
    size = 2048
    cfg, matrix = np.array([64, 0], np.int64)[:1], np.zeros((size, size), np.int64)
    with pytest.raises(DeviceFull) as caught:
        node.invoke("multiply", cfg=cfg, A=matrix)
    assert caught.value.needed_bytes > caught.value.pool_bytes == 8 * MIB


class NoneBegun:
    """Events of an engine that dies before it has begun a call."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.post, self.up, self.start_failed = events.post, events.up, events.start_failed
        self.done, self.failed, self.planned = events.done, events.failed, events.planned

    def lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        self._events.lost(engine, error, {})


def test_a_call_that_must_run_alone_stays_alone() -> None:
    ran: list[str] = []

    def run(engine: Engine, call: Call) -> InstanceSets:
        """On a every call faults; b dies once before it begins."""
        ran.append(engine.name)
        if engine.name == "shared:a":
            raise Faulted(call.function.spec.name, "of somebody")
        if ran.count("shared:b") == 1:
            engine.lost = True
            raise EngineDied(engine.name, "before the call began")
        return call.inputs

    script = Script(run=run, recover=lambda engine: None)
    driver = ScriptedDriver("shared", script, resources={"a": Capacity(), "b": Capacity()})
    with Node(Settings(backends=()), [driver]) as node:
        assert node.wait_ready()
        a, b = sorted(node._runtime.executors.values(), key=lambda e: e.info.resource)
        assert isinstance(b, ThreadExecutor)
        a.engine.worker = a.engine.shared_fault_domain = True
        b.events = NoneBegun(b.events)
        code = (CodeDocument("shared"),)
        node.register(FunctionDocument("F", ("x",), ("x",), code=code))
        assert node.invoke("F", x=b"1").x.bytes() == b"1"
    assert ran == ["shared:a", "shared:b", "shared:b"]
