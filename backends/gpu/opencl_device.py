"""One OpenCL device.

Where the device shares fine-grained memory with the host, as CPUs do, the pool is one SVM
allocation: copies are memory copies, and arguments are addresses in it. Elsewhere the pool is one
buffer, and arguments are sub-buffers at aligned offsets. On a CPU constants may stay in further
allocations, whose pages are protected as the engine says: kernels are code of this process there.

On a CPU kernels run as code of the process that has the device, so this device is only opened in a
confined process there, see `.kernel_host`; or where it was said that code is trusted.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import platform
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dandelion.data import Bytes
from dandelion.errors import (
    BackendUnavailable,
    DeviceFault,
    DeviceFull,
    InternalError,
)
from dandelion.memory.lease import address_of

from . import pocl
from .device import Abilities, Device, Handle, Properties, Protection
from .host_memory import POOL_BYTES
from .lowering import Lowering
from .opencl_problems import compiler_words, not_compiled, unfit, unknown_kernel
from .plan import Copy, Launch, Pointer, Zero
from .source import CodeFormat, LoadedCode
from .source_check import checked_source
from .svm import SharedRange
from .system_limits import EXHAUSTED, NO_MEMORY

_ASSEMBLY = "-D{}=inline_assembly_is_refused"  # also where a macro pastes the word together
_OPTIONS = ["-cl-std=CL1.2", *map(_ASSEMBLY.format, ("asm", "__asm", "__asm__"))]
_OWN_SOURCE = "__kernel void own(__global float *x) { x[get_global_id(0)] = 1.0f; }"
_FATAL = ("OUT_OF_RESOURCES", "DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE")
_LAUNCHED_LIMIT = 4096
"""After so many launches without a wait, the device waits, to see whether they have run."""


@dataclass(slots=True, eq=False)
class _Prepared:
    """A prepared launch. The kernel object is the module's: OpenCL takes over its arguments when a
    launch is enqueued, and setting them again is cheaper than having an object for each launch."""

    kernel: Any
    arguments: list[tuple[Any, Any]]  # the kernel's method that sets it, the value
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _PreparedCopy:
    """A copy within the pool, or from constants to it."""

    step: Copy
    constants: SharedRange | None


class OpenClDevice(Device):
    """One OpenCL device.

    Args:
        resource: its name, as `.pocl.opencl_devices` lists it; empty or ``0`` for the first.
        threads: how many threads PoCL uses; 0 for one for each core.
        shared: use SVM where it can be; False is for tests of the other way.
    """

    backend: ClassVar[str] = "opencl"
    formats: ClassVar[tuple[str, ...]] = (
        CodeFormat.PORTABLE,
        CodeFormat.OPENCL,
        CodeFormat.SPIRV,
    )

    def __init__(self, resource: str = "", threads: int = 0, shared: bool = True) -> None:
        super().__init__()
        self.name = f"opencl:{resource or '0'}"
        self.abilities = Abilities(asynchronous=True)
        self._resource = resource
        self._threads = threads
        self._shared = shared
        self._cl: Any = None
        self._device: Any = None
        self._context: Any = None
        self._queue: Any = None
        self._pool: Any = None
        self._svm: SharedRange | None = None  # owns the pool, where it is SVM
        self._address = 0
        self._busy = False  # kernels may still run that use shared memory
        self._launched: list[tuple[Any, Any]] = []  # event and kernel, not looked at yet
        self._broken: str | None = None
        self._vector_bytes = 16  # of the device, as long as it is open
        self._options = _OPTIONS

    # life

    def open(self) -> None:
        if self._context is not None:
            return
        pocl.prepare_environment(self._threads)
        self._cl = cl = pocl.binding()
        devices = pocl.opencl_devices(cl)
        wanted = next(iter(devices)) if self._resource in ("", "0") else self._resource
        if wanted not in devices:
            there = ", ".join(devices)
            raise BackendUnavailable("opencl", f"no device '{wanted}'", f"there are {there}")
        self._device = devices[wanted]
        cpu = pocl.repair_cpu(self._device.int_ptr, self._device.version)
        self._vector_bytes = 4 * max(self._device.native_vector_width_float, 4)
        if cpu is not None:
            self._vector_bytes = min(self._vector_bytes, cpu.vector_bytes)
        fine = getattr(self._device, "svm_capabilities", 0)
        self._shared = bool(self._shared and fine & cl.device_svm_capabilities.FINE_GRAIN_BUFFER)
        on_host = bool(self._device.type & cl.device_type.CPU)
        self.abilities = Abilities(
            asynchronous=True,
            host_visible=self._shared,
            host_execution=on_host,
            protected_memory=self._shared and on_host,
        )
        self._options = [*_OPTIONS, "-DDANDELION_PROCESSOR"] if on_host else _OPTIONS
        try:
            self._context = cl.Context([self._device])
            self._queue = cl.CommandQueue(self._context)
        except cl.Error as error:
            raise BackendUnavailable("opencl", f"{wanted}: {error}") from None

    def close(self) -> None:
        if self._queue is not None:
            with contextlib.suppress(self._cl.Error):
                self._queue.finish()
        self._free()
        self._launched = []
        self.pool_bytes = 0
        self._queue = self._context = self._device = None

    def properties(self) -> Properties:
        device = self._device
        largest = min(device.max_mem_alloc_size, device.global_mem_size)
        return Properties(
            f"{device.name.strip()} ({device.platform.name.strip()})",
            memory_bytes=largest,
            pool_bytes=min(largest, POOL_BYTES) if self._shared else largest // 10 * 9,
            compute_units=device.max_compute_units,
            block_threads=device.max_work_group_size,
            shared_bytes=device.local_mem_size,
            archs=(platform.machine(),) if self.abilities.host_execution else (),
            details={"version": device.version, "memory": "SVM" if self._shared else "buffer"},
        )

    def lowering(self) -> Lowering:
        on_processor = self.abilities.host_execution
        return Lowering(None, on_processor, self._vector_bytes)

    def fault(self) -> str | None:
        return self._broken

    @contextlib.contextmanager
    def _operation(self, name: str) -> Iterator[None]:
        """Turn OpenCL's errors into ours."""
        try:
            yield
        except self._cl.Error as error:
            if name in ("wait", "synchronize") and any(code in str(error) for code in _FATAL):
                self._broken = f"{name}: {error}"
            raise DeviceFault(self.name, name, str(error)) from None
        except MemoryError:
            if name == "launch":  # which compiles
                self._broken = f"compiling: {NO_MEMORY}"
            raise

    # memory

    def _allocate(self, size_bytes: int) -> None:
        cl = self._cl
        with self._operation("allocate"):
            if not self._shared:
                flags = cl.mem_flags.READ_WRITE
                self._pool = cl.Buffer(self._context, flags, size=size_bytes)
                return
            try:
                self._svm = SharedRange(cl, self._context, size_bytes)
            except MemoryError as error:
                raise DeviceFault(self.name, "allocate", str(error)) from None
        self._pool = self._svm.array[:size_bytes]
        self._address = self._svm.address

    def _free(self) -> None:
        self._pool = None
        self._svm = None

    def _quiet(self) -> None:
        """Wait until no kernel uses shared memory, so that the host may."""
        if self._busy:
            self._synchronize()

    def _copy_in(self, offset_bytes: int, data: Bytes) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if self._shared:
            self._quiet()
            ctypes.memmove(self._address + offset_bytes, address_of(data), size)
            return
        with self._operation("copy_in"):
            self._cl.enqueue_copy(
                self._queue, self._pool, data, dst_offset=offset_bytes, is_blocking=False
            )

    def _copy_out(self, offset_bytes: int, view: memoryview) -> None:
        if self._shared:
            self._quiet()
            ctypes.memmove(address_of(view), self._address + offset_bytes, view.nbytes)
            return
        with self._operation("copy_out"):
            self._cl.enqueue_copy(
                self._queue, view, self._pool, src_offset=offset_bytes, is_blocking=False
            )

    def _zero(self, offset_bytes: int, size_bytes: int) -> None:
        if self._shared:
            self._quiet()
            ctypes.memset(self._address + offset_bytes, 0, size_bytes)
            return
        with self._operation("zero"):
            self._pattern(offset_bytes, size_bytes)
            self._queue.flush()

    def _pattern(self, offset_bytes: int, size_bytes: int) -> None:
        wide = 0 if offset_bytes % 16 else size_bytes // 16 * 16  # offsets count in patterns
        for pattern, start, size in ((16, 0, wide), (1, wide, size_bytes - wide)):
            if size:
                self._cl.enqueue_fill_buffer(
                    self._queue, self._pool, bytes(pattern), offset_bytes + start, size
                )

    # protected memory

    def _allocate_protected(self, size_bytes: int) -> Handle:
        try:
            with self._operation("allocate_protected"):
                memory = SharedRange(self._cl, self._context, size_bytes)
        except (MemoryError, DeviceFault) as error:
            raise DeviceFull(self.name, size_bytes, 0) from error
        memory.zero()
        return Handle(memory)

    def _fill_protected(self, memory: Handle, offset_bytes: int, data: Bytes) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        ctypes.memmove(_range(memory).address + offset_bytes, address_of(data), size)

    def _protect(self, memory: Handle, protection: Protection) -> None:
        self._quiet()
        try:
            _range(memory).protect(protection)
        except OSError as error:
            raise DeviceFault(self.name, "protect", str(error)) from None

    def _free_protected(self, memory: Handle) -> None:
        self._protect(memory, Protection.WRITE)  # as the allocator gave it
        _range(memory).zero()

    # code

    def _load(self, code: LoadedCode) -> Handle:
        cl = self._cl
        binary = code.format == CodeFormat.SPIRV
        if not binary:
            checked_source(code)
        try:
            program = self._built(code.data if binary else code.text)
            # Not program.all_kernels(): its kernels never go, and keep about 1 MB of program each.
            names = program.get_info(cl.program_info.KERNEL_NAMES).split(";")
            kernels = {name: cl.Kernel(program, name) for name in names if name}
            linecache.clearcache()  # pyopencl leaves code of each kernel there, for ever
            return Handle(kernels)
        except MemoryError:
            self._broken = f"compiling: {NO_MEMORY}"
            raise
        except cl.Error as error:
            silent = not compiler_words(str(error), code.name)
            if self.abilities.host_execution and (silent or not self._compiles()):
                self._broken = f"no source compiles any more: {EXHAUSTED}"
                raise DeviceFault(self.name, "load", self._broken) from None
            raise not_compiled(str(error), code.name) from None

    def _built(self, source: str | bytes) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._cl.CompilerWarning)  # a log is no failure
            program = self._cl.Program(self._context, source)
            return program.build(self._options)

    def _compiles(self) -> bool:
        """Tell whether a source of our own compiles: if not, no source is at fault."""
        try:
            self._built(_OWN_SOURCE)
        except (self._cl.Error, MemoryError):
            return False
        return True

    def _unload(self, module: Handle) -> None:
        """A program goes with its last reference."""

    def _prepare(
        self, module: Handle, symbol: str, launch: Launch, constants: Handle | None
    ) -> Handle:
        assert isinstance(module, dict)
        kernel = module.get(symbol)
        if kernel is None:
            raise unknown_kernel(symbol, module)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > self._device.max_work_group_size:
            limit = self._device.max_work_group_size
            raise unfit(symbol, "launch", f"{threads} threads in a block, the device has {limit}")
        if launch.shared_bytes > self._device.local_mem_size:
            limit = self._device.local_mem_size
            found = f"{launch.shared_bytes} bytes of local memory, the device has {limit}"
            raise unfit(symbol, "launch", found)
        arguments = self._arguments(kernel, symbol, launch, constants)
        size = tuple(g * b for g, b in zip(launch.grid, launch.block, strict=True))
        return Handle(_Prepared(kernel, arguments, size, launch.block))

    def _set_argument(self, prepared: Handle, index: int, data: bytes) -> None:
        assert isinstance(prepared, _Prepared)
        prepared.arguments[index] = prepared.arguments[index][0], data

    def _arguments(
        self, kernel: Any, symbol: str, launch: Launch, constants: Handle | None
    ) -> list[tuple[Any, Any]]:
        cl = self._cl
        # set_arg tries one type after the other, 5 us for bytes; this is the one for bytes
        set_bytes = getattr(kernel, "_set_arg_buf", kernel.set_arg)
        values: list[Any] = [
            self._pointer(symbol, index, a, constants) if isinstance(a, Pointer) else a
            for index, a in enumerate(launch.args)
        ]
        if kernel.num_args == len(values) + 1:
            values.append(cl.LocalMemory(max(launch.shared_bytes, 1)))
        if kernel.num_args != len(values):
            found = f"{len(values)} arguments for {kernel.num_args} parameters"
            raise unfit(symbol, "arity", found)
        setters = [(set_bytes if isinstance(v, bytes) else kernel.set_arg, v) for v in values]
        for index, (set_argument, value) in enumerate(setters):
            try:
                set_argument(index, value)
            except (cl.Error, TypeError) as error:
                raise unfit(symbol, "argument", f"argument {index} does not fit: {error}") from None
        return setters

    def _pointer(self, symbol: str, index: int, argument: Pointer, constants: Handle | None) -> Any:
        start = argument.offset_bytes
        size = max(argument.size_bytes, 1)
        if argument.constant:
            return self._cl.SVM(_range(constants).array[start : start + size])
        if self._shared:
            return self._cl.SVM(self._pool[start : start + size])
        unit = max(self._device.mem_base_addr_align // 8, 1)  # it is a number of bits
        if start % unit:
            beyond = (
                f"argument {index} begins {start % unit} bytes behind a multiple of {unit}, but "
                "this device has no shared memory and takes only such places: pass the buffer "
                "and the offset as a number"
            )
            raise unfit(symbol, "alignment", beyond)
        with self._operation("argument"):
            return self._pool.get_sub_region(start, size)

    def _prepare_zero(self, step: Zero) -> Handle:
        return Handle(step)

    def _prepare_copy(self, step: Copy, constants: Handle | None) -> Handle:
        return Handle(_PreparedCopy(step, _range(constants) if step.source.constant else None))

    def _copy(self, prepared: _PreparedCopy) -> None:
        step = prepared.step
        target, source, size = (
            step.target.offset_bytes,
            step.source.offset_bytes,
            step.target.size_bytes,
        )
        if self._shared:
            self._quiet()
            start = self._address if prepared.constants is None else prepared.constants.address
            ctypes.memmove(self._address + target, start + source, size)
            return
        self._cl.enqueue_copy(
            self._queue,
            self._pool,
            self._pool,
            byte_count=size,
            src_offset=source,
            dst_offset=target,
        )

    # work

    def _launch(self, prepared: Iterable[Handle]) -> None:
        enqueue = self._cl.enqueue_nd_range_kernel
        queue = self._queue
        with self._operation("launch"):
            for item in prepared:
                if isinstance(item, _Prepared):
                    self._busy = True
                    for index, (set_argument, value) in enumerate(item.arguments):
                        set_argument(index, value)
                    event = enqueue(queue, item.kernel, item.global_size, item.local_size)
                    self._launched.append((event, item.kernel))
                elif isinstance(item, Zero):
                    self._zero(item.offset_bytes, item.size_bytes)
                elif isinstance(item, _PreparedCopy):
                    self._copy(item)
                else:
                    raise InternalError(f"{self.name}: {type(item).__name__} is no launch")
            queue.flush()
        if len(self._launched) >= _LAUNCHED_LIMIT:
            self._synchronize()

    def _mark(self) -> Handle | None:
        if not self._busy and self._shared:
            return None
        with self._operation("mark"):
            return Handle(self._cl.enqueue_marker(self._queue))

    def _wait(self, mark: Handle) -> None:
        event: Any = mark
        with self._operation("wait"):
            event.wait()
        self._check_launched()

    def _synchronize(self) -> None:
        with self._operation("synchronize"):
            self._queue.finish()
        self._busy = False
        self._check_launched()

    def _check_launched(self) -> None:
        """Raise the error of a kernel that has not run: waiting for the queue does not tell."""
        launched, self._launched = self._launched, []
        for event, kernel in launched:
            status = event.command_execution_status
            if status < 0:
                found = f"kernel '{kernel.function_name}' has not run (OpenCL error {status})"
                raise DeviceFault(self.name, "launch", found)
            if status != self._cl.command_execution_status.COMPLETE:
                self._launched.append((event, kernel))


def _range(memory: Handle | None) -> SharedRange:
    if not isinstance(memory, SharedRange):
        raise InternalError(f"{type(memory).__name__} is no memory of constants")
    return memory
