"""The HIP backend: AMD devices, through ``hip-python``.

All that CUDA and HIP share is in `.gpu.cudalike`; this file names HIP's functions, in the order of
``cuda.py``. What differs beyond names: the process's reference to a device is not counted, so
nothing is released; a kernel's parameters are read from the code object; constants are only kept on
the device where the setting ``weights`` says so, since it is not verified that AMD's devices
enforce the protection of mapped memory.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, ClassVar

from dandelion.blueprint.operation_calls import ConvolutionCall, GemmCall
from dandelion.driver import Driver
from dandelion.errors import BackendUnavailable

from .gpu.calls import Attributes, Calls, Compiler, LibrarySite
from .gpu.cublaslt import WORKSPACE_BYTES, CublasLt
from .gpu.cublaslt_binding import Binding
from .gpu.cudalike import CudaLikeDevice
from .gpu.cudalike_driver import CudaLikeDriver
from .gpu.device import Protection
from .gpu.hipblaslt_binding import load as load_hipblaslt
from .gpu.lowering import Library
from .gpu.miopen import Miopen
from .gpu.miopen_binding import load as load_miopen
from .gpu.source import CodeFormat

_REMEDY = "pip install 'dandelion-engine[hip]', and ROCm"


def driver() -> Driver:
    """Give this backend's driver."""
    return HipDriver()


class HipDevice(CudaLikeDevice):
    """One AMD device."""

    backend: ClassVar[str] = "hip"
    formats: ClassVar[tuple[str, ...]] = (
        CodeFormat.HSACO,
        CodeFormat.PORTABLE,
        CodeFormat.HIP,
    )
    remedy: ClassVar[str] = _REMEDY

    @classmethod
    def calls(cls) -> Calls:
        """Load the binding; see `CudaLikeDevice.calls`."""
        return _calls(_import("hip.hip"), _import("hip._util.types"))

    @classmethod
    def compiler(cls) -> Compiler:
        return _compiler()


class HipDriver(CudaLikeDriver):
    """AMD devices."""

    name: ClassVar[str] = "hip"
    device_class: ClassVar[type[CudaLikeDevice]] = HipDevice
    trusts_protection: ClassVar[bool] = False
    workspace_bytes: ClassVar[int] = WORKSPACE_BYTES


def _import(name: str) -> Any:  # the binding's names are only known once it is loaded
    package, _, module = name.partition(".")
    try:
        found: Any = importlib.import_module(package)
        for part in module.split("."):  # newer packages hand on modules that lie elsewhere
            found = getattr(found, part, None) or importlib.import_module(name)
        return found
    except ImportError as error:
        raise BackendUnavailable("hip", f"hip-python: {error}", _REMEDY) from None


def _text(found: Any) -> str:
    return found.decode() if isinstance(found, bytes) else str(found)


class _Adapted:
    """Functions of HIP whose arguments or answers differ from those of `Calls`."""

    def __init__(self, hip: Any) -> None:
        self._hip = hip
        self._protections = {
            Protection.NONE: hip.hipMemAccessFlags.hipMemAccessFlagsProtNone,
            Protection.READ: hip.hipMemAccessFlags.hipMemAccessFlagsProtRead,
            Protection.WRITE: hip.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite,
        }

    def describe(self, error: Any) -> str:
        return getattr(error, "name", f"error {int(error)}")

    def device_name(self, ordinal: int) -> tuple[Any, ...]:
        error, found = self._properties(ordinal)
        return (error,) if error else (error, _text(found.name))

    def archs(self, ordinal: int) -> tuple[Any, ...]:
        error, found = self._properties(ordinal)
        if error:
            return (error,)
        whole = _text(found.gcnArchName)
        return error, (whole.partition(":")[0], *([whole] if ":" in whole else []))

    def _properties(self, ordinal: int) -> Any:
        found = self._hip.hipDeviceProp_t()
        try:
            (error,) = self._hip.hipGetDeviceProperties(found, ordinal)
        except TypeError:  # newer packages give it back
            return self._hip.hipGetDeviceProperties(ordinal)
        return error, found

    def last_captured(self, stream: Any) -> tuple[Any, ...]:
        nodes = ctypes.POINTER(ctypes.c_void_p)()
        answer = self._hip.hipStreamGetCaptureInfo_v2(stream, ctypes.addressof(nodes))
        if answer[0]:
            return (answer[0],)
        return answer[0], nodes[0]  # what it captures next waits for it alone

    def node(self, *launch: Any) -> tuple[Any, ...]:
        made = self._hip.hipKernelNodeParams()
        made.func, *numbers, _, made.kernelParams, _ = launch
        for name, sizes in (("gridDim", numbers[:3]), ("blockDim", numbers[3:6])):
            size = getattr(made, name)
            size.x, size.y, size.z = sizes
        made.sharedMemBytes = numbers[6]
        return 0, made

    def granularity(self, ordinal: int) -> Any:
        kinds = self._hip.hipMemAllocationGranularity_flags
        smallest = kinds.hipMemAllocationGranularityMinimum
        return self._hip.hipMemGetAllocationGranularity(self._memory_of(ordinal), smallest)

    def create(self, size: int, ordinal: int, _exports: bool) -> Any:
        return self._hip.hipMemCreate(size, self._memory_of(ordinal), 0)

    def _memory_of(self, ordinal: int) -> Any:
        wanted = self._hip.hipMemAllocationProp()
        wanted.type = self._hip.hipMemAllocationType.hipMemAllocationTypePinned
        wanted.location.type = self._hip.hipMemLocationType.hipMemLocationTypeDevice
        wanted.location.id = ordinal
        return wanted

    def protect(self, address: Any, size: int, ordinal: int, protection: Protection) -> Any:
        wanted = self._hip.hipMemAccessDesc()
        wanted.location.type = self._hip.hipMemLocationType.hipMemLocationTypeDevice
        wanted.location.id = ordinal
        wanted.flags = self._protections[protection]
        return self._hip.hipMemSetAccess(address, size, wanted, 1)


