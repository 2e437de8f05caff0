"""Workloads with nothing but a vendor's binding: what engines and servers are compared with.

A `Workload` is a few kernels, launched in order, repeatedly, between one copy to the device and one
copy back. A `BareStream` runs it with memory, arguments and host buffers that were prepared
beforehand. A loop over `BareStream.go` is the least that a program in Python can do: there is no
isolation, no zeroing and no scheduling.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Mapping

import msgspec
import numpy as np
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.inference.oracle import FILTER_SIDE, SIDE, filter_weights
from dandelion.compositions.matmul import bundle as matmul

from ..processes import Closeable

IMAGE_BYTES = SIDE * SIDE * 4
_MATRIX_BYTES = matmul.SIDE * matmul.SIDE * 8
_MODULES = {"cuda": "bare_cuda", "hip": "bare_cuda", "opencl": "bare_opencl"}

TICK = """
#include "dandelion.h"
KERNEL void tick(GLOBAL i64 *x) { if (GLOBAL_ID(0) == 0) x[0] += 1; }
"""


class BareLaunch(msgspec.Struct, frozen=True):
    """One launch.

    Attributes:
        kernel: its symbol.
        arguments: a text is the address of that buffer, a number is passed as 64 bits.
        grid, block: in blocks and threads.
    """

    kernel: str
    arguments: tuple[str | int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


class Workload(msgspec.Struct, frozen=True):
    """What each request does; plain data, since it is sent to other processes.

    Attributes:
        name: for people and paths.
        source: of all kernels, against ``dandelion.h``.
        buffers: sizes in bytes, by name.
        entry, result: the buffers of a request's bytes, and of the reply's.
        steps: the launches, which are all repeated `times` times.
        constants: buffers that are filled once.
    """

    name: str
    source: str
    buffers: dict[str, int]
    entry: str
    result: str
    steps: tuple[BareLaunch, ...]
    times: int = 1
    constants: dict[str, bytes] = {}


def matmul_work() -> Workload:
    """Multiply a matrix [128, 128] int64 by its transpose, as the function `multiply` does."""
    side = -(-matmul.SIDE // matmul.BLOCK)
    block = (matmul.BLOCK, matmul.BLOCK, 1)
    step = BareLaunch("matmul", ("A", _MATRIX_BYTES, "B"), (side, side, 1), block)
    source = (matmul.HERE / "matmul.c").read_text()
    return Workload("matmul", source, dict.fromkeys("AB", _MATRIX_BYTES), "A", "B", (step,))


def inference_work(repetitions: int, batch: int = 1) -> Workload:
    """Run the function `layer` on images [batch, 224, 224] float32."""
    whole = batch * IMAGE_BYTES

    def step(kernel: str, source: str, result: str, side: int, *between: str) -> BareLaunch:
        arguments = (source, whole, *between, result, SIDE, SIDE)
        return BareLaunch(kernel, arguments, (side, side, batch), (32, 32, 1))

    steps = (
        step("convolution", "images", "convolved", SIDE // 32, "filter"),
        step("relu", "convolved", "activated", SIDE // 32),
        step("max_pool", "activated", "pooled", -(-SIDE // 64)),
    )
    buffers = dict.fromkeys(("images", "convolved", "activated"), whole)
    buffers |= {"filter": FILTER_SIDE * FILTER_SIDE * 4, "pooled": whole // 4}
    constants = {"filter": filter_weights().tobytes()}
    source = (inference.HERE / "layer.c").read_text()
    name = f"inference_{repetitions}_{batch}"
    return Workload(name, source, buffers, "images", "pooled", steps, repetitions, constants)


def ticks_work(times: int) -> Workload:
    """Add 1 to an int64 `times` times, each with a launch of one block."""
    step = BareLaunch("tick", ("x",), (1, 1, 1), (32, 1, 1))
    return Workload(f"ticks_{times}", TICK, {"x": 8}, "x", "x", (step,), times)


class BareStream(Closeable):
    """Runs a workload, one request at a time, from the thread that made it.

    Attributes:
        source: host memory for a request's bytes.
        target: host memory with the reply's bytes after `go`.
    """

    work: Workload
    source: memoryview
    target: memoryview

    @abc.abstractmethod
    def enqueue(self) -> None:
        """Enqueue everything: copy in, launch, copy out."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until everything is done."""

    def go(self) -> None:
        """Run the workload, from `source` to `target`."""
        self.enqueue()
        self.wait()

    def run(self, body: bytes | bytearray | memoryview) -> bytes:
        """Run the workload for a request's bytes, which must be as many as `entry` has."""
        self.source[:] = body
        self.go()
        return bytes(self.target)


class BareDevice(Closeable):
    """A device, opened by its binding alone.

    Attributes:
        graphs: whether streams can replay their launches as one graph.
        compute_units: how many it has.
    """

    graphs: bool
    compute_units: int

    @abc.abstractmethod
    def stream(self, work: Workload, *, graph: bool = False) -> BareStream:
        """Compile, allocate and pack everything, in the thread that will use it.

        Args:
            graph: replay the launches as one graph instead of launching one by one.
        """


def bare_device(backend: str) -> BareDevice:
    """Open the first device of ``cuda``, ``hip`` or ``opencl``.

    Raises:
        BackendUnavailable: its binding or its device is missing.
    """
    module = importlib.import_module(f"{__package__}.{_MODULES[backend]}")
    device: BareDevice = module.device(backend)
    return device


def agrees(work: Workload, body: bytes, reply: bytes) -> bool:
    """Return whether a reply of `matmul_work` or `inference_work` is the result of numpy."""
    if work.entry == "A":
        side = (matmul.SIDE, matmul.SIDE)
        given, found = (np.frombuffer(data, np.int64).reshape(side) for data in (body, reply))
        return bool(matmul.agrees({"B": found}, matmul.expected({"A": given})))
    images = {"images": np.frombuffer(body, np.float32).reshape(-1, SIDE, SIDE)}
    pooled = {"pooled": np.frombuffer(reply, np.float32).reshape(-1, SIDE // 2, SIDE // 2)}
    return bool(inference.agrees(pooled, inference.expected(images)))


def example_body(work: Workload, seed: int = 1) -> bytes:
    """Draw a request's bytes for `matmul_work` or `inference_work`."""
    if work.entry == "A":
        drawn: Mapping[str, object] = matmul.example_inputs(seed)
        return np.asarray(drawn["A"]).tobytes()
    batch = work.buffers["images"] // IMAGE_BYTES
    return np.asarray(inference.example_inputs(seed, 1, batch)["images"]).tobytes()
