"""Kernels of the checks of devices, the same on the host, and how checks run them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.blueprint import Code, Module
from dandelion.errors import DandelionError

from .device import Device, Handle
from .host import HostKernel, Memory
from .plan import Launch, Pointer
from .source import LoadedCode, choose

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


def ints(memory: Memory) -> npt.NDArray[np.int32]:
    return memory.view(np.int32)


def unpack(code: str, data: bytes) -> int:
    value: int = struct.unpack("<" + code, data)[0]
    return value


def host_fill(launch: Launch, x: Memory, value: bytes, count: bytes) -> None:
    ints(x)[: unpack("Q", count)] = unpack("i", value)


def host_add(launch: Launch, a: Memory, b: Memory, c: Memory, count: bytes) -> None:
    n = unpack("Q", count)
    ints(c)[:n] = ints(a)[:n] + ints(b)[:n]


def host_axpy(launch: Launch, x: Memory, factor: bytes, term: bytes) -> None:
    n = launch.grid[0] * launch.block[0]
    ints(x)[:n] = ints(x)[:n] * unpack("i", factor) + unpack("i", term)


HOST_KERNELS: dict[str, HostKernel] = {"fill": host_fill, "add": host_add, "axpy": host_axpy}
"""What the host device runs in place of `SOURCE`; checks of the language are not for it."""


def code_for(device: Device) -> LoadedCode:
    """Give the kernels of the suite as this device takes them."""
    files = {"suite.c": SOURCE.encode(), "suite.host": " ".join(HOST_KERNELS).encode()}
    module = Module("suite", (Code("suite.c"), Code("suite.host")))
    archs = device.properties().archs
    return choose(module, files, device.backend, device.formats, archs)


def put(device: Device, offset: int, array: npt.NDArray[Any]) -> Pointer:
    device.copy_in(offset, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    device.synchronize()
    return Pointer(offset, array.nbytes)


def get(device: Device, offset: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    target = np.full(count * np.dtype(dtype).itemsize, 0xEE, dtype=np.uint8)
    device.copy_out(offset, target.data)
    device.synchronize()
    return target.view(dtype)


def value(code: str, value: float) -> bytes:
    return struct.pack("<" + code, value)


def prepare(
    device: Device,
    kernel: str,
    args: Sequence[Pointer | bytes],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int = 0,
) -> Handle:
    module = device.load(code_for(device))
    return device.prepare(module, kernel, Launch(kernel, tuple(args), grid, block, shared_bytes))


def raises(expected: type[DandelionError], action: Callable[[], object]) -> None:
    try:
        action()
    except expected:
        return
    raise AssertionError(f"no {expected.__name__} was raised")
