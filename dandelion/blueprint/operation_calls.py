"""Library operations with all sizes evaluated, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.blueprint.operation_parts import Operation, operands, sizes
from dandelion.blueprint.operation_records import (
    COMPUTATIONS,
    MAX_EXTENT,
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
from dandelion.blueprint.size_records import Size

Evaluate: TypeAlias = Callable[[str, Size, int, int], int]
"""Takes the field, a size, its smallest and its largest value; returns the value, or raises."""


@dataclass(frozen=True, slots=True)
class PartCall:
    """Elements one after the other in a buffer.

    Attributes:
        buffer: its name.
        offset_bytes: of the first.
        elements: how many.
    """

    buffer: str
    offset_bytes: int
    elements: int

    @property
    def batch_stride(self) -> int:
        """It has no batch."""
        return 0


@dataclass(frozen=True, slots=True)
class MatrixCall:
    """A matrix in a buffer; see `Matrix`.

    Attributes:
        rows, columns: of the matrix, which is the transposed one of what the buffer has if
            `transposed`.
        ld, batch_stride: in elements.
        batch: how many there are.
    """

    buffer: str
    offset_bytes: int
    rows: int
    columns: int
    transposed: bool
    ld: int
    batch_stride: int
    batch: int

    @property
    def stored(self) -> tuple[int, int]:
        """Rows and columns as they lie in the buffer."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)

    @property
    def elements(self) -> int:
        """Elements from the first to the last, those in between included."""
        rows, columns = self.stored
        return (self.batch - 1) * self.batch_stride + (rows - 1) * self.ld + columns

    @property
    def is_dense(self) -> bool:
        """Whether all elements of the range belong to it."""
        rows, columns = self.stored
        whole = rows * columns
        return self.ld == columns and (self.batch == 1 or self.batch_stride == whole)

    @property
    def strides(self) -> tuple[int, int]:
        """Elements between two rows and between two columns of the matrix."""
        return (1, self.ld) if self.transposed else (self.ld, 1)


@dataclass(frozen=True, slots=True)
class GemmCall:
    """A product; see `Gemm`."""

    a: MatrixCall
    b: MatrixCall
    out: MatrixCall
    m: int
    n: int
    k: int
    batch: int
    c: MatrixCall | None
    alpha: float
    beta: float
    bias: PartCall | None
    bias_axis: BiasAxis
    dtype: ElementType
    compute: Computation
    activation: Activation


@dataclass(frozen=True, slots=True)
class ConvolutionCall:
    """A convolution; see `Conv2d`. Pairs are for height and width."""

    image: PartCall
    weight: PartCall
    out: PartCall
    batch: int
    channels: int
    filters: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    addend: PartCall | None
    bias: PartCall | None
    layout: ImageLayout
    dtype: ElementType
    compute: Computation
    activation: Activation

    @property
    def depth(self) -> int:
        """Products for each element of the result."""
        return self.channels // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Elements of the result for each image and filter."""
        return self.out_size[0] * self.out_size[1]


OperationCall: TypeAlias = GemmCall | ConvolutionCall


