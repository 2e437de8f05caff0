"""The buffers and sizes of library operations, and the same operations with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from dandelion.blueprint.operation_records import (
    MAX_BATCH,
    MAX_EXTENT,
    MAX_KERNEL,
    BufferPart,
    Conv2d,
    Gemm,
    Matrix,
)
from dandelion.blueprint.size_records import MAX_BYTES, Size

Operation: TypeAlias = Gemm | Conv2d
Operand: TypeAlias = BufferPart | Matrix

_EXTENTS = {
    Gemm: ("m", "n", "k", "batch"),
    Conv2d: ("batch", "channels", "height", "width", "filters", "groups"),
}
_PAIRS = ("kernel", "stride", "padding", "dilation")
_OPERANDS = {
    Gemm: ("a", "b", "c", "bias", "out"),
    Conv2d: ("image", "weight", "addend", "bias", "out"),
}


def operands(action: Operation) -> Iterator[tuple[str, Operand]]:
    """Yield each operand with the name of its field; the one that is written, ``out``, is last."""
    for name in _OPERANDS[type(action)]:
        found: Operand | None = getattr(action, name)
        if found is not None:
            yield name, found


def buffers(action: Operation) -> dict[str, bool]:
    """Names of the buffers that an operation uses, and whether it writes them."""
    return {operand.buffer: name == "out" for name, operand in operands(action)}


def sizes(action: Operation) -> Iterator[tuple[str, Size, int, int]]:
    """Yield each size with its field, its smallest and its largest value."""
    for name in _EXTENTS[type(action)]:
        largest = MAX_BATCH if name == "batch" else MAX_EXTENT
        yield name, getattr(action, name), 1, largest
    if isinstance(action, Conv2d):
        for name in _PAIRS:
            smallest = 0 if name == "padding" else 1
            for at, size in enumerate(getattr(action, name)):
                yield f"{name}[{at}]", size, smallest, MAX_KERNEL
    for name, operand in operands(action):
        yield f"{name}.offset", operand.offset, 0, MAX_BYTES
        if isinstance(operand, Matrix):
            if operand.ld is not None:
                yield f"{name}.ld", operand.ld, 1, MAX_EXTENT
            if operand.batch_stride is not None:
                yield f"{name}.batch_stride", operand.batch_stride, 0, MAX_BYTES


def mapped_operation(
    action: Operation, buffer: Callable[[str], str], size: Callable[[Size], Size]
) -> Operation:
    """Make the same operation with other names of buffers and other sizes."""

    def operand(given: Operand) -> Operand:
        changed = {"buffer": buffer(given.buffer), "offset": size(given.offset)}
        if isinstance(given, BufferPart):
            return BufferPart(**changed)  # type: ignore[arg-type]  # a name and a size
        found = msgspec.structs.replace(given, **changed)
        return msgspec.structs.replace(
            found,
            ld=None if found.ld is None else size(found.ld),
            batch_stride=None if found.batch_stride is None else size(found.batch_stride),
        )

    fields: dict[str, object] = {name: operand(found) for name, found in operands(action)}
    fields |= {name: size(getattr(action, name)) for name in _EXTENTS[type(action)]}
    if isinstance(action, Conv2d):
        fields |= {name: tuple(map(size, getattr(action, name))) for name in _PAIRS}
    return msgspec.structs.replace(action, **fields)
