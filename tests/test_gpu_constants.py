"""Constants of GPU functions that stay on the device, and which calls can read them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dandelion.backends.gpu.constants import LEAST_BYTES, UNIT_BYTES, WeightsLimit
from dandelion.backends.gpu.device import Device, Handle, Properties, Protection
from dandelion.backends.gpu.driver import GpuDriver
from dandelion.backends.gpu.factory import GpuFactory
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.options import GpuOptions
from dandelion.backends.gpu.sequential import SequentialEngine
from dandelion.backends.gpu.wrappers import FailingDevice

import dandelion.blueprint as bp
from dandelion.driver import Resource, load_driver
from dandelion.errors import DeviceFault, DeviceFull
from dandelion.function import Function, FunctionSpec, StaticItem, digest_of
from dandelion.memory import HeapDomain
from dandelion.testing import Tracked
from tests.test_gpu_engine import (
    KERNELS,
    LONG_NS,
    MODULES,
    POOL_BYTES,
    Runner,
    first,
    function,
    one,
    totals,
)

WEIGHTS = np.arange(40_000, dtype=np.int32)


def weighed(weights: npt.NDArray[Any] = WEIGHTS, name: str = "F", static: bool = True) -> Function:
    """y = w + x for the first thousand, with w a static set."""
    b = bp.Blueprint(inputs=["x"], weights=["w"], outputs=["y"], modules=MODULES)
    b.kernel("add", module="kernels", access=["read", "read", "both", "value"])
    y = b.buffer("y", like="x")
    b.launch("add", [b.w, b.x, y, bp.scalar("u64", 1000)], grid=16, block=64)
    made = function(b, ("y",))
    spec = made.spec
    fixed = {"w": (StaticItem("w", digest_of(weights.tobytes())),)} if static else {}
    spec = FunctionSpec(name, spec.inputs, spec.outputs, fixed, spec.code)
    return Function(spec, made.code, made.main, made.files)


@pytest.mark.parametrize(("limit", "kept"), [("25%", True), ("1M", True), ("0", False)])
def test_constants_that_stay_on_the_device_need_no_room_in_the_pool(limit: str, kept: bool) -> None:
    driver = load_driver("cuda")
    assert isinstance(driver, GpuDriver)
    driver.configure({"weights": limit})
    x = np.arange(1000, dtype=np.int32)
    found = driver.planner().demand(weighed(), (one("x", x), one("w", WEIGHTS)))
    both = x.nbytes * 2 + 256
    assert (found.device_bytes < both) if kept else (found.device_bytes > WEIGHTS.nbytes)
    assert (found.blocks, found.block_threads) == (16, 64)


class ConstantsRunner(Runner):
    """An engine on a device with protected memory."""

    def __init__(self, device: Device, limit_bytes: int = 64 << 20) -> None:
        self.domain = Tracked(HeapDomain(1 << 24))
        weights = WeightsLimit(limit_bytes)
        self.engine = SequentialEngine(device, POOL_BYTES, weights=weights, part_ns=LONG_NS)
        self.number = 0

    def weigh(
        self, wanted: Function, weights: npt.NDArray[Any] = WEIGHTS, keep: bool = True
    ) -> None:
        """Run `weighed` and compare its result with the right one."""
        x = np.arange(1000, dtype=np.int32)
        call = self.call(wanted, one("x", x), one("w", weights))
        call.keep_constants = keep
        result = first(self.engine.run(call))
        assert (result.numpy(np.int32) == x + weights[:1000]).all()
        self.engine.clean_up()

    @property
    def uploads(self) -> int:
        """How often constants were copied to the device to stay."""
        return self.engine.constants.uploads


def protecting() -> HostDevice:
    return HostDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True, protects=True)


def test_constants_are_brought_once_and_shared_by_content() -> None:
    runner = ConstantsRunner(device := protecting())
    for _ in range(3):
        runner.weigh(weighed())
        runner.weigh(weighed(name="G"))
        runner.run(totals(), one("x", bytes(64)))
    assert (runner.uploads, device.protected) == (1, 1)
    runner.weigh(weighed(WEIGHTS + 1), WEIGHTS + 1)
    assert (runner.uploads, device.protected) == (2, 2)
    runner.engine.forget(weighed())
    assert device.protected == 2, "another function has the same"
    runner.engine.forget(weighed(name="G"))
    assert device.protected == 1
    runner.engine.close()
    assert device.protected == 0


def test_constants_are_open_only_for_their_own_calls() -> None:
    runner = ConstantsRunner(protecting())
    seen = []

    class Watching(HostDevice):
        def _launch(self, prepared: Any) -> None:
            resident = runner.engine.constants._resident.values()
            seen.append([r.memory.protection for r in resident])  # type: ignore[attr-defined]
            super()._launch(prepared)

    runner = ConstantsRunner(Watching(KERNELS, POOL_BYTES, protects=True))
    other = WEIGHTS * 2
    runner.weigh(weighed())
    runner.weigh(weighed(other, "G"), other)
    runner.run(totals(times=1), one("x", bytes(64)), clean_up=False)
    runner.weigh(weighed())
    closed, open_ = Protection.NONE, Protection.READ
    assert next(s for s in seen if s) == [open_]
    assert [closed, open_] in seen
    assert [closed, closed] in seen
    assert seen[-1] == [open_, closed] or seen[-2] == [open_, closed]
    assert all(s.count(open_) <= 1 and Protection.WRITE not in s for s in seen)


def test_constants_given_by_a_call_are_inputs() -> None:
    """Without a digest at registration constants do not stay."""
    runner = ConstantsRunner(device := protecting())
    for i in range(3):
        runner.weigh(weighed(static=False), WEIGHTS + i)
    assert device.protected == 0


def test_what_is_beyond_the_limit_is_copied_until_there_is_room() -> None:
    runner = ConstantsRunner(device := protecting(), limit_bytes=2 * UNIT_BYTES)
    functions = [(weighed(WEIGHTS + i, f"F{i}"), WEIGHTS + i) for i in range(3)]
    for _ in range(3):
        for wanted, weights in functions:
            runner.weigh(wanted, weights)
    assert (runner.uploads, device.protected) == (2, 2)
    assert runner.engine.constants.used_bytes == 2 * UNIT_BYTES
    runner.engine.evict(functions[0][0])
    assert device.protected == 1
    runner.weigh(*functions[2])
    assert (runner.uploads, device.protected) == (3, 2), "what was refused is tried again"
    runner.weigh(*functions[0])
    assert (runner.uploads, device.protected) == (3, 2)


class FullDevice(HostDevice):
    """Has no room for constants until a test sets it."""

    full = True

    def _allocate_protected(self, size_bytes: int) -> Handle:
        if self.full:
            raise DeviceFull(self.name, size_bytes, 0)
        return super()._allocate_protected(size_bytes)


def test_constants_that_the_device_refuses_are_copied() -> None:
    device = FullDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True, protects=True)
    runner = ConstantsRunner(device)
    for _ in range(3):
        runner.weigh(weighed())
    assert device.protected == 0
    device.full = False
    other = WEIGHTS * 2
    runner.weigh(weighed(other, "G"), other)
    runner.engine.evict(weighed(other, "G"))
    runner.weigh(weighed())
    assert (runner.uploads, device.protected) == (2, 1)


def test_the_node_decides_whose_constants_stay() -> None:
    runner = ConstantsRunner(device := protecting())
    for keep, protected, uploads in (
        (False, 0, 0),
        (True, 1, 1),
        (True, 1, 1),
        (False, 1, 1),  # what is there is used
        (True, 1, 1),
    ):
        runner.weigh(weighed(), keep=keep)
        assert (device.protected, runner.uploads) == (protected, uploads)
    runner.engine.evict(weighed())
    assert (device.protected, device.modules) == (0, 1), "its code stays"
    for keep in (False, False, True):
        runner.weigh(weighed(), keep=keep)
    runner.engine.evict(weighed())
    runner.engine.forget(weighed())
    assert (device.protected, device.modules) == (0, 0)
    runner.weigh(weighed())
    assert (device.protected, runner.uploads) == (1, 3)
    runner.engine.evict(totals())
    assert device.protected == 1


def test_changing_ones_mind_costs_no_plan_and_no_capture() -> None:
    captured = 0

    class CountingDevice(HostDevice):
        def _capture(self, *given: Any) -> Handle | None:
            nonlocal captured
            captured += 1
            return super()._capture(*given)

    device = CountingDevice(KERNELS, POOL_BYTES, lazy=True, graphs=True, protects=True)
    runner = ConstantsRunner(device)
    runner.weigh(weighed(), keep=False)
    for _ in range(10):
        runner.weigh(weighed(), keep=True)
        runner.weigh(weighed(), keep=False)
    assert runner.engine.plans.misses == 2
    assert (runner.uploads, captured) == (1, 1), "the plan that copies ran once"


def test_shared_constants_stay_until_their_last_function_is_evicted() -> None:
    runner = ConstantsRunner(device := protecting())
    f, g = weighed(), weighed(name="G")
    runner.weigh(f)
    runner.weigh(g)
    runner.engine.evict(f)
    runner.weigh(f, keep=False)
    assert (device.protected, runner.uploads) == (1, 1)
    runner.engine.evict(g)
    assert device.protected == 0
    runner.weigh(f, keep=False)
    assert device.protected == 0
    runner.weigh(g)
    runner.weigh(f)
    runner.engine.evict(f)
    runner.weigh(f)
    runner.engine.evict(g)
    assert (device.protected, runner.uploads) == (1, 2), "it is kept for the one that came back"


@pytest.mark.parametrize("size", [LEAST_BYTES - 256, LEAST_BYTES])
def test_small_constants_do_not_stay(size: int) -> None:
    runner = ConstantsRunner(device := protecting())
    few = WEIGHTS[: size // 4]
    runner.weigh(weighed(few), few)
    assert device.protected == (size >= LEAST_BYTES)
    capacity = runner.engine.capacity
    assert bool(capacity.bytes_of_constants(size)) is bool(device.protected)
    assert capacity.bytes_of_constants(UNIT_BYTES + 1) == 2 * UNIT_BYTES
    assert capacity.constants_bytes == 64 << 20


def test_a_device_without_protected_memory_keeps_nothing() -> None:
    runner = ConstantsRunner(device := HostDevice(KERNELS, POOL_BYTES))
    runner.weigh(weighed())
    runner.engine.evict(weighed())
    assert runner.engine.capacity.bytes_of_constants(1 << 30) == device.protected == 0


def test_a_device_that_fails_amid_constants_leaves_none_open() -> None:
    """Each call of the device fails once; afterwards everything is right, and nothing is left."""

    def two_tenants(runner: ConstantsRunner) -> None:
        for i in (0, 1, 0):
            for _ in range(2):
                with contextlib.suppress(DeviceFault):
                    runner.weigh(weighed(WEIGHTS + i, f"F{i}"), WEIGHTS + i)
        for i in (0, 1):
            runner.weigh(weighed(WEIGHTS + i, f"F{i}"), WEIGHTS + i)

    whole = FailingDevice(protecting())
    two_tenants(ConstantsRunner(whole))
    for number in range(1, whole.calls):  # the first allocates the pool
        inner = protecting()
        runner = ConstantsRunner(FailingDevice(inner, left=number))
        with contextlib.suppress(DeviceFault):  # the last call may be the one that fails
            two_tenants(runner)
            assert inner.protected == 2
        runner.engine.device.left = -1  # type: ignore[attr-defined]  # it is a FailingDevice
        runner.engine.close()
        assert inner.protected == 0


class CrowdedDevice(HostDevice):
    """Three quarters of its memory are in use by others as it is opened."""

    def properties(self) -> Properties:
        return Properties("crowded", 4 * self._memory_bytes, self._memory_bytes)


class CrowdedFactory(GpuFactory):
    """Leaves a quarter of its memory to constants."""

    def __init__(self) -> None:
        super().__init__(GpuOptions("crowded", {**GpuOptions.SHARED, "weights": "25%"}))

    def probe(self) -> list[Resource]:
        return [Resource("0", "crowded")]

    def device(self, resource: str) -> CrowdedDevice:
        return CrowdedDevice(KERNELS, 16 << 20, protects=True)


def test_an_engine_that_replaces_another_keeps_as_many_constants() -> None:
    lost_bytes, kept = 0, []
    for _ in range(2):
        factory = CrowdedFactory()
        factory.prepare_failover(lost_bytes)
        runner = ConstantsRunner(protecting())
        runner.engine.close()
        engine = factory.engine("0")
        assert isinstance(engine, SequentialEngine)
        runner.engine = engine
        for i in range(4):
            runner.weigh(weighed(WEIGHTS + i, f"F{i}"), WEIGHTS + i)
        lost_bytes = engine.capacity.device_bytes
        kept.append((lost_bytes, engine.constants.used_bytes))
        engine.close()
    assert kept == [(12 << 20, 4 << 20)] * 2
