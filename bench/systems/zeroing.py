"""A program: how fast does an engine zero its device's memory, and who waits for it?

It opens the device itself, so that no experiment has to. It answers a `ZeroOrder` with a
`ZeroSeen`, see `orders`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from dandelion.backends.gpu.driver import GpuDriver
from dandelion.backends.gpu.sequential import SequentialEngine

from dandelion.data import Item, ItemSet
from dandelion.driver import Call, load_driver
from dandelion.errors import BackendUnavailable
from dandelion.memory import HeapDomain
from dandelion.memory.context import address_of

from ..histogram import HistogramRecord
from ..systems.echoes import GPU, echo, loaded
from ..timing import in_turns
from . import orders

BARE, ENGINE = "bare memset", "engine"
CALL, AFTER = "call", "zeroing, after the reply"
_LIMIT_S = 240.0


class ZeroOrder(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        backend: of the device.
        sizes: in bytes, zeroed with nothing else.
        calls: in bytes, of the input of calls that are zeroed after.
        count: how often each.
        seconds: limit for each.
    """

    backend: str
    sizes: tuple[int, ...]
    calls: tuple[int, ...]
    count: int
    seconds: float


class ZeroSeen(msgspec.Struct, frozen=True):
    """What was found; timings by size, by who did it.

    Attributes:
        device: for people.
        sizes: by `BARE` and `ENGINE`.
        calls: by `CALL` and `AFTER`.
        missing: why there is nothing.
    """

    device: str = ""
    sizes: dict[int, dict[str, HistogramRecord]] = {}
    calls: dict[int, dict[str, HistogramRecord]] = {}
    missing: str = ""


def ask(order: ZeroOrder) -> ZeroSeen:
    """Run the program. Raises as `orders.ask`."""
    return orders.ask("dandelion.bench.systems.zeroing", order, ZeroSeen, _LIMIT_S)


def measure(order: ZeroOrder) -> ZeroSeen:
    """Measure with an engine of this process.

    Raises:
        DandelionError: the device does not work here.
    """
    driver = load_driver(order.backend)
    assert isinstance(driver, GpuDriver)
    driver.configure({"pool_bytes": str(2 * max(*order.sizes, *order.calls) + (1 << 20))})
    factory = driver.factory()
    resource = factory.probe()[0]
    engine = factory.sequential(resource.name)
    with contextlib.closing(engine):
        sizes = {size: _zero(engine, order, size) for size in order.sizes}
        calls = {size: _call(engine, order, size) for size in order.calls}
    return ZeroSeen(resource.description, sizes, calls)


def _zero(engine: SequentialEngine, order: ZeroOrder, size: int) -> dict[str, HistogramRecord]:
    def ours() -> None:
        engine.device.zero(0, size)
        engine.device.synchronize()

    with bare_memset(order.backend, size) as bare:
        found = in_turns({BARE: bare, ENGINE: ours}, count=order.count, seconds=order.seconds)
    return {name: timed.as_record() for name, timed in found.items()}


@contextlib.contextmanager
def bare_memset(backend: str, size: int) -> Iterator[Callable[[], object]]:
    """Give the vendor's own memset of memory that was allocated for it, and the wait for it."""
    if backend == "cuda":
        with _cuda_memset(size) as memset:
            yield memset
    elif backend == "hip":
        raise BackendUnavailable("hip", "no bare memset of HIP is written yet")
    else:  # OpenCL on processors: device memory is host memory
        memory = mmap.mmap(-1, size)
        address = address_of(memoryview(memory))
        yield lambda: ctypes.memset(address, 0, size)


@contextlib.contextmanager
def _cuda_memset(size: int) -> Iterator[Callable[[], object]]:
    cu: Any = importlib.import_module("cuda.bindings.driver")  # an engine made a context current

    def do(answer: tuple[Any, ...]) -> Any:
        if int(answer[0]):
            raise BackendUnavailable("cuda", f"bare memset: {answer[0]}")
        return answer[1] if len(answer) > 1 else None

    stream = do(cu.cuStreamCreate(1))
    place = do(cu.cuMemAlloc(size))

    def memset() -> None:
        cu.cuMemsetD32Async(place, 0, size // 4, stream)
        do(cu.cuStreamSynchronize(stream))

    try:
        yield memset
    finally:
        cu.cuMemFree(place)
        cu.cuStreamDestroy(stream)


def _call(engine: SequentialEngine, order: ZeroOrder, size: int) -> dict[str, HistogramRecord]:
    function = loaded(echo(GPU, "Echo"))
    domain = HeapDomain(4 * size + (1 << 20))
    inputs = (ItemSet("x", (Item("", 0, bytes([7]) * size),)),)
    ids = itertools.count(1)

    def call() -> None:
        deadline = time.monotonic_ns() + 10**11
        (result,) = engine.run(Call(next(ids), function, inputs, domain, deadline))
        assert result is not None
        assert result.items[0].data[0] == 7

    def after() -> None:
        engine.clean_up()
        engine.device.synchronize()

    found = in_turns({CALL: call, AFTER: after}, count=order.count, seconds=order.seconds)
    return {name: timed.as_record() for name, timed in found.items()}


def main() -> int:
    """Answer the order."""
    return orders.answer(ZeroOrder, measure, lambda missing: ZeroSeen(missing=missing))


if __name__ == "__main__":
    sys.exit(main())
