"""The same work with nothing but the vendor's binding: what the engine is measured against.

One context, one stream, memory allocated beforehand, arguments packed beforehand, host memory
registered. A loop over these is the least that a Python program can do.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

from dandelion.backends.cuda import CudaDevice, _calls
from dandelion.backends.gpu.compiling import compiled
from dandelion.backends.gpu.source import CodeFormat, LoadedCode, with_header

from dandelion.function import digest_of
from dandelion.memory import ArenaMap


class Bare:
    """CUDA's functions on device 0; every failure ends the benchmark."""

    def __init__(self) -> None:
        self.cu: Any = importlib.import_module("cuda.bindings.driver")
        self.do(self.cu.cuInit(0))
        self.context = self.do(self.cu.cuDevicePrimaryCtxRetain(0))
        self.do(self.cu.cuCtxSetCurrent(self.context))
        self.stream = self.do(self.cu.cuStreamCreate(1))
        self._kept: list[Any] = []

    @staticmethod
    def do(answer: tuple[Any, ...]) -> Any:
        """Give the result of a call."""
        if answer[0]:
            raise RuntimeError(f"the bare loop failed: {answer[0]!r}")
        return answer[1] if len(answer) == 2 else answer[1:]

    def kernel(self, text: str, symbol: str) -> Any:
        """Compile a portable source and give one of its kernels."""
        data = with_header(text, "bare.c").encode()
        code = LoadedCode("bare.c", CodeFormat.PORTABLE, data, digest_of(data))
        calls = _calls(self.cu)
        binary = compiled(calls.compiler, code, calls.archs(0)[1][0], None)
        module = self.do(self.cu.cuModuleLoadData(binary))
        return self.do(self.cu.cuModuleGetFunction(module, symbol.encode()))

    def memory(self, size_bytes: int) -> Any:
        """Allocate device memory."""
        return self.do(self.cu.cuMemAlloc(size_bytes))

    def arguments(self, *values: Any) -> int:
        """Pack arguments; ints are addresses or 64-bit numbers."""
        slots = [(ctypes.c_uint64)(int(v)) for v in values]
        pointers = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(s) for s in slots))
        self._kept += (slots, pointers)
        return ctypes.addressof(pointers)

    def register(self, arena: ArenaMap) -> None:
        """Register the arena, unless an engine did so in this process."""
        error = self.cu.cuMemHostRegister(arena.address, arena.size_bytes, 0)[0]
        if error and int(error) != 712:  # registered already
            raise RuntimeError(f"the bare loop failed: {error!r}")

    def synchronize(self) -> None:
        """Wait for everything."""
        self.do(self.cu.cuStreamSynchronize(self.stream))

    def graph(self, launches: Sequence[tuple[Any, ...]]) -> Any:
        """Capture launches, each the arguments of ``cuLaunchKernel``, as one graph."""
        cu = self.cu
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.do(cu.cuStreamBeginCapture(self.stream, relaxed))
        for launch in launches:
            self.do(cu.cuLaunchKernel(*launch))
        graph = self.do(cu.cuStreamEndCapture(self.stream))
        executable = self.do(cu.cuGraphInstantiate(graph, 0))
        self.do(cu.cuGraphUpload(executable, self.stream))
        self.synchronize()
        return executable


def device_facts() -> dict[str, str]:
    """Describe the device, for the record of a result."""
    device = CudaDevice()
    device.open()
    try:
        found = device.properties()
        return {"gpu": found.description, "gpu_driver": found.details["driver"]}
    finally:
        device.close()
