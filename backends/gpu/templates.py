"""Kernels of the platform for library operations, written for ``dandelion.h``: what they share.

A template is a source for one kind of operation: element type, layouts, epilogue and tile sizes are
in its text, so that the compiler can unroll its loops; sizes and strides are arguments, so that a
model with many shapes needs few of them. Index arithmetic within a buffer is in 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.blueprint import Access
from dandelion.blueprint.operation_calls import (
    ConvolutionCall,
    GemmCall,
    MatrixCall,
    OperationCall,
    PartCall,
)
from dandelion.blueprint.operation_records import Activation, BiasAxis, ElementType, ImageLayout

PREFIX = "\0"
"""Begins the names of kernels and buffers that are not the function's own."""

TemplateArgument: TypeAlias = str | bytes
"""The name of a buffer, or a value as the kernel gets it."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel of the platform.

    Attributes:
        symbol: its name in the source; equal names are equal sources.
        text: the source.
        access: to each parameter.
    """

    symbol: str
    text: str
    access: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class TemplateLaunch:
    """A launch of a template."""

    template: Template
    args: tuple[TemplateArgument, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


_STORAGE = {
    ElementType.F64: ("f64", "p[i]", "v"),
    ElementType.F32: ("f32", "p[i]", "v"),
    ElementType.F16: ("u16", "F16_TO_F32(p[i])", "F32_TO_F16(v)"),
    ElementType.BF16: ("u16", "AS_F32((u32)p[i] << 16)", "bf16_of(v)"),
}

_BF16 = """DEVICE u16 bf16_of(f32 value)
{
    u32 bits = AS_U32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (u16)((bits >> 16) | 64u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
"""

_ACTIVATIONS = {
    Activation.NONE: "v",
    Activation.RELU: "(v < 0 ? (SUM)0 : v)",
    Activation.GELU_TANH: "gelu(v)",
}

_GELU = """DEVICE SUM gelu(SUM x)
{
    SUM y = (SUM)0.7978845608028654 * (x + (SUM)0.044715 * x * x * x);
    return (SUM)0.5 * x * ((SUM)1 + TANH(y));
}
"""


def head(dtype: ElementType, activation: Activation) -> str:
    """The beginning of every template: types, loads and stores, the activation."""
    storage, load, store = _STORAGE[dtype]
    wide = dtype is ElementType.F64
    lines = [
        "/* A kernel of the platform. */",
        '#include "dandelion.h"',
        f"typedef {storage} ITEM;",
        f"typedef {'f64' if wide else 'f32'} SUM;",
        f"#define TANH {'tanh' if wide else 'tanhf'}",
        f"#define LOAD_ITEM(p, i) ({load.replace('p[i]', '(p)[i]')})",
        f"#define STORE_ITEM(p, i, v) ((p)[i] = {store.replace('v', '(v)', 1)})",
        f"#define ACTIVATED(v) ({_ACTIVATIONS[activation]})",
        "",
    ]
    text = "\n".join(lines)
    if dtype is ElementType.BF16:
        text += _BF16
    return text + (_GELU if activation is Activation.GELU_TANH else "")


@dataclass(frozen=True, slots=True)
class Shape:
    """An operation as a product of matrices, for a tile of its result.

    Attributes:
        rows, columns, depth: sizes of each product; rows are filters for convolutions, columns
            pixels.
        products: how many there are.
        names: of the numbers that the kernel gets, with their values.
        macros: where elements are: ``A_AT(i, k)``, ``OUT_AT(i, j)``, ``C_AT``, ``BIAS_AT``, and
            the start of each operand for a product.
        kind: identifies the macros.
        pack: how the second factor is read: ``rows``, ``columns`` or ``image``.
    """

    rows: int
    columns: int
    depth: int
    products: int
    numbers: Mapping[str, int]
    macros: str
    kind: str
    pack: str


def shape_of(call: OperationCall) -> Shape:
    """Write an operation as products of matrices."""
    if isinstance(call, GemmCall):
        return _gemm_shape(call)
    return _convolution_shape(call)


def _gemm_shape(call: GemmCall) -> Shape:
    numbers = {
        "rows": call.m, "columns": call.n, "depth": call.k,
        "a_ld": call.a.ld, "a_next": call.a.batch_stride,
        "b_ld": call.b.ld, "b_next": call.b.batch_stride,
        "out_ld": call.out.ld, "out_next": call.out.batch_stride,
        "c_ld": call.c.ld if call.c else 0, "c_next": call.c.batch_stride if call.c else 0,
    }  # fmt: skip
    row = call.bias_axis is BiasAxis.ROWS
    macros = [
        f"#define A_AT(i, k) ({_at(call.a, 'a', 'i', 'k')})",
        f"#define B_AT(k, j) ({_at(call.b, 'b', 'k', 'j')})",
        "#define OUT_AT(i, j) ((u64)(i) * out_ld + (j))",
        "#define C_AT(i, j) ((u64)(i) * c_ld + (j))",
        f"#define BIAS_AT(i, j) ({'i' if row else 'j'})",
        "#define A_START(z) ((z) * a_next)",
        "#define B_START(z) ((z) * b_next)",
        "#define OUT_START(z) ((z) * out_next)",
        "#define C_START(z) ((z) * c_next)",
        "#define BIAS_START(z) ((u64)0)",
    ]
    kind = f"gemm_{'t' if call.a.transposed else 'n'}{'t' if call.b.transposed else 'n'}"
    kind += "_row" if row and call.bias else ""
    pack = "columns" if call.b.transposed else "rows"
    return Shape(call.m, call.n, call.k, call.batch, numbers, "\n".join(macros) + "\n", kind, pack)


def _at(matrix: MatrixCall, name: str, row: str, column: str) -> str:
    if matrix.transposed:
        row, column = column, row
    return f"(u64)({row}) * {name}_ld + ({column})"


def _convolution_shape(call: ConvolutionCall) -> Shape:
    filters, channels = call.filters // call.groups, call.channels // call.groups
    last = call.layout is ImageLayout.NHWC
    numbers = {
        "rows": filters, "columns": call.pixels, "depth": call.depth, "groups": call.groups,
        "channels": channels, "height": call.size[0], "width": call.size[1],
        "out_width": call.out_size[1], "top_pad": call.padding[0], "left": call.padding[1],
    }  # fmt: skip
    pairs = {"KERNEL_H": call.kernel[0], "KERNEL_W": call.kernel[1]}
    pairs |= {"STRIDE_H": call.stride[0], "STRIDE_W": call.stride[1]}
    pairs |= {"STEP_H": call.dilation[0], "STEP_W": call.dilation[1]}
    macros = [f"#define {name} {value}" for name, value in pairs.items()]
    macros.append("#define A_AT(i, k) ((u64)(i) * depth + (k))")
    macros.append("#define A_START(z) ((z) % groups * rows * depth)")
    macros.append("#define BIAS_AT(i, j) (i)")
    macros.append("#define BIAS_START(z) ((z) % groups * rows)")
    if last:
        image_start = "(z) / groups * height * width * channels * groups + (z) % groups * channels"
        all_channels, all_rows = "((u64)channels * groups)", "((u64)rows * groups)"
        macros += [
            f"#define PIXEL_AT(c, y, x) (((u64)(y) * width + (x)) * {all_channels} + (c))",
            f"#define B_START(z) ({image_start})",
            f"#define OUT_AT(i, j) ((u64)(j) * {all_rows} + (i))",
            f"#define OUT_START(z) ((z) / groups * columns * {all_rows} + (z) % groups * rows)",
            "#define CHANNELS_LAST 1",
        ]
    else:
        macros += [
            "#define PIXEL_AT(c, y, x) (((u64)(c) * height + (y)) * width + (x))",
            "#define B_START(z) ((z) * channels * height * width)",
            "#define OUT_AT(i, j) ((u64)(i) * columns + (j))",
            "#define OUT_START(z) ((z) * rows * columns)",
            "#define CHANNELS_LAST 0",
        ]
    macros += ["#define C_AT(i, j) OUT_AT(i, j)", "#define C_START(z) OUT_START(z)"]
    numbers_of = "_".join(str(value) for value in pairs.values())
    kind = f"conv_{'nhwc' if last else 'nchw'}_{numbers_of}"
    products = call.batch * call.groups
    return Shape(
        filters, call.pixels, call.depth, products, numbers, "\n".join(macros) + "\n", kind, "image"
    )


def operand_names(call: OperationCall) -> list[tuple[str, PartCall | MatrixCall]]:
    """The operands by the names that templates give them; ``out`` is last."""
    if isinstance(call, GemmCall):
        found = [("a", call.a), ("b", call.b), ("c", call.c), ("bias", call.bias)]
    else:
        found = [("a", call.weight), ("b", call.image), ("c", call.addend), ("bias", call.bias)]
    return [(name, operand) for name, operand in [*found, ("out", call.out)] if operand is not None]


def parameters(names: Iterable[str], numbers: Iterable[str]) -> str:
    """The parameters of a kernel: each buffer with the place of its first element, and numbers."""
    parts = []
    for name in names:
        const = "" if name == "out" else "const "
        parts.append(f"GLOBAL {const}ITEM *{name}_all, u64 {name}_at")
    parts += [f"u64 {name}" for name in numbers]
    return ", ".join([*parts, "SUM alpha", "SUM beta"])


def arguments(call: OperationCall, numbers: Mapping[str, int]) -> tuple[TemplateArgument, ...]:
    """The arguments for `parameters`."""
    made: list[TemplateArgument] = []
    for _, operand in operand_names(call):
        made += [operand.buffer, u64(operand.offset_bytes // call.dtype.size_bytes)]
    made += [u64(value) for value in numbers.values()]
    code = "<d" if call.dtype is ElementType.F64 else "<f"
    factors = (call.alpha, call.beta) if isinstance(call, GemmCall) else (1.0, 1.0)
    return (*made, *(struct.pack(code, _finite(factor, code)) for factor in factors))


def _finite(value: float, code: str) -> float:
    """A factor that f32 cannot hold becomes infinite, as on a device."""
    return value if code == "<d" or abs(value) < 3.4028235677973366e38 else value * float("inf")


def access(call: OperationCall, numbers: Mapping[str, int]) -> tuple[Access, ...]:
    """The access to `parameters`."""
    ways: list[Access] = []
    for name, _ in operand_names(call):
        ways += [Access.WRITE if name == "out" else Access.READ, Access.VALUE]
    return (*ways, *(Access.VALUE for _ in numbers), Access.VALUE, Access.VALUE)


def u64(value: int) -> bytes:
    """A number as an argument."""
    return value.to_bytes(8, "little")


def finished(call: OperationCall) -> str:
    """C text that makes ``sum`` the element of the result at ``i, j``, a row and a column."""
    names = {name for name, _ in operand_names(call)}
    text = "alpha * sum"
    if "c" in names:
        text += " + beta * LOAD_ITEM(c, C_AT(i, j))"
    if "bias" in names:
        text += " + LOAD_ITEM(bias, BIAS_AT(i, j))"
    return f"SUM v = {text}; STORE_ITEM(out, OUT_AT(i, j), ACTIVATED(v));"


def starts(call: OperationCall) -> str:
    """C text that declares a pointer to each operand of the product ``z``."""
    lines = []
    for name, _ in operand_names(call):
        const = "" if name == "out" else "const "
        start = f"{name.upper()}_START(z)"
        lines.append(f"    GLOBAL {const}ITEM *{name} = {name}_all + {name}_at + {start};")
    return "\n".join(lines)


def symbol_of(call: OperationCall, shape: Shape, sizes: Iterable[int]) -> str:
    """A name for a template; equal names are equal sources."""
    names = {name for name, _ in operand_names(call)}
    parts = [shape.kind, call.dtype.value, *map(str, sizes), *sorted(names & {"bias", "c"})]
    if call.activation is not Activation.NONE:
        parts.append(call.activation.value)
    return "_".join(parts)
