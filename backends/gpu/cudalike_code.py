"""Modules and launches of `.cudalike`: loading, checking and packing, before anything runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dandelion.errors import (
    DandelionError,
    InvalidBlueprint,
    InvalidFunction,
    Problem,
)

from .calls import NO_BINARY, Attributes, Calls, Function
from .code_info import CodeInfo, info_of, part_for
from .compiling import SOURCES, CodeCache, compiled
from .plan import Copy, Launch, Pointer
from .source import LoadedCode

_ALIGNMENT_BYTES = 16  # of an argument, at least what any type needs

Do: TypeAlias = Callable[[str, tuple[Any, ...]], Any]
Fail: TypeAlias = Callable[[str, Any], DandelionError]


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """What a device can launch: blocks by dimension, threads of a block, bytes of local memory.

    More than `shared_bytes` a kernel has only if it asks for it, and never more than
    `shared_most_bytes`.
    """

    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    shared_most_bytes: int


def kernel_limits(keys: Attributes, attribute: Callable[[Any], int]) -> KernelLimits:
    """Read the limits of a device.

    Args:
        keys: of the limits.
        attribute: gives the value of a key.
    """
    x, y, z = map(attribute, keys.grid)
    shared = attribute(keys.shared_bytes)
    most = max(shared, attribute(keys.shared_most_bytes))
    return KernelLimits((x, y, z), attribute(keys.block_threads), shared, most)


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel of a module: its handle, its parameters' sizes if they are known, its limits."""

    handle: Any
    parameters: tuple[int, ...] | None
    threads: int
    shared_bytes: int
    dynamic_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FirstValue:
    """What a variable of a module begins with."""

    address: Any
    data: bytes


@dataclass(slots=True, eq=False)
class LoadedModule:
    """A module on a device.

    Attributes:
        first_values: of all its variables; empty if they are not known.
    """

    handle: Any
    name: str
    info: CodeInfo
    kernels: dict[str, Kernel] = field(default_factory=dict)
    first_values: tuple[FirstValue, ...] = ()


@dataclass(slots=True, eq=False)
class Prepared:
    """A call of the binding with its arguments; `kept` is the memory that these refer to."""

    call: Function
    arguments: tuple[Any, ...]
    kept: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False)
class PreparedKernel(Prepared):
    """A launch of a kernel; `pointers` is an array of the addresses of its arguments."""

    pointers: Any = None

    def set_argument(self, index: int, data: bytes) -> None:
        """Change an argument of the kernel, by value."""
        ctypes.memmove(self.pointers[index], data, len(data))


def load_module(
    calls: Calls,
    code: LoadedCode,
    backend: str,
    archs: tuple[str, ...],
    cache: CodeCache | None,
    fail: Fail,
) -> LoadedModule:
    """Compile a source, or find it compiled, and load the module.

    Raises:
        InvalidFunction: it does not compile, or is not for this device.
    """
    data = code.data
    if code.format in SOURCES:
        data = compiled(calls.compiler, code, archs[0], cache)
    data = part_for(data, archs)
    info = info_of(data, archs)
    if info.allocates:
        message = "kernels cannot allocate memory; give the blueprint a buffer"
        raise InvalidFunction((Problem("allocation", message, code.name, found="malloc"),))
    answer = calls.load_module(data)
    if not answer[0]:
        return LoadedModule(answer[1], code.name, info)
    error = fail("load", answer[0])
    if int(answer[0]) not in NO_BINARY:
        raise error
    message = f"{backend} does not load it"
    if info.arch and info.arch not in archs:
        message = f"it is code for {info.arch}, this device is {archs[0]}"
    log = answer[1] if len(answer) > 1 and isinstance(answer[1], str) else ""
    problem = Problem("no-code", message, code.name, found=str(error), excerpt=log)
    raise InvalidFunction((problem,))


def prepare_kernel(
    calls: Calls,
    module: LoadedModule,
    symbol: str,
    launch: Launch,
    bases: tuple[int, int],
    limits: KernelLimits,
    stream: Any,
    do: Do,
) -> PreparedKernel:
    """Check a launch against the kernel and the device, and pack its arguments.

    Args:
        bases: addresses of the pool and of the function's constants.
        do: gives the result of a call, or raises.

    Raises:
        InvalidBlueprint: no such kernel, other parameters, or more than can be launched.
    """
    kernel = module.kernels.get(symbol)
    if kernel is None:
        kernel = _kernel(calls, module, symbol, do)
        module.kernels[symbol] = kernel
    _check(kernel, symbol, launch, limits)
    if launch.shared_bytes > kernel.dynamic_bytes:
        if launch.shared_bytes + kernel.shared_bytes > limits.shared_bytes:
            key = calls.attributes.kernel_dynamic_bytes
            do("prepare", calls.set_kernel_attribute(kernel.handle, key, launch.shared_bytes))
        kernel.dynamic_bytes = launch.shared_bytes
    values = [
        (bases[a.constant] + a.offset_bytes).to_bytes(8, "little") if isinstance(a, Pointer) else a
        for a in launch.args
    ]
    pointers, memory = _packed(values)
    numbers = (*launch.grid, *launch.block, launch.shared_bytes)
    arguments = (kernel.handle, *numbers, stream, ctypes.addressof(pointers), 0)
    return PreparedKernel(calls.launch, arguments, (memory,), pointers)


