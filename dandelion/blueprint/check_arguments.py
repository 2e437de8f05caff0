"""Arguments of a launch against the parameters of its kernel, as far as these are known."""

from __future__ import annotations

from collections.abc import Iterator

from dandelion.blueprint.records import Access, Argument, Kernel, Ptr, Raw, Scalar, ScalarType
from dandelion.blueprint.signatures import KernelSignature
from dandelion.errors import Problem


def argument_problems(
    where: str, kernel: Kernel, known: KernelSignature | None, args: tuple[Argument, ...]
) -> Iterator[Problem]:
    """List what does not fit: how many there are, pointers and values, types of numbers.

    Args:
        where: the launch.
        kernel: with its declared access.
        known: its signature in a source, if there is one.
        args: of the launch.
    """
    for access in (kernel.access, known.access if known else None):
        if access is None or (access == () and (known is None or access is kernel.access)):
            continue
        if len(args) != len(access):
            expected = f"{len(access)} arguments"
            message = f"kernel '{kernel.name}' has a different number of parameters"
            at = f"{where}.args"
            yield Problem("arity", message, at, expected=expected, found=str(len(args)))
            return
        for index, (argument, way) in enumerate(zip(args, access, strict=True)):
            if isinstance(argument, Ptr) != (way is not Access.VALUE):
                expected = "a value" if way is Access.VALUE else "a pointer"
                message = f"parameter {index} of kernel '{kernel.name}' is {expected}"
                at = f"{where}.args[{index}]"
                yield Problem("argument-kind", message, at, found=_shown(argument))
    for index, (argument, kind) in enumerate(zip(args, known.types if known else (), strict=False)):
        if kind is not None and not _fits(argument, kind):
            message = f"parameter {index} of kernel '{kernel.name}' is {kind.value}"
            expected = f'{{"{kind.value}": ...}}, or scalar("{kind.value}", ...) in Python'
            at, found = f"{where}.args[{index}]", _shown(argument)
            yield Problem("argument", message, at, expected=expected, found=found)


def _fits(argument: Argument, kind: ScalarType) -> bool:
    """Tell whether an argument has the bytes of a type; signs are the user's matter."""
    if isinstance(argument, Scalar):
        given = argument.dtype
        return given.size_bytes == kind.size_bytes and given.is_float == kind.is_float
    return isinstance(argument, Ptr) or len(argument.data) == kind.size_bytes


def _shown(argument: Argument) -> str:
    if isinstance(argument, Ptr):
        return f"the buffer '{argument.buffer}'"
    return f"{len(argument.data)} bytes" if isinstance(argument, Raw) else argument.dtype.value