def _attributes(hip: Any) -> Attributes:
    device, kernel = hip.hipDeviceAttribute_t, hip.hipFunction_attribute
    return Attributes(
        compute_units=device.hipDeviceAttributeMultiprocessorCount,
        unit_threads=device.hipDeviceAttributeMaxThreadsPerMultiProcessor,
        block_threads=device.hipDeviceAttributeMaxThreadsPerBlock,
        grid=(
            device.hipDeviceAttributeMaxGridDimX,
            device.hipDeviceAttributeMaxGridDimY,
            device.hipDeviceAttributeMaxGridDimZ,
        ),
        shared_bytes=device.hipDeviceAttributeMaxSharedMemoryPerBlock,
        shared_most_bytes=device.hipDeviceAttributeSharedMemPerBlockOptin,
        virtual_memory=device.hipDeviceAttributeVirtualMemoryManagementSupported,
        kernel_threads=kernel.HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        kernel_shared_bytes=kernel.HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        kernel_dynamic_bytes=hip.hipFuncAttribute.hipFuncAttributeMaxDynamicSharedMemorySize,
    )


def _calls(hip: Any, types: Any) -> Calls:
    adapted = _Adapted(hip)
    relaxed = hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
    limit = hip.hipLimit_t
    return Calls(
        initialize=hip.hipInit,
        count=hip.hipGetDeviceCount,
        device_name=adapted.device_name,
        total_memory=hip.hipDeviceTotalMem,
        archs=adapted.archs,
        device_attribute=hip.hipDeviceGetAttribute,
        memory_info=hip.hipMemGetInfo,
        attributes=_attributes(hip),
        describe=adapted.describe,
        version=hip.hipDriverGetVersion,
        retain=hip.hipSetDevice,
        release=lambda ordinal: (0,),
        set_heap_limit=lambda size: hip.hipDeviceSetLimit(limit.hipLimitMallocHeapSize, size),
        set_print_limit=lambda size: hip.hipDeviceSetLimit(limit.hipLimitPrintfFifoSize, size),
        pointer=types.Pointer.fromObj,
        allocate=hip.hipMalloc,
        free=hip.hipFree,
        host_register=hip.hipHostRegister,
        host_unregister=hip.hipHostUnregister,
        copy_in=hip.hipMemcpyHtoDAsync,
        copy_out=hip.hipMemcpyDtoHAsync,
        copy_within=hip.hipMemcpyDtoDAsync,
        fill=hip.hipMemsetD8Async,
        granularity=adapted.granularity,
        reserve=lambda size: hip.hipMemAddressReserve(size, 0, None, 0),
        unreserve=hip.hipMemAddressFree,
        create=adapted.create,
        destroy=hip.hipMemRelease,
        map=lambda address, size, memory: hip.hipMemMap(address, size, 0, memory, 0),
        unmap=hip.hipMemUnmap,
        protect=adapted.protect,
        load_module=hip.hipModuleLoadData,
        unload_module=hip.hipModuleUnload,
        get_kernel=hip.hipModuleGetFunction,
        kernel_attribute=hip.hipFuncGetAttribute,
        set_kernel_attribute=hip.hipFuncSetAttribute,
        parameter=None,
        create_stream=hip.hipStreamCreateWithFlags,
        destroy_stream=hip.hipStreamDestroy,
        wait_event=lambda stream, event: hip.hipStreamWaitEvent(stream, event, 0),
        synchronize=hip.hipStreamSynchronize,
        launch=hip.hipModuleLaunchKernel,
        begin_capture=lambda stream: hip.hipStreamBeginCapture(stream, relaxed),
        end_capture=hip.hipStreamEndCapture,
        last_captured=adapted.last_captured,
        node=adapted.node,
        set_node=hip.hipGraphExecKernelNodeSetParams,
        instantiate=lambda graph: hip.hipGraphInstantiateWithFlags(graph, 0),
        upload=hip.hipGraphUpload,
        replay=hip.hipGraphLaunch,
        destroy_graph=hip.hipGraphDestroy,
        destroy_executable=hip.hipGraphExecDestroy,
        create_event=hip.hipEventCreateWithFlags,
        record=hip.hipEventRecord,
        wait=hip.hipEventSynchronize,
        destroy_event=hip.hipEventDestroy,
        compiler=_compiler(),
        libraries={
            GemmCall: lambda site: _library(site, load_hipblaslt, CublasLt),
            ConvolutionCall: lambda site: _library(site, load_miopen, Miopen),
        },
    )


def _library(
    site: LibrarySite,
    load: Callable[[], Binding | None],
    make: Callable[[Binding, LibrarySite], Library],
) -> Library | None:
    binding = load()
    return None if binding is None else make(binding, site)


def _compiler() -> Compiler:
    return Compiler(
        load=lambda: _import("hip.hiprtc"),
        prefix="hiprtc",
        code="Code",
        options=lambda arch: (f"--offload-arch={arch}".encode(), b"-std=c++17"),
        headers=lambda: (),
        reference=lambda program: program.createRef(),
    )
