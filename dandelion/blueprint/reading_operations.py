"""Reading library operations of a blueprint."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from dandelion.blueprint.document import Json, kind_of
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
from dandelion.blueprint.reading_sizes import SizeReader
from dandelion.blueprint.size_records import Absolute, Size
from dandelion.errors import nearest

_Choice = TypeVar("_Choice", bound=enum.Enum)

_GEMM = ("a", "b", "out", "m", "n", "k")
_GEMM_OPTIONS = ("batch", "c", "alpha", "beta", "bias", "bias_axis")
_CONVOLUTION = (
    "image",
    "weight",
    "out",
    "batch",
    "channels",
    "height",
    "width",
    "filters",
    "kernel",
)
_CONVOLUTION_OPTIONS = ("stride", "padding", "dilation", "groups", "addend", "bias", "layout")
_TYPES = ("dtype", "compute", "activation")
_NOWHERE = BufferPart("?")


class OperationReader(SizeReader):
    """Reads library operations; `problems` grows."""

    def gemm(self, where: str, value: Json) -> Gemm | None:
        fields = self.fields(where, value, _GEMM, (*_GEMM_OPTIONS, *_TYPES))
        if any(name not in fields for name in _GEMM):
            return None
        axis = BiasAxis.COLUMNS
        if "bias_axis" in fields:
            axis = self.choice(f"{where}.bias_axis", fields["bias_axis"], axis)
        dtype, compute, activation = self.types(where, fields)
        return Gemm(
            self.matrix(f"{where}.a", fields["a"]),
            self.matrix(f"{where}.b", fields["b"]),
            self.matrix(f"{where}.out", fields["out"]),
            self.size(f"{where}.m", fields["m"]),
            self.size(f"{where}.n", fields["n"]),
            self.size(f"{where}.k", fields["k"]),
            self.option(where, fields, "batch", 1),
            self.matrix(f"{where}.c", fields["c"]) if "c" in fields else None,
            self.factor(where, fields, "alpha", 1.0),
            self.factor(where, fields, "beta", 1.0 if "c" in fields else 0.0),
            self.part(f"{where}.bias", fields["bias"]) if "bias" in fields else None,
            axis, dtype, compute, activation,
        )  # fmt: skip

    def convolution(self, where: str, value: Json) -> Conv2d | None:
        fields = self.fields(where, value, _CONVOLUTION, (*_CONVOLUTION_OPTIONS, *_TYPES))
        if any(name not in fields for name in _CONVOLUTION):
            return None
        layout = ImageLayout.NCHW
        if "layout" in fields:
            layout = self.choice(f"{where}.layout", fields["layout"], layout)
        dtype, compute, activation = self.types(where, fields)
        image, weight, out = (
            self.part(f"{where}.{name}", fields[name]) for name in ("image", "weight", "out")
        )
        names = ("batch", "channels", "height", "width", "filters")
        batch, channels, height, width, filters = (
            self.size(f"{where}.{name}", fields[name]) for name in names
        )
        return Conv2d(
            image, weight, out, batch, channels, height, width, filters,
            self.pair(where, fields, "kernel", 1),
            self.pair(where, fields, "stride", 1),
            self.pair(where, fields, "padding", 0),
            self.pair(where, fields, "dilation", 1),
            self.option(where, fields, "groups", 1),
            self.part(f"{where}.addend", fields["addend"]) if "addend" in fields else None,
            self.part(f"{where}.bias", fields["bias"]) if "bias" in fields else None,
            layout, dtype, compute, activation,
        )  # fmt: skip

    def types(
        self, where: str, fields: Mapping[str, Json]
    ) -> tuple[ElementType, Computation, Activation]:
        dtype, activation = ElementType.F32, Activation.NONE
        if "dtype" in fields:
            dtype = self.choice(f"{where}.dtype", fields["dtype"], dtype)
        if "activation" in fields:
            activation = self.choice(f"{where}.activation", fields["activation"], activation)
        compute = COMPUTATIONS[dtype][0]
        if "compute" in fields:
            compute = self.choice(f"{where}.compute", fields["compute"], compute)
        return dtype, compute, activation

    def choice(self, where: str, value: Json, default: _Choice) -> _Choice:
        """Read one of the values of the default's type."""
        kind = type(default)
        known = [choice.value for choice in kind]
        if isinstance(value, str) and value in known:
            return kind(value)
        close = nearest(value, known) if isinstance(value, str) else None
        self.report(
            "choice", where, "unknown value", expected=" or ".join(known), found=kind_of(value),
            close=close,
        )  # fmt: skip
        return default

    def option(self, where: str, fields: Mapping[str, Json], name: str, default: int) -> Size:
        if name not in fields:
            return Absolute(default)
        return self.size(f"{where}.{name}", fields[name])

    def factor(self, where: str, fields: Mapping[str, Json], name: str, default: float) -> float:
        value = fields.get(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**1000:
            return float(value)
        self.wrong(f"{where}.{name}", "a finite number", value)
        return default

    def pair(
        self, where: str, fields: Mapping[str, Json], name: str, default: int
    ) -> tuple[Size, Size]:
        """Read sizes for height and width; one is for both."""
        at, value = f"{where}.{name}", fields.get(name, default)
        if not isinstance(value, list):
            size = self.size(at, value)
            return size, size
        if len(value) != 2:
            self.wrong(at, "[height, width]", value)
            return Absolute(1), Absolute(1)
        return self.size(f"{at}[0]", value[0]), self.size(f"{at}[1]", value[1])

    def part(self, where: str, value: Json) -> BufferPart:
        if isinstance(value, str):
            return BufferPart(self.name(where, value))
        fields = self.fields(where, value, ("buffer",), ("offset",))
        if "buffer" not in fields:
            return _NOWHERE
        name = self.name(f"{where}.buffer", fields["buffer"])
        return BufferPart(name, self.option(where, fields, "offset", 0))

    def matrix(self, where: str, value: Json) -> Matrix:
        if isinstance(value, str):
            return Matrix(self.name(where, value))
        options = ("offset", "transposed", "ld", "batch_stride")
        fields = self.fields(where, value, ("buffer",), options)
        if "buffer" not in fields:
            return Matrix(_NOWHERE.buffer)
        transposed = fields.get("transposed", False)
        if not isinstance(transposed, bool):
            self.wrong(f"{where}.transposed", "true or false", transposed)
            transposed = False
        return Matrix(
            self.name(f"{where}.buffer", fields["buffer"]),
            self.option(where, fields, "offset", 0),
            transposed,
            self.size(f"{where}.ld", fields["ld"]) if "ld" in fields else None,
            self.size(f"{where}.batch_stride", fields["batch_stride"])
            if "batch_stride" in fields
            else None,
        )
