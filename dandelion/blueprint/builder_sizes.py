"""Sizes and buffers as Python expressions, for `dandelion.blueprint.builder`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.blueprint.numbers import pack
from dandelion.blueprint.records import (
    Absolute,
    Add,
    ByBatch,
    CeilDiv,
    Elements,
    FromInput,
    Mul,
    Scalar,
    ScalarType,
    Size,
    Sizeof,
)
from dandelion.errors import InvalidInput, nearest


@dataclass(frozen=True, slots=True)
class Expression:
    """A size that is known when the inputs are known; ``+``, ``-`` and ``*`` make new ones.

    `ceil_div` divides.
    """

    size: Size

    def __add__(self, other: SizeLike) -> Expression:
        return Expression(Add((self.size, size_of(other))))

    def __radd__(self, other: int) -> Expression:
        return Expression(Add((Absolute(other), self.size)))

    def __mul__(self, other: SizeLike) -> Expression:
        return Expression(Mul((self.size, size_of(other))))

    def __rmul__(self, other: int) -> Expression:
        return Expression(Mul((Absolute(other), self.size)))

    def __sub__(self, other: SizeLike) -> Expression:
        return Expression(Add((self.size, Mul((Absolute(-1), size_of(other))))))

    def __rsub__(self, other: int) -> Expression:
        return Expression(Add((Absolute(other), Mul((Absolute(-1), self.size)))))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named buffer; as a kernel argument it is a pointer."""

    name: str

    def __getitem__(self, index: int) -> Expression:
        """The index-th 64-bit integer of this input.

        Raises:
            InvalidInput: the index is no integer from 0 on.
        """
        if not isinstance(index, int) or index < 0:
            hint = "give the index of a 64-bit integer in it, from 0 on"
            raise InvalidInput("blueprint", f"'{self.name}' has no part {index!r}", hint)
        return Expression(FromInput(self.name, index))

    def elements(self, dtype: str) -> Expression:
        """Number of elements of a type (``"f32"``) in it."""
        return Expression(Elements(self.name, _scalar_type(dtype)))


SizeLike: TypeAlias = Expression | int


def sizeof(buffer: Buffer) -> Expression:
    """Size of a buffer in bytes; as a kernel argument a u64."""
    return Expression(Sizeof(buffer.name))


def ceil_div(dividend: SizeLike, divisor: SizeLike) -> Expression:
    """Divide and round up: how many blocks of `divisor` cover `dividend`."""
    return Expression(CeilDiv(size_of(dividend), size_of(divisor)))


def by_batch(value: int, *, even: bool = False) -> Expression:
    """`value` for each member of the batch, with `even` for each pair of members.

    See `dandelion.blueprint.records.ByBatch`.
    """
    return Expression(ByBatch(value, even))


def scalar(dtype: str, value: SizeLike | float) -> Scalar:
    """An argument by value, of a type such as ``"i32"`` or ``"f32"``."""
    kind = _scalar_type(dtype)
    if isinstance(value, Buffer):
        hint = "pass the buffer itself for its address, or b.x[0] for an integer in it"
        raise InvalidInput("scalar", f"the buffer '{value.name}' is no number", hint)
    if isinstance(value, Expression):
        if kind.is_float and not isinstance(value.size, Absolute):
            hint = "let the kernel convert it: pass it as an i64"
            raise InvalidInput("scalar", f"a size cannot be passed as {kind.value}", hint)
        size = value.size
        return Scalar(kind, size.value if isinstance(size, Absolute) else size)
    try:
        number = float(value) if kind.is_float else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput("scalar", f"{value!r:.60} is no {kind.value}") from None
    made = Scalar(kind, number)
    if pack(made, number) is None:
        raise InvalidInput("scalar", f"{value!r:.60} is no {kind.value}")
    return made


def size_of(value: SizeLike) -> Size:
    """Return the record of a size.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(value, Expression):
        return value.size
    try:
        return Absolute(operator.index(value))
    except TypeError:
        hint = "give an integer, sizeof(b.x), b.x.elements('f32'), b.x[0], or a sum of such"
        kind = f"the buffer '{value.name}'" if isinstance(value, Buffer) else f"{value!r:.60}"
        raise InvalidInput("size", f"{kind} is no size", hint) from None


def _scalar_type(name: str) -> ScalarType:
    known = [t.value for t in ScalarType]
    if name not in known:
        close = nearest(name, known)
        raise InvalidInput(
            "dtype", f"no type '{name}'", f"did you mean '{close}'?" if close else ""
        )
    return ScalarType(name)
