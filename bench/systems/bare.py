"""Work with nothing but a vendor's binding: what engines and servers are measured against.

A `Work` says what is done: a few kernels, in order, again and again, between one copy to the device
and one copy back. A `Lane` is where it is done: a stream of its own, memory that was allocated
beforehand, arguments that were packed beforehand, host memory that the device copies from at full
speed. A loop over `Lane.go` is the least that a program in Python can do; there is no isolation, no
zeroing and no scheduling.

A `Work` crosses into the process of the dedicated server as MessagePack, so it is plain data.
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

from ..closing import Closing

MATMUL_BYTES = matmul.SIDE * matmul.SIDE * 8
IMAGE_BYTES = SIDE * SIDE * 4
POOLED_BYTES = IMAGE_BYTES // 4

_MODULES = {"cuda": "bare_cuda", "hip": "bare_cuda", "opencl": "bare_opencl"}
"""Modules of this folder that have `device`, by backend; loaded when they are asked for."""

TICK = """
#include "dandelion.h"
KERNEL void tick(GLOBAL i64 *x) { if (GLOBAL_ID(0) == 0) x[0] += 1; }
"""


class Step(msgspec.Struct, frozen=True):
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


class Work(msgspec.Struct, frozen=True):
    """What is done for each request.

    Attributes:
        name: for people and paths.
        source: of all kernels, against ``dandelion.h``.
        buffers: sizes in bytes, by name.
        constants: buffers that are filled once, when the lane is made.
        entry: the buffer that a request's bytes are copied to.
        result: the buffer whose bytes are the reply.
        steps: the launches.
        times: how often all steps are done.
    """

    name: str
    source: str
    buffers: dict[str, int]
    entry: str
    result: str
    steps: tuple[Step, ...]
    times: int = 1
    constants: dict[str, bytes] = {}

    @property
    def launches(self) -> int:
        """How many launches one request takes."""
        return len(self.steps) * self.times


def matmul_work() -> Work:
    """Multiply a matrix [128, 128] int64 by its transpose, as the function `multiply` does."""
    side = -(-matmul.SIDE // matmul.BLOCK)
    step = Step("matmul", ("A", MATMUL_BYTES, "B"), (side, side, 1), (matmul.BLOCK,) * 2 + (1,))
    source = (matmul.HERE / "matmul.c").read_text()
    buffers = {"A": MATMUL_BYTES, "B": MATMUL_BYTES}
    return Work("matmul", source, buffers, "A", "B", (step,))


def inference_work(repetitions: int, batch: int = 1) -> Work:
    """Do what the function `layer` does, on images [batch, 224, 224] float32."""
    whole = batch * IMAGE_BYTES

    def step(kernel: str, source: str, result: str, side: int, *between: str) -> Step:
        arguments = (source, whole, *between, result, SIDE, SIDE)
        return Step(kernel, arguments, (side, side, batch), (32, 32, 1))

    steps = (
        step("convolution", "images", "convolved", SIDE // 32, "filter"),
        step("relu", "convolved", "activated", SIDE // 32),
        step("max_pool", "activated", "pooled", -(-SIDE // 64)),
    )
    buffers = {
        "images": whole,
        "filter": FILTER_SIDE * FILTER_SIDE * 4,
        "convolved": whole,
        "activated": whole,
        "pooled": batch * POOLED_BYTES,
    }
    constants = {"filter": filter_weights().tobytes()}
    source = (inference.HERE / "layer.c").read_text()
    name = f"inference_{repetitions}_{batch}"
    return Work(name, source, buffers, "images", "pooled", steps, repetitions, constants)


def ticks_work(times: int) -> Work:
    """Add 1 to an int64 so many times, each with a launch of one block."""
    step = Step("tick", ("x",), (1, 1, 1), (32, 1, 1))
    return Work(f"ticks_{times}", TICK, {"x": 8}, "x", "x", (step,), times)


class Lane(Closing):
    """Where a `Work` is done, one request at a time, by the thread that made it.

    Attributes:
        work: what.
        source: host memory that a request's bytes are put into.
        target: host memory that has the reply's bytes after `go`.
    """

    work: Work
    source: memoryview
    target: memoryview

    @abc.abstractmethod
    def enqueue(self) -> None:
        """Ask for everything: copy in, launch, copy out."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until all that was asked for is done."""

    def go(self) -> None:
        """Do the work, from `source` to `target`."""
        self.enqueue()
        self.wait()

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""

    def run(self, body: bytes | bytearray | memoryview) -> bytes:
        """Do the work for a request's bytes, which must be exactly as many as `entry` has."""
        self.source[:] = body
        self.go()
        return bytes(self.target)


class BareDevice(Closing):
    """A device, opened by its binding alone.

    Attributes:
        graphs: whether lanes can replay their launches as one graph.
    """

    graphs: bool

    @abc.abstractmethod
    def lane(self, work: Work, *, graph: bool = False) -> Lane:
        """Compile, allocate and pack everything, in the thread that will use it.

        Args:
            work: what is to be done.
            graph: replay the launches as one graph instead of launching one by one.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let the device go; its lanes are closed. May be called twice."""


def bare_device(backend: str) -> BareDevice:
    """Open the first device of a backend.

    Args:
        backend: ``cuda``, ``hip`` or ``opencl``.

    Raises:
        BackendUnavailable: its binding or its device is missing.
    """
    module = importlib.import_module(f"{__package__}.{_MODULES[backend]}")
    made: BareDevice = module.device(backend)
    return made


def agrees(work: Work, body: bytes, reply: bytes) -> bool:
    """Whether a reply of `matmul_work` or `inference_work` is what numpy gives."""
    if work.entry == "A":
        given = {"A": np.frombuffer(body, np.int64).reshape(matmul.SIDE, matmul.SIDE)}
        side = (matmul.SIDE, matmul.SIDE)
        found = {"B": np.frombuffer(reply, np.int64).reshape(side)}
        return bool(matmul.agrees(found, matmul.expected(given)))
    images = {"images": np.frombuffer(body, np.float32).reshape(-1, SIDE, SIDE)}
    pooled = {"pooled": np.frombuffer(reply, np.float32).reshape(-1, SIDE // 2, SIDE // 2)}
    return bool(inference.agrees(pooled, inference.expected(images)))


def example_body(work: Work, seed: int = 1) -> bytes:
    """Draw a request's bytes for `matmul_work` or `inference_work`."""
    if work.entry == "A":
        drawn: Mapping[str, object] = matmul.example_inputs(seed)
        return np.asarray(drawn["A"]).tobytes()
    batch = work.buffers["images"] // IMAGE_BYTES
    return np.asarray(inference.example_inputs(seed, 1, batch)["images"]).tobytes()