class Impossible(Exception):
    """An operation cannot be: the field at fault, and why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def covers(call: OperationCall, size_bytes: int) -> bool:
    """Tell whether a result fills its buffer, which has so many bytes."""
    out = call.out
    dense = isinstance(out, PartCall) or out.is_dense
    return dense and not out.offset_bytes and out.elements * call.dtype.size_bytes == size_bytes


def evaluated(action: Operation, evaluate: Evaluate) -> OperationCall:
    """Evaluate the sizes of an operation.

    Raises:
        Impossible: the sizes contradict each other.
    """
    values = {field: evaluate(field, size, low, high) for field, size, low, high in sizes(action)}
    if isinstance(action, Gemm):
        return _gemm(action, values)
    return _convolution(action, values)


def _gemm(action: Gemm, values: dict[str, int]) -> GemmCall:
    m, n, k, batch = (values[name] for name in ("m", "n", "k", "batch"))

    def matrix(name: str, given: Matrix, rows: int, columns: int) -> MatrixCall:
        stored = (columns, rows) if given.transposed else (rows, columns)
        ld = values.get(f"{name}.ld", stored[1])
        if ld < stored[1]:
            raise Impossible(f"{name}.ld", f"{ld} elements are less than the {stored[1]} of a row")
        stride = values.get(f"{name}.batch_stride", stored[0] * ld)
        offset = values[f"{name}.offset"]
        return MatrixCall(given.buffer, offset, rows, columns, given.transposed, ld, stride, batch)

    out = matrix("out", action.out, m, n)
    if batch > 1 and out.batch_stride < (m - 1) * out.ld + n:
        message = f"members of the batch would overlap: {out.batch_stride} elements apart"
        raise Impossible("out.batch_stride", message)
    c = None if action.c is None else matrix("c", action.c, m, n)
    length = n if action.bias_axis is BiasAxis.COLUMNS else m
    return GemmCall(
        matrix("a", action.a, m, k), matrix("b", action.b, k, n), out, m, n, k, batch, c,
        action.alpha, action.beta, _part("bias", action.bias, length, values), action.bias_axis,
        action.dtype, action.compute, action.activation,
    )  # fmt: skip


def _convolution(action: Conv2d, values: dict[str, int]) -> ConvolutionCall:
    names = ("batch", "channels", "height", "width", "filters", "groups")
    batch, channels, height, width, filters, groups = (values[name] for name in names)
    kernel, stride, padding, dilation = (
        (values[f"{name}[0]"], values[f"{name}[1]"])
        for name in ("kernel", "stride", "padding", "dilation")
    )
    for name, count in (("channels", channels), ("filters", filters)):
        if count % groups:
            raise Impossible(name, f"{count} is not a multiple of the {groups} groups")
    out_size = []
    for at, size in enumerate((height, width)):
        reach = dilation[at] * (kernel[at] - 1) + 1
        if reach > size + 2 * padding[at]:
            message = (
                f"the kernel reaches over {reach}, the padded image has {size + 2 * padding[at]}"
            )
            raise Impossible(f"kernel[{at}]", message)
        out_size.append((size + 2 * padding[at] - reach) // stride[at] + 1)
    for field, count in (
        ("channels", channels // groups * kernel[0] * kernel[1]),
        ("width", out_size[0] * out_size[1]),
        ("batch", batch * groups),
    ):
        if count > MAX_EXTENT:
            raise Impossible(field, f"an image is too large: {count} is more than {MAX_EXTENT}")
    weights = filters * (channels // groups) * kernel[0] * kernel[1]
    made = batch * filters * out_size[0] * out_size[1]

    def part(name: str, elements: int) -> PartCall:
        found = _part(name, getattr(action, name), elements, values)
        assert found is not None, "only addend and bias may be absent"
        return found

    return ConvolutionCall(
        part("image", batch * channels * height * width), part("weight", weights),
        part("out", made), batch, channels, filters, (height, width), (out_size[0], out_size[1]),
        kernel, stride, padding, dilation, groups, _part("addend", action.addend, made, values),
        _part("bias", action.bias, filters, values), action.layout, action.dtype, action.compute,
        action.activation,
    )  # fmt: skip


def _part(
    name: str, given: BufferPart | None, elements: int, values: dict[str, int]
) -> PartCall | None:
    if given is None:
        return None
    return PartCall(given.buffer, values[f"{name}.offset"], elements)


def operand_calls(call: OperationCall) -> Iterator[tuple[str, PartCall | MatrixCall]]:
    """Yield each operand with the name of its field; ``out`` is last."""
    names = ("a", "b", "c", "bias", "out")
    if isinstance(call, ConvolutionCall):
        names = ("image", "weight", "addend", "bias", "out")
    for name in names:
        found: PartCall | MatrixCall | None = getattr(call, name)
        if found is not None:
            yield name, found


def misplaced(
    call: OperationCall, size_of: Callable[[str], int | None]
) -> Iterator[tuple[str, str]]:
    """Yield the operands that do not fit their buffers: the field and what is wrong.

    Args:
        call: evaluated.
        size_of: gives the size of a buffer in bytes, or None if it is not known yet.
    """
    item = call.dtype.size_bytes
    for name, operand in operand_calls(call):
        if operand.offset_bytes % item:
            message = f"{operand.offset_bytes} is not a multiple of the {item} bytes of an element"
            yield f"{name}.offset", message
        size = size_of(operand.buffer)
        end = operand.offset_bytes + operand.elements * item
        if size is not None and end > size:
            yield name, f"it ends at byte {end} of '{operand.buffer}', which has {size}"
    added = call.c if isinstance(call, GemmCall) else call.addend
    if added is not None and added.buffer == call.out.buffer and added != call.out:
        field = "c" if isinstance(call, GemmCall) else "addend"
        yield field, f"in the buffer of the result, '{added.buffer}', it must be in the same place"


def contradictions(action: Operation) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an operation whatever its sizes are: the field and why."""
    allowed = COMPUTATIONS[action.dtype]
    if action.compute not in allowed:
        names = " or ".join(c.value for c in allowed)
        yield "compute", f"products of {action.dtype.value} are computed in {names}"
    for name, operand in operands(action):
        if name in ("a", "b", "bias", "image", "weight") and operand.buffer == action.out.buffer:
            yield name, f"'{operand.buffer}' is the buffer of the result"
    if isinstance(action, Gemm):
        for name, matrix in (("out", action.out), ("c", action.c)):
            if matrix is not None and matrix.transposed:
                yield f"{name}.transposed", "exchange a and b to get a transposed result"
        if action.c is None and action.beta != 0:
            yield "beta", f"the factor {action.beta} has no matrix c"
