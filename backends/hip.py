"""The HIP backend: AMD devices, through ``hip-python``.

All that CUDA and HIP share is in `.gpu.cudalike`; this file names HIP's functions, in the order of
``cuda.py``. What differs beyond names: the process's reference to a device is not counted, so
nothing is released; a kernel's parameters are read from the code object; constants are only kept on
the device where the setting ``weights`` says so, since it is not verified that AMD's devices
enforce the protection of mapped memory.
"""

from __future__ import annotations

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


def _calls(hip: Any, types: Any) -> Calls:
    device_key = hip.hipDeviceAttribute_t
    kernel_key = hip.hipFunction_attribute

    def describe(error: Any) -> str:
        return getattr(error, "name", f"error {int(error)}")

    def properties(ordinal: int) -> tuple[Any, ...]:
        found = hip.hipDeviceProp_t()
        try:
            (error,) = hip.hipGetDeviceProperties(found, ordinal)
        except TypeError:  # newer packages give it back
            return hip.hipGetDeviceProperties(ordinal)  # type: ignore[no-any-return]
        return error, found

    def device_name(ordinal: int) -> tuple[Any, ...]:
        error, found = properties(ordinal)
        return (error,) if error else (error, _text(found.name))

    def archs(ordinal: int) -> tuple[Any, ...]:
        error, found = properties(ordinal)
        if error:
            return (error,)
        whole = _text(found.gcnArchName)
        return error, (whole.partition(":")[0], *([whole] if ":" in whole else []))

    def memory_of(ordinal: int) -> Any:
        wanted = hip.hipMemAllocationProp()
        wanted.type = hip.hipMemAllocationType.hipMemAllocationTypePinned
        wanted.location.type = hip.hipMemLocationType.hipMemLocationTypeDevice
        wanted.location.id = ordinal
        return wanted

    protections = {
        Protection.NONE: hip.hipMemAccessFlags.hipMemAccessFlagsProtNone,
        Protection.READ: hip.hipMemAccessFlags.hipMemAccessFlagsProtRead,
        Protection.WRITE: hip.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite,
    }

    def protect(address: Any, size: int, ordinal: int, protection: Protection) -> tuple[Any, ...]:
        wanted = hip.hipMemAccessDesc()
        wanted.location.type = hip.hipMemLocationType.hipMemLocationTypeDevice
        wanted.location.id = ordinal
        wanted.flags = protections[protection]
        return hip.hipMemSetAccess(address, size, wanted, 1)  # type: ignore[no-any-return]

    smallest = hip.hipMemAllocationGranularity_flags.hipMemAllocationGranularityMinimum
    relaxed = hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
    limit = hip.hipLimit_t
    return Calls(
        initialize=hip.hipInit,
        count=hip.hipGetDeviceCount,
        device_name=device_name,
        total_memory=hip.hipDeviceTotalMem,
        archs=archs,
        device_attribute=hip.hipDeviceGetAttribute,
        memory_info=hip.hipMemGetInfo,
        attributes=Attributes(
            compute_units=device_key.hipDeviceAttributeMultiprocessorCount,
            unit_threads=device_key.hipDeviceAttributeMaxThreadsPerMultiProcessor,
            block_threads=device_key.hipDeviceAttributeMaxThreadsPerBlock,
            grid=(
                device_key.hipDeviceAttributeMaxGridDimX,
                device_key.hipDeviceAttributeMaxGridDimY,
                device_key.hipDeviceAttributeMaxGridDimZ,
            ),
            shared_bytes=device_key.hipDeviceAttributeMaxSharedMemoryPerBlock,
            shared_most_bytes=device_key.hipDeviceAttributeSharedMemPerBlockOptin,
            virtual_memory=device_key.hipDeviceAttributeVirtualMemoryManagementSupported,
            kernel_threads=kernel_key.HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            kernel_shared_bytes=kernel_key.HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            kernel_dynamic_bytes=hip.hipFuncAttribute.hipFuncAttributeMaxDynamicSharedMemorySize,
        ),
        describe=describe,
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
        granularity=lambda ordinal: hip.hipMemGetAllocationGranularity(
            memory_of(ordinal), smallest
        ),
        reserve=lambda size: hip.hipMemAddressReserve(size, 0, None, 0),
        unreserve=hip.hipMemAddressFree,
        create=lambda size, ordinal: hip.hipMemCreate(size, memory_of(ordinal), 0),
        destroy=hip.hipMemRelease,
        map=lambda address, size, memory: hip.hipMemMap(address, size, 0, memory, 0),
        unmap=hip.hipMemUnmap,
        protect=protect,
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
