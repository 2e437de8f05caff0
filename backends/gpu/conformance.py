"""What every device must do: a suite that runs on any of them, also on those of third parties.

Each check takes an open device with a pool of `POOL_BYTES` and raises AssertionError where the
device is wrong. With pytest::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_device(check):
        with opened(MyDevice()) as device:
            check(device)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from dandelion.errors import DeviceFault, InternalError, InvalidBlueprint

from .conformance_kernels import (
    Check,
    code_for,
    get,
    prepare,
    put,
    raises,
    value,
)
from .device import Device, Handle, Protection
from .forks import Forks
from .plan import Copy, Launch, Pointer, Zero

POOL_BYTES = 1 << 20


@contextlib.contextmanager
def opened(device: Device, pool_bytes: int = POOL_BYTES) -> Iterator[Device]:
    """Open a device with a zeroed pool, and close it in the end."""
    device.open()
    try:
        device.allocate(pool_bytes)
        device.zero(0, pool_bytes)
        device.synchronize()
        yield device
    finally:
        device.close()


def check_copies(device: Device) -> None:
    """Bytes come back as they went in, at any offset and of any size."""
    random = np.random.default_rng(1)
    for offset, size in ((0, 1), (1, 3), (256, 4096), (777, 65537), (POOL_BYTES - 5, 5)):
        data = random.integers(0, 256, size, dtype=np.uint8)
        put(device, offset, data)
        assert (get(device, offset, size, np.uint8) == data).all()


def check_zero(device: Device) -> None:
    """Zeroing takes exactly the range that was given."""
    for offset, size in ((0, 1), (256, 256), (300, 77), (4096, 100001)):
        put(device, 0, np.full(POOL_BYTES, 0x5A, dtype=np.uint8))
        device.zero(offset, size)
        whole = get(device, 0, POOL_BYTES, np.uint8)
        assert not whole[offset : offset + size].any()
        assert (whole[:offset] == 0x5A).all()
        assert (whole[offset + size :] == 0x5A).all()


def check_bounds(device: Device) -> None:
    """Nothing outside the pool can be named."""
    beyond = POOL_BYTES - 3
    raises(DeviceFault, lambda: device.copy_in(beyond, b"abcd"))
    raises(DeviceFault, lambda: device.copy_out(beyond, memoryview(bytearray(4))))
    raises(DeviceFault, lambda: device.zero(beyond, 4))
    raises(DeviceFault, lambda: device.zero(-1, 1))
    outside = Pointer(POOL_BYTES, 4)
    raises(
        DeviceFault,
        lambda: prepare(
            device, "axpy", (outside, value("i", 1), value("i", 1)), (1, 1, 1), (1, 1, 1)
        ),
    )


def check_one_pool(device: Device) -> None:
    """There is one pool at a time; another one can follow."""
    raises(InternalError, lambda: device.allocate(4096))
    device.free()
    device.allocate(8192)
    assert device.pool_bytes == 8192
    raises(DeviceFault, lambda: device.zero(0, 8193))


def check_launch(device: Device) -> None:
    """A kernel sees its buffers and values, and only as many threads as were launched."""
    a = np.arange(1000, dtype=np.int32)
    b = a[::-1].copy() * 3
    pointers = [put(device, 0, a), put(device, 4096, b), put(device, 8192, np.zeros_like(a))]
    launch = prepare(device, "add", (*pointers, value("Q", 900)), (8, 1, 1), (128, 1, 1))
    device.launch([launch])
    result = get(device, 8192, 1000, np.int32)
    assert (result[:900] == (a + b)[:900]).all()
    assert not result[900:].any()


def check_order(device: Device) -> None:
    """Launches, copies and zeroing take effect in the order in which they were made."""
    x = put(device, 512, np.ones(32, dtype=np.int32))
    steps = [
        prepare(device, "axpy", (x, value("i", 2), value("i", i % 3)), (1, 1, 1), (32, 1, 1))
        for i in range(20)
    ]
    device.launch(steps)
    expected = 1
    for i in range(20):
        expected = 2 * expected + i % 3
    assert (get(device, 512, 32, np.int32) == expected).all()
    device.launch([*steps[:2], device.prepare_zero(Zero(512, 64)), steps[2]])
    result = get(device, 512, 32, np.int32)
    assert (result[:16] == 2).all()
    assert (result[16:] == ((expected * 2) * 2 + 1) * 2 + 2).all()
    copy = device.prepare_copy(Copy(Pointer(1024, 128), Pointer(512, 128)))
    device.launch([steps[0], copy, steps[1]])
    before, after = (get(device, at, 32, np.int32) for at in (1024, 512))
    assert (before == 2 * result).all()
    assert (after == 2 * before + 1).all()


def check_again(device: Device) -> None:
    """A prepared launch can be launched many times, and takes what is in its buffers then."""
    x = put(device, 0, np.zeros(64, dtype=np.int32))
    step = prepare(device, "axpy", (x, value("i", 1), value("i", 5)), (2, 1, 1), (32, 1, 1))
    device.launch([step] * 100)
    assert (get(device, 0, 64, np.int32) == 500).all()
    put(device, 0, np.full(64, -500, dtype=np.int32))
    device.launch([step])
    assert (get(device, 0, 64, np.int32) == -495).all()


def check_marks(device: Device) -> None:
    """After waiting for a mark, everything before it is done."""
    x = put(device, 0, np.zeros(64, dtype=np.int32))
    step = prepare(device, "axpy", (x, value("i", 1), value("i", 1)), (2, 1, 1), (32, 1, 1))
    target = bytearray(256)
    device.launch([step] * 50)
    device.copy_out(0, memoryview(target))
    mark = device.mark()
    device.zero(0, 256)
    device.wait(mark)
    assert (np.frombuffer(target, dtype=np.int32) == 50).all()
    assert not get(device, 0, 64, np.int32).any()


def check_graphs(device: Device) -> None:
    """A graph does what its launches do, as often as it is replayed."""
    x = put(device, 0, np.zeros(64, dtype=np.int32))
    steps = [
        prepare(device, "axpy", (x, value("i", 3), value("i", i)), (2, 1, 1), (32, 1, 1))
        for i in range(5)
    ]
    graph = device.capture(steps)
    if graph is None:
        assert not device.abilities.graphs
        return
    assert not get(device, 0, 64, np.int32).any(), "capturing must not launch"
    expected = 0
    for _ in range(3):
        device.replay(graph)
        for i in range(5):
            expected = expected * 3 + i
    assert (get(device, 0, 64, np.int32) == np.int64(expected).astype(np.int32)).all()
    device.discard(steps, graph)


def check_forked_graphs(device: Device) -> None:
    """Launches of a graph wait for those that they must wait for, whatever runs side by side."""
    if device.abilities.graph_lanes < 2:
        return
    a, b, c = (put(device, at, np.ones(64, dtype=np.int32)) for at in (0, 256, 512))
    shape = ((2, 1, 1), (32, 1, 1))

    def axpy(x: Pointer, factor: int) -> Handle:
        return prepare(device, "axpy", (x, value("i", factor), value("i", 1)), *shape)

    join = prepare(device, "add", (a, b, c, value("Q", 64)), *shape)
    zero = device.prepare_zero(Zero(0, 256))
    copy = device.prepare_copy(Copy(Pointer(768, 256), Pointer(512, 256)))
    steps = [axpy(a, 2), axpy(b, 3), axpy(a, 5), axpy(b, 7), join, zero, axpy(c, 2), axpy(a, 4)]
    steps.append(copy)
    waits = ((), (), (), (), (3,), (4,), (), (5,), (6,))
    graph = device.capture(steps, Forks((0, 1, 0, 1, 0, 1, 0, 0, 1), waits))
    assert graph is not None
    first, second = 1, 1
    for _ in range(3):
        device.replay(graph)
        first, second = 5 * (2 * first + 1) + 1, 7 * (3 * second + 1) + 1
        for at in (512, 768):
            assert (get(device, at, 64, np.int32) == 2 * (first + second) + 1).all()
        first = 1
        assert (get(device, 0, 64, np.int32) == first).all()
    device.discard(steps, graph)


def check_changed_arguments(device: Device) -> None:
    """Arguments by value can change, in prepared launches and in graphs, on any lane."""
    x, y = (put(device, at, np.zeros(64, dtype=np.int32)) for at in (0, 256))
    shape = ((2, 1, 1), (32, 1, 1))

    def values() -> tuple[int, int]:
        found = [get(device, at, 64, np.int32) for at in (0, 256)]
        assert all((f == f[0]).all() for f in found)
        return int(found[0][0]), int(found[1][0])

    def axpy(target: Pointer, term: int) -> Handle:
        return prepare(device, "axpy", (target, value("i", 10), value("i", term)), *shape)

    first, second, other = axpy(x, 1), axpy(x, 2), axpy(y, 3)
    steps = [first, other, second, first]
    device.launch(steps)
    assert values() == (121, 3)
    device.set_argument(first, 2, value("i", 5))
    device.launch(steps)
    assert values() == (121525, 33)
    for forks in (None, Forks((0, 1, 0, 0), ((), (), (), ()))):
        if forks is not None and device.abilities.graph_lanes < 2:
            continue
        put(device, 0, np.zeros(128, dtype=np.int32))
        graph = device.capture(steps, forks, (0, 1, 3))
        if graph is None:
            assert not device.abilities.graphs
            return
        device.set_argument(first, 2, value("i", 7))
        device.set_argument(other, 2, value("i", 8))
        device.replay(graph)
        assert values() == (525, 3), "a graph keeps its arguments"
        device.update(graph, [(0, first), (1, other)])
        device.replay(graph)
        assert values() == (525725, 38), "only what was named changes"
        device.update(graph, [(3, first)])
        device.replay(graph)
        device.set_argument(first, 2, value("i", 5))
        device.set_argument(other, 2, value("i", 3))
        assert values() == (525725727, 388)
        device.discard((), graph)
    device.discard(steps, None)


def check_protected_memory(device: Device) -> None:
    """Protected memory begins with zeros, keeps what was copied to it, and kernels can read it."""
    if not device.abilities.protected_memory:
        raises(InternalError, lambda: device.allocate_protected(4096))
        return
    a = np.arange(500, dtype=np.int32)
    memory = device.allocate_protected(3_000_000)
    device.fill_protected(memory, 4096, a.tobytes())
    out = put(device, 0, np.full(1000, 7, dtype=np.int32))
    arguments = (
        Pointer(4096, 4000, constant=True),
        Pointer(0, 4000, constant=True),
        out,
        value("Q", 1000),
    )
    module = device.load(code_for(device))
    launch = device.prepare(module, "add", Launch("add", arguments, (8, 1, 1), (128, 1, 1)), memory)
    source = Pointer(4096, 2000, constant=True)
    copy = device.prepare_copy(Copy(Pointer(8192, 2000), source), memory)
    device.synchronize()
    for _ in range(2):
        device.protect(memory, Protection.READ)
        device.launch([launch])
        device.zero(0, 0)
        result = get(device, 0, 1000, np.int32)
        assert (result[:500] == a).all()
        assert not result[500:].any()
        device.launch([copy])
        assert (get(device, 8192, 500, np.int32) == a).all()
        device.protect(memory, Protection.NONE)
    device.free_protected(memory)


def check_unknown_kernel(device: Device) -> None:
    """A kernel that is not in the module is an error when it is prepared."""
    raises(InvalidBlueprint, lambda: prepare(device, "filll", (), (1, 1, 1), (1, 1, 1)))


def check_reopening(device: Device) -> None:
    """A device can be closed twice, and opened again."""
    device.close()
    device.close()
    device.open()
    device.allocate(4096)
    device.zero(0, 4096)
    assert not get(device, 0, 4096, np.uint8).any()


CHECKS: tuple[Check, ...] = (
    check_copies,
    check_zero,
    check_bounds,
    check_one_pool,
    check_launch,
    check_order,
    check_again,
    check_marks,
    check_graphs,
    check_forked_graphs,
    check_changed_arguments,
    check_protected_memory,
    check_unknown_kernel,
    check_reopening,
)
"""What every device must do."""
