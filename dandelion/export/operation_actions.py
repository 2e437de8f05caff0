"""Library operations of an exported model as actions of its blueprint."""

from __future__ import annotations

from collections.abc import Callable

from dandelion.blueprint import Blueprint, Buffer, BufferPart, Matrix, matrix, part
from dandelion.export.product_records import GemmProduct, Place, Product


def add_operation(
    built: Blueprint, product: Product, out: Buffer, at: Callable[[Place], tuple[Buffer, int]]
) -> None:
    """Write a library operation.

    Args:
        built: the blueprint.
        product: which.
        out: the buffer that it fills.
        at: gives the buffer of an operand, and its first element there in bytes.
    """

    def part_of(place: Place | None) -> BufferPart | None:
        return None if place is None else part(*at(place))

    def matrix_of(place: Place) -> Matrix:
        buffer, offset = at(place)
        stride = place.batch_stride if isinstance(product, GemmProduct) else 0
        return matrix(
            buffer, offset=offset, transposed=place.transposed, ld=place.ld,
            batch_stride=stride if stride or batch > 1 else None,
        )  # fmt: skip

    batch = product.batch
    names = {
        "dtype": product.dtype.value, "compute": product.compute.value,
        "activation": product.activation.value,
    }  # fmt: skip
    if isinstance(product, GemmProduct):
        built.gemm(
            matrix_of(product.a), matrix_of(product.b), out, m=product.m, n=product.n,
            k=product.k, batch=batch, c=None if product.c is None else matrix_of(product.c),
            alpha=product.alpha, beta=product.beta if product.c else None,
            bias=part_of(product.bias), bias_axis=product.bias_axis.value, **names,
        )  # fmt: skip
        return
    built.convolution(
        part(*at(product.image)), part(*at(product.weight)), out, batch=batch,
        channels=product.channels, size=product.size, filters=product.filters,
        kernel=product.kernel, stride=product.stride, padding=product.padding,
        dilation=product.dilation, groups=product.groups, addend=part_of(product.c),
        bias=part_of(product.bias), layout=product.layout.value, dtype=names["dtype"],
        compute=names["compute"], activation=names["activation"],
    )  # fmt: skip
