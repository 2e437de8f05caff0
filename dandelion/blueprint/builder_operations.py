"""Library operations in Python, for `dandelion.blueprint.builder`."""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from dandelion.blueprint.builder_sizes import Buffer, SizeLike, size_of
from dandelion.blueprint.operation_records import (
    COMPUTATIONS,
    Activation,
    BiasAxis,
    BufferPart,
    Computation,
    Conv2d,
    ElementType,
    Gemm,
    ImageLayout,
    Matrix,
)
from dandelion.blueprint.records import Action
from dandelion.blueprint.size_records import Size
from dandelion.errors import InvalidInput, nearest

PartLike: TypeAlias = Buffer | BufferPart
MatrixLike: TypeAlias = Buffer | Matrix
PairLike: TypeAlias = SizeLike | Sequence[SizeLike]
_Choice = TypeVar("_Choice", bound=enum.Enum)


def part(buffer: Buffer, offset: SizeLike = 0) -> BufferPart:
    """Elements of a buffer from an offset in bytes."""
    return BufferPart(buffer.name, size_of(offset))


def matrix(
    buffer: Buffer,
    *,
    offset: SizeLike = 0,
    transposed: bool = False,
    ld: SizeLike | None = None,
    batch_stride: SizeLike | None = None,
) -> Matrix:
    """Describe a matrix in a buffer; see `dandelion.blueprint.Matrix`."""
    return Matrix(
        buffer.name, size_of(offset), transposed, None if ld is None else size_of(ld),
        None if batch_stride is None else size_of(batch_stride),
    )  # fmt: skip


class OperationBuilder(abc.ABC):
    """Adds library operations to a blueprint."""

    @abc.abstractmethod
    def _add(self, action: Action) -> None:
        """Add an action."""

    def gemm(
        self, a: MatrixLike, b: MatrixLike, out: MatrixLike, *, m: SizeLike, n: SizeLike,
        k: SizeLike, batch: SizeLike = 1, c: MatrixLike | None = None, alpha: float = 1.0,
        beta: float | None = None, bias: PartLike | None = None, bias_axis: str = "columns",
        dtype: str = "f32", compute: str = "", activation: str = "none",
    ) -> None:  # fmt: skip
        """Multiply matrices; see `dandelion.blueprint.Gemm`.

        Args:
            a, b, out, c: buffers, or `matrix` for transposed ones and parts of buffers.
            m, n, k: sizes; a is ``[m, k]``, b ``[k, n]``, out and c ``[m, n]``.
            batch: how many products.
            alpha, beta: factors; beta is 1 if there is a c.
            bias: buffer, or `part`, with a value for each column or row.
            bias_axis: ``columns`` or ``rows``.
            dtype: ``f64``, ``f32``, ``f16`` or ``bf16``.
            compute: by default ``f64`` for f64, else ``f32``; also ``tf32``, ``bf16``, ``f16``.
            activation: ``none``, ``relu`` or ``gelu_tanh``.
        """
        kind = _choice(ElementType, "dtype", dtype)
        made = Gemm(
            _matrix(a), _matrix(b), _matrix(out), size_of(m), size_of(n), size_of(k),
            size_of(batch), None if c is None else _matrix(c), float(alpha),
            float((c is not None) if beta is None else beta),
            None if bias is None else _part(bias), _choice(BiasAxis, "bias_axis", bias_axis),
            kind, _computation(kind, compute), _choice(Activation, "activation", activation),
        )  # fmt: skip
        self._add(made)

    def convolution(
        self, image: PartLike, weight: PartLike, out: PartLike, *, batch: SizeLike,
        channels: SizeLike, size: PairLike, filters: SizeLike, kernel: PairLike,
        stride: PairLike = 1, padding: PairLike = 0, dilation: PairLike = 1, groups: SizeLike = 1,
        addend: PartLike | None = None, bias: PartLike | None = None, layout: str = "nchw",
        dtype: str = "f32", compute: str = "", activation: str = "none",
    ) -> None:  # fmt: skip
        """Convolve images; see `dandelion.blueprint.Conv2d`.

        Args:
            image, weight, out, addend, bias: buffers, or `part`.
            batch, channels, filters, groups: sizes.
            size, kernel, stride, padding, dilation: one number, or height and width.
            layout: ``nchw`` or ``nhwc``.
            dtype, compute, activation: see `gemm`.
        """
        kind = _choice(ElementType, "dtype", dtype)
        height, width = _pair("size", size)
        made = Conv2d(
            _part(image), _part(weight), _part(out), size_of(batch), size_of(channels), height,
            width, size_of(filters), _pair("kernel", kernel), _pair("stride", stride),
            _pair("padding", padding), _pair("dilation", dilation), size_of(groups),
            None if addend is None else _part(addend), None if bias is None else _part(bias),
            _choice(ImageLayout, "layout", layout), kind, _computation(kind, compute),
            _choice(Activation, "activation", activation),
        )  # fmt: skip
        self._add(made)


def _matrix(given: MatrixLike) -> Matrix:
    return Matrix(given.name) if isinstance(given, Buffer) else given


def _part(given: PartLike) -> BufferPart:
    return BufferPart(given.name) if isinstance(given, Buffer) else given


def _pair(what: str, given: PairLike) -> tuple[Size, Size]:
    if not isinstance(given, Sequence):
        return size_of(given), size_of(given)
    if len(given) != 2:
        raise InvalidInput(what, f"{len(given)} numbers instead of height and width")
    return size_of(given[0]), size_of(given[1])


def _computation(dtype: ElementType, name: str) -> Computation:
    return _choice(Computation, "compute", name) if name else COMPUTATIONS[dtype][0]


def _choice(kind: type[_Choice], what: str, name: str) -> _Choice:
    known = [choice.value for choice in kind]
    if name not in known:
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"use {' or '.join(known)}"
        raise InvalidInput(what, f"no {what} '{name}'", hint)
    return kind(name)
