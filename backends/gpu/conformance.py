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
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.blueprint import Code, Module
from dandelion.errors import DandelionError, DeviceFault, InternalError, InvalidBlueprint

from .device import Device, Handle, Protection
from .forks import Forks
from .host import HostKernel, Memory
from .plan import Copy, Launch, Pointer, Zero
from .source import LoadedCode, choose

POOL_BYTES = 1 << 20

Check: TypeAlias = Callable[[Device], None]

SOURCE = """
#include "dandelion.h"

CONSTANT i32 table[4] = {1, 10, 100, 1000};

DEVICE i32 twice(i32 x)
{
    return 2 * x;
}

KERNEL void fill(GLOBAL i32 *x, i32 value, u64 count)
{
    if (GLOBAL_ID(0) < count)
        x[GLOBAL_ID(0)] = value;
}

KERNEL void add(GLOBAL const i32 *a, GLOBAL const i32 *b, GLOBAL i32 *c, u64 count)
{
    u64 i = GLOBAL_ID(0);
    if (i < count)
        c[i] = a[i] + b[i];
}

KERNEL void axpy(GLOBAL i32 *x, i32 factor, i32 term)
{
    x[GLOBAL_ID(0)] = twice(x[GLOBAL_ID(0)]) * factor / 2 + term * table[0];
}

KERNEL void scalars(GLOBAL u8 *out, i8 a, i16 b, i32 c, i64 d, u8 e, u16 f, u32 g, u64 h, f32 i,
                    f64 j)
{
    GLOBAL f64 *x = (GLOBAL f64 *)out;
    x[0] = a; x[1] = b; x[2] = c; x[3] = (f64)d; x[4] = e;
    x[5] = f; x[6] = g; x[7] = (f64)h; x[8] = i; x[9] = j;
}

KERNEL void coordinates(GLOBAL u32 *out)
{
    u64 index = (GLOBAL_ID(2) * GLOBAL_SIZE(1) + GLOBAL_ID(1)) * GLOBAL_SIZE(0) + GLOBAL_ID(0);
    GLOBAL u32 *x = out + 12 * index;
    for (i32 d = 0; d < 3; d++) {
        x[d] = GROUP_ID(d);
        x[3 + d] = LOCAL_ID(d);
        x[6 + d] = LOCAL_SIZE(d);
        x[9 + d] = NUM_GROUPS(d);
    }
}

KERNEL void reverse_blocks(GLOBAL i32 *x DYNAMIC_LOCAL)
{
    USE_DYNAMIC_LOCAL(i32, tile);
    LOCAL i32 copy[64];
    u32 i = LOCAL_ID(0), n = LOCAL_SIZE(0);
    tile[i] = x[GLOBAL_ID(0)];
    BARRIER();
    copy[i] = tile[n - 1 - i];
    BARRIER();
    x[GLOBAL_ID(0)] = copy[i];
}

KERNEL void count(GLOBAL u32 *sums, GLOBAL f32 *real, GLOBAL u64 *wide)
{
    ATOMIC_ADD_U32(&sums[0], 1);
    ATOMIC_MAX_U32(&sums[1], (u32)GLOBAL_ID(0));
    ATOMIC_ADD_F32(&real[0], 0.5f);
    ATOMIC_ADD_U64(&wide[0], 0x100000000ul);
}

KERNEL void mathematics(GLOBAL const f32 *x, GLOBAL f32 *y, u64 count)
{
    u64 i = GLOBAL_ID(0);
    if (i >= count)
        return;
    y[0 * count + i] = expf(x[i]);
    y[1 * count + i] = logf(x[i]);
    y[2 * count + i] = sqrtf(x[i]);
    y[3 * count + i] = tanhf(x[i]);
    y[4 * count + i] = fmaxf(x[i], 1.0f) + fminf(x[i], 1.0f);
    y[5 * count + i] = powf(x[i], 2.5f);
    y[6 * count + i] = floorf(x[i]) + fabsf(-x[i]);
    y[7 * count + i] = x[i] < INFINITY ? rsqrtf(x[i]) : 0.0f;
}

KERNEL void halves(GLOBAL f16 *x)
{
    u64 i = GLOBAL_ID(0);
    F16_STORE(x, i, F16_LOAD(x, i) * 2.0f + 1.0f);
}
"""


