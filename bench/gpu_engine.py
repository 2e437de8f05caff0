"""What does the sequential engine cost over the same work in a bare loop over CUDA's binding?

``python -m dandelion.bench.gpu_engine [--keep MACHINE]``. Bare and engine take turns, so that both
see the same clocks. A hot call is timed from making the `Call` to having its outputs; zeroing happens
between calls, as in a node, and is timed apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from dandelion.backends.gpu.driver import GpuDriver
from dandelion.backends.gpu.plan import Launch
from dandelion.backends.gpu.plan_cache import PlanCache
from dandelion.backends.gpu.program import make_program, plan_call
from dandelion.backends.gpu.sequential import SequentialEngine
from dandelion.bench.gpu_bare import Bare, device_facts
from dandelion.bench.measure import (
    RESULTS,
    Report,
    Sample,
    against,
    commit,
    keep_name,
    machine,
    report,
    summed_up,
)
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.matmul import bundle as matmul

import dandelion.blueprint as bp
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, InstanceSets, load_driver
from dandelion.function import CodeObject, Digest, Function, FunctionSpec, digest_of
from dandelion.memory import SharedDomain

COUNT = 2000
ARENA_BYTES = 1 << 30
QUESTION = "what does the sequential engine cost over a bare loop over CUDA's binding?"

TICK = """
#include "dandelion.h"
KERNEL void tick(GLOBAL i64 *x) { if (GLOBAL_ID(0) == 0) x[0] += 1; }
"""

WEIGH = """
#include "dandelion.h"
KERNEL void weigh(GLOBAL const i32 *w, GLOBAL const i32 *x, GLOBAL i32 *y)
{
    y[GLOBAL_ID(0)] = w[GLOBAL_ID(0)] + x[GLOBAL_ID(0)];
}
"""


class Engine:
    """An engine in this process, with calls whose inputs lie in its arena."""

    def __init__(self) -> None:
        self.domain = SharedDomain(ARENA_BYTES)
        driver = load_driver("cuda")
        assert isinstance(driver, GpuDriver)
        driver.configure({"pool_bytes": "16G", "weights": "4G"})
        driver.attach(self.domain.map)
        engine = driver.engine("0")
        assert isinstance(engine, SequentialEngine)
        self.engine = engine
        self.number = 0

    def inputs(self, function: Function, values: Mapping[str, Any]) -> tuple[ItemSet, ...]:
        """Lay inputs into the arena."""
        sets = []
        for name in function.spec.input_names:
            data = np.ascontiguousarray(values[name]).tobytes()
            view = self.domain.acquire(len(data)).write(0, data)
            sets.append(ItemSet(name, (Item(name, 0, view),)))
        return tuple(sets)

    def call(self, function: Function, sets: tuple[ItemSet, ...]) -> InstanceSets:
        """Run a call to its outputs."""
        self.number += 1
        deadline = time.monotonic_ns() + 60 * 10**9
        outputs: InstanceSets = self.engine.run(
            Call(self.number, function, sets, self.domain, deadline)
        )
        return outputs

    def settle(self) -> None:
        """What the node does between calls."""
        self.engine.settle()
        self.domain.recycle()


def gpu_function(
    name: str,
    main: bytes,
    files: Mapping[str, bytes],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    static: Mapping[str, bytes] | None = None,
) -> Function:
    """Make a function as a node makes it of what is registered."""
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    fixed: dict[str, tuple[tuple[str, Digest], ...]] = {
        n: ((n, digest_of(d)),) for n, d in (static or {}).items()
    }
    spec = FunctionSpec(
        name, tuple(map(SetSpec, inputs)), tuple(map(SetSpec, outputs)), fixed, (code,)
    )
    return Function(spec, code, main, files)


def matmul_function() -> Function:
    """`multiply` of the composition `matmul`."""
    files = {"matmul.c": (matmul.HERE / "matmul.c").read_bytes()}
    main = (matmul.HERE / "matmul.json").read_bytes()
    return gpu_function("multiply", main, files, ("cfg", "A"), ("B",))


def inference_function() -> Function:
    """`layer` of the composition `inference`."""
    files = {"layer.c": (inference.HERE / "layer.c").read_bytes()}
    main = (inference.HERE / "layer.json").read_bytes()
    static = {"filter": inference.filter_weights().tobytes()}
    return gpu_function("layer", main, files, ("images", "cfg", "filter"), ("pooled",), static)


def ticks(times: int) -> Function:
    """`times` launches of one block of one kernel."""
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules={"t": "tick.c"})
    with b.repeat(times):
        b.launch("tick", [b.x], grid=1, block=32)
    return gpu_function("ticks", b.json().encode(), {"tick.c": TICK.encode()}, ("x",), ("x",))


def in_turns(
    count: int, actions: Mapping[str, tuple[Callable[[], object], Callable[[], object]]]
) -> dict[str, Sample]:
    """Time actions in turns; after each comes what is not timed."""
    timings: dict[str, list[float]] = {name: [] for name in actions}
    for round_number in range(count + 20):
        for name, (action, after) in actions.items():
            start = time.perf_counter_ns()
            action()
            ended = time.perf_counter_ns()
            after()
            if round_number >= 20:
                timings[name].append((ended - start) / 1e3)
    return {name: summed_up(name, found) for name, found in timings.items()}


def measure_matmul(bare: Bare, engine: Engine) -> list[Sample]:
    """One launch between two copies of 128 KiB."""
    cu = bare.cu
    function = matmul_function()
    values = matmul.example_inputs(1)
    sets = engine.inputs(function, values)
    size = 128 * 128 * 8
    a, b = bare.memory(size), bare.memory(size)
    kernel = bare.kernel(function.files["matmul.c"].decode(), "matmul")  # type: ignore[union-attr]
    arguments = bare.arguments(a, size, b)
    source = sets[1].items[0].data
    target = engine.domain.acquire(size)

    def loop() -> None:
        cu.cuMemcpyHtoDAsync(a, source, size, bare.stream)
        cu.cuLaunchKernel(kernel, 4, 4, 1, 32, 32, 1, 0, bare.stream, arguments, 0)
        cu.cuMemcpyDtoHAsync(target.view, b, size, bare.stream)
        cu.cuStreamSynchronize(bare.stream)

    def loop_and_zero() -> None:
        loop()
        cu.cuMemsetD8Async(a, 0, size, bare.stream)
        cu.cuMemsetD8Async(b, 0, size, bare.stream)

    def run() -> None:
        kept.append(engine.call(function, sets))

    def run_and_settle() -> None:
        run()
        engine.settle()

    def after() -> None:
        kept.clear()
        engine.settle()

    kept: list[Any] = []
    loop()
    expected = matmul.expected(values)["B"]
    assert np.array_equal(np.frombuffer(target.view, np.int64).reshape(128, 128), expected)
    run()
    assert matmul.agrees(matmul.results({"B": kept[0][0]}), {"B": expected})
    found = in_turns(
        COUNT,
        {
            "matmul 128x128, bare": (loop, bare.synchronize),
            "matmul 128x128, engine": (run, after),
            "matmul 128x128, bare with zeroing": (loop_and_zero, lambda: None),
            "matmul 128x128, engine with zeroing": (run_and_settle, kept.clear),
        },
    )
    samples = list(found.values())
    samples[1] = against(samples[1], samples[0])
    samples[3] = against(samples[3], samples[2])
    return [*samples[:1], _budget(samples[1], "<= bare + 25 us"), *samples[2:]]


def _budget(sample: Sample, text: str) -> Sample:
    return msgspec.structs.replace(sample, budget=text)


def measure_launches(bare: Bare, engine: Engine, times: int, count: int) -> list[Sample]:
    """Many launches of one block: one by one, as a bare graph, through the engine."""
    cu = bare.cu
    function = ticks(times)
    sets = engine.inputs(function, {"x": np.zeros(1, np.int64)})
    x = bare.memory(256)
    kernel = bare.kernel(TICK, "tick")
    arguments = bare.arguments(x)
    launch = (kernel, 1, 1, 1, 32, 1, 1, 0, bare.stream, arguments, 0)
    graph = bare.graph([launch] * times)
    source = sets[0].items[0].data
    target = engine.domain.acquire(8)

    def around(work: Callable[[], object]) -> None:
        cu.cuMemcpyHtoDAsync(x, source, 8, bare.stream)
        work()
        cu.cuMemcpyDtoHAsync(target.view, x, 8, bare.stream)
        cu.cuStreamSynchronize(bare.stream)

    def one_by_one() -> None:
        for _ in range(times):
            cu.cuLaunchKernel(*launch)

    def run() -> None:
        kept.append(engine.call(function, sets))

    def after() -> None:
        kept.clear()
        engine.settle()

    kept: list[Any] = []
    around(one_by_one)
    assert np.frombuffer(target.view, np.int64)[0] == times
    for _ in range(3):
        run()
        assert kept[0][0].numpy(np.int64)[0] == times
        after()
    name = f"{times} launches"
    found = in_turns(
        count,
        {
            f"{name}, bare graph": (lambda: around(lambda: cu.cuGraphLaunch(graph, bare.stream)),
                                    bare.synchronize),
            f"{name}, engine": (run, after),
            f"{name}, bare one by one": (lambda: around(one_by_one), bare.synchronize),
        },
    )  # fmt: skip
    graphs, ours, direct = found.values()
    budget = "<= 1.15x" if times > 100 else ""
    return [graphs, _budget(against(ours, graphs), budget), against(direct, graphs)]


def measure_inference(bare: Bare, engine: Engine, repetitions: int, count: int) -> list[Sample]:
    """Three kernels, many times: the layer of `inference` against one bare graph."""
    cu = bare.cu
    function = inference_function()
    values = inference.example_inputs(1, repetitions)
    values["filter"] = inference.filter_weights()
    sets = engine.inputs(function, values)
    text = function.files["layer.c"].decode()  # type: ignore[union-attr]
    image = 224 * 224 * 4
    sizes = (image, 100, image, image, image // 4)
    images, weights, convolved, activated, pooled = (bare.memory(n) for n in sizes)
    convolution = bare.arguments(images, image, weights, convolved, 224, 224)
    relu = bare.arguments(convolved, image, activated, 224, 224)
    pool = bare.arguments(activated, image, pooled, 224, 224)
    shapes = blueprint_shapes(function)
    kernels = [bare.kernel(text, n) for n in ("convolution", "relu", "max_pool")]
    launches = [
        (kernel, *shape, bare.stream, arguments, 0)
        for kernel, shape, arguments in zip(kernels, shapes, (convolution, relu, pool), strict=True)
    ]
    graph = bare.graph(launches * repetitions)
    target = engine.domain.acquire(image // 4)

    def loop() -> None:
        cu.cuMemcpyHtoDAsync(images, sets[0].items[0].data, image, bare.stream)
        cu.cuMemcpyHtoDAsync(weights, sets[2].items[0].data, 100, bare.stream)
        cu.cuGraphLaunch(graph, bare.stream)
        cu.cuMemcpyDtoHAsync(target.view, pooled, image // 4, bare.stream)
        cu.cuStreamSynchronize(bare.stream)

    def run() -> None:
        kept.append(engine.call(function, sets))

    def after() -> None:
        kept.clear()
        engine.settle()

    kept: list[Any] = []
    expected = inference.expected(values)
    for _ in range(3):
        run()
        assert inference.agrees(inference.results({"pooled": kept[0][0]}), expected)
        after()
    name = f"inference, {repetitions} repetitions"
    found = in_turns(
        count, {f"{name}, bare graph": (loop, bare.synchronize), f"{name}, engine": (run, after)}
    )
    graphs, ours = found.values()
    return [graphs, _budget(against(ours, graphs), "<= 1.15x")]


def blueprint_shapes(function: Function) -> list[tuple[int, ...]]:
    """The launch numbers of `layer` for one image, as its plan has them."""
    driver = load_driver("cuda")
    assert isinstance(driver, GpuDriver)
    program = make_program(function)
    values = inference.example_inputs(1, 1)
    values["filter"] = inference.filter_weights()
    items = {n: Item(n, 0, np.ascontiguousarray(v).tobytes()) for n, v in values.items()}
    plan = plan_call(PlanCache(), program, items)
    return [(*s.grid, *s.block, s.shared_bytes) for s in plan.steps if isinstance(s, Launch)]


def measure_memory(bare: Bare, engine: Engine) -> list[Sample]:
    """Copies from the arena and zeroing, as the engine asks for them, against the best there is."""
    cu = bare.cu
    device = engine.engine.device
    size = 64 << 20
    place = bare.memory(size)
    error, pinned = cu.cuMemHostAlloc(size, 0)
    assert not error
    data = engine.domain.acquire(size)
    data.view[:] = bytes(size)
    part = data.view.toreadonly()

    def bare_copy() -> None:
        cu.cuMemcpyHtoDAsync(place, pinned, size, bare.stream)
        bare.synchronize()

    def engine_copy() -> None:
        device.copy_in(0, part)
        device.synchronize()

    def nothing() -> None:
        pass

    copies = list(in_turns(50, {
        "64 MiB to the device, bare and pinned": (bare_copy, nothing),
        "64 MiB to the device, arena": (engine_copy, nothing),
    }).values())  # fmt: skip
    large = 1 << 30
    place = bare.memory(large)
    word = large // 4

    def bare_fill() -> None:
        cu.cuMemsetD32Async(place, 0, word, bare.stream)
        bare.synchronize()

    def engine_fill() -> None:
        device.zero(0, large)
        device.synchronize()

    fills = list(in_turns(100, {
        "1 GiB zeroed, bare memset of words": (bare_fill, nothing),
        "1 GiB zeroed, engine": (engine_fill, nothing),
    }).values())  # fmt: skip
    cu.cuMemFreeHost(pinned)
    return [
        copies[0], against(copies[1], copies[0]),
        fills[0], _budget(against(fills[1], fills[0]), "<= 1.11x"),
    ]  # fmt: skip


def measure_constants(engine: Engine) -> list[Sample]:
    """64 MiB of constants: on the device, copied with each call, two tenants in turn."""
    size = 64 << 20
    weights = [np.full(size // 4, i + 1, np.int32) for i in range(2)]
    x = np.arange(1024, dtype=np.int32)

    def tenant(number: int, fixed: bool) -> tuple[Function, tuple[ItemSet, ...]]:
        b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules={"k": "weigh.c"})
        b.launch("weigh", [b.w, b.x, b.buffer("y", like="x")], grid=1, block=1024)
        static = {"w": weights[number].tobytes()} if fixed else None
        main, files = b.json().encode(), {"weigh.c": WEIGH.encode()}
        name = f"tenant{number}{fixed}"
        function = gpu_function(name, main, files, ("x", "w"), ("y",), static)
        return function, engine.inputs(function, {"x": x, "w": weights[number]})

    one, other, copied = tenant(0, True), tenant(1, True), tenant(0, False)
    kept: list[Any] = []

    def run(which: tuple[Function, tuple[ItemSet, ...]]) -> Callable[[], None]:
        return lambda: kept.append(engine.call(*which))

    def after() -> None:
        kept.clear()
        engine.settle()

    for which, number in ((one, 0), (other, 1), (copied, 0)):
        run(which)()
        assert (kept[0][0].numpy(np.int32) == x + number + 1).all()
        after()
    alone = in_turns(300, {"64 MiB of constants, on the device": (run(one), after)})
    turns = in_turns(
        300,
        {
            "64 MiB of constants, on the device, two tenants in turn": (run(one), after),
            "the other tenant": (run(other), after),
        },
    )
    each = in_turns(50, {"64 MiB of constants, copied with each call": (run(copied), after)})
    (held,), (alternating, _), (copying,) = alone.values(), turns.values(), each.values()
    return [held, against(alternating, held), against(copying, held)]


def measure_cold(engine: Engine, count: int = 20) -> list[Sample]:
    """The first call of a function that was compiled before: engine up, code on disk."""
    cold = []
    function = matmul_function()
    values = matmul.example_inputs(1)
    sets = engine.inputs(function, values)
    engine.call(function, sets)
    engine.settle()
    for _ in range(count):
        engine.engine.forget(function)
        start = time.perf_counter_ns()
        kept = engine.call(function, sets)
        cold.append((time.perf_counter_ns() - start) / 1e3)
        del kept
        engine.settle()
    return [_budget(summed_up("cold call, code on disk", cold), "<= 10 000 us")]


def main() -> None:
    """Measure everything and print it."""
    facts = device_facts()
    engine = Engine()
    bare = Bare()
    samples = [
        *measure_matmul(bare, engine),
        *measure_launches(bare, engine, 1500, 200),
        *(s for n in (1, 2, 3, 4, 6, 10) for s in measure_launches(bare, engine, n, 300)),
        *measure_inference(bare, engine, 500, 60),
        *measure_memory(bare, engine),
        *measure_constants(engine),
        *measure_cold(engine),
    ]
    report("gpu_engine", QUESTION, samples)
    if keep := keep_name():
        found = Report("gpu_engine", QUESTION, machine() | facts, commit(), tuple(samples))
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"gpu_engine-{keep}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    engine.engine.close()


if __name__ == "__main__":
    main()
