"""Evaluating the sizes of a blueprint for given inputs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TypeAlias

from dandelion.blueprint import (
    Absolute,
    Add,
    ByBatch,
    CeilDiv,
    Elements,
    FromInput,
    GpuConfig,
    Mul,
    Size,
    Sizeof,
)
from dandelion.blueprint.numbers import BATCH, constant, named_in, product
from dandelion.blueprint.records import MAX_BYTES, MAX_LAUNCHES
from dandelion.errors import (
    DandelionError,
    InternalError,
    InvalidBlueprint,
    InvalidInput,
    Problem,
)

ReadInteger: TypeAlias = Callable[[str, int], int]
"""Gives the idx-th i64 of an input; it is only asked for integers that are inside."""

Fail: TypeAlias = Callable[[str, Size, str], DandelionError]
"""Makes the error of an impossible size, of its place, the size and what is wrong."""


def evaluated(where: str, size: Size, leaf: Callable[[Size], int], fail: Fail) -> int:
    """Evaluate a size.

    Args:
        where: for errors.
        size: of numbers, sums, products, quotients and others.
        leaf: gives the value of others.
        fail: makes the error that is raised.
    """
    match size:
        case Absolute(value):
            return value
        case Add(terms):
            return sum(evaluated(where, t, leaf, fail) for t in terms)
        case Mul(factors):
            found = product(evaluated(where, factor, leaf, fail) for factor in factors)
            if abs(found) > 2**63:
                raise fail(where, size, f"a product comes to {found}")
            return found
        case CeilDiv(dividend, divisor):
            lower = evaluated(where, divisor, leaf, fail)
            if lower == 0:
                raise fail(where, size, "the divisor is zero")
            return -(-evaluated(where, dividend, leaf, fail) // lower)
    return leaf(size)


class Sizes:
    """Evaluates sizes for given inputs."""

    def __init__(self, config: GpuConfig, sizes: Mapping[str, int], read: ReadInteger) -> None:
        self._known = dict(sizes)
        self._buffers = config.blueprint.buffers
        self._read = read
        self._inputs = sizes
        self._padded: dict[str, int] = {}
        self._batch: int | None = None
        self._batch_size = config.blueprint.batch

    def number(self, where: str, size: Size, smallest: int, largest: int) -> int:
        """Evaluate a size and check its bounds."""
        value = size.value if type(size) is Absolute else self.value(where, size)
        if smallest <= value <= largest:
            return value
        message = f"it comes to {value}, possible is {smallest}..{largest}"
        message += " (is an input empty?)" if value == 0 else ""
        raise self.error(where, size, message)

    def error(self, where: str, size: Size, message: str) -> DandelionError:
        """Make the error of an impossible size, with the side at fault."""
        if constant(size) is None:
            return InvalidInput(where, message)
        return InvalidBlueprint((Problem("out-of-range", message, where),))

    def buffer(self, name: str) -> int:
        """Size of a buffer in bytes."""
        known = self._known.get(name)
        if known is None:
            self._evaluate(name)
            known = self._known[name]
        return known

    def _evaluate(self, name: str) -> None:
        """Evaluate a buffer's size after all that it refers to, however long such a chain is."""
        stack = [name]
        while stack:
            name = stack[-1]
            size = self._batch_size if name == BATCH else self._buffers[name]
            missing = [n for n in named_in(size) if not self._is_known(n)]
            if missing:
                stack += missing
                continue
            stack.pop()
            if name == BATCH:
                self.batch()
            else:
                where = f"blueprint.buffers.{name}"
                self._known[name] = self.number(where, size, 0, MAX_BYTES)

    def _is_known(self, name: str) -> bool:
        return self._batch is not None if name == BATCH else name in self._known

    def reserve(self, name: str, size_bytes: int) -> None:
        """Add memory that is not a buffer of the blueprint."""
        self._known[name] = size_bytes

    def pad(self, where: str, name: str, size: Size) -> None:
        """Let a buffer have more memory than it has data; see `Case`."""
        room, needed = self.number(where, size, 0, MAX_BYTES), self.buffer(name)
        if room < needed:
            raise InvalidInput(where, f"it comes to {room}, and '{name}' has {needed} bytes")
        self._padded[name] = max(room, self._padded.get(name, 0))

    def room(self, name: str) -> int:
        """Memory that a buffer takes in bytes."""
        return max(self.buffer(name), self._padded.get(name, 0))

    def value(self, where: str, size: Size) -> int:
        """Evaluate a size."""
        return evaluated(where, size, lambda leaf: self._leaf(where, leaf), self.error)

    def _leaf(self, where: str, size: Size) -> int:
        match size:
            case Sizeof(buffer):
                return self.buffer(buffer)
            case FromInput():
                self._check_integer(where, size)
                return self._read(size.bufname, size.idx)
            case Elements(buffer, dtype):
                return self.buffer(buffer) // dtype.size_bytes
            case ByBatch(value, even):
                return value * (-(-self.batch() // 2) if even else self.batch())
        raise InternalError(f"{where}: {type(size).__name__} is no size")

    def reduced(self, where: str, size: Size, open_: Container[FromInput]) -> Size:
        """Put numbers in the place of all but some integers, which other calls may replace.

        Args:
            where: for errors.
            size: with such an integer, or without.
            open_: integers that stay.
        """
        match size:
            case FromInput() if size in open_:
                self._check_integer(where, size)
                return size
            case Add(terms):
                return Add(tuple(self.reduced(where, t, open_) for t in terms))
            case Mul(factors):
                return Mul(tuple(self.reduced(where, f, open_) for f in factors))
            case CeilDiv(dividend, divisor):
                upper, lower = (self.reduced(where, s, open_) for s in (dividend, divisor))
                return CeilDiv(upper, lower)
        return Absolute(self.value(where, size))

    def _check_integer(self, where: str, size: FromInput) -> None:
        have = self._inputs[size.bufname]
        if (size.idx + 1) * 8 > have:
            raise InvalidInput(
                where,
                f"it reads the {size.idx}-th integer of '{size.bufname}', "
                f"whose item has {have} bytes, room for {have // 8}",
            )

    def batch(self) -> int:
        if self._batch is None:
            self._batch = self.number("blueprint.batch", self._batch_size, 1, MAX_LAUNCHES)
        return self._batch
