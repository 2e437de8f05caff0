"""What devices do that compile portable sources. `LANGUAGE_CHECKS` is run by tests of devices."""

from __future__ import annotations

import numpy as np

from dandelion.blueprint import Code, Module
from dandelion.errors import DandelionError, InvalidBlueprint

from .conformance_kernels import (
    Check,
    get,
    prepare,
    put,
    raises,
    value,
)
from .device import Device
from .plan import Pointer
from .source import choose


def check_scalars(device: Device) -> None:
    """Every type of value arrives."""
    codes, values = (
        "bhiqBHIQfd",
        (-5, -300, -70000, -(2**40), 200, 60000, 2**31, 2**50, 0.5, -1e300),
    )
    out = put(device, 0, np.zeros(10))
    args = [value(c, v) for c, v in zip(codes, values, strict=True)]
    device.launch([prepare(device, "scalars", (out, *args), (1, 1, 1), (1, 1, 1))])
    assert get(device, 0, 10, np.float64).tolist() == [float(v) for v in values]


def check_coordinates(device: Device) -> None:
    """Every thread has its coordinates, in three dimensions."""
    grid, block = (2, 3, 4), (4, 2, 1)
    threads = int(np.prod(grid) * np.prod(block))
    out = put(device, 0, np.zeros(12 * threads, dtype=np.uint32))
    device.launch([prepare(device, "coordinates", (out,), grid, block)])
    found = get(device, 0, 12 * threads, np.uint32).reshape(threads, 4, 3)
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
    place = put(device, 256, x)
    launch = prepare(device, "reverse_blocks", (place,), (4, 1, 1), (64, 1, 1), 64 * 4)
    device.launch([launch])
    expected = x.reshape(4, 64)[:, ::-1].reshape(-1)
    assert (get(device, 256, 256, np.int32) == expected).all()


def check_atomics(device: Device) -> None:
    """Atomic operations lose nothing."""
    sums = put(device, 0, np.zeros(2, dtype=np.uint32))
    real = put(device, 256, np.zeros(1, dtype=np.float32))
    wide = put(device, 512, np.zeros(1, dtype=np.uint64))
    device.launch([prepare(device, "count", (sums, real, wide), (16, 1, 1), (64, 1, 1))])
    assert get(device, 0, 2, np.uint32).tolist() == [1024, 1023]
    assert get(device, 256, 1, np.float32)[0] == 512.0
    assert get(device, 512, 1, np.uint64)[0] == 1024 << 32


def check_mathematics(device: Device) -> None:
    """The functions of dandelion.h are those of C, to a few units in the last place."""
    x = np.linspace(0.01, 8, 128, dtype=np.float32)
    source = put(device, 0, x)
    target = put(device, 1024, np.zeros(8 * 128, dtype=np.float32))
    launch = prepare(
        device, "mathematics", (source, target, value("Q", 128)), (1, 1, 1), (128, 1, 1)
    )
    device.launch([launch])
    found = get(device, 1024, 8 * 128, np.float32).reshape(8, 128)
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
    place = put(device, 0, x)
    device.launch([prepare(device, "halves", (place,), (3, 1, 1), (32, 1, 1))])
    expected = (x.astype(np.float32) * 2 + 1).astype(np.float16)
    assert (get(device, 0, 96, np.float16) == expected).all()


def check_arity(device: Device) -> None:
    """Too few or too many arguments are an error when the launch is prepared."""
    pointer = Pointer(0, 64)
    for args in ((pointer,), (pointer, value("i", 1), value("i", 1), value("i", 1))):
        raises(
            InvalidBlueprint,
            lambda args=args: prepare(device, "axpy", args, (1, 1, 1), (1, 1, 1)),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
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
