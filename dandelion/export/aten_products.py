"""Rules for products of matrices and attention."""

from __future__ import annotations

import math

from dandelion.export.aten import (
    ATTENTION_WEIGHTS,
    RULES,
    Kind,
    NotSupported,
    Rule,
    Step,
    Tensor,
    rule,
)

_HEAVY = Kind.HEAVY


def wide(step: Step, x: Tensor) -> Tensor:
    """Types of 16 bits are added up in float32."""
    return step.tensors.cast(x, "float32") if step.node.operand in ("float16", "bfloat16") else x


_TILE = 8
"""Products are computed in tiles; rows and columns that no tile divides are filled with zeros."""


def multiplied(step: Step, x: Tensor, y: Tensor) -> Tensor:
    """Multiply matrices.

    The code generator computes several rows and columns in one thread only if their number divides
    those of the result, and is many times slower otherwise. So odd sizes are filled up.
    """
    if min(len(x.shape), len(y.shape)) < 2:
        return x.matmul(y)
    rows, columns = _filling(x.shape[-2]), _filling(y.shape[-1])
    if not rows and not columns:
        return x.matmul(y)
    left = x.pad((*((0, 0) for _ in x.shape[:-2]), (0, rows), (0, 0)))
    right = y.pad((*((0, 0) for _ in y.shape[:-1]), (0, columns)))
    made = step.tensors.store(left.matmul(right))
    sizes = (*made.shape[:-2], x.shape[-2], y.shape[-1])
    return made.shrink(tuple((0, size) for size in sizes))


def _filling(size: int) -> int:
    return -size % _TILE if size > 2 * _TILE and size % 4 else 0


@rule("mm", "bmm", "matmul", "mv", "dot", kind=_HEAVY)
def _matmul(step: Step, x: Tensor, y: Tensor) -> Tensor:
    return multiplied(step, x, y)


@rule("addmm", "baddbmm", "addmv", kind=_HEAVY)
def _addmm(
    step: Step, bias: Tensor, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = multiplied(step, x, y)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (bias if beta == 1 else bias * beta)


@rule("linear", kind=_HEAVY)
def _linear(step: Step, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = multiplied(step, x, weight.transpose(-1, -2))
    return product if bias is None else product + bias


@rule("scaled_dot_product_attention", kind=_HEAVY, promote=False)
def _attention(
    step: Step, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if dropout:
        raise NotSupported("attention with dropout")
    q, k, v = (wide(step, one) for one in (q, k, v))
    if enable_gqa:
        k, v = (one.repeat_interleave(q.shape[-3] // one.shape[-3], -3) for one in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = multiplied(step, q, k.transpose(-1, -2)) * factor
    scores = _masked(step, scores, mask, is_causal)
    weights = step.tensors.store(step.tensors.store(scores).softmax(-1))
    return multiplied(step, weights, v)


def _masked(step: Step, scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        rows, columns = scores.shape[-2:]
        row = step.tensors.arange(rows, "int32").reshape((rows, 1))
        column = step.tensors.arange(columns, "int32").reshape((1, columns))
        scores = (column <= row).where(scores, -math.inf)
    if mask is not None:
        is_bool = "bool" in str(mask.dtype)
        scores = mask.where(scores, -math.inf) if is_bool else scores + wide(step, mask)
    return scores


def _attention_weights(
    step: Step, scores: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Softmax of the products of queries and keys, some of which are masked."""
    scores = _masked(step, wide(step, scores), mask, is_causal)
    return scores.softmax(-1)


RULES[ATTENTION_WEIGHTS] = Rule(_HEAVY, _attention_weights, promote=False)
