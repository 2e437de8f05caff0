"""Rules for operators that move elements, and for those that make them from nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dandelion.export.aten import Kind, NotSupported, Step, Tensor, rule


@rule(
    *("view", "_unsafe_view", "reshape", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze"),
    *("flatten.using_ints", "unflatten.int", "alias", "clone", "contiguous", "detach"),
    *("lift_fresh_copy", "view_copy", "squeeze_copy", "unsqueeze_copy", "detach_"),
    kind=Kind.VIEW,
    promote=False,
)
def _reshape(step: Step, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.reshape(step.shape)


@rule("expand", "expand_copy", "broadcast_to", kind=Kind.VIEW, promote=False)
def _expand(step: Step, x: Tensor, *_: Any, **__: Any) -> Tensor:
    missing = len(step.shape) - len(x.shape)
    return x.reshape((1,) * missing + tuple(x.shape)).expand(step.shape)


@rule("expand_as", kind=Kind.VIEW, promote=False)
def _expand_as(step: Step, x: Tensor, other: Tensor) -> Tensor:
    return _expand(step, x)


@rule("copy", kind=Kind.VIEW, promote=False)
def _copy(step: Step, x: Tensor, source: Tensor, *_: Any) -> Tensor:
    return _expand(step, source)


@rule("permute", "permute_copy", kind=Kind.VIEW, promote=False)
def _permute(step: Step, x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute(tuple(order)) if x.shape else x


@rule("transpose.int", "transpose_copy.int", kind=Kind.VIEW, promote=False)
def _transpose(step: Step, x: Tensor, first: int, second: int) -> Tensor:
    return x.transpose(first, second) if x.shape else x


@rule("t", "t_copy", kind=Kind.VIEW, promote=False)
def _t(step: Step, x: Tensor) -> Tensor:
    return x.transpose(0, 1) if len(x.shape) == 2 else x


@rule("select.int", "select_copy.int", kind=Kind.VIEW, promote=False)
def _select(step: Step, x: Tensor, dimension: int, index: int) -> Tensor:
    dimension %= len(x.shape)
    index %= x.shape[dimension]
    parts = [(0, size) for size in x.shape]
    parts[dimension] = (index, index + 1)
    return x.shrink(tuple(parts)).reshape(step.shape)


@rule("slice.Tensor", "slice_copy.Tensor", kind=Kind.VIEW, promote=False)
def _slice(
    step: Step, x: Tensor, dimension: int = 0, start: Any = None, end: Any = None, stride: int = 1
) -> Tensor:
    cut: list[Any] = [slice(None)] * len(x.shape)
    cut[dimension] = slice(start, end, stride)
    return x[tuple(cut)]


@rule("split_with_sizes", "split_with_sizes_copy", "split.sizes", kind=Kind.VIEW, promote=False)
def _split_with_sizes(step: Step, x: Tensor, sizes: Sequence[int], dimension: int = 0) -> Any:
    ends = list(itertools.accumulate(sizes))
    spans = zip([0, *ends], ends, strict=False)
    return [_slice(step, x, dimension, start, end) for start, end in spans]


@rule("split.Tensor", "split_copy.Tensor", kind=Kind.VIEW, promote=False)
def _split(step: Step, x: Tensor, size: int, dimension: int = 0) -> Any:
    count = x.shape[dimension]
    return [_slice(step, x, dimension, at, at + size) for at in range(0, count, size)]


@rule("unbind.int", "unbind_copy.int", kind=Kind.VIEW, promote=False)
def _unbind(step: Step, x: Tensor, dimension: int = 0) -> Any:
    return [
        None if kind is None else _slice(step, x, dimension, at, at + 1).reshape(kind.shape)
        for at, kind in enumerate(step.node.results)
    ]


@rule("constant_pad_nd", kind=Kind.VIEW, promote=False)
def _pad(step: Step, x: Tensor, padding: Sequence[int], value: float = 0) -> Tensor:
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    parts = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs
    keep = [(max(-a, 0), size + min(b, 0)) for (a, b), size in zip(parts, x.shape, strict=True)]
    return x.shrink(tuple(keep)).pad(tuple((max(a, 0), max(b, 0)) for a, b in parts), value=value)


@rule("flip", kind=Kind.VIEW, promote=False)
def _flip(step: Step, x: Tensor, dimensions: Sequence[int]) -> Tensor:
    return x.flip(tuple(dimensions))


@rule("repeat", kind=Kind.VIEW, promote=False)
def _repeat(step: Step, x: Tensor, times: Sequence[int]) -> Tensor:
    missing = len(times) - len(x.shape)
    return x.reshape((1,) * missing + tuple(x.shape)).repeat(tuple(times))


@rule("unfold", kind=Kind.VIEW, promote=False)
def _unfold(step: Step, x: Tensor, dimension: int, size: int, stride: int) -> Tensor:
    return x.unfold(dimension, size, stride)


@rule("roll", promote=False)
def _roll(step: Step, x: Tensor, shifts: Sequence[int], dimensions: Sequence[int] = ()) -> Tensor:
    if not dimensions:
        return x.flatten().roll(shifts[0], 0).reshape(step.shape)
    return x.roll(tuple(shifts), tuple(dimensions))


@rule("cat", promote=False)
def _cat(step: Step, parts: Sequence[Tensor], dimension: int = 0) -> Tensor:
    full = [p for p in parts if tuple(p.shape) != (0,)]
    return step.tensors.cat([step.tensors.cast(p, step.dtype) for p in full], dimension)


@rule("stack", promote=False)
def _stack(step: Step, parts: Sequence[Tensor], dimension: int = 0) -> Tensor:
    at = dimension % len(step.shape)
    shape = (*step.shape[:at], 1, *step.shape[at + 1 :])
    return _cat(step, [p.reshape(shape) for p in parts], at)


@rule("embedding", promote=False)
def _embedding(step: Step, weight: Tensor, index: Tensor, *_: Any) -> Tensor:
    return weight[index]


@rule("index_select", promote=False)
def _index_select(step: Step, x: Tensor, dimension: int, index: Tensor) -> Tensor:
    return x[(slice(None),) * (dimension % len(x.shape)) + (index,)]


@rule("index.Tensor", promote=False)
def _index(step: Step, x: Tensor, indices: Sequence[Any]) -> Tensor:
    if any(i is not None and "bool" in str(i.dtype) for i in indices):
        raise NotSupported("a mask as an index: its result has no fixed shape; use where")
    return x[tuple(slice(None) if i is None else i for i in indices)]


@rule("gather", promote=False)
def _gather(step: Step, x: Tensor, dimension: int, index: Tensor, *_: Any) -> Tensor:
    return x.gather(dimension, index)


@rule("scatter.src", "scatter.value", kind=Kind.HEAVY, promote=False)
def _scatter(step: Step, x: Tensor, dimension: int, index: Tensor, source: Any) -> Tensor:
    return x.scatter(dimension, index, source)


def _within(step: Step, x: Tensor, dimension: int, start: int, end: int, stride: int) -> Tensor:
    """Where the positions of a slice are, as booleans that broadcast to `x`."""
    size = x.shape[dimension]
    at = step.tensors.arange(size, "int32")
    mask = (at >= start) & (at < end)
    if stride > 1:
        mask = mask & ((at - start) % stride).eq(0)
    return mask.reshape(tuple(size if d == dimension else 1 for d in range(len(x.shape))))


@rule("slice_scatter", promote=False)
def _slice_scatter(
    step: Step,
    x: Tensor,
    source: Tensor,
    dimension: int = 0,
    start: Any = None,
    end: Any = None,
    stride: int = 1,
) -> Tensor:
    dimension %= len(x.shape)
    size = x.shape[dimension]
    first, last, _ = slice(start, end, stride).indices(size)
    if stride != 1:
        raise NotSupported("slices with a step that are written to")
    pads = [(0, 0)] * len(x.shape)
    pads[dimension] = (first, size - last)
    mask = _within(step, x, dimension, first, last, stride)
    return mask.where(step.tensors.cast(source, step.dtype).pad(tuple(pads)), x)


@rule("select_scatter", promote=False)
def _select_scatter(step: Step, x: Tensor, source: Tensor, dimension: int, index: int) -> Tensor:
    dimension %= len(x.shape)
    index %= x.shape[dimension]
    shape = tuple(1 if d == dimension else size for d, size in enumerate(x.shape))
    return _slice_scatter(step, x, source.reshape(shape), dimension, index, index + 1)


@rule("tril", "triu", promote=False)
def _triangle(step: Step, x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = step.shape[-2:]
    row = step.tensors.arange(rows, "int32").reshape((rows, 1))
    column = step.tensors.arange(columns, "int32").reshape((1, columns))
    lower = step.node.operator.startswith("aten.tril")
    mask = (column - row <= diagonal) if lower else (column - row >= diagonal)
    return mask.where(x, step.tensors.full((), 0, step.dtype))


@rule(
    *("full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like"),
    *("new_ones", "scalar_tensor", "empty.memory_format", "empty_like", "new_empty"),
    kind=Kind.SOURCE,
    promote=False,
)
def _full(step: Step, *arguments: Any, **given: Any) -> Tensor:
    operator = step.node.operator
    value = 1 if "ones" in operator else 0
    if "full" in operator:
        value = given.get("fill_value", arguments[-1])
    if "scalar_tensor" in operator:
        value = arguments[0]
    return step.tensors.full(step.shape, value, step.dtype)


@rule("arange", "arange.start", "arange.start_step", kind=Kind.SOURCE, promote=False)
def _arange(step: Step, first: float, last: Any = None, stride: float = 1, **_: Any) -> Tensor:
    start = 0 if last is None else first
    count = step.tensors.arange(step.shape[0], step.dtype)
    return count * stride + start


@rule("eye", "eye.m", kind=Kind.SOURCE, promote=False)
def _eye(step: Step, *_: Any, **__: Any) -> Tensor:
    rows, columns = step.shape
    row = step.tensors.arange(rows, "int32").reshape((rows, 1))
    column = step.tensors.arange(columns, "int32").reshape((1, columns))
    return row.eq(column)
