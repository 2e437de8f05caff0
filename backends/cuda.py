"""The CUDA backend: NVIDIA devices, through ``cuda.bindings``.

All that CUDA and HIP share is in `.gpu.cudalike`; this file names CUDA's functions. The binding is
imported when a device is looked for or opened, the compiler when a source is first compiled.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dandelion.blueprint.operation_calls import ConvolutionCall, GemmCall
from dandelion.driver import Driver
from dandelion.errors import BackendUnavailable

from .gpu.calls import Attributes, Calls, Compiler, LibrarySite
from .gpu.cublaslt import WORKSPACE_BYTES, CublasLt
from .gpu.cublaslt_binding import Binding
from .gpu.cublaslt_binding import load as load_cublaslt
from .gpu.cudalike import CudaLikeDevice
from .gpu.cudalike_driver import CudaLikeDriver
from .gpu.cudnn import Cudnn
from .gpu.cudnn_binding import load as load_cudnn
from .gpu.device import Protection
from .gpu.lowering import Library
from .gpu.mps import MpsSharing
from .gpu.options import AUTO
from .gpu.source import CodeFormat

_REMEDY = "pip install 'dandelion-engine[cuda]', and NVIDIA's driver"
_LOG_BYTES = 16384
_PARAMETERS_SINCE = 12040
"""The first driver that gives the sizes of a kernel's parameters."""


def driver() -> Driver:
    """Give this backend's driver."""
    return CudaDriver()


class CudaDevice(CudaLikeDevice):
    """One NVIDIA device."""

    backend: ClassVar[str] = "cuda"
    formats: ClassVar[tuple[str, ...]] = (
        CodeFormat.CUBIN,
        CodeFormat.FATBIN,
        CodeFormat.PTX,
        CodeFormat.PORTABLE,
        CodeFormat.CUDA,
    )
    remedy: ClassVar[str] = _REMEDY

    @classmethod
    def calls(cls) -> Calls:
        """Load the binding; see `CudaLikeDevice.calls`."""
        return _calls(_import("driver"))

    @classmethod
    def compiler(cls) -> Compiler:
        return _compiler()


class CudaDriver(CudaLikeDriver):
    """NVIDIA devices. A further setting: ``worker_percentage``, the part of the compute units that
    each worker may use under MPS; by default all."""

    name: ClassVar[str] = "cuda"
    device_class: ClassVar[type[CudaLikeDevice]] = CudaDevice
    settings: ClassVar[Mapping[str, str]] = {
        **CudaLikeDriver.settings,
        "weights": "25%",
        "workers": AUTO,
        "worker_percentage": "",
    }
    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES

    def __init__(self) -> None:
        super().__init__()
        self._sharing = MpsSharing(self.options)


def _import(name: str) -> Any:  # the binding's names are only known once it is loaded
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise BackendUnavailable("cuda", f"cuda.bindings: {error}", _REMEDY) from None


