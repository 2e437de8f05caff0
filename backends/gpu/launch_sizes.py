"""Launches held against binaries, before any device sees them: are these the kernels' parameters?

A kernel takes a pointer in 8 bytes, a scalar in the bytes of its type, and a struct by value in all
of its bytes, so a launch's arguments have to have exactly these sizes. An argument of another size
would be cut off, or read beyond its end. Where a binary does not tell, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dandelion.blueprint import (
    Action,
    Argument,
    Candidates,
    ExecKernel,
    GpuConfig,
    Kernel,
    Ptr,
    Raw,
    Repeat,
    Scalar,
    ScalarType,
    Size,
    print_argument,
)
from dandelion.blueprint.numbers import pack
from dandelion.blueprint.uses import symbol_of
from dandelion.data import Bytes
from dandelion.errors import Problem, nearest

from .code_info import CodeInfo, info_of
from .source import CodeFormat, format_of

POINTER_BYTES = 8
_READ = (CodeFormat.CUBIN, CodeFormat.FATBIN, CodeFormat.HSACO, CodeFormat.PTX)


@dataclass(frozen=True, slots=True)
class _Binary:
    path: str
    info: CodeInfo


def misfits(config: GpuConfig, files: Mapping[str, Bytes]) -> list[Problem]:
    """List the launches that do not fit the kernels in a function's binaries.

    Args:
        config: a blueprint that passed the static check.
        files: what there is of its files.
    """
    return list(_Holder(config, files).run())


class _Holder:
    def __init__(self, config: GpuConfig, files: Mapping[str, Bytes]) -> None:
        self.control_flow = config.blueprint.control_flow
        self.kernels = {k.name: k for k in config.kernels}
        self.binaries = {
            module.name: [
                _Binary(
                    code.path, info_of(bytes(files[code.path]), (code.arch,) if code.arch else ())
                )
                for code in module.code
                if code.path in files and format_of(code, files[code.path]) in _READ
            ]
            for module in config.modules
        }
        self.absent: set[str] = set()

    def run(self) -> Iterator[Problem]:
        yield from self.actions("blueprint.control_flow", self.control_flow)

    def actions(self, where: str, actions: tuple[Action, ...]) -> Iterator[Problem]:
        for index, action in enumerate(actions):
            at = f"{where}[{index}]"
            if isinstance(action, Repeat):
                yield from self.actions(f"{at}.actions", action.actions)
            elif isinstance(action, Candidates):
                for number, alternative in enumerate(action.alternatives):
                    yield from self.actions(f"{at}[{number}]", alternative)
            elif isinstance(action, ExecKernel):
                yield from self.launch(at, action)

    def launch(self, where: str, action: ExecKernel) -> Iterator[Problem]:
        kernel = self.kernels[action.kernel]
        symbol = symbol_of(kernel)
        for binary in self.binaries[kernel.module]:
            info = binary.info
            if info.complete and symbol not in info.kernels:
                yield from self.unknown(kernel, binary)
            sizes = info.kernels.get(symbol)
            found = (
                [] if sizes is None else list(_misfits(where, action, symbol, sizes, binary.path))
            )
            if found:
                yield from found
                return  # further binaries of the kernel have the same parameters

    def unknown(self, kernel: Kernel, binary: _Binary) -> Iterator[Problem]:
        if kernel.name in self.absent:
            return
        self.absent.add(kernel.name)
        symbol, known = symbol_of(kernel), binary.info.kernels
        close = nearest(symbol, known) or ""
        expected = "" if close or len(known) > 12 else " or ".join(sorted(known))
        message = f"'{binary.path}' has no kernel '{symbol}'"
        yield Problem(
            "unknown-kernel", message, f"kernels.{kernel.name}", expected=expected, nearest=close
        )


def _misfits(
    where: str, action: ExecKernel, symbol: str, sizes: tuple[int, ...], path: str
) -> Iterator[Problem]:
    if len(action.args) != len(sizes):
        message = f"kernel '{symbol}' in '{path}' has another number of parameters"
        listed = ", ".join(map(str, sizes))
        expected = f"{len(sizes)} arguments" + (f", of {listed} bytes" if sizes else "")
        yield Problem(
            "arity", message, f"{where}.args", expected=expected, found=f"{len(action.args)}"
        )
        return
    for index, (argument, size) in enumerate(zip(action.args, sizes, strict=True)):
        given = _size(argument)
        if given != size:
            message = f"parameter {index} of kernel '{symbol}' in '{path}' has {size} bytes"
            found = f"{given} bytes, {_shown(argument)}"
            at = f"{where}.args[{index}]"
            yield Problem("argument", message, at, expected=_wanted(argument, size), found=found)


def _size(argument: Argument) -> int:
    match argument:
        case Ptr():
            return POINTER_BYTES
        case Raw(data):
            return len(data)
    return argument.dtype.size_bytes


def _wanted(argument: Argument, size: int) -> str:
    """Say how an argument of a size is written, best with the value that was meant."""
    types = [kind for kind in ScalarType if kind.size_bytes == size]
    if not types:
        return f'{{"bytes": ...}}, base64 of {size} bytes'
    if not isinstance(argument, Scalar):
        ways = [f'{{"{kind.value}": ...}}' for kind in types]
    else:
        value = argument.value
        fitting = [Scalar(kind, value) for kind in types if _takes(kind, value)]
        ways = [print_argument(scalar) for scalar in fitting]
    ways += ['{"Ptr": ...}'] if size == POINTER_BYTES else []
    return " or ".join(ways)


def _takes(kind: ScalarType, value: int | float | Size) -> bool:
    if isinstance(value, int | float):
        return (kind.is_float or isinstance(value, int)) and pack(
            Scalar(kind, value), value
        ) is not None
    return not kind.is_float


def _shown(argument: Argument) -> str:
    return '{"bytes": ...}' if isinstance(argument, Raw) else print_argument(argument)
