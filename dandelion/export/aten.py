"""Operators of ATen: the table of those that can be exported, and how each is computed.

A rule computes an operator with tensors of the code generator (tinygrad's `Tensor`), which describe
a computation and do nothing. Its kind says how it takes part in fusion, see `fusion`. A rule gets
operands of the type that torch computes in; what it gives is converted to the type of the result,
and its shape is checked. Types of 16 bits are computed in float32, as torch does on processors.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from dandelion.export.torch_graph import Node

Tensor: TypeAlias = Any
"""A tensor of the code generator; its methods are those of `tinygrad.Tensor`."""


class Tensors(Protocol):
    """What the code generator offers besides the methods of tensors."""

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Tensor:
        """A tensor of one value."""

    def arange(self, count: int, dtype: str) -> Tensor:
        """0, 1, 2, ..."""

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """Convert to an element type."""

    def bits(self, tensor: Tensor, dtype: str) -> Tensor:
        """The bits of each number as a type of the same size."""

    def cat(self, tensors: Sequence[Tensor], dimension: int) -> Tensor:
        """Join along a dimension."""

    def store(self, tensor: Tensor) -> Tensor:
        """Let a kernel write the tensor to memory here."""


class Kind(enum.Enum):
    """How an operator takes part in fusion."""

    SOURCE = "source"  # has no tensor operands: a mask, a range of numbers
    VIEW = "view"  # another order of the same elements; computes nothing
    POINTWISE = "pointwise"  # each element from a few; cheap, so it is fused with others
    HEAVY = "heavy"  # each element from many, so its operands are read more than once


@dataclass(frozen=True, slots=True)
class Step:
    """What a rule may use besides its operands.

    Attributes:
        tensors: constructors.
        node: the operator, with the types of its results.
    """

    tensors: Tensors
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the only result."""
        return self.node.type.shape

    @property
    def dtype(self) -> str:
        """Element type of the only result."""
        return self.node.type.dtype


Apply: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """How an operator is computed.

    Attributes:
        kind: see `Kind`.
        apply: takes a `Step`, then the operator's arguments; returns a tensor, or a list of them
            with None for those that it cannot give.
        promote: tensors among the arguments are converted to one type first.
    """

    kind: Kind
    apply: Apply
    promote: bool


RULES: dict[str, Rule] = {}
"""By ATen's name with its overload."""

GEMM = "dandelion.gemm"
CONVOLUTION = "dandelion.convolution"
CONVOLUTION_LAST = "dandelion.convolution_last"
STORED_LAST = "dandelion.stored_last"
ATTENTION_WEIGHTS = "dandelion.attention_weights"
"""Operators that an export puts in the place of others, see `dandelion.export.products` and
`dandelion.export.channels_last`."""


def rule(
    *operators: str, kind: Kind = Kind.POINTWISE, promote: bool = True
) -> Callable[[Apply], Apply]:
    """Add a rule for operators, named without ``aten.``; the overload ``default`` may be left out.

    Args:
        operators: their names.
        kind: see `Kind`.
        promote: see `Rule`.
    """

    def add(apply: Apply) -> Apply:
        for name in operators:
            full = name if "." in name else f"{name}.default"
            RULES[f"aten.{full}"] = Rule(kind, apply, promote)
        return apply

    return add


class NotSupported(Exception):
    """An operator is in the table, but not with these arguments; the text says what is missing."""
