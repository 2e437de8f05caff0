"""The sequential engine and its driver: whole calls, on the host device and on OpenCL."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dandelion.backends.cuda import CudaDevice
from dandelion.backends.gpu import modules
from dandelion.backends.gpu.conformance_kernels import HOST_KERNELS
from dandelion.backends.gpu.device import Device
from dandelion.backends.gpu.driver import GpuDriver
from dandelion.backends.gpu.host import HostDevice, Memory
from dandelion.backends.gpu.opencl_device import OpenClDevice
from dandelion.backends.gpu.plan import Launch
from dandelion.backends.gpu.sequential import SequentialEngine
from dandelion.backends.gpu.wrappers import FailingDevice

import dandelion.blueprint as bp
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, Hosting, InstanceSets, load_driver
from dandelion.errors import (
    BackendUnavailable,
    ContextFull,
    DandelionError,
    DeviceFault,
    DeviceFull,
    EngineDied,
    Faulted,
    InvalidBlueprint,
    InvalidFunction,
    InvalidInput,
    TimedOut,
)
from dandelion.function import CodeObject, Function, FunctionSpec, StaticItem, digest_of
from dandelion.memory import HeapDomain, MemoryDomain, SharedDomain
from dandelion.testing import Failing, Tracked

POOL_BYTES = 1 << 20
FAR_NS = 60 * 10**9
LONG_NS = 10**9
"""Calls are not cut into parts, however busy this machine is."""

SOURCE = """
#include "dandelion.h"

KERNEL void matmul(GLOBAL const i64 *A, u64 bytes, GLOBAL i64 *B)
{
    u64 n = 0;
    while ((n + 1) * (n + 1) * sizeof(i64) <= bytes)
        n++;
    u64 row = GLOBAL_ID(1), column = GLOBAL_ID(0);
    if (row >= n || column >= n)
        return;
    i64 sum = 0;
    for (u64 k = 0; k < n; k++)
        sum += A[row * n + k] * A[column * n + k];
    B[row * n + column] = sum;
}

