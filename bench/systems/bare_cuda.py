"""Bare workloads on CUDA and HIP, through the same table of functions as the backends.

Contexts belong to threads, so a stream retains the device in the thread that makes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
from typing import Any

from dandelion.backends.cuda import CudaDevice
from dandelion.backends.gpu.calls import Calls
from dandelion.backends.gpu.compiling import CodeCache, compiled, default_folder
from dandelion.backends.gpu.source import CodeFormat, LoadedCode, with_header
from dandelion.backends.hip import HipDevice

from dandelion.errors import BackendUnavailable, DeviceFault
from dandelion.function import digest_of
from dandelion.memory.lease import address_of

from ..processes import Closeable
from .bare import BareDevice, BareLaunch, BareStream, Workload

_DEVICES = {"cuda": CudaDevice, "hip": HipDevice}


def device(backend: str) -> BareDevice:
    """Open device 0 of ``cuda`` or ``hip``."""
    return BareCudaLike(backend)


class CheckedCalls:
    """A table of functions of which every failure is an error."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.calls: Calls = _DEVICES[backend].calls()

    def do(self, operation: str, answer: tuple[Any, ...]) -> Any:
        """Give the result of a call.

        Raises:
            DeviceFault: it failed.
        """
        if answer[0]:
            raise DeviceFault(f"bare {self.backend}", operation, self.calls.describe(answer[0]))
        return answer[1] if len(answer) > 1 else None


class BareCudaLike(BareDevice):
    """Device 0 of ``cuda`` or ``hip``.

    Raises:
        BackendUnavailable: the binding or the device is missing.
    """

    graphs = True

    def __init__(self, backend: str) -> None:
        self.checked = CheckedCalls(backend)
        calls = self.checked.calls
        try:
            self.checked.do("initialize", calls.initialize(0))
            self.checked.do("open", calls.retain(0))
        except (DeviceFault, RuntimeError) as error:  # the binding found no library
            remedy = _DEVICES[backend].remedy
            raise BackendUnavailable(backend, str(error), remedy) from None
        self.arch: str = self.checked.do("open", calls.archs(0))[0]
        units = calls.device_attribute(calls.attributes.compute_units, 0)
        self.compute_units = int(self.checked.do("attribute", units))
        self._open = True

    def stream(self, work: Workload, *, graph: bool = False) -> BareStream:
        return CudaLikeStream(self.checked, self.arch, work, graph)

    def close(self) -> None:
        if self._open:
            self._open = False
            self.checked.calls.release(0)


