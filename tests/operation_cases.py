"""FIXTURE. Random library operations, and their results by the reference."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dandelion.backends.gpu.reference_library import STORED, compute, narrowed

import dandelion.blueprint as bp
from dandelion.blueprint import Absolute, Activation, BiasAxis, BufferPart, ElementType, ImageLayout
from dandelion.blueprint.operation_calls import OperationCall, evaluated, operand_calls
from dandelion.blueprint.size_records import Size

TOLERANCES = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


@dataclass(frozen=True)
class Case:
    """A blueprint of one operation with its inputs; the result is the buffer ``y``."""

    config: bp.GpuConfig
    data: dict[str, bytes]
    dtype: ElementType

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.data.items()}

    @property
    def call(self) -> OperationCall:
        """The operation with its numbers."""
        (action,) = self.config.blueprint.control_flow
        assert isinstance(action, bp.Gemm | bp.Conv2d)
        return evaluated(action, lambda field, size, low, high: number(size))

    def expected(self) -> npt.NDArray[np.float64]:
        """The whole buffer of the result; what is not written stays zero."""
        call = self.call
        stored = STORED[self.dtype]
        size = number(self.config.blueprint.buffers["y"])
        whole = {name: np.frombuffer(data, stored) for name, data in self.data.items()}
        whole["y"] = np.zeros(size // stored.itemsize, stored)
        parts = {}
        for name, operand in operand_calls(call):
            at = operand.offset_bytes // stored.itemsize
            parts[name] = whole[operand.buffer][at : at + operand.elements]
        compute(call, parts)
        return whole["y"].astype(np.float64)

    def error(self, found: bytes) -> float:
        """Largest difference of a result, relative to the largest value or 1."""
        wanted = self.expected()
        got = np.frombuffer(found, STORED[self.dtype]).astype(np.float64)
        return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def number(size: Size) -> int:
    """The value of a constant."""
    assert isinstance(size, Absolute)
    return size.value


def config_of(action: Any, inputs: Any, out_bytes: int) -> bp.GpuConfig:
    """A blueprint of one action."""
    body = bp.ExecutionBlueprint(tuple(inputs), (), {"y": Absolute(out_bytes)}, ("y",), (action,))
    return bp.GpuConfig((), (), body)


class Maker:
    """Makes random cases; a seed always gives the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.data: dict[str, bytes] = {}

    def fill(self, name: str, count: int, dtype: ElementType) -> None:
        self.data[name] = narrowed(self.numbers.standard_normal(count), dtype).tobytes()

    def matrix(
        self, name: str, rows: int, columns: int, batch: int, dtype: ElementType,
        transposed: bool = False,
    ) -> tuple[bp.Matrix, int]:  # fmt: skip
        """A matrix somewhere in a buffer, and how many bytes the buffer has."""
        pick = self.random.choice
        stored = (columns, rows) if transposed else (rows, columns)
        ld = stored[1] + pick([0, 0, 3])
        gap = stored[0] * ld + pick([0, 5])
        stride = gap if name == "y" else pick([0, gap])
        offset = pick([0, 0, 4])
        count = offset + (batch - 1) * stride + stored[0] * ld
        if name != "y":
            self.fill(name, count, dtype)
        made = bp.Matrix(
            name, Absolute(offset * dtype.size_bytes), transposed, Absolute(ld), Absolute(stride)
        )
        return made, count * dtype.size_bytes

    def gemm(
        self, dtype: ElementType, sizes: tuple[int, int, int], *, a: bool, b: bool, added: bool,
        bias: BiasAxis | None, activation: Activation = Activation.NONE, batch: int = 1,
    ) -> Case:  # fmt: skip
        m, n, k = sizes
        left, _ = self.matrix("a", m, k, batch, dtype, a)
        right, _ = self.matrix("b", k, n, batch, dtype, b)
        out, size = self.matrix("y", m, n, batch, dtype)
        c = self.matrix("c", m, n, batch, dtype)[0] if added else None
        shift = None
        if bias is not None:
            self.fill("v", max(m, n) + 2, dtype)
            shift = BufferPart("v", Absolute(2 * dtype.size_bytes))
        action = bp.Gemm(
            left, right, out, Absolute(m), Absolute(n), Absolute(k), Absolute(batch), c, -0.5,
            0.25 if c else 0.0, shift, bias or BiasAxis.COLUMNS, dtype, bp.COMPUTATIONS[dtype][0],
            activation,
        )  # fmt: skip
        return Case(config_of(action, self.data, size), self.data, dtype)

    def convolution(
        self, dtype: ElementType, layout: ImageLayout, *, batch: int, channels: int, filters: int,
        size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1), groups: int = 1,
        added: bool = False, bias: bool = False, activation: Activation = Activation.NONE,
    ) -> Case:  # fmt: skip
        out_size = [
            (size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
            for d in range(2)
        ]
        made = batch * filters * out_size[0] * out_size[1]
        self.fill("x", batch * channels * size[0] * size[1], dtype)
        self.fill("w", 3 + filters * channels // groups * kernel[0] * kernel[1], dtype)
        if added:
            self.fill("c", made, dtype)
        if bias:
            self.fill("v", filters, dtype)

        def pair(given: tuple[int, int]) -> tuple[Size, Size]:
            return Absolute(given[0]), Absolute(given[1])

        action = bp.Conv2d(
            BufferPart("x"), BufferPart("w", Absolute(3 * dtype.size_bytes)), BufferPart("y"),
            Absolute(batch), Absolute(channels), Absolute(size[0]), Absolute(size[1]),
            Absolute(filters), pair(kernel), pair(stride), pair(padding), pair(dilation),
            Absolute(groups), BufferPart("c") if added else None,
            BufferPart("v") if bias else None, layout, dtype, bp.COMPUTATIONS[dtype][0], activation,
        )  # fmt: skip
        return Case(config_of(action, self.data, made * dtype.size_bytes), self.data, dtype)
