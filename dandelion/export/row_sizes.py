"""What functions for any number of rows have in common, whichever route made their kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dandelion.arrays import text_of
from dandelion.blueprint import Blueprint, ceil_div, sizeof
from dandelion.export.torch_graph import TensorType
from dandelion.function import BATCH_CALLS, Batching, Limits

_ALIGNED_BYTES = 256

Types = Mapping[str, TensorType]


def declared(found: TensorType, any_rows: bool) -> str:
    """The type of a set; with any number of rows its first dimension is open."""
    return text_of(found.dtype, (-1, *found.shape[1:]) if any_rows else found.shape)


def batching_for(inputs: Types, rows: Sequence[int], wait_s: float) -> Batching | None:
    """How waiting calls are joined: up to the largest number of rows."""
    if not rows or rows[-1] == 1:
        return None
    return Batching(tuple(inputs), min(rows[-1], BATCH_CALLS), wait_s, rows[-1])


def limits_for(outputs: Types, rows: Sequence[int]) -> Limits:
    """Limits with room for the results, in memory that is aligned for each row of a joined call.

    Some engines reserve so much before it is known how large the results of joined calls are.
    """
    most = rows[-1] if rows else 1
    sizes = [kind.size_bytes + most * _ALIGNED_BYTES for kind in outputs.values()]
    return Limits(output_bytes=sum(sizes))


def add_buckets(
    built: Blueprint, inputs: Types, outputs: Types, rows: Sequence[int], add: Callable[[int], None]
) -> None:
    """Add the outputs, and the launches of each bucket to a case of a choice.

    Args:
        built: the blueprint, with its inputs.
        inputs, outputs: types of the largest bucket.
        rows: of each bucket, in ascending order; none if shapes are fixed.
        add: adds the launches of the bucket of an index.
    """
    if not rows:
        for buffer, kind in outputs.items():
            built.buffer(buffer, kind.size_bytes)
        add(0)
        return
    row_bytes = {n: kind.size_bytes // rows[-1] for n, kind in (*inputs.items(), *outputs.items())}
    counts = [ceil_div(sizeof(built[name]), row_bytes[name]) for name in inputs]
    for buffer in outputs:
        built.buffer(buffer, counts[0] * row_bytes[buffer])
    with built.choose(*counts) as choice:
        for index, most in enumerate(rows):
            padded = {built[name]: size * most for name, size in row_bytes.items()}
            with choice.case(most, padded):
                add(index)