class CudaLikeStream(BareStream):
    """One stream; see `BareStream`."""

    def __init__(self, checked: CheckedCalls, arch: str, work: Workload, graph: bool) -> None:
        self.work = work
        self._do = checked.do
        self._calls = calls = checked.calls
        self._packed: list[Any] = []  # memory of packed arguments
        self._closing = contextlib.ExitStack()
        self._do("open", calls.retain(0))
        self._closing.callback(calls.release, 0)
        try:
            self.stream = self._do("stream", calls.create_stream(1))
            self._closing.callback(calls.destroy_stream, self.stream)
            self._prepare(self._do("load", calls.load_module(self._binary(arch))))
            self._graph = self._captured() if graph else None
        except BaseException:
            self.close()
            raise

    def _prepare(self, module: Any) -> None:
        work = self.work
        self._closing.callback(self._calls.unload_module, module)
        self._places = {name: self._memory(size) for name, size in work.buffers.items()}
        self.source = self._pinned(work.buffers[work.entry])
        self.target = self._pinned(work.buffers[work.result])
        self.zero()
        for name, content in work.constants.items():
            place = self._places[name][1]
            self._do("copy", self._calls.copy_in(place, content, len(content), self.stream))
        self.wait()
        self._entry, self._result = self._places[work.entry][1], self._places[work.result][1]
        self._launches = [self._launch(module, step) for step in work.steps] * work.times

    def _binary(self, arch: str) -> bytes:
        name = f"{self.work.name}.c"
        data = with_header(self.work.source, name).encode()
        code = LoadedCode(name, CodeFormat.PORTABLE, data, digest_of(data))
        folder = default_folder()
        cache = None if folder is None else CodeCache(folder)
        binary: bytes = compiled(self._calls.compiler, code, arch, cache)
        return binary

    def _memory(self, size_bytes: int) -> tuple[int, Any]:
        """Allocate device memory; give its address as a number and as the binding takes it."""
        address = int(self._do("allocate", self._calls.allocate(size_bytes)))
        place = self._calls.pointer(address)
        self._closing.callback(self._calls.free, place)
        return address, place

    def _pinned(self, size_bytes: int) -> memoryview:
        """Give host memory that is registered with the device, in whole pages."""
        whole = memoryview(mmap.mmap(-1, size_bytes))
        address, pages = address_of(whole), -(-size_bytes // mmap.PAGESIZE)
        self._do("register", self._calls.host_register(address, pages * mmap.PAGESIZE, 0))
        self._closing.callback(self._calls.host_unregister, address)
        return whole[:size_bytes]

    def _launch(self, module: Any, step: BareLaunch) -> tuple[Any, ...]:
        kernel = self._do("kernel", self._calls.get_kernel(module, step.kernel.encode()))
        values = [self._places[a][0] if isinstance(a, str) else a for a in step.arguments]
        slots = [ctypes.c_uint64(value) for value in values]
        pointers = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(s) for s in slots))
        self._packed += (slots, pointers)
        return (kernel, *step.grid, *step.block, 0, self.stream, ctypes.addressof(pointers), 0)

    def _captured(self) -> Any:
        calls, do = self._calls, self._do
        do("capture", calls.begin_capture(self.stream))
        self._launch_all()
        graph = do("capture", calls.end_capture(self.stream))
        executable = do("instantiate", calls.instantiate(graph))
        self._closing.callback(calls.destroy_executable, executable)
        do("capture", calls.destroy_graph(graph))
        do("upload", calls.upload(executable, self.stream))
        self.wait()
        return executable

    def _launch_all(self) -> None:
        launch = self._calls.launch
        for arguments in self._launches:
            error = launch(*arguments)[0]
            if error:
                self._do("launch", (error,))

    def enqueue(self) -> None:
        calls, do, stream = self._calls, self._do, self.stream
        do("copy in", calls.copy_in(self._entry, self.source, self.source.nbytes, stream))
        if self._graph is None:
            self._launch_all()
        else:
            do("replay", calls.replay(self._graph, stream))
        do("copy out", calls.copy_out(self.target, self._result, self.target.nbytes, stream))

    def wait(self) -> None:
        self._do("wait", self._calls.synchronize(self.stream))

    def zero(self) -> None:
        """Enqueue what an engine does after a call: zero the memory that it used."""
        for name, (_, place) in self._places.items():
            if name not in self.work.constants:
                size = self.work.buffers[name]
                self._do("zero", self._calls.fill(place, 0, size, self.stream))

    def go_and_zero(self) -> None:
        """Run the workload, and enqueue the zeroing that an engine would do."""
        self.go()
        self.zero()

    def close(self) -> None:
        self._closing.close()


class VendorMemory(Closeable):
    """Memory of the device and pinned memory of the host, from CUDA's own functions.

    Copies from an arena and an engine's zeroing are compared with it.

    Args:
        size_bytes: of the memory on the device; a multiple of 4.
        host_bytes: of the memory on the host, at most as much; 0 for none.

    A context has to be current.
    """

    def __init__(self, size_bytes: int, host_bytes: int = 0) -> None:
        self._cu: Any = importlib.import_module("cuda.bindings.driver")
        self._size_bytes, self._host_bytes = size_bytes, host_bytes
        self._closing = contextlib.ExitStack()
        try:
            self._stream = self._do(self._cu.cuStreamCreate(1))
            self._closing.callback(self._cu.cuStreamDestroy, self._stream)
            self._place = self._do(self._cu.cuMemAlloc(size_bytes))
            self._closing.callback(self._cu.cuMemFree, self._place)
            if host_bytes:
                self._host = self._do(self._cu.cuMemHostAlloc(host_bytes, 0))
                self._closing.callback(self._cu.cuMemFreeHost, self._host)
        except BaseException:
            self.close()
            raise

    def _do(self, answer: tuple[Any, ...]) -> Any:
        if int(answer[0]):
            raise DeviceFault("bare cuda", "memory", str(answer[0]))
        return answer[1] if len(answer) > 1 else None

    def copy_in(self) -> None:
        """Copy all of the host's memory to the device, and wait."""
        size = self._host_bytes
        self._do(self._cu.cuMemcpyHtoDAsync(self._place, self._host, size, self._stream))
        self._do(self._cu.cuStreamSynchronize(self._stream))

    def zero(self) -> None:
        """Fill all of the device's memory with zero words, and wait."""
        self._do(self._cu.cuMemsetD32Async(self._place, 0, self._size_bytes // 4, self._stream))
        self._do(self._cu.cuStreamSynchronize(self._stream))

    def close(self) -> None:
        self._closing.close()
