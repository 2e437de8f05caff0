"""A model as kernels that Inductor made, and operations between them, when Inductor is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.export.product_records import Product
from dandelion.export.strided_views import StridedView
from dandelion.export.torch_graph import Constant


@dataclass(frozen=True, slots=True)
class AttentionProduct:
    """Attention: ``softmax(scale * q @ k^T + mask) @ v``. The result is dense, ``[b, s, h, d]``.

    Attributes:
        q, k, v: ``[batch, heads, rows, width]``; elements of a row lie one after the other. Heads
            of q in succession may share one of k and v.
        mask: ``[batch, heads, rows of q, rows of k]``; None if there is none.
        dtype: element type of all but the mask, as torch names it.
        mask_dtype: that of the mask: ``bool``, or numbers that are added.
        causal: a row of q sees rows of k up to its own number only.
        scale: factor of the products.
    """

    q: StridedView
    k: StridedView
    v: StridedView
    mask: StridedView | None
    dtype: str
    mask_dtype: str
    causal: bool
    scale: float

    @property
    def places(self) -> tuple[StridedView, ...]:
        """What it reads."""
        return tuple(p for p in (self.q, self.k, self.v, self.mask) if p is not None)


PeakProduct: TypeAlias = Product | AttentionProduct


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a buffer.

    Attributes:
        buffer: name of an input, a constant or a buffer of `FusedGraph`.
        offset_bytes: from its start.
    """

    buffer: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FusedCall:
    """A launch of a kernel that Inductor made.

    Attributes:
        kernel: its name.
        arguments: for each parameter that is not compiled in, in order.
    """

    kernel: str
    arguments: Mapping[str, Place | int]


@dataclass(frozen=True, slots=True)
class ProductCall:
    """An operation.

    Attributes:
        product: its name in the graph.
        reads: what it reads, in the order of its `places`.
        out: what it writes.
    """

    product: str
    reads: tuple[Place, ...]
    out: str


@dataclass(frozen=True, slots=True)
class FusedGraph:
    """What Inductor made of a graph.

    Attributes:
        sources: Python text of each kernel, by its name.
        calls: in order.
        buffers: sizes in bytes of the buffers that are not inputs or constants.
        constants: those that Inductor added.
        outputs: the place of each output.
    """

    sources: Mapping[str, str]
    calls: Sequence[FusedCall | ProductCall]
    buffers: Mapping[str, int]
    constants: Mapping[str, Constant]
    outputs: Mapping[str, Place]
