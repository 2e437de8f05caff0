"""Bare workloads on OpenCL, without graphs and pinned memory."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from dandelion.backends.gpu import pocl
from dandelion.backends.gpu.source import with_header

from dandelion.errors import BackendUnavailable

from .bare import BareDevice, BareLaunch, BareStream, Workload


def device(backend: str) -> BareDevice:
    """Open the first OpenCL device."""
    return BareOpenCl()


class BareOpenCl(BareDevice):
    """The first OpenCL device, GPUs before processors.

    Raises:
        BackendUnavailable: the binding or the device is missing.
    """

    graphs = False

    def __init__(self) -> None:
        pocl.prepare_environment()
        try:
            self.cl: Any = importlib.import_module("pyopencl")
            devices = [d for p in self.cl.get_platforms() for d in p.get_devices()]
        except Exception as error:  # no binding, or whatever it raises without a platform
            raise BackendUnavailable("opencl", str(error), "pip install pyopencl[pocl]") from None
        if not devices:
            raise BackendUnavailable("opencl", "no device", "pip install pyopencl[pocl]")
        device = min(devices, key=lambda d: not d.type & self.cl.device_type.GPU)
        pocl.repair_cpu(device.int_ptr, device.version)
        self.compute_units = int(device.max_compute_units)
        self.context: Any = self.cl.Context([device])

    def stream(self, work: Workload, *, graph: bool = False) -> BareStream:
        if graph:
            raise BackendUnavailable("opencl", "it has no graphs", "use cuda or hip")
        return OpenClStream(self, work)

    def close(self) -> None:
        self.context = None


class OpenClStream(BareStream):
    """One queue, with its own kernel objects, whose arguments are set once."""

    def __init__(self, device: BareOpenCl, work: Workload) -> None:
        self.work = work
        self._cl = cl = device.cl
        self._queue = cl.CommandQueue(device.context)
        self._places: dict[str, Any] = {}
        for name, size in work.buffers.items():
            content = np.frombuffer(work.constants.get(name, bytes(size)), np.uint8)
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            self._places[name] = cl.Buffer(device.context, flags, hostbuf=content)
        self.source = memoryview(bytearray(work.buffers[work.entry]))
        self.target = memoryview(bytearray(work.buffers[work.result]))
        text = with_header(work.source, f"{work.name}.c")
        program = cl.Program(device.context, text).build(["-cl-std=CL1.2"])
        launches = [self._launch(program, step) for step in work.steps]
        self._launches: list[tuple[Any, ...]] = launches * work.times

    def _launch(self, program: Any, step: BareLaunch) -> tuple[Any, ...]:
        kernel = self._cl.Kernel(program, step.kernel)
        for index, given in enumerate(step.arguments):
            place = self._places[given] if isinstance(given, str) else given.to_bytes(8, "little")
            kernel.set_arg(index, place)
        size = tuple(g * b for g, b in zip(step.grid, step.block, strict=True))
        return kernel, size, step.block

    def enqueue(self) -> None:
        cl, queue = self._cl, self._queue
        entry, result = self._places[self.work.entry], self._places[self.work.result]
        cl.enqueue_copy(queue, entry, self.source, is_blocking=False)
        launch = cl.enqueue_nd_range_kernel
        for kernel, size, block in self._launches:
            launch(queue, kernel, size, block)
        cl.enqueue_copy(queue, self.target, result, is_blocking=False)

    def wait(self) -> None:
        self._queue.finish()

    def close(self) -> None:
        if self._queue is not None:
            self._queue.finish()
        self._queue = None
        self._places.clear()
        self._launches.clear()
