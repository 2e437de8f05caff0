"""Numbers in blueprints: their ranges, the values of constants, the bytes of arguments."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from dandelion.blueprint.records import (
    BLOCK_LIMITS,
    GRID_LIMITS,
    SHARED_LIMIT_BYTES,
    Absolute,
    Add,
    ByBatch,
    CeilDiv,
    Elements,
    LaunchConfig,
    Mul,
    Scalar,
    Size,
    Sizeof,
)

_FARTHEST = 2**127
"""No size may be as large, so that of a product that is larger the exact value does not matter."""

BATCH = ""
"""Stands for the batch among names of buffers: no buffer has this name."""


def launch_numbers(launch: LaunchConfig) -> Iterator[tuple[str, Size, int, int]]:
    """Yield each number of a launch with its name, its smallest and its largest value."""
    for letter, limit in zip("xyz", GRID_LIMITS, strict=True):
        name = f"grid_dim_{letter}"
        yield name, getattr(launch, name), 1, limit
    for letter, limit in zip("xyz", BLOCK_LIMITS, strict=True):
        name = f"block_dim_{letter}"
        yield name, getattr(launch, name), 1, limit
    yield "shared_mem_bytes", launch.shared_mem_bytes, 0, SHARED_LIMIT_BYTES


def pack(scalar: Scalar, value: int | float) -> bytes | None:
    """Return the bytes of a number as a kernel argument; None if it does not fit its type."""
    try:
        return struct.pack(scalar.dtype.struct_code, value)
    except (struct.error, OverflowError):
        return None


def product(factors: Iterable[int]) -> int:
    """Multiply; what is farther from zero than 2**127 becomes that, however many factors follow."""
    result = 1
    for factor in factors:
        result = max(-_FARTHEST, min(result * factor, _FARTHEST))
    return result


def constant(size: Size) -> int | None:
    """Evaluate a size that does not depend on any input or buffer; None if it does."""
    match size:
        case Absolute(value):
            return value
        case Add(terms):
            numbers = [constant(t) for t in terms]
            return None if None in numbers else sum(n for n in numbers if n is not None)
        case Mul(factors):
            numbers = [constant(f) for f in factors]
            return None if None in numbers else product(n for n in numbers if n is not None)
        case CeilDiv(dividend, divisor):
            upper, lower = constant(dividend), constant(divisor)
            return None if upper is None or not lower else -(-upper // lower)
    return None


def named_in(size: Size) -> set[str]:
    """Names of the buffers whose sizes a size refers to, and `BATCH` if it refers to that."""
    match size:
        case ByBatch():
            return {BATCH}
        case Sizeof(buffer) | Elements(buffer):
            return {buffer}
        case Add(parts) | Mul(parts):
            return {n for part in parts for n in named_in(part)}
        case CeilDiv(dividend, divisor):
            return named_in(dividend) | named_in(divisor)
    return set()
