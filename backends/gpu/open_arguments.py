"""Open arguments: those by value that change from call to call, and no plan with them.

A kernel may take an integer of an input as it is, such as a position, a step or a seed. Where no
size of the blueprint depends on that integer, the argument is open in the plan, and the integer is
not part of the keys under which plans are kept: each call gives the argument its value, in the
prepared launches and in their graphs.

How long a call takes may depend on such an integer, a count for instance. So calls whose integers
have as many bits are alike, and others are measured, cut into parts and captured by themselves: a
position up to 2,000 makes eleven kinds of calls.

Rejected: memory on the device from which kernels read such integers. They are parameters of the
kernels, whose code is the user's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.blueprint import FromInput, Scalar, Size
from dandelion.blueprint.numbers import pack
from dandelion.errors import DandelionError, InternalError, InvalidInput

from .sizes import ReadInteger, evaluated

Values: TypeAlias = tuple[bytes, ...]
"""Of one call, packed as kernels get them, by the indices of `Plan.open_arguments`."""


@dataclass(frozen=True, slots=True)
class OpenArgument:
    """An argument by value that each call gives.

    Attributes:
        scalar: its type, and its value, which consists of numbers and integers of inputs.
        where: the first place of the blueprint that has it.
    """

    scalar: Scalar
    where: str = field(compare=False)

    @property
    def unset(self) -> bytes:
        """Bytes of its size."""
        return bytes(self.scalar.dtype.size_bytes)

    def packed(self, read: ReadInteger) -> bytes:
        """Give its bytes in a call.

        Args:
            read: reads the integers of the call's inputs; those it reads are inside.

        Raises:
            InvalidInput: it does not fit its type, or cannot be computed.
        """
        size = self.scalar.value
        assert not isinstance(size, int | float), "a number is part of the plan"

        def leaf(integer: Size) -> int:
            if not isinstance(integer, FromInput):
                raise InternalError(f"{self.where}: it is not reduced")
            return read(integer.bufname, integer.idx)

        value = evaluated(self.where, size, leaf, _fail)
        found = pack(self.scalar, value)
        if found is None:
            message = f"it comes to {value}, which is no {self.scalar.dtype.value}"
            raise InvalidInput(self.where, message)
        return found


def bits(value: int) -> int:
    """Give how many bits an integer has, below zero if it is."""
    return value.bit_length() if value >= 0 else -value.bit_length()


def bits_of(values: Values) -> tuple[int, ...]:
    """Give how many bits each value has."""
    return tuple([bits(int.from_bytes(value, "little", signed=True)) for value in values])


def _fail(where: str, _: Size, message: str) -> DandelionError:
    return InvalidInput(where, message)