def _ints(memory: Memory) -> npt.NDArray[np.int32]:
    return memory.view(np.int32)


def _unpack(code: str, data: bytes) -> int:
    value: int = struct.unpack("<" + code, data)[0]
    return value


def _host_fill(launch: Launch, x: Memory, value: bytes, count: bytes) -> None:
    _ints(x)[: _unpack("Q", count)] = _unpack("i", value)


def _host_add(launch: Launch, a: Memory, b: Memory, c: Memory, count: bytes) -> None:
    n = _unpack("Q", count)
    _ints(c)[:n] = _ints(a)[:n] + _ints(b)[:n]


def _host_axpy(launch: Launch, x: Memory, factor: bytes, term: bytes) -> None:
    n = launch.grid[0] * launch.block[0]
    _ints(x)[:n] = _ints(x)[:n] * _unpack("i", factor) + _unpack("i", term)


HOST_KERNELS: dict[str, HostKernel] = {"fill": _host_fill, "add": _host_add, "axpy": _host_axpy}
"""What the host device runs in place of `SOURCE`; checks of the language are not for it."""


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


def code_for(device: Device) -> LoadedCode:
    """Give the kernels of the suite as this device takes them."""
    files = {"suite.c": SOURCE.encode(), "suite.host": " ".join(HOST_KERNELS).encode()}
    module = Module("suite", (Code("suite.c"), Code("suite.host")))
    archs = device.properties().archs
    return choose(module, files, device.backend, device.formats, archs)


