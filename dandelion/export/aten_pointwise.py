"""Rules for operators that compute each element by itself."""

from __future__ import annotations

import math
from typing import Any

from dandelion.export.aten import Step, Tensor, rule
from dandelion.export.aten_functions import expm1, log1p

_METHODS = {
    **{n: n for n in ("abs", "neg", "exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt")},
    **{n: n for n in ("reciprocal", "square", "floor", "ceil", "trunc", "sin", "cosh")},
    **{n: n for n in ("sigmoid", "relu", "relu6", "silu", "mish", "hardsigmoid", "hardswish")},
    **{n: n for n in ("isnan", "isinf", "logical_not", "bitwise_not")},
    "log_sigmoid": "logsigmoid",
}
"""Operators that are a method of tensors."""


def _unary(operator: str, method: str) -> None:
    @rule(operator)
    def apply(step: Step, x: Tensor) -> Tensor:
        return getattr(x, method)()


for _name, _method in _METHODS.items():
    _unary(_name, _method)


@rule("add.Tensor", "add.Scalar")
def _add(step: Step, x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    return x + (y if alpha == 1 else y * alpha)


@rule("sub.Tensor", "sub.Scalar")
def _sub(step: Step, x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    return x - (y if alpha == 1 else y * alpha)


@rule("rsub.Tensor", "rsub.Scalar")
def _rsub(step: Step, x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    return y - (x if alpha == 1 else x * alpha)


@rule("mul.Tensor", "mul.Scalar")
def _mul(step: Step, x: Tensor, y: Any) -> Tensor:
    return x * y


@rule("div.Tensor", "div.Scalar")
def _div(step: Step, x: Tensor, y: Any) -> Tensor:
    return x / y


@rule("maximum")
def _maximum(step: Step, x: Tensor, y: Tensor) -> Tensor:
    return x.maximum(y)


@rule("minimum")
def _minimum(step: Step, x: Tensor, y: Tensor) -> Tensor:
    return x.minimum(y)


@rule("clamp", "clamp.Tensor", "clamp_min", "hardtanh")
def _clamp(step: Step, x: Tensor, low: Any = None, high: Any = None, **given: Any) -> Tensor:
    low, high = given.get("min", low), given.get("max", high)
    if step.node.operator.startswith("aten.hardtanh"):
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    x = x if low is None else x.maximum(low)
    return x if high is None else x.minimum(high)


@rule("clamp_max")
def _clamp_max(step: Step, x: Tensor, high: Any) -> Tensor:
    return x.minimum(high)


@rule("gelu")
def _gelu(step: Step, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (inner.tanh() + 1)
    return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1)


@rule("leaky_relu")
def _leaky_relu(step: Step, x: Tensor, slope: float = 0.01) -> Tensor:
    return (x > 0).where(x, x * slope)


@rule("elu")
def _elu(
    step: Step, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Tensor:
    return (x > 0).where(x * scale, expm1(step, x * input_scale) * (alpha * scale))


@rule("softplus")
def _softplus(step: Step, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = x * beta
    smooth = scaled.maximum(0) + log1p(step, (-scaled.abs()).exp())
    return (scaled > threshold).where(x, smooth / beta)


def _comparison(name: str, method: str) -> None:
    @rule(f"{name}.Tensor", f"{name}.Scalar")
    def apply(step: Step, x: Tensor, y: Any) -> Tensor:
        return getattr(x, method)(y)


for _name, _method in {
    "eq": "__eq__",
    "ne": "__ne__",
    "lt": "__lt__",
    "le": "__le__",
    "gt": "__gt__",
    "ge": "__ge__",
}.items():
    _comparison(_name, _method)


def _logical(name: str, method: str) -> None:
    @rule(f"logical_{name}")
    def truth(step: Step, x: Tensor, y: Tensor) -> Tensor:
        return getattr(x != 0, method)(y != 0)

    @rule(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar")
    def bits(step: Step, x: Tensor, y: Any) -> Tensor:
        return getattr(x, method)(y)


for _name in ("and", "or", "xor"):
    _logical(_name, f"__{_name}__")


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", promote=False)
def _where(step: Step, condition: Tensor, x: Any, y: Any) -> Tensor:
    x, y = (
        step.tensors.full((), v, step.dtype)
        if isinstance(v, int | float)
        else step.tensors.cast(v, step.dtype)
        for v in (x, y)
    )
    return step.tensors.cast(condition, "bool").where(x, y)


@rule("masked_fill.Scalar", "masked_fill.Tensor", promote=False)
def _masked_fill(step: Step, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _where(step, mask, value, x)


@rule("_to_copy", "to.dtype", "to.dtype_layout", promote=False)
def _to_copy(step: Step, x: Tensor, *_: Any, **__: Any) -> Tensor:
    if step.dtype == "bool":
        return x != 0
    return step.tensors.cast(x, step.dtype)


@rule("lerp.Scalar", "lerp.Tensor")
def _lerp(step: Step, x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return x + (end - x) * weight


@rule("addcmul")
def _addcmul(step: Step, x: Tensor, y: Tensor, z: Tensor, value: float = 1) -> Tensor:
    return x + y * z * value


@rule("addcdiv")
def _addcdiv(step: Step, x: Tensor, y: Tensor, z: Tensor, value: float = 1) -> Tensor:
    return x + y / z * value