class _Adapted:
    """Functions of the driver interface whose arguments or answers differ from those of `Calls`."""

    def __init__(self, cu: Any) -> None:
        self._cu = cu
        kinds = cu.CUmemAllocationHandleType
        self._descriptor = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        flags = cu.CUmemAccess_flags
        self._protections = {
            Protection.NONE: flags.CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Protection.READ: flags.CU_MEM_ACCESS_FLAGS_PROT_READ,
            Protection.WRITE: flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }

    def describe(self, error: Any) -> str:
        name, text = self._cu.cuGetErrorName(error), self._cu.cuGetErrorString(error)
        if name[0] or text[0]:
            return f"error {int(error)}"
        return f"{name[1].decode()} ({text[1].decode()})"

    def device_name(self, ordinal: int) -> tuple[Any, ...]:
        error, name = self._cu.cuDeviceGetName(256, ordinal)
        return (error,) if error else (error, name.partition(b"\0")[0].decode())

    def archs(self, ordinal: int) -> tuple[Any, ...]:
        keys = self._cu.CUdevice_attribute
        key = keys.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        error, major = self._cu.cuDeviceGetAttribute(key, ordinal)
        if error:
            return (error,)
        key = keys.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        error, minor = self._cu.cuDeviceGetAttribute(key, ordinal)
        return (error,) if error else (error, _archs(int(major), int(minor)))

    def retain(self, ordinal: int) -> tuple[Any, ...]:
        error, context = self._cu.cuDevicePrimaryCtxRetain(ordinal)
        if not error:
            (error,) = self._cu.cuCtxSetCurrent(context)
            if error:
                self._cu.cuDevicePrimaryCtxRelease(ordinal)
        return (error,)

    def load_module(self, data: bytes) -> Any:
        log = bytearray(_LOG_BYTES)
        keys = self._cu.CUjit_option
        buffer, size = keys.CU_JIT_ERROR_LOG_BUFFER, keys.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
        answer = self._cu.cuModuleLoadDataEx(data, 2, [buffer, size], [log, _LOG_BYTES])
        if answer[0]:
            return answer[0], bytes(log).rstrip(b"\0").decode(errors="replace")
        return answer

    def last_captured(self, stream: Any) -> tuple[Any, ...]:
        answer = self._cu.cuStreamGetCaptureInfo(stream)
        if answer[0]:
            return (answer[0],)
        (node,) = answer[4]  # what it captures next waits for it alone
        return answer[0], node

    def node(self, *launch: Any) -> tuple[Any, ...]:
        made = self._cu.CUDA_KERNEL_NODE_PARAMS()
        made.func, *numbers, _, made.kernelParams, _ = launch
        made.gridDimX, made.gridDimY, made.gridDimZ = numbers[:3]
        made.blockDimX, made.blockDimY, made.blockDimZ, made.sharedMemBytes = numbers[3:]
        return 0, made

    def granularity(self, ordinal: int) -> Any:
        kinds = self._cu.CUmemAllocationGranularity_flags
        smallest = kinds.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return self._cu.cuMemGetAllocationGranularity(self._memory_of(ordinal), smallest)

    def create(self, size: int, ordinal: int, exports: bool) -> Any:
        wanted = self._memory_of(ordinal)
        if exports:
            wanted.requestedHandleTypes = self._descriptor
        return self._cu.cuMemCreate(size, wanted, 0)

    def exported(self, memory: Any) -> Any:
        return self._cu.cuMemExportToShareableHandle(memory, self._descriptor, 0)

    def imported(self, descriptor: int) -> Any:
        return self._cu.cuMemImportFromShareableHandle(descriptor, self._descriptor)

    def _memory_of(self, ordinal: int) -> Any:
        wanted = self._cu.CUmemAllocationProp()
        wanted.type = self._cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = self._cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = ordinal
        return wanted

    def protect(self, address: Any, size: int, ordinal: int, protection: Protection) -> Any:
        wanted = self._cu.CUmemAccessDesc()
        wanted.location.type = self._cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = ordinal
        wanted.flags = self._protections[protection]
        return self._cu.cuMemSetAccess(address, size, [wanted], 1)


def _attributes(cu: Any) -> Attributes:
    device, kernel = cu.CUdevice_attribute, cu.CUfunction_attribute
    return Attributes(
        compute_units=device.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        unit_threads=device.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        block_threads=device.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        grid=(
            device.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
            device.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
            device.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        ),
        shared_bytes=device.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
        shared_most_bytes=device.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        virtual_memory=device.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        exports_memory=device.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        kernel_threads=kernel.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        kernel_shared_bytes=kernel.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        kernel_dynamic_bytes=kernel.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    )


