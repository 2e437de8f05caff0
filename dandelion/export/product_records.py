"""Library operations of an exported model, with the values that they read."""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.blueprint import Activation, BiasAxis, Computation, ElementType, ImageLayout

TYPES = {
    "float64": ElementType.F64,
    "float32": ElementType.F32,
    "float16": ElementType.F16,
    "bfloat16": ElementType.BF16,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand lies.

    Attributes:
        value: name of the stored value.
        offset: of the first element, in elements.
        transposed, ld, batch_stride: of a matrix, in elements; see `dandelion.blueprint.Matrix`.
    """

    value: str
    offset: int = 0
    transposed: bool = False
    ld: int = 0
    batch_stride: int = 0


@dataclass(frozen=True, slots=True)
class GemmProduct:
    """A product; see `dandelion.blueprint.Gemm`. The result is dense."""

    a: Place
    b: Place
    m: int
    n: int
    k: int
    batch: int
    dtype: ElementType
    compute: Computation
    alpha: float = 1.0
    beta: float = 0.0
    c: Place | None = None
    bias: Place | None = None
    bias_axis: BiasAxis = BiasAxis.COLUMNS
    activation: Activation = Activation.NONE

    @property
    def places(self) -> tuple[Place, ...]:
        """What it reads."""
        return tuple(p for p in (self.a, self.b, self.c, self.bias) if p is not None)


@dataclass(frozen=True, slots=True)
class ConvolutionProduct:
    """A convolution; see `dandelion.blueprint.Conv2d`. Images and result are dense."""

    image: Place
    weight: Place
    batch: int
    channels: int
    filters: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    dtype: ElementType
    compute: Computation
    c: Place | None = None
    bias: Place | None = None
    activation: Activation = Activation.NONE
    groups: int = 1
    layout: ImageLayout = ImageLayout.NCHW

    @property
    def places(self) -> tuple[Place, ...]:
        """What it reads."""
        return tuple(p for p in (self.image, self.weight, self.c, self.bias) if p is not None)


Product = GemmProduct | ConvolutionProduct
