"""Actions that a device may carry out with a library: products of matrices and convolutions.

A blueprint says what is computed, from which buffers, and how exactly. The device chooses how: with
the vendor's library, or with kernels of the platform that run everywhere.
"""

from __future__ import annotations

import enum

from dandelion.blueprint.size_records import Absolute, BlueprintRecord, Size


class ElementType(enum.Enum):
    """Types of the elements of matrices and images."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"

    @property
    def size_bytes(self) -> int:
        """Size of one element in bytes."""
        return {"f64": 8, "f32": 4}.get(self.value, 2)


class Computation(enum.Enum):
    """The type to which factors are rounded before they are multiplied.

    Sums are computed in f32, those of F64 in f64. A device that does not have a computation uses a
    more exact one.
    """

    F64 = "f64"
    F32 = "f32"
    TF32 = "tf32"
    BF16 = "bf16"
    F16 = "f16"


COMPUTATIONS = {
    ElementType.F64: (Computation.F64,),
    ElementType.F32: (Computation.F32, Computation.TF32, Computation.BF16, Computation.F16),
    ElementType.F16: (Computation.F32,),
    ElementType.BF16: (Computation.F32,),
}
"""The computations of each element type, the default first. Products of 16-bit types are exact in
f32."""


class Activation(enum.Enum):
    """A function that is applied to each element of a result."""

    NONE = "none"
    RELU = "relu"
    GELU_TANH = "gelu_tanh"  # the approximation of GELU by tanh


class BiasAxis(enum.Enum):
    """Which elements of a product share a value of its bias."""

    COLUMNS = "columns"  # one value for each column
    ROWS = "rows"


class ImageLayout(enum.Enum):
    """The order of an image's dimensions in memory; weights are OIHW or OHWI."""

    NCHW = "nchw"
    NHWC = "nhwc"


class BufferPart(BlueprintRecord, frozen=True):
    """Elements one after the other in a buffer.

    Attributes:
        buffer: its name.
        offset: of the first element, in bytes.
    """

    buffer: str
    offset: Size = Absolute(0)


class Matrix(BlueprintRecord, frozen=True):
    """A matrix, or one for each member of a batch, in a buffer; rows lie one after the other.

    Attributes:
        buffer: its name.
        offset: of the first element, in bytes.
        transposed: the buffer has its columns one after the other instead.
        ld: elements between the starts of two rows (of columns, if it is transposed); None if
            there is nothing between them.
        batch_stride: elements between two members of the batch; 0 if all use the same matrix; None
            if there is nothing between them.
    """

    buffer: str
    offset: Size = Absolute(0)
    transposed: bool = False
    ld: Size | None = None
    batch_stride: Size | None = None


class Gemm(BlueprintRecord, frozen=True):
    """``out = activation(alpha * a @ b + beta * c + bias)``, for each member of a batch.

    Attributes:
        a, b: matrices ``[m, k]`` and ``[k, n]``.
        out: matrix ``[m, n]``; not transposed. It must lie in another buffer than a and b.
        m, n, k: sizes.
        batch: how many products.
        c: matrix ``[m, n]``; None if there is none. It may be `out`, in exactly the same place.
        alpha, beta: factors.
        bias: m or n values, of the same type; None if there is none.
        bias_axis: whether each column or each row has a value of the bias.
        dtype: type of all elements.
        compute: see `Computation`.
        activation: see `Activation`.
    """

    a: Matrix
    b: Matrix
    out: Matrix
    m: Size
    n: Size
    k: Size
    batch: Size = Absolute(1)
    c: Matrix | None = None
    alpha: float = 1.0
    beta: float = 0.0
    bias: BufferPart | None = None
    bias_axis: BiasAxis = BiasAxis.COLUMNS
    dtype: ElementType = ElementType.F32
    compute: Computation = Computation.F32
    activation: Activation = Activation.NONE


class Conv2d(BlueprintRecord, frozen=True):
    """``out = activation(convolution(image, weight) + addend + bias)``.

    Attributes:
        image: ``[batch, channels, height, width]``, or channels last.
        weight: ``[filters, channels / groups, kernel_height, kernel_width]``, or channels last.
        out: ``[batch, filters, out_height, out_width]``, or filters last.
        batch, channels, height, width, filters: sizes.
        kernel, stride, padding, dilation: for height and width.
        groups: of channels and filters.
        addend: added to the result, as large as it; None if there is none. It may be `out`.
        bias: a value for each filter; None if there is none.
        layout, dtype, compute, activation: see their types.
    """

    image: BufferPart
    weight: BufferPart
    out: BufferPart
    batch: Size
    channels: Size
    height: Size
    width: Size
    filters: Size
    kernel: tuple[Size, Size]
    stride: tuple[Size, Size] = (Absolute(1), Absolute(1))
    padding: tuple[Size, Size] = (Absolute(0), Absolute(0))
    dilation: tuple[Size, Size] = (Absolute(1), Absolute(1))
    groups: Size = Absolute(1)
    addend: BufferPart | None = None
    bias: BufferPart | None = None
    layout: ImageLayout = ImageLayout.NCHW
    dtype: ElementType = ElementType.F32
    compute: Computation = Computation.F32
    activation: Activation = Activation.NONE


MAX_EXTENT = 2**31 - 1
"""Bound on each size of a matrix or image."""

MAX_BATCH = 65535
"""Bound on the number of products, and of images."""

MAX_KERNEL = 1024
"""Bound on the sizes of a convolution's kernel, its strides, padding and dilation."""
