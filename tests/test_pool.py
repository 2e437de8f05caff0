"""The buffer pool: limits, and no data of one call is left for the next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.backends.gpu.device import Device, Handle
from dandelion.backends.gpu.host import HostDevice
from dandelion.backends.gpu.plan import Plan, plan
from dandelion.backends.gpu.pool import BufferPool
from dandelion.backends.gpu.wrappers import FailingDevice

import dandelion.blueprint as bp
from dandelion.errors import DeviceFault, DeviceFull, InternalError

POOL_BYTES = 4096


@pytest.fixture
def device() -> Iterator[FailingDevice]:
    made = FailingDevice(HostDevice({}, POOL_BYTES))
    made.open()
    yield made
    made.close()


def a_plan(*sizes: int) -> Plan:
    """A plan whose outputs have these sizes; its buffers are named a, b, ..."""
    b = bp.Blueprint(inputs=["in"], modules=["m.c"])
    for letter, size in zip("abcdef", sizes, strict=False):
        b.buffer(letter, size=size)
    b.launch("k", [b["in"]])
    return plan(b.build(), {"in": 100}, lambda n, i: 0)


def whole(device: FailingDevice, size: int = POOL_BYTES) -> bytes:
    target = bytearray(size)
    device.copy_out(0, memoryview(target))
    return bytes(target)


def test_a_call_finds_zeros_and_leaves_zeros(device: FailingDevice) -> None:
    pool = BufferPool(device, POOL_BYTES)
    for sizes in ((1000, 300), (3000,), (1, 2, 3)):
        made = a_plan(*sizes)
        pool.begin(made)
        assert not any(whole(device, made.used_bytes)), "memory that was never used is zeroed first"
        device.copy_in(made.slots["in"].offset_bytes, b"\xff" * 100)
        for slot in made.outputs.values():
            device.copy_in(slot.offset_bytes, b"\xee" * slot.size_bytes)
        pool.clean()
        assert not any(whole(device, made.used_bytes))
        assert pool.dirty_bytes == 0


def test_a_plan_that_does_not_fit(device: FailingDevice) -> None:
    pool = BufferPool(device, POOL_BYTES)
    with pytest.raises(DeviceFull) as caught:
        pool.begin(a_plan(POOL_BYTES))
    assert caught.value.needed_bytes == POOL_BYTES + 256
    assert caught.value.pool_bytes == POOL_BYTES
    pool.begin(a_plan(POOL_BYTES - 256))


def test_no_call_begins_in_memory_that_is_not_zeroed(device: FailingDevice) -> None:
    pool = BufferPool(device, POOL_BYTES)
    pool.begin(a_plan(8))
    with pytest.raises(InternalError):
        pool.begin(a_plan(8))


def test_zeroing_that_failed_is_done_again(device: FailingDevice) -> None:
    pool = BufferPool(device, POOL_BYTES)
    made = a_plan(2000)
    pool.begin(made)
    device.copy_in(0, np.full(2000, 7, dtype=np.uint8).data)
    device.left = 0
    with pytest.raises(DeviceFault):
        pool.clean()
    assert pool.dirty_bytes == made.used_bytes
    pool.clean()
    assert not any(whole(device, made.used_bytes))


class Restoring(FailingDevice):
    """A device whose modules have variables."""

    def __init__(self, inner: Device) -> None:
        super().__init__(inner)
        self.restored: list[Handle] = []

    def _restore(self, module: Handle) -> None:
        self._count("restore")
        self.restored.append(module)


def test_variables_are_restored_after_a_call_and_before_it_if_others_ran() -> None:
    device = Restoring(HostDevice({}, POOL_BYTES))
    device.open()
    pool, first, second = BufferPool(device, POOL_BYTES), Handle("first"), Handle("second")
    made = a_plan(8)

    def call(*modules: Handle) -> list[Handle]:
        device.restored.clear()
        pool.begin(made, modules)
        before = list(device.restored)
        device.restored.clear()
        pool.clean()
        assert device.restored == list(modules)
        pool.clean()
        assert device.restored == list(modules), "once"
        return before

    assert call(first) == [first]
    assert call(first) == []
    assert call() == []
    assert call(first) == [first]
    assert call(first, second) == [first, second]
    device.left = 0
    with pytest.raises(DeviceFault):
        pool.begin(made, (second,))
    assert pool.is_clean
    assert call(first, second) == [first, second], "it is not known what was restored"
    pool.begin(made, (first,))
    device.left = 0
    with pytest.raises(DeviceFault):
        pool.clean()
    assert not pool.is_clean
    pool.clean()
    assert pool.is_clean
    device.close()


def test_the_device_has_not_got_that_much(device: FailingDevice) -> None:
    with pytest.raises(DeviceFault):
        BufferPool(device, POOL_BYTES + 1)
    pool = BufferPool(device, POOL_BYTES)
    pool.close()
    pool.close()
    BufferPool(device, POOL_BYTES)
