"""A model as kernels: what is left of the code generator when it is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.blueprint import Access
from dandelion.export.product_records import Product
from dandelion.export.torch_graph import TensorType

Dimensions: TypeAlias = tuple[int, int, int]

_MOST_ITEMS = 256
"""Of a block on a processor."""
_LEAST_BLOCKS = 16
"""So that there is work for all cores."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel in C, in the dialect of ``dandelion.h``.

    Attributes:
        name: unique among the kernels of the model.
        text: its source, without the include.
        access: to each pointer.
        offset: for each pointer, whether it is followed by an offset in elements.
    """

    name: str
    text: str
    access: tuple[Access, ...]
    offset: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A launch of a kernel.

    Attributes:
        kernel: its name.
        buffers: names of the buffers that it gets: inputs, constants, outputs, temporary ones.
        grid: blocks.
        block: threads of a block.
    """

    kernel: str
    buffers: tuple[str, ...]
    grid: Dimensions
    block: Dimensions


@dataclass(frozen=True, slots=True)
class OperationLaunch:
    """A library operation.

    Attributes:
        product: which; the values that it reads are in buffers.
        buffers: names of the buffers, first that of the result, then by the values that it reads.
        of: the buffer of each value.
    """

    product: Product
    buffers: tuple[str, ...]
    of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kernels:
    """All kernels of a model.

    Attributes:
        sources: each kernel once.
        launches: of kernels and operations, in order.
        buffers: sizes in bytes of the buffers that are not inputs or constants, by name.
        inputs: types of the inputs as kernels read them.
        outputs: types of the outputs as kernels write them.
    """

    sources: Sequence[KernelSource]
    launches: Sequence[KernelLaunch | OperationLaunch]
    buffers: Mapping[str, int]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


def in_blocks(items: Dimensions) -> tuple[Dimensions, Dimensions]:
    """Join work items to blocks, which a processor computes with vectors; gives grid and block."""
    x, y, z = items
    most = min(_MOST_ITEMS, x * y * z // _LEAST_BLOCKS)
    width = next((size for size in range(most, 1, -1) if x % size == 0), 1)
    return (x // width, y, z), (width, 1, 1)
