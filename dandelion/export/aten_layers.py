"""Rules for operators that compute each element from many: layers, reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dandelion.export.aten import Kind, NotSupported, Step, Tensor, rule

_HEAVY = Kind.HEAVY


@rule("convolution", kind=_HEAVY)
def _convolution(
    step: Step, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    batched = len(x.shape) == len(weight.shape)
    x = x if batched else x.reshape((1, *x.shape))
    count = len(weight.shape) - 2
    steps = [tuple(one) * (count if len(one) == 1 else 1) for one in (stride, dilation, padding)]
    if transposed:
        extra = tuple(output_padding) * (count if len(output_padding) == 1 else 1)
        made = x.conv_transpose2d(weight, bias, groups, steps[0], steps[1], steps[2], extra)
    else:
        made = x.conv2d(weight, bias, groups, steps[0], steps[1], steps[2])
    return made if batched else made.reshape(made.shape[1:])


def _values(given: Any, count: int) -> tuple[int, ...]:
    """An argument for each dimension, from one number or a list."""
    found = (given,) if isinstance(given, int) else tuple(given)
    return found * count if len(found) == 1 else found


@rule(
    *("max_pool2d_with_indices", "max_pool2d", "max_pool3d_with_indices", "max_pool1d"),
    kind=_HEAVY,
    promote=False,
)
def _max_pool(
    step: Step, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    count = 3 if "3d" in step.node.operator else 1 if "1d" in step.node.operator else 2
    size = _values(kernel, count)
    made = x.max_pool2d(
        size, _values(stride, count) or size, _values(dilation, count), _values(padding, count),
        ceil_mode,
    )  # fmt: skip
    return made if step.node.single else [made, None]


@rule("avg_pool2d", "avg_pool3d", "avg_pool1d", kind=_HEAVY)
def _avg_pool(
    step: Step, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
) -> Tensor:  # fmt: skip
    count = 3 if "3d" in step.node.operator else 1 if "1d" in step.node.operator else 2
    if divisor is not None:
        raise NotSupported("avg_pool with divisor_override")
    size = _values(kernel, count)
    return x.avg_pool2d(
        size, _values(stride, count) or size, 1, _values(padding, count), ceil_mode,
        count_include_pad,
    )  # fmt: skip


@rule("_adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d", kind=_HEAVY)
def _adaptive_avg_pool(step: Step, x: Tensor, wanted: Any) -> Tensor:
    for dimension in range(len(x.shape) - len(tuple(wanted)), len(x.shape)):
        size, bins = x.shape[dimension], step.shape[dimension]
        if size % bins == 0:
            shape = (*x.shape[:dimension], bins, size // bins, *x.shape[dimension + 1 :])
            x = x.reshape(shape).mean(dimension + 1)
            continue
        parts = []
        for at in range(bins):
            cut: list[Any] = [slice(None)] * len(x.shape)
            cut[dimension] = slice(at * size // bins, -(-(at + 1) * size // bins))
            parts.append(x[tuple(cut)].mean(dimension, keepdim=True))
        x = step.tensors.store(step.tensors.cat(parts, dimension))
    return x


@rule("_softmax", "softmax.int", kind=_HEAVY)
def _softmax(step: Step, x: Tensor, dimension: int, *_: Any) -> Tensor:
    return x.softmax(dimension) if x.shape else x * 0 + 1


@rule("_log_softmax", "log_softmax.int", kind=_HEAVY)
def _log_softmax(step: Step, x: Tensor, dimension: int, *_: Any) -> Tensor:
    return x.log_softmax(dimension) if x.shape else x * 0


@rule("native_layer_norm", kind=_HEAVY)
def _layer_norm(
    step: Step, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None,
    epsilon: float,
) -> Any:  # fmt: skip
    axes = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    made = _normalized(step, x, axes, epsilon)
    made = made if weight is None else made * weight
    return [made if bias is None else made + bias, None, None]


def _normalized(step: Step, x: Tensor, axes: tuple[int, ...], epsilon: float) -> Tensor:
    mean = step.tensors.store(x.mean(axes, keepdim=True))
    centred = x - mean
    variance = step.tensors.store((centred * centred).mean(axes, keepdim=True))
    return centred * (variance + epsilon).rsqrt()


@rule("native_group_norm", kind=_HEAVY)
def _group_norm(
    step: Step, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int,
    _size: int, groups: int, epsilon: float,
) -> Any:  # fmt: skip
    grouped = x.reshape((n, groups, -1))
    made = _normalized(step, grouped, (2,), epsilon).reshape(x.shape)
    shape = (1, channels, *(1 for _ in x.shape[2:]))
    made = made if weight is None else made * weight.reshape(shape)
    return [made if bias is None else made + bias.reshape(shape), None, None]


@rule("_native_batch_norm_legit_no_training")
def _batch_norm(
    step: Step, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
    variance: Tensor, _momentum: float, epsilon: float,
) -> Any:  # fmt: skip
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    scale = (variance + epsilon).rsqrt()
    scale = scale if weight is None else scale * weight
    made = (x - mean.reshape(shape)) * scale.reshape(shape)
    return [made if bias is None else made + bias.reshape(shape), None, None]


@rule("_native_batch_norm_legit.no_stats", kind=_HEAVY)
def _batch_statistics(
    step: Step, x: Tensor, weight: Tensor | None, bias: Tensor | None, _training: bool,
    _momentum: float, epsilon: float,
) -> Any:  # fmt: skip
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    made = _normalized(step, x, (0, *range(2, len(x.shape))), epsilon)
    made = made if weight is None else made * weight.reshape(shape)
    return [made if bias is None else made + bias.reshape(shape), None, None]


@rule("upsample_nearest2d.vec", "upsample_nearest1d.vec", kind=Kind.VIEW, promote=False)
def _upsample_nearest(step: Step, x: Tensor, _size: Any = None, scales: Any = None) -> Tensor:
    factors = [b // a for a, b in zip(x.shape, step.shape, strict=True)]
    if any(a * f != b for a, b, f in zip(x.shape, step.shape, factors, strict=True)):
        raise NotSupported("nearest upsampling by a factor that is not a whole number")
    pairs = [(size, factor) for size, factor in zip(x.shape, factors, strict=True)]
    x = x.reshape(tuple(n for size, _ in pairs for n in (size, 1)))
    return x.expand(tuple(n for pair in pairs for n in pair)).reshape(step.shape)


@rule("upsample_bilinear2d.vec", "upsample_linear1d.vec", kind=_HEAVY)
def _upsample_linear(
    step: Step, x: Tensor, _size: Any, align_corners: bool, scales: Any = None
) -> Tensor:
    spatial = len(x.shape) - 2
    sizes = step.shape[2:]
    if scales and any(round(a * s) != a * s for a, s in zip(x.shape[2:], scales, strict=True)):
        raise NotSupported("linear upsampling by a factor that gives no whole size; give a size")
    for axis, (before, after) in enumerate(zip(x.shape[2:], sizes, strict=True), start=2):
        if before == after:
            continue
        shape = tuple(after if d == axis else 1 for d in range(spatial + 2))
        at = step.tensors.arange(after, "float32")
        if align_corners:
            place = at * ((before - 1) / (after - 1) if after > 1 else 0.0)
        else:
            place = ((at + 0.5) * (before / after) - 0.5).maximum(0)
        low = place.floor().minimum(before - 1)
        share = (place - low).reshape(shape)
        first = step.tensors.cast(low, "int32")
        second = (first + 1).minimum(before - 1)
        cut = (slice(None),) * axis
        x = step.tensors.store(x[(*cut, first)] * (1 - share) + x[(*cut, second)] * share)
    return x


@rule("cumsum", kind=_HEAVY)
def _cumsum(step: Step, x: Tensor, dimension: int, **_: Any) -> Tensor:
    x = step.tensors.cast(x, step.dtype)
    return x.cumsum(dimension) if x.shape else x


def _axes(x: Tensor, given: Any) -> tuple[int, ...]:
    """Dimensions of a reduction; none means all. A single number has none."""
    if not x.shape:
        return ()
    found = (given,) if isinstance(given, int) else tuple(given or ())
    return tuple(d % len(x.shape) for d in found) or tuple(range(len(x.shape)))


@rule("sum", "sum.dim_IntList", kind=_HEAVY)
def _sum(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return step.tensors.cast(x, _adder(step)).sum(_axes(x, axes), keepdim=keepdim)


def _adder(step: Step) -> str:
    return "float32" if step.dtype in ("float16", "bfloat16") else step.dtype


@rule("mean", "mean.dim", kind=_HEAVY)
def _mean(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return step.tensors.cast(x, _adder(step)).mean(_axes(x, axes), keepdim=keepdim)


@rule("prod", "prod.dim_int", kind=_HEAVY)
def _prod(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return step.tensors.cast(x, _adder(step)).prod(_axes(x, axes), keepdim=keepdim)


@rule("amax", "max", kind=_HEAVY)
def _amax(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False) -> Tensor:
    return x.max(_axes(x, axes), keepdim=keepdim)


@rule("amin", "min", kind=_HEAVY)
def _amin(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False) -> Tensor:
    return x.min(_axes(x, axes), keepdim=keepdim)


@rule("max.dim", "min.dim", kind=_HEAVY)
def _extreme(step: Step, x: Tensor, dimension: int, keepdim: bool = False) -> Any:
    name = "max" if ".max." in step.node.operator else "min"
    if not x.shape:
        return [x, step.tensors.full((), 0, "int64")]
    found = getattr(x, name)(dimension, keepdim=keepdim)
    return [found, getattr(x, f"arg{name}")(dimension, keepdim=keepdim)]


@rule("argmax", "argmin", kind=_HEAVY)
def _argmax(step: Step, x: Tensor, dimension: int | None = None, keepdim: bool = False) -> Tensor:
    name = "argmax" if "argmax" in step.node.operator else "argmin"
    if dimension is None or not x.shape:
        return getattr(x.flatten(), name)(0).reshape(step.shape)
    return getattr(x, name)(dimension, keepdim=keepdim)


@rule("any", "any.dim", "any.dims", kind=_HEAVY)
def _any(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False) -> Tensor:
    return (x != 0).any(_axes(x, axes), keepdim=keepdim)


@rule("all", "all.dim", "all.dims", kind=_HEAVY)
def _all(step: Step, x: Tensor, axes: Any = None, keepdim: bool = False) -> Tensor:
    return (x != 0).all(_axes(x, axes), keepdim=keepdim)


def _variance(step: Step, x: Tensor, axes: tuple[int, ...], correction: float) -> Tensor:
    count = math.prod(x.shape[d] for d in axes)
    mean = step.tensors.store(x.mean(axes, keepdim=True))
    return ((x - mean) * (x - mean)).sum(axes, keepdim=True) / max(count - correction, 0.0)


@rule("var.correction", "std.correction", kind=_HEAVY)
def _var(
    step: Step, x: Tensor, axes: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Tensor:
    made = _variance(step, x, _axes(x, axes), 1 if correction is None else correction)
    made = made.sqrt() if ".std." in step.node.operator else made
    return made.reshape(step.shape)


@rule("var_mean.correction", kind=_HEAVY)
def _var_mean(
    step: Step, x: Tensor, axes: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    chosen = _axes(x, axes)
    made = _variance(step, x, chosen, 1 if correction is None else correction)
    results = zip((made, x.mean(chosen, keepdim=True)), step.node.results, strict=True)
    return [None if kind is None else one.reshape(kind.shape) for one, kind in results]


@rule("logsumexp", kind=_HEAVY)
def _logsumexp(step: Step, x: Tensor, axes: Any, keepdim: bool = False) -> Tensor:
    return x.logsumexp(_axes(x, axes), keepdim=keepdim)


@rule("linalg_vector_norm", kind=_HEAVY)
def _vector_norm(
    step: Step, x: Tensor, order: float = 2, axes: Any = None, keepdim: bool = False, **_: Any
) -> Tensor:
    chosen = _axes(x, axes)
    if order == math.inf:
        return x.abs().max(chosen, keepdim=keepdim)
    if order == 1:
        return x.abs().sum(chosen, keepdim=keepdim)
    if order != 2:
        raise NotSupported(f"the norm of order {order}")
    return (x * x).sum(chosen, keepdim=keepdim).sqrt()


@rule("topk", kind=_HEAVY, promote=False)
def _topk(
    step: Step, x: Tensor, count: int, dimension: int = -1, largest: bool = True, *_: Any
) -> Any:
    if not x.shape:
        return [x, step.tensors.full((), 0, "int64")]
    return list(x.topk(count, dimension, largest))


@rule("sort", "sort.stable", kind=_HEAVY, promote=False)
def _sort(
    step: Step, x: Tensor, dimension: int = -1, descending: bool = False, **given: Any
) -> Any:
    if not x.shape:
        return [x, step.tensors.full((), 0, "int64")]
    chosen = given.get("dim", dimension)
    return list(x.sort(chosen, given.get("descending", descending)))
