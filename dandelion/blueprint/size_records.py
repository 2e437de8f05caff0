"""Sizes of blueprints: small expressions over constants, buffer sizes and integers of the inputs.

So the memory and launches of a call are known from its inputs, before it runs.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class BlueprintRecord(msgspec.Struct, frozen=True, tag=True):
    """A record of the blueprint; the tag is the name of its class."""


class Absolute(BlueprintRecord, frozen=True):
    """A constant."""

    value: int


class Sizeof(BlueprintRecord, frozen=True):
    """The size of a buffer in bytes."""

    buffer: str


class FromInput(BlueprintRecord, frozen=True):
    """The idx-th signed 64-bit little-endian integer of an input, counted from zero."""

    bufname: str
    idx: int


class Elements(BlueprintRecord, frozen=True):
    """The number of whole elements of a type in a buffer."""

    buffer: str
    dtype: ScalarType


class ByBatch(BlueprintRecord, frozen=True):
    """A constant for each member of the batch: ``value * batch``.

    With `even` it counts for each pair of members, ``value * ceil(batch / 2)``: the original rounds
    the batch up to an even number and then halves it.
    """

    value: int
    even: bool = False


class Add(BlueprintRecord, frozen=True):
    """A sum of sizes."""

    terms: tuple[Size, ...]


class Mul(BlueprintRecord, frozen=True):
    """A product of sizes."""

    factors: tuple[Size, ...]


class CeilDiv(BlueprintRecord, frozen=True):
    """A quotient, rounded up."""

    dividend: Size
    divisor: Size


Size: TypeAlias = Absolute | Sizeof | FromInput | Elements | ByBatch | Add | Mul | CeilDiv


class ScalarType(enum.Enum):
    """Types of kernel arguments that are passed by value, and of buffer elements."""

    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    F32 = "f32"
    F64 = "f64"

    @property
    def size_bytes(self) -> int:
        """Size of one value in bytes."""
        return int(self.value[1:]) // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.value[0] == "f"

    @property
    def struct_code(self) -> str:
        """Format character of the `struct` module, little-endian."""
        return _STRUCT_CODES[self.value]


_STRUCT_CODES = {
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "f16": "<e",
    "f32": "<f",
    "f64": "<d",
}


MAX_BYTES = 2**46
"""Bound on any size in bytes, larger than the memory of any device."""
