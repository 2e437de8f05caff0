"""A program: how fast does an engine zero its device's memory, and how long does a call take?

It opens the device itself, so that no experiment has to. It carries out a `ZeroOrder`; see
`dandelion.bench.processes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Iterator

import msgspec

from dandelion.data import Item, ItemSet
from dandelion.errors import BackendUnavailable
from dandelion.memory import HeapDomain
from dandelion.memory.lease import address_of

from ..processes import program_main, run_program
from ..samples import Samples
from ..timing import in_turns
from .bare_cuda import VendorMemory
from .echoes import GPU, echo
from .engines import LocalGpuEngine, PreparedCall, function_of

BARE, ENGINE = "bare memset", "engine"
CALL, AFTER = "call", "zeroing, after the reply"
_LIMIT_S = 240.0


class ZeroOrder(msgspec.Struct, frozen=True):
    """Input.

    Attributes:
        sizes: in bytes, zeroed alone.
        calls: in bytes, of the input of calls that are zeroed after.
        count: how often each.
        seconds: limit for each.
    """

    backend: str
    sizes: tuple[int, ...]
    calls: tuple[int, ...]
    count: int
    seconds: float


class ZeroReport(msgspec.Struct, frozen=True):
    """Output; samples by size, and by `BARE` and `ENGINE` or `CALL` and `AFTER`."""

    device: str = ""
    sizes: dict[int, dict[str, Samples]] = {}
    calls: dict[int, dict[str, Samples]] = {}
    missing: str = ""


def ask(order: ZeroOrder) -> ZeroReport:
    """Run the program. Raises as `run_program`."""
    return run_program("dandelion.bench.systems.zeroing", order, ZeroReport, _LIMIT_S)


def measure(order: ZeroOrder) -> ZeroReport:
    """Measure with an engine of this process.

    Raises:
        DandelionError: the device does not work here.
    """
    pool_bytes = 2 * max(*order.sizes, *order.calls) + (1 << 20)
    with LocalGpuEngine(order.backend, 1 << 20, pool_bytes) as local:
        sizes = {size: _zero(local, order, size) for size in order.sizes}
        calls = {size: _call(local, order, size) for size in order.calls}
        return ZeroReport(local.resource.description, sizes, calls)


def _zero(local: LocalGpuEngine, order: ZeroOrder, size: int) -> dict[str, Samples]:
    device = local.engine.device

    def ours() -> None:
        device.zero(0, size)
        device.synchronize()

    with bare_memset(order.backend, size) as bare:
        return in_turns({BARE: bare, ENGINE: ours}, count=order.count, seconds=order.seconds)


@contextlib.contextmanager
def bare_memset(backend: str, size: int) -> Iterator[Callable[[], object]]:
    """Give the vendor's own memset of memory that was allocated for it, and the wait for it."""
    if backend == "cuda":
        with VendorMemory(size) as memory:  # the engine made a context current
            yield memory.zero
    elif backend == "hip":
        raise BackendUnavailable("hip", "there is no bare memset of HIP yet")
    else:  # OpenCL on processors: device memory is host memory
        memory_map = mmap.mmap(-1, size)
        address = address_of(memoryview(memory_map))
        yield lambda: ctypes.memset(address, 0, size)


def _call(local: LocalGpuEngine, order: ZeroOrder, size: int) -> dict[str, Samples]:
    sets = (ItemSet("x", (Item("", 0, bytes([7]) * size),)),)
    domain = HeapDomain(4 * size + (1 << 20))
    prepared = PreparedCall(local.engine, domain, function_of(echo(GPU, "Echo")), sets)

    def after() -> None:
        prepared.outputs = ()
        local.engine.clean_up()
        local.engine.device.synchronize()

    prepared.call()
    result = prepared.outputs[0]
    assert result is not None
    assert result.items[0].data[0] == 7
    return in_turns({CALL: prepared.call, AFTER: after}, count=order.count, seconds=order.seconds)


if __name__ == "__main__":
    program_main(ZeroOrder, measure, lambda missing: ZeroReport(missing=missing))