KERNEL void accumulate(GLOBAL const i32 *x, GLOBAL i32 *sum, u64 count)
{
    if (GLOBAL_ID(0) < count)
        sum[GLOBAL_ID(0)] += x[GLOBAL_ID(0)];
}
"""


def _host_matmul(launch: Launch, a: Memory, size: bytes, b: Memory) -> None:
    matrix = a.view(np.int64)
    n = int(np.sqrt(matrix.size))
    matrix = matrix.reshape(n, n)
    b.view(np.int64)[:] = (matrix @ matrix.T).reshape(-1)


def _host_accumulate(launch: Launch, x: Memory, total: Memory, count: bytes) -> None:
    total.view(np.int32)[:] += x.view(np.int32)


def _host_crash(launch: Launch, *args: object) -> None:
    raise ValueError("a bad address")


KERNELS = {
    **HOST_KERNELS,
    "matmul": _host_matmul,
    "accumulate": _host_accumulate,
    "crash": _host_crash,
}
FILES = {"kernels.c": SOURCE.encode(), "kernels.host": " ".join(KERNELS).encode()}
MODULES = {"kernels": ["kernels.c", "kernels.host"]}


def function(
    blueprint: bp.Blueprint,
    outputs: tuple[str, ...],
    files: Mapping[str, bytes] = FILES,
    static: tuple[str, ...] = (),
) -> Function:
    config = blueprint.build()
    inputs = (*config.blueprint.inputs, *config.blueprint.weights)
    main = blueprint.json().encode()
    code = CodeObject("blueprint", digest_of(main), {n: digest_of(d) for n, d in files.items()})
    spec = FunctionSpec(
        "F",
        tuple(SetSpec(n) for n in inputs),
        tuple(SetSpec(n) for n in outputs),
        {name: (StaticItem("weights", digest_of(b"")),) for name in static},
        (code,),
    )
    return Function(spec, code, main, files)


def matmul() -> Function:
    b = bp.Blueprint(inputs=["cfg", "A"], modules=MODULES)
    result = b.buffer("B", like="A")
    blocks = (b.cfg[0], b.cfg[0])
    b.launch("matmul", [b.A, bp.sizeof(b.A), result], grid=blocks, block=(32, 32))
    return function(b, ("B",))


def totals(times: int = 3) -> Function:
    """Adds x to a temporary buffer `times` times, and that to the output: both must begin at 0."""
    b = bp.Blueprint(inputs=["x"], outputs=["y"], modules=MODULES)
    t = b.buffer("t", like="x", temporary=True)
    y = b.buffer("y", like="x")
    count = b.x.elements("i32")
    shape: dict[str, Any] = {"grid": bp.ceil_div(count, 64), "block": 64}
    with b.repeat(times):
        b.launch("accumulate", [b.x, t, bp.scalar("u64", count)], **shape)
    b.launch("accumulate", [t, y, bp.scalar("u64", count)], **shape)
    return function(b, ("y",))


def one(name: str, value: npt.NDArray[Any] | bytes, key: int = 0, item: str = "item") -> ItemSet:
    data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
    return ItemSet(name, (Item(item, key, data),))


class Runner:
    """An engine, its domain, and short helpers for calls."""

    def __init__(
        self,
        device: Device,
        domain: MemoryDomain | None = None,
        first_bytes: int = 0,
        part_ns: int = LONG_NS,
    ) -> None:
        self.domain = Tracked(domain or HeapDomain(1 << 24))
        self.engine = SequentialEngine(device, POOL_BYTES, first_bytes=first_bytes, part_ns=part_ns)
        self.number = 0

    def call(self, wanted: Function, *inputs: ItemSet | None, left_ns: int = FAR_NS) -> Call:
        self.number += 1
        deadline_ns = time.monotonic_ns() + left_ns
        return Call(self.number, wanted, inputs, self.domain, deadline_ns, left_ns / 1e9)

    def run(self, wanted: Function, *inputs: ItemSet | None, clean_up: bool = True) -> InstanceSets:
        outputs = self.engine.run(self.call(wanted, *inputs))
        if clean_up:
            self.engine.clean_up()
        return outputs


DEVICES: dict[str, Callable[[], Device]] = {
    "host": lambda: HostDevice(KERNELS, POOL_BYTES),
    "host-lazy": lambda: HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True),
    "opencl": OpenClDevice,
    "opencl-buffers": lambda: OpenClDevice(shared=False),
    "cuda": CudaDevice,
}


@pytest.fixture(params=DEVICES)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    try:
        made = Runner(DEVICES[request.param]())
    except BackendUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.engine.close()


@pytest.fixture
def host() -> Iterator[Runner]:
    made = Runner(HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True))
    yield made
    made.engine.close()


def first(outputs: InstanceSets) -> ItemSet:
    assert outputs[0] is not None
    return outputs[0]


# --- whole calls ----------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_a_pointer_to_any_place(shared: bool) -> None:
    """Without shared memory OpenCL takes only some places; others are refused with their reason."""
    try:
        runner = Runner(OpenClDevice(shared=shared))
    except BackendUnavailable as error:
        pytest.skip(str(error))

    def from_place(offset: int) -> Function:
        b = bp.Blueprint(inputs=["x"], outputs=["y"], modules={"k": ["k.c"]})
        y = b.buffer("y", 4)
        b.launch("take", [bp.part(b.x, offset), y])
        source = '#include "dandelion.h"\nKERNEL void take(GLOBAL const i32 *x, GLOBAL i32 *y)'
        return function(b, ("y",), {"k.c": f"{source} {{ y[0] = x[0]; }}".encode()})

    x = np.arange(200, dtype=np.int32)
    for offset in (0, 4, 512, 516, 0):
        if shared or offset % 512 == 0:
            made = runner.run(from_place(offset), one("x", x))
            assert first(made).numpy(np.int32) == [offset // 4]
            del made
            continue
        with pytest.raises(InvalidBlueprint) as caught:
            runner.run(from_place(offset), one("x", x))
        (problem,) = caught.value.problems
        assert (problem.code, problem.where) == ("alignment", "kernels.take")
        assert "argument 0 begins 4 bytes behind" in problem.message
        runner.engine.clean_up()
    runner.engine.close()
    assert runner.domain.alive == []


def test_the_listing_of_the_thesis(runner: Runner) -> None:
    a = np.random.default_rng(0).integers(-1000, 1000, (128, 128))
    cfg = np.array([4], dtype=np.int64)
    for _ in range(3):
        result = first(runner.run(matmul(), one("cfg", cfg, 7, "four"), one("A", a)))
        assert (result.numpy(np.int64, (128, 128)) == a @ a.T).all()
        assert (result.items[0].name, result.items[0].key) == ("four", 7)
        assert result.items[0].data.readonly  # type: ignore[union-attr]  # it is a memoryview


def test_buffers_begin_with_zeros_at_every_call(runner: Runner) -> None:
    wanted = totals()
    for size in (1000, 70, 1000, 3000, 1):
        x = np.arange(size, dtype=np.int32)
        for clean_up in (True, False):
            result = first(runner.run(wanted, one("x", x), clean_up=clean_up))
            assert (result.numpy(np.int32) == 3 * x).all()


@pytest.mark.parametrize("kind", DEVICES)
def test_an_engine_that_began_with_a_small_pool_takes_the_rest_when_it_is_needed(
    kind: str,
) -> None:
    try:
        small = Runner(DEVICES[kind](), first_bytes=1 << 16)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    wanted = totals()
    for size in (100, 100, 100, 100_000, 100, 100_000):
        x = np.arange(size, dtype=np.int32)
        result = first(small.run(wanted, one("x", x)))
        assert (result.numpy(np.int32) == 3 * x).all()
    assert small.engine.pool.size_bytes == small.engine.capacity.device_bytes == POOL_BYTES
    with pytest.raises(DeviceFull) as caught:
        small.run(wanted, one("x", bytes(POOL_BYTES)))
    assert caught.value.pool_bytes == POOL_BYTES
    small.engine.close()


def test_an_engine_whose_device_cannot_give_the_rest_goes_on(host: Runner) -> None:
    device = HostDevice(KERNELS, POOL_BYTES // 2, lazy=True, graphs=True)
    small = Runner(device, first_bytes=1 << 16)
    x = np.ones(100_000, dtype=np.int32)
    with pytest.raises(DandelionError):
        small.run(totals(), one("x", x))
    result = first(small.run(totals(), one("x", x[:100])))
    assert (result.numpy(np.int32) == 3).all()
    small.engine.close()


def test_repeats_read_from_an_input(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["n", "x"], outputs=["x"], modules=MODULES)
    with b.repeat(b.n[1]), b.repeat(2):
        b.launch("accumulate", [b.x, b.x, bp.scalar("u64", 1)], grid=b.n[0])
    wanted = function(b, ("x",))
    for times in (0, 1, 3):
        n = one("n", np.array([1, times], dtype=np.int64))
        result = first(runner.run(wanted, n, one("x", np.ones(1, dtype=np.int32))))
        assert result.numpy(np.int32)[0] == 4**times


def test_inputs_are_never_written_to(runner: Runner) -> None:
    x = np.ones(8, dtype=np.int32)
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=MODULES)
    b.launch("accumulate", [b.x, b.x, bp.scalar("u64", 8)], block=8)
    given = one("x", x)
    before = given.bytes()
    assert (first(runner.run(function(b, ("x",)), given)).numpy(np.int32) == 2).all()
    assert given.bytes() == before


def test_outputs_lie_in_one_context_of_the_domain(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["x"], outputs=["a", "b"], modules=MODULES)
    b.buffer("a", size=300)
    b.buffer("b", size=8)
    wanted = function(b, ("b", "a"))
    domain = SharedDomain(1 << 20)
    runner.domain = Tracked(domain)
    outputs = runner.run(wanted, one("x", b"ab"))
    assert runner.domain.alive == [512 + 256]
    located = [domain.locate(s.items[0].data) for s in outputs if s is not None]
    assert located == [0, 256]
    assert [s.size_bytes for s in outputs if s is not None] == [8, 300]
    del outputs
    gc.collect()
    assert domain.stats().contexts == 0


def test_empty_inputs_make_empty_outputs(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["x"], modules=MODULES)
    b.buffer("y", like="x")
    assert first(runner.run(function(b, ("y",)), one("x", b""))).bytes() == b""


def test_functions_without_outputs(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["x"], outputs=[], modules=MODULES)
    b.launch("accumulate", [b.x, b.x, bp.scalar("u64", 1)])
    assert runner.run(function(b, ()), one("x", bytes(4))) == ()
    assert runner.domain.acquired == 0


def test_names_come_from_the_first_input_that_is_not_static(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["w", "x"], modules=MODULES)
    b.buffer("y", like="x")
    wanted = function(b, ("y",), static=("w",))
    result = first(runner.run(wanted, one("w", b"1", 1, "w"), one("x", b"2", 2, "mine")))
    assert (result.items[0].name, result.items[0].key) == ("mine", 2)


def test_stages_are_told(runner: Runner) -> None:
    usual = {"plan", "copy_in", "kernels", "copy_out", "zero"}
    for stages in (usual | {"load"}, usual):
        call = runner.call(totals(), one("x", bytes(64)))
        runner.engine.run(call)
        runner.engine.clean_up()
        assert set(call.stages) == stages
        assert all(ns >= 0 for ns in call.stages.values())
        del call


# --- what is refused ------------------------------------------------------------------------


def test_sets_must_have_one_item(runner: Runner) -> None:
    cfg = one("cfg", np.array([1], dtype=np.int64))
    two = ItemSet("A", (Item("0"), Item("1")))
    for sets in ((cfg, None), (cfg, two)):
        with pytest.raises(InvalidInput) as caught:
            runner.run(matmul(), *sets)
        assert caught.value.where == "sets.A"


def test_impossible_numbers_of_an_input(runner: Runner) -> None:
    for number in (0, -1, 2**40):
        with pytest.raises(InvalidInput):
            runner.run(matmul(), one("cfg", np.array([number])), one("A", bytes(8)))
    with pytest.raises(InvalidInput):
        runner.run(matmul(), one("cfg", b"short"), one("A", bytes(8)))


def test_more_memory_than_the_pool_has(runner: Runner) -> None:
    with pytest.raises(DeviceFull) as caught:
        runner.run(totals(), one("x", bytes(POOL_BYTES)))
    assert caught.value.pool_bytes == POOL_BYTES
    del caught
    assert runner.domain.alive == []


def test_where_the_pool_is_short_buffers_share_it(runner: Runner) -> None:
    x = np.arange(POOL_BYTES // 8, dtype=np.int32)
    for _ in range(3):
        result = first(runner.run(totals(), one("x", x)))
        assert (result.numpy(np.int32) == 3 * x).all()


def test_a_source_that_does_not_compile() -> None:
    pytest.importorskip("pyopencl")
    runner = Runner(OpenClDevice())
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=["bad.c"])
    b.launch("k", [b.x])
    text = b'#include "dandelion.h"\nKERNEL void k(GLOBAL i32 *x) {\n x[0] = unheard_of;\n}\n'
    with pytest.raises(InvalidFunction, match=r"bad\.c:3[\s\S]*unheard_of"):
        runner.run(function(b, ("x",), {"bad.c": text}), one("x", bytes(4)))
    runner.engine.close()


def test_no_file_for_this_backend(runner: Runner) -> None:
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=["k.hsaco"])
    b.launch("k", [b.x])
    with pytest.raises(InvalidBlueprint) as caught:
        runner.run(function(b, ("x",), {"k.hsaco": b"\x7fELF"}), one("x", bytes(4)))
    assert caught.value.problems[0].where == "modules.k.hsaco"


def test_no_room_for_the_outputs(runner: Runner) -> None:
    runner.domain = Tracked(Failing(HeapDomain(1 << 20), after=0))
    with pytest.raises(ContextFull):
        runner.run(totals(), one("x", bytes(64)))


# --- deadlines, faults, failures ------------------------------------------------------------


def test_a_deadline_that_has_passed(runner: Runner) -> None:
    with pytest.raises(TimedOut):
        runner.engine.run(runner.call(totals(), one("x", bytes(64)), left_ns=-1))
    assert first(runner.run(totals(), one("x", bytes(64)))).bytes() == bytes(64)


def test_a_deadline_that_passes_while_it_runs() -> None:
    host = Runner(HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True), part_ns=10**6)
    call = host.call(totals(times=900_000), one("x", bytes(64)), left_ns=5 * 10**7)
    with pytest.raises(TimedOut):
        host.engine.run(call)
    ones = np.ones(16, dtype=np.int32)
    assert (first(host.run(totals(), one("x", ones))).numpy(np.int32) == 3).all()
    host.engine.close()


def test_a_fault_ends_the_call_and_the_engine_says_so_afterwards(host: Runner) -> None:
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=MODULES)
    b.launch("crash", [b.x])
    with pytest.raises(Faulted, match="a bad address"):
        host.run(function(b, ("x",)), one("x", bytes(4)))
    with pytest.raises(EngineDied):
        host.run(totals(), one("x", bytes(64)))
    host.engine.close()
    host.engine.close()
    assert host.domain.alive == []


@pytest.mark.parametrize("lazy", [False, True])
def test_any_call_of_the_device_may_fail_once(lazy: bool) -> None:
    """A typed error, nothing left alive, and the next call is right."""
    x = np.arange(100, dtype=np.int32)
    wanted = totals()

    def run_three(device: FailingDevice) -> int:
        """Run three calls, so that the graph is used too; return the number of failures."""
        failures = 0
        try:
            runner = Runner(device)
        except DeviceFault:
            assert not inner.is_open
            runner = Runner(device)
            failures += 1
        for _ in range(3):
            with contextlib.suppress(DeviceFault):
                result = first(runner.run(wanted, one("x", x)))
                assert (result.numpy(np.int32) == 3 * x).all()
                del result
                continue
            failures += 1
            assert runner.domain.alive == []
            result = first(runner.run(wanted, one("x", x)))
            assert (result.numpy(np.int32) == 3 * x).all()
            del result
        assert runner.domain.alive == []
        runner.engine.close()
        assert (inner.modules, inner.graphs, inner.is_open) == (0, 0, False)
        return failures

    inner = HostDevice(KERNELS, POOL_BYTES, lazy=lazy, graphs=True)
    whole = FailingDevice(inner)
    assert run_three(whole) == 0
    seen = 0
    for number in range(whole.calls - 1):  # the last one waits before closing
        inner = HostDevice(KERNELS, POOL_BYTES, lazy=lazy, graphs=True)
        seen += run_three(FailingDevice(inner, left=number))
    assert seen > whole.calls // 2


# --- caches ---------------------------------------------------------------------------------


def test_plans_and_modules_are_cached_and_dropped(host: Runner) -> None:
    wanted, other = totals(), matmul()
    x = one("x", bytes(64))
    for _ in range(3):
        host.run(wanted, x)
    cfg, a = one("cfg", np.array([1])), one("A", bytes(8))
    host.run(other, cfg, a)
    device = host.engine.device
    assert isinstance(device, HostDevice)
    assert (device.modules, device.graphs) == (1, 1), "the library is shared"
    assert host.engine.plans.misses == 2
    host.engine.forget(wanted)
    assert (device.modules, device.graphs) == (1, 0), "the other function needs it still"
    host.engine.forget(other)
    assert device.modules == 0
    host.run(other, cfg, a)
    assert device.modules == 1


def test_module_caches_are_bounded(host: Runner) -> None:
    device = host.engine.device
    assert isinstance(device, HostDevice)
    x = np.ones(4, dtype=np.int32)
    for number in range(modules.MODULES + 16):
        b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=["k.host"])
        b.launch("axpy", [b.x, bp.scalar("i32", number), bp.scalar("i32", 1)], block=4)
        files = {"k.host": b"axpy" + b" " * number}
        result = first(host.run(function(b, ("x",), files), one("x", x)))
        assert (result.numpy(np.int32) == number + 1).all()
    assert device.modules == modules.MODULES


def _repeated(times: int) -> Function:
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=["k.host"])
    with b.repeat(times):
        b.launch("axpy", [b.x, bp.scalar("i32", 1), bp.scalar("i32", 1)], block=4)
    return function(b, ("x",), {"k.host": b"axpy"})


def test_plans_that_are_kept_ready_have_so_many_launches_in_all(
    host: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "PLANNED_LAUNCHES", 100)
    for times, kept in ((30, 1), (31, 2), (32, 3), (33, 3), (150, 1), (5, 1), (6, 2)):
        result = first(host.run(_repeated(times), one("x", bytes(16))))
        assert (result.numpy(np.int32) == times).all()
        assert len(host.engine.modules._ready) == kept, times


def _unlaunchable(number: int) -> Function:
    """A function whose first module loads, and whose second one has no such kernel."""
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=["a.host", "b.host"])
    b.kernel("axpy", module="a.host")
    b.kernel("missing", module="b.host")
    b.launch("axpy", [b.x, bp.scalar("i32", number), bp.scalar("i32", 1)], block=4)
    b.launch("missing", [b.x], block=4)
    return function(b, ("x",), {"a.host": b"axpy" + b" " * number, "b.host": b"axpy"})


def test_modules_of_calls_that_cannot_be_launched_are_bounded_and_dropped(host: Runner) -> None:
    device = host.engine.device
    assert isinstance(device, HostDevice)
    made = [_unlaunchable(number) for number in range(modules.MODULES + 16)]
    for wanted in made:
        with pytest.raises(InvalidBlueprint):
            host.run(wanted, one("x", bytes(16)))
    assert device.modules == modules.MODULES
    for wanted in made:
        host.engine.forget(wanted)
    assert device.modules == 0


def test_many_modules_of_one_function_outlive_the_bound(host: Runner) -> None:
    files = {f"{i}.host": b"axpy" + b" " * i for i in range(modules.MODULES + 40)}
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules=list(files))
    for name in files:
        b.kernel(f"k{name}", module=name, symbol="axpy")
        b.launch(f"k{name}", [b.x, bp.scalar("i32", 1), bp.scalar("i32", 1)], block=4)
    wanted = function(b, ("x",), files)
    for _ in range(3):
        result = first(host.run(wanted, one("x", bytes(16))))
        assert (result.numpy(np.int32) == modules.MODULES + 40).all()


# --- the driver -----------------------------------------------------------------------------


@pytest.fixture
def driver() -> GpuDriver:
    loaded = load_driver("opencl")
    assert isinstance(loaded, GpuDriver)
    return loaded


def test_a_driver_plans_without_a_device(driver: GpuDriver) -> None:
    assert driver.formats == {"blueprint"}
    assert driver.hosting is Hosting.PROCESS
    wanted = matmul()
    driver.checker().check([wanted])
    assert driver.checker().references(wanted.main) == ("kernels.c", "kernels.host")
    sets = (one("cfg", np.array([4])), one("A", bytes(128 * 128 * 8)))
    demand = driver.planner().demand(wanted, sets)
    assert demand.output_bytes == 128 * 128 * 8
    assert demand.device_bytes == 2 * 128 * 128 * 8
    assert demand.blocks == 16


def test_a_planner_names_the_integers_that_the_demand_depends_on(driver: GpuDriver) -> None:
    planner = driver.planner()
    assert planner.reads(matmul()) == ((0, 0),)
    assert planner.reads(totals()) == ()
    wanted = matmul()
    a = one("A", bytes(128 * 128 * 8))
    small, large = (planner.demand(wanted, (one("cfg", np.array([n])), a)) for n in (2, 4))
    assert (small.blocks, large.blocks) == (4, 16)
    assert small.device_bytes == large.device_bytes


def test_integers_in_static_sets_are_not_read_for_each_call(driver: GpuDriver) -> None:
    b = bp.Blueprint(inputs=["n", "cfg"], modules=MODULES)
    y = b.buffer("y", size=b.cfg[1] * 8)
    b.launch("fill", [y, bp.scalar("i32", 0), bp.scalar("u64", 1)], grid=b.n[2], block=1)
    assert set(driver.planner().reads(function(b, ("y",)))) == {(0, 16), (1, 8)}
    assert driver.planner().reads(function(b, ("y",), static=("cfg",))) == ((0, 16),)


def test_demand_is_what_the_engine_acquires(driver: GpuDriver, host: Runner) -> None:
    sets = (one("x", bytes(1234 * 4)),)
    kept = host.run(totals(), *sets)
    assert host.domain.alive == [driver.planner().demand(totals(), sets).output_bytes]
    assert kept


def test_sets_must_match_the_blueprint(driver: GpuDriver) -> None:
    wanted = matmul()
    spec = dataclasses.replace(wanted)
    spec.spec = FunctionSpec(
        "F", (SetSpec("cfg"), SetSpec("a"), SetSpec("extra")), (SetSpec("C"),), {}, ()
    )
    with pytest.raises(InvalidBlueprint) as caught:
        driver.checker().check([spec])
    found = {(p.code, p.where) for p in caught.value.problems}
    assert found == {
        ("unknown-set", "blueprint.inputs"),
        ("unknown-input", "inputs.a"),
        ("unknown-input", "inputs.extra"),
        ("unknown-output", "outputs.C"),
    }


def test_missing_files_are_found_at_registration(driver: GpuDriver) -> None:
    wanted = matmul()
    wanted.files = {"kernels.c": FILES["kernels.c"]}
    with pytest.raises(InvalidBlueprint) as caught:
        driver.checker().check([wanted])
    assert [p.code for p in caught.value.problems] == ["unknown-file"]


def test_settings(driver: GpuDriver) -> None:
    pytest.importorskip("pyopencl")
    driver.configure({"pool_bytes": "2M", "exact_stages": "true", "threads": "1"})
    for bad in ({"pool_byte": "1"}, {"pool_bytes": "much"}, {"exact_stages": "perhaps"}):
        with pytest.raises(InvalidInput):
            load_driver("opencl").configure(bad)
    engine = driver.factory().sequential("")
    assert engine.pool.size_bytes == 2 << 20
    assert engine.exact_stages
    engine.close()


def test_an_unknown_resource(driver: GpuDriver) -> None:
    with pytest.raises(BackendUnavailable):
        driver.factory().engine("quantum7")


def test_a_missing_library_says_how_to_get_it(
    driver: GpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyopencl", None)
    with pytest.raises(BackendUnavailable) as caught:
        driver.factory().probe()
    assert "dandelion-engine[opencl]" in caught.value.remedy
    driver.checker().check([matmul()])


def test_errors_cross_a_process() -> None:
    error = DeviceFull("opencl:0", 5, 3)
    assert json.dumps(error.record().fields)
    assert isinstance(error, DandelionError)


def test_sources_that_do_not_compile_name_their_line_and_nothing_of_the_machine() -> None:
    pytest.importorskip("pyopencl")
    b = bp.Blueprint(inputs=["x"], outputs=["x"], modules={"k": "broken.c"})
    b.launch("k", [b.x])
    text = '#include "dandelion.h"\nKERNEL void k(GLOBAL i32 *x)\n{ x[0] = 1 }\n'
    try:
        runner = Runner(OpenClDevice())
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with pytest.raises(InvalidFunction) as caught:
        runner.run(function(b, ("x",), {"broken.c": text.encode()}), one("x", np.ones(4, np.int32)))
    (problem,) = caught.value.problems
    assert "broken.c:3:" in problem.excerpt
    assert "expected ';'" in problem.excerpt
    for hidden in ("/", "0x", "clBuildProgram", "options"):
        assert hidden not in problem.excerpt
    plain = {"broken.c": text.partition("\n")[2].encode()}
    with pytest.raises(InvalidBlueprint, match=r'begins with #include "dandelion\.h"'):
        runner.run(function(b, ("x",), plain), one("x", np.ones(4, np.int32)))
    runner.engine.close()