def _calls(cu: Any) -> Calls:
    adapted = _Adapted(cu)
    relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    return Calls(
        initialize=cu.cuInit,
        count=cu.cuDeviceGetCount,
        device_name=adapted.device_name,
        total_memory=cu.cuDeviceTotalMem,
        archs=adapted.archs,
        device_attribute=cu.cuDeviceGetAttribute,
        memory_info=cu.cuMemGetInfo,
        attributes=_attributes(cu),
        describe=adapted.describe,
        version=cu.cuDriverGetVersion,
        retain=adapted.retain,
        release=cu.cuDevicePrimaryCtxRelease,
        set_heap_limit=lambda size: cu.cuCtxSetLimit(cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, size),
        set_print_limit=lambda size: cu.cuCtxSetLimit(cu.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, size),
        pointer=cu.CUdeviceptr,
        allocate=cu.cuMemAlloc,
        free=cu.cuMemFree,
        host_register=cu.cuMemHostRegister,
        host_unregister=cu.cuMemHostUnregister,
        copy_in=cu.cuMemcpyHtoDAsync,
        copy_out=cu.cuMemcpyDtoHAsync,
        copy_within=cu.cuMemcpyDtoDAsync,
        fill=cu.cuMemsetD8Async,
        granularity=adapted.granularity,
        reserve=lambda size: cu.cuMemAddressReserve(size, 0, 0, 0),
        unreserve=cu.cuMemAddressFree,
        create=adapted.create,
        destroy=cu.cuMemRelease,
        map=lambda address, size, memory: cu.cuMemMap(address, size, 0, memory, 0),
        unmap=cu.cuMemUnmap,
        protect=adapted.protect,
        exported=adapted.exported,
        imported=adapted.imported,
        load_module=adapted.load_module,
        unload_module=cu.cuModuleUnload,
        get_kernel=cu.cuModuleGetFunction,
        get_variable=cu.cuModuleGetGlobal,
        kernel_attribute=cu.cuFuncGetAttribute,
        set_kernel_attribute=cu.cuFuncSetAttribute,
        parameter=_parameter(cu),
        create_stream=cu.cuStreamCreate,
        destroy_stream=cu.cuStreamDestroy,
        wait_event=lambda stream, event: cu.cuStreamWaitEvent(stream, event, 0),
        synchronize=cu.cuStreamSynchronize,
        launch=cu.cuLaunchKernel,
        begin_capture=lambda stream: cu.cuStreamBeginCapture(stream, relaxed),
        end_capture=cu.cuStreamEndCapture,
        last_captured=adapted.last_captured,
        node=adapted.node,
        set_node=cu.cuGraphExecKernelNodeSetParams,
        instantiate=lambda graph: cu.cuGraphInstantiate(graph, 0),
        upload=cu.cuGraphUpload,
        replay=cu.cuGraphLaunch,
        destroy_graph=cu.cuGraphDestroy,
        destroy_executable=cu.cuGraphExecDestroy,
        create_event=cu.cuEventCreate,
        record=cu.cuEventRecord,
        wait=cu.cuEventSynchronize,
        destroy_event=cu.cuEventDestroy,
        compiler=_compiler(),
        libraries={
            GemmCall: lambda site: _library(cu, site, load_cublaslt, CublasLt),
            ConvolutionCall: lambda site: _library(cu, site, load_cudnn, Cudnn),
        },
    )


def _library(
    cu: Any,
    site: LibrarySite,
    load: Callable[[int], Binding | None],
    make: Callable[[Binding, LibrarySite], Library],
) -> Library | None:
    error, version = cu.cuDriverGetVersion()
    binding = None if error else load(int(version))
    return None if binding is None else make(binding, site)


def _compiler() -> Compiler:
    return Compiler(
        load=lambda: _import("nvrtc"),
        prefix="nvrtc",
        code="CUBIN",
        options=_options,
        headers=_headers,
        reference=lambda program: program,
    )


def _parameter(cu: Any) -> Any:
    try:
        error, version = cu.cuDriverGetVersion()
    except Exception as missing:  # whatever the binding raises where there is no driver
        raise BackendUnavailable("cuda", str(missing), _REMEDY) from None
    return cu.cuFuncGetParamInfo if not error and version >= _PARAMETERS_SINCE else None


def _archs(major: int, minor: int) -> tuple[str, ...]:
    """What a device of this compute capability loads: its own binaries, older ones of the same
    major number, and PTX of any earlier one."""
    own = f"{major}{minor}"
    binaries = [f"sm_{own}", *([f"sm_{own}a"] if major >= 9 else [])]
    binaries += [f"sm_{major}{m}" for m in range(minor - 1, -1, -1)]
    earlier = [(m, n) for m in range(major, 4, -1) for n in range(9, -1, -1)]
    texts = [f"compute_{m}{n}" for m, n in earlier if (m, n) <= (major, minor)]
    return (*binaries, *texts)


def _options(arch: str) -> tuple[bytes, ...]:
    own = arch + "a" if int(arch[3:]) >= 90 else arch  # with what only this architecture has
    return (f"--gpu-architecture={own}".encode(), b"--std=c++17")


def _headers() -> tuple[bytes, ...]:
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        folder = pathfinder.find_nvidia_header_directory("cudart")
    except (ImportError, AttributeError):
        return ()
    return (f"--include-path={folder}".encode(),) if folder else ()