def _put(device: Device, offset: int, array: npt.NDArray[Any]) -> Pointer:
    device.copy_in(offset, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    device.synchronize()
    return Pointer(offset, array.nbytes)


def _get(device: Device, offset: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    target = np.full(count * np.dtype(dtype).itemsize, 0xEE, dtype=np.uint8)
    device.copy_out(offset, target.data)
    device.synchronize()
    return target.view(dtype)


def _value(code: str, value: float) -> bytes:
    return struct.pack("<" + code, value)


def _prepare(
    device: Device,
    kernel: str,
    args: Sequence[Pointer | bytes],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int = 0,
) -> Handle:
    module = device.load(code_for(device))
    return device.prepare(module, kernel, Launch(kernel, tuple(args), grid, block, shared_bytes))


def _raises(expected: type[DandelionError], action: Callable[[], object]) -> None:
    try:
        action()
    except expected:
        return
    raise AssertionError(f"no {expected.__name__} was raised")


def check_copies(device: Device) -> None:
    """Bytes come back as they went in, at any offset and of any size."""
    random = np.random.default_rng(1)
    for offset, size in ((0, 1), (1, 3), (256, 4096), (777, 65537), (POOL_BYTES - 5, 5)):
        data = random.integers(0, 256, size, dtype=np.uint8)
        _put(device, offset, data)
        assert (_get(device, offset, size, np.uint8) == data).all()


def check_zero(device: Device) -> None:
    """Zeroing takes exactly the range that was given."""
    for offset, size in ((0, 1), (256, 256), (300, 77), (4096, 100001)):
        _put(device, 0, np.full(POOL_BYTES, 0x5A, dtype=np.uint8))
        device.zero(offset, size)
        whole = _get(device, 0, POOL_BYTES, np.uint8)
        assert not whole[offset : offset + size].any()
        assert (whole[:offset] == 0x5A).all()
        assert (whole[offset + size :] == 0x5A).all()


def check_bounds(device: Device) -> None:
    """Nothing outside the pool can be named."""
    beyond = POOL_BYTES - 3
    _raises(DeviceFault, lambda: device.copy_in(beyond, b"abcd"))
    _raises(DeviceFault, lambda: device.copy_out(beyond, memoryview(bytearray(4))))
    _raises(DeviceFault, lambda: device.zero(beyond, 4))
    _raises(DeviceFault, lambda: device.zero(-1, 1))
    outside = Pointer(POOL_BYTES, 4)
    _raises(
        DeviceFault,
        lambda: _prepare(
            device, "axpy", (outside, _value("i", 1), _value("i", 1)), (1, 1, 1), (1, 1, 1)
        ),
    )


def check_one_pool(device: Device) -> None:
    """There is one pool at a time; another one can follow."""
    _raises(InternalError, lambda: device.allocate(4096))
    device.free()
    device.allocate(8192)
    assert device.pool_bytes == 8192
    _raises(DeviceFault, lambda: device.zero(0, 8193))


def check_launch(device: Device) -> None:
    """A kernel sees its buffers and values, and only as many threads as were launched."""
    a = np.arange(1000, dtype=np.int32)
    b = a[::-1].copy() * 3
    pointers = [_put(device, 0, a), _put(device, 4096, b), _put(device, 8192, np.zeros_like(a))]
    launch = _prepare(device, "add", (*pointers, _value("Q", 900)), (8, 1, 1), (128, 1, 1))
    device.launch([launch])
    result = _get(device, 8192, 1000, np.int32)
    assert (result[:900] == (a + b)[:900]).all()
    assert not result[900:].any()


def check_order(device: Device) -> None:
    """Launches, copies and zeroing take effect in the order in which they were made."""
    x = _put(device, 512, np.ones(32, dtype=np.int32))
    steps = [
        _prepare(device, "axpy", (x, _value("i", 2), _value("i", i % 3)), (1, 1, 1), (32, 1, 1))
        for i in range(20)
    ]
    device.launch(steps)
    expected = 1
    for i in range(20):
        expected = 2 * expected + i % 3
    assert (_get(device, 512, 32, np.int32) == expected).all()
    device.launch([*steps[:2], device.prepare_zero(Zero(512, 64)), steps[2]])
    result = _get(device, 512, 32, np.int32)
    assert (result[:16] == 2).all()
    assert (result[16:] == ((expected * 2) * 2 + 1) * 2 + 2).all()
    copy = device.prepare_copy(Copy(Pointer(1024, 128), Pointer(512, 128)))
    device.launch([steps[0], copy, steps[1]])
    before, after = (_get(device, at, 32, np.int32) for at in (1024, 512))
    assert (before == 2 * result).all()
    assert (after == 2 * before + 1).all()


def check_again(device: Device) -> None:
    """A prepared launch can be launched many times, and takes what is in its buffers then."""
    x = _put(device, 0, np.zeros(64, dtype=np.int32))
    step = _prepare(device, "axpy", (x, _value("i", 1), _value("i", 5)), (2, 1, 1), (32, 1, 1))
    device.launch([step] * 100)
    assert (_get(device, 0, 64, np.int32) == 500).all()
    _put(device, 0, np.full(64, -500, dtype=np.int32))
    device.launch([step])
    assert (_get(device, 0, 64, np.int32) == -495).all()


def check_marks(device: Device) -> None:
    """After waiting for a mark, everything before it is done."""
    x = _put(device, 0, np.zeros(64, dtype=np.int32))
    step = _prepare(device, "axpy", (x, _value("i", 1), _value("i", 1)), (2, 1, 1), (32, 1, 1))
    target = bytearray(256)
    device.launch([step] * 50)
    device.copy_out(0, memoryview(target))
    mark = device.mark()
    device.zero(0, 256)
    device.wait(mark)
    assert (np.frombuffer(target, dtype=np.int32) == 50).all()
    assert not _get(device, 0, 64, np.int32).any()


def check_graphs(device: Device) -> None:
    """A graph does what its launches do, as often as it is replayed."""
    x = _put(device, 0, np.zeros(64, dtype=np.int32))
    steps = [
        _prepare(device, "axpy", (x, _value("i", 3), _value("i", i)), (2, 1, 1), (32, 1, 1))
        for i in range(5)
    ]
    graph = device.capture(steps)
    if graph is None:
        assert not device.abilities.graphs
        return
    assert not _get(device, 0, 64, np.int32).any(), "capturing must not launch"
    expected = 0
    for _ in range(3):
        device.replay(graph)
        for i in range(5):
            expected = expected * 3 + i
    assert (_get(device, 0, 64, np.int32) == np.int64(expected).astype(np.int32)).all()
    device.discard(steps, graph)


def check_forked_graphs(device: Device) -> None:
    """Launches of a graph wait for those that they must wait for, whatever runs side by side."""
    if device.abilities.graph_lanes < 2:
        return
    a, b, c = (_put(device, at, np.ones(64, dtype=np.int32)) for at in (0, 256, 512))
    shape = ((2, 1, 1), (32, 1, 1))

    def axpy(x: Pointer, factor: int) -> Handle:
        return _prepare(device, "axpy", (x, _value("i", factor), _value("i", 1)), *shape)

    join = _prepare(device, "add", (a, b, c, _value("Q", 64)), *shape)
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
            assert (_get(device, at, 64, np.int32) == 2 * (first + second) + 1).all()
        first = 1
        assert (_get(device, 0, 64, np.int32) == first).all()
    device.discard(steps, graph)


def check_protected_memory(device: Device) -> None:
    """Protected memory begins with zeros, keeps what was copied to it, and kernels can read it."""
    if not device.abilities.protected_memory:
        _raises(InternalError, lambda: device.allocate_protected(4096))
        return
    a = np.arange(500, dtype=np.int32)
    memory = device.allocate_protected(3_000_000)
    device.fill_protected(memory, 4096, a.tobytes())
    out = _put(device, 0, np.full(1000, 7, dtype=np.int32))
    arguments = (
        Pointer(4096, 4000, constant=True),
        Pointer(0, 4000, constant=True),
        out,
        _value("Q", 1000),
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
        result = _get(device, 0, 1000, np.int32)
        assert (result[:500] == a).all()
        assert not result[500:].any()
        device.launch([copy])
        assert (_get(device, 8192, 500, np.int32) == a).all()
        device.protect(memory, Protection.NONE)
    device.free_protected(memory)


def check_unknown_kernel(device: Device) -> None:
    """A kernel that is not in the module is an error when it is prepared."""
    _raises(InvalidBlueprint, lambda: _prepare(device, "filll", (), (1, 1, 1), (1, 1, 1)))


def check_reopening(device: Device) -> None:
    """A device can be closed twice, and opened again."""
    device.close()
    device.close()
    device.open()
    device.allocate(4096)
    device.zero(0, 4096)
    assert not _get(device, 0, 4096, np.uint8).any()


def check_scalars(device: Device) -> None:
    """Every type of value arrives."""
    codes, values = (
        "bhiqBHIQfd",
        (-5, -300, -70000, -(2**40), 200, 60000, 2**31, 2**50, 0.5, -1e300),
    )
    out = _put(device, 0, np.zeros(10))
    args = [_value(c, v) for c, v in zip(codes, values, strict=True)]
    device.launch([_prepare(device, "scalars", (out, *args), (1, 1, 1), (1, 1, 1))])
    assert _get(device, 0, 10, np.float64).tolist() == [float(v) for v in values]


def check_coordinates(device: Device) -> None:
    """Every thread has its coordinates, in three dimensions."""
    grid, block = (2, 3, 4), (4, 2, 1)
    threads = int(np.prod(grid) * np.prod(block))
    out = _put(device, 0, np.zeros(12 * threads, dtype=np.uint32))
    device.launch([_prepare(device, "coordinates", (out,), grid, block)])
    found = _get(device, 0, 12 * threads, np.uint32).reshape(threads, 4, 3)
    index = 0
    for z in range(grid[2] * block[2]):
        for y in range(grid[1] * block[1]):
            for x in range(grid[0] * block[0]):
                place = np.array([x, y, z])
                assert (found[index, 0] == place // block).all()
                assert (found[index, 1] == place % block).all()
                index += 1
    assert (found[:, 2] == block).all()
    assert (found[:, 3] == grid).all()


def check_local_memory(device: Device) -> None:
    """Threads of a block share local memory, of fixed size and of the launch's size."""
    x = np.arange(256, dtype=np.int32)
    place = _put(device, 256, x)
    launch = _prepare(device, "reverse_blocks", (place,), (4, 1, 1), (64, 1, 1), 64 * 4)
    device.launch([launch])
    expected = x.reshape(4, 64)[:, ::-1].reshape(-1)
    assert (_get(device, 256, 256, np.int32) == expected).all()


def check_atomics(device: Device) -> None:
    """Atomic operations lose nothing."""
    sums = _put(device, 0, np.zeros(2, dtype=np.uint32))
    real = _put(device, 256, np.zeros(1, dtype=np.float32))
    wide = _put(device, 512, np.zeros(1, dtype=np.uint64))
    device.launch([_prepare(device, "count", (sums, real, wide), (16, 1, 1), (64, 1, 1))])
    assert _get(device, 0, 2, np.uint32).tolist() == [1024, 1023]
    assert _get(device, 256, 1, np.float32)[0] == 512.0
    assert _get(device, 512, 1, np.uint64)[0] == 1024 << 32


def check_mathematics(device: Device) -> None:
    """The functions of dandelion.h are those of C, to a few units in the last place."""
    x = np.linspace(0.01, 8, 128, dtype=np.float32)
    source = _put(device, 0, x)
    target = _put(device, 1024, np.zeros(8 * 128, dtype=np.float32))
    launch = _prepare(
        device, "mathematics", (source, target, _value("Q", 128)), (1, 1, 1), (128, 1, 1)
    )
    device.launch([launch])
    found = _get(device, 1024, 8 * 128, np.float32).reshape(8, 128)
    wide = x.astype(np.float64)
    expected = [
        np.exp(wide),
        np.log(wide),
        np.sqrt(wide),
        np.tanh(wide),
        np.maximum(wide, 1) + np.minimum(wide, 1),
        wide**2.5,
        np.floor(wide) + wide,
        1 / np.sqrt(wide),
    ]
    for row, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, right, rtol=1e-5, atol=1e-6)


def check_halves(device: Device) -> None:
    """Half precision is loaded and stored exactly, rounding to nearest."""
    x = np.linspace(-100, 100, 96).astype(np.float16)
    place = _put(device, 0, x)
    device.launch([_prepare(device, "halves", (place,), (3, 1, 1), (32, 1, 1))])
    expected = (x.astype(np.float32) * 2 + 1).astype(np.float16)
    assert (_get(device, 0, 96, np.float16) == expected).all()


def check_arity(device: Device) -> None:
    """Too few or too many arguments are an error when the launch is prepared."""
    pointer = Pointer(0, 64)
    for args in ((pointer,), (pointer, _value("i", 1), _value("i", 1), _value("i", 1))):
        _raises(
            InvalidBlueprint,
            lambda args=args: _prepare(device, "axpy", args, (1, 1, 1), (1, 1, 1)),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        )


def check_bad_source(device: Device) -> None:
    """A source that does not compile is an error with the compiler's words."""
    text = '#include "dandelion.h"\nKERNEL void broken(GLOBAL i32 *x) { x[0] = missing_name; }\n'
    module = Module("bad", (Code("bad.c"),))
    archs = device.properties().archs
    code = choose(module, {"bad.c": text.encode()}, device.backend, device.formats, archs)
    words = ""
    try:
        device.load(code)
    except DandelionError as error:
        words = str(error)
    assert "missing_name" in words, words or "a broken source was loaded"


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
    check_protected_memory,
    check_unknown_kernel,
    check_reopening,
)
"""What every device must do."""

LANGUAGE_CHECKS: tuple[Check, ...] = (
    check_scalars,
    check_coordinates,
    check_local_memory,
    check_atomics,
    check_mathematics,
    check_halves,
    check_arity,
    check_bad_source,
)
"""What a device must do that compiles portable sources."""