def prepare_copy(calls: Calls, step: Copy, bases: tuple[int, int], stream: Any) -> Prepared:
    """Make a copy within the device ready to be launched; `bases` as for `prepare_kernel`."""
    target = calls.pointer(bases[0] + step.target.offset_bytes)
    source = calls.pointer(bases[step.source.constant] + step.source.offset_bytes)
    return Prepared(calls.copy_within, (target, source, step.target.size_bytes, stream))


def _kernel(calls: Calls, module: LoadedModule, symbol: str, do: Do) -> Kernel:
    answer = calls.get_kernel(module.handle, symbol.encode())
    if answer[0] and int(answer[0]) in (98, 500):  # not found
        raise unfit(symbol, "unknown-kernel", f"'{module.name}' has no kernel '{symbol}'")
    handle = do("prepare", answer)
    keys = calls.attributes
    threads = int(do("prepare", calls.kernel_attribute(keys.kernel_threads, handle)))
    shared = int(do("prepare", calls.kernel_attribute(keys.kernel_shared_bytes, handle)))
    if calls.parameter is not None:
        parameters: tuple[int, ...] | None = _parameters(calls.parameter, handle, do)
    else:
        parameters = module.info.kernels.get(symbol)
    return Kernel(handle, parameters, threads, shared)


def _parameters(ask: Function, handle: Any, do: Do) -> tuple[int, ...]:
    """Ask for the size of each parameter; the first that does not exist is an invalid value."""
    sizes: list[int] = []
    while True:
        answer = ask(handle, len(sizes))
        if int(answer[0]) == 1:
            return tuple(sizes)
        do("prepare", answer)
        sizes.append(int(answer[2]))


def _check(kernel: Kernel, symbol: str, launch: Launch, limits: KernelLimits) -> None:
    if kernel.parameters is not None:
        sizes = tuple(8 if isinstance(a, Pointer) else len(a) for a in launch.args)
        if len(sizes) != len(kernel.parameters):
            message = f"{len(sizes)} arguments for {len(kernel.parameters)} parameters"
            raise unfit(symbol, "arity", message)
        for index, (given, wanted) in enumerate(zip(sizes, kernel.parameters, strict=True)):
            if given != wanted:
                message = f"argument {index} has {given} bytes, the parameter {wanted}"
                raise unfit(symbol, "argument", message)
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    most = min(kernel.threads, limits.threads)
    if threads > most:
        message = f"{threads} threads in a block, this kernel has {most} on this device"
        raise unfit(symbol, "launch", message)
    for axis, (wanted, limit) in enumerate(zip(launch.grid, limits.grid, strict=True)):
        if wanted > limit:
            message = f"{wanted} blocks in {'xyz'[axis]}, the device has {limit}"
            raise unfit(symbol, "launch", message)
    shared = launch.shared_bytes + kernel.shared_bytes
    if shared > limits.shared_most_bytes:
        message = f"{shared} bytes of local memory, the device has {limits.shared_most_bytes}"
        raise unfit(symbol, "launch", message)


def _packed(values: list[bytes]) -> tuple[Any, Any]:
    """Lay arguments out in memory: an array of pointers, and what they point to."""
    offsets = []
    end = 0
    for value in values:
        offsets.append(end)
        end += -(-max(len(value), 1) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    memory = (ctypes.c_char * (end + _ALIGNMENT_BYTES))()
    start = -ctypes.addressof(memory) % _ALIGNMENT_BYTES
    base = ctypes.addressof(memory) + start
    for offset, value in zip(offsets, values, strict=True):
        ctypes.memmove(base + offset, value, len(value))
    pointers = (ctypes.c_void_p * max(len(values), 1))(*(base + offset for offset in offsets))
    return pointers, memory


def unfit(symbol: str, code: str, message: str) -> InvalidBlueprint:
    """Make the error of a launch that does not fit its kernel or the device."""
    return InvalidBlueprint((Problem(code, message, f"kernels.{symbol}"),))
