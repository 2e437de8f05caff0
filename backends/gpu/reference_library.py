"""Library operations in numpy and double precision: what all other ways must give.

The host device for tests uses it as its library.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dandelion.arrays import declared_dtype
from dandelion.blueprint.operation_calls import (
    ConvolutionCall,
    GemmCall,
    MatrixCall,
    OperationCall,
    operand_calls,
)
from dandelion.blueprint.operation_records import Activation, BiasAxis, ElementType, ImageLayout

from .lowering import Library

Numbers = npt.NDArray[np.float64]
Stored = npt.NDArray[Any]

STORED: Mapping[ElementType, np.dtype[Any]] = {
    ElementType.F64: np.dtype(np.float64),
    ElementType.F32: np.dtype(np.float32),
    ElementType.F16: np.dtype(np.float16),
    ElementType.BF16: declared_dtype("bfloat16"),
}
"""The types of elements in memory."""


class ReferenceLibrary(Library):
    """Computes on memory of this process.

    Args:
        workspace: bytes that each operation asks for, and overwrites.
    """

    def __init__(self, workspace: int = 0) -> None:
        self._workspace = workspace

    def workspace_bytes(self, call: OperationCall) -> int | None:
        return self._workspace

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> Callable[[], None]:
        stored = STORED[call.dtype]
        arrays = {
            name: _memory(addresses[name], operand.elements * stored.itemsize).view(stored)
            for name, operand in operand_calls(call)
        }
        used = _memory(*workspace)

        def run() -> None:
            used.fill(0x5A)
            compute(call, arrays)

        return run

    def close(self) -> None:
        """It holds nothing."""


def _memory(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    if not size_bytes:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def compute(call: OperationCall, arrays: Mapping[str, Stored]) -> None:
    """Compute an operation.

    Args:
        call: which.
        arrays: the elements of each operand from its first to its last, by field.
            ``out`` is written.
    """
    wide = {name: array.astype(np.float64) for name, array in arrays.items() if name != "out"}
    if isinstance(call, GemmCall):
        target = _view(arrays["out"], call.out)
        target[...] = narrowed(_product(call, wide), call.dtype)
    else:
        arrays["out"][:] = narrowed(_convolution(call, wide), call.dtype).reshape(-1)


def _product(call: GemmCall, wide: Mapping[str, Numbers]) -> Numbers:
    a, b = _matrix(wide["a"], call.a), _matrix(wide["b"], call.b)
    made: Numbers = call.alpha * np.matmul(a, b)
    if call.c is not None:
        made = made + call.beta * _matrix(wide["c"], call.c)
    if call.bias is not None:
        row = call.bias_axis is BiasAxis.ROWS
        made = made + (wide["bias"][:, None] if row else wide["bias"])
    return _activated(made, call.activation)


def _convolution(call: ConvolutionCall, wide: Mapping[str, Numbers]) -> Numbers:
    last = call.layout is ImageLayout.NHWC
    (height, width), (kernel_h, kernel_w) = call.size, call.kernel
    channels, filters = call.channels // call.groups, call.filters // call.groups
    image, weight = wide["image"], wide["weight"]
    if last:
        image = image.reshape(call.batch, height, width, call.channels).transpose(0, 3, 1, 2)
        weight = weight.reshape(call.filters, kernel_h, kernel_w, channels).transpose(0, 3, 1, 2)
    image = image.reshape(call.batch, call.channels, height, width)
    weight = weight.reshape(call.filters, channels, kernel_h, kernel_w)
    around = [(0, 0), (0, 0), *((p, p) for p in call.padding)]
    padded = np.pad(image, around)
    out_h, out_w = call.out_size
    made = np.zeros((call.batch, call.filters, out_h, out_w))
    for dy in range(kernel_h):
        for dx in range(kernel_w):
            top, left = dy * call.dilation[0], dx * call.dilation[1]
            rows = slice(top, top + (out_h - 1) * call.stride[0] + 1, call.stride[0])
            columns = slice(left, left + (out_w - 1) * call.stride[1] + 1, call.stride[1])
            part = padded[:, :, rows, columns]
            for group in range(call.groups):
                of = slice(group * channels, (group + 1) * channels)
                to = slice(group * filters, (group + 1) * filters)
                made[:, to] += np.einsum("nchw,fc->nfhw", part[:, of], weight[to, :, dy, dx])
    if call.bias is not None:
        made += wide["bias"][:, None, None]
    made = made.transpose(0, 2, 3, 1) if last else made
    if call.addend is not None:
        made = made + wide["addend"].reshape(made.shape)
    return _activated(made, call.activation)


def _activated(values: Numbers, activation: Activation) -> Numbers:
    if activation is Activation.RELU:
        return np.where(values < 0, 0.0, values)
    if activation is Activation.GELU_TANH:
        curved: Numbers = values + 0.044715 * values**3
        made: Numbers = 0.5 * values * (1 + np.tanh(math.sqrt(2 / math.pi) * curved))
        return made
    return values


def _view(elements: Stored, matrix: MatrixCall) -> Stored:
    """The matrices in their elements, ``[batch, rows, columns]``."""
    strides = [elements.itemsize * s for s in (matrix.batch_stride, *matrix.strides)]
    shape = (matrix.batch, matrix.rows, matrix.columns)
    view: Stored = np.lib.stride_tricks.as_strided(elements, shape, strides)
    return view


def _matrix(wide: Numbers, matrix: MatrixCall) -> Numbers:
    return _view(wide, matrix)


def narrowed(values: Numbers, dtype: ElementType) -> Stored:
    """Round to the nearest element of a type, as it is stored."""
    with np.errstate(over="ignore"):
        return values.astype(STORED[dtype])
