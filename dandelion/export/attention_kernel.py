"""Attention as one Triton kernel; imported only where Triton is.

Each block computes some rows of one head. It goes over the columns in tiles, and keeps the largest
product and the sum of each row, so that no matrix of weights is stored.

Source: T. Dao et al., FlashAttention, arXiv 2205.14135, algorithm 1, with the rows outside.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attention(
    q, k, v, mask, out,
    scale: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr,
    heads: tl.constexpr, sharing: tl.constexpr, q_batch: tl.constexpr, q_head: tl.constexpr,
    q_row: tl.constexpr,
    k_batch: tl.constexpr, k_head: tl.constexpr, k_row: tl.constexpr, v_batch: tl.constexpr,
    v_head: tl.constexpr, v_row: tl.constexpr, mask_batch: tl.constexpr, mask_head: tl.constexpr,
    mask_row: tl.constexpr, mask_column: tl.constexpr, masking: tl.constexpr,
    causal: tl.constexpr, precision: tl.constexpr, block_rows: tl.constexpr,
    block_columns: tl.constexpr, block_width: tl.constexpr,
):  # fmt: skip
    """``softmax(scale * q @ k^T + mask) @ v``, rows of ``out`` as ``[batch, rows, heads, width]``.

    Args:
        sharing: heads of q that have the same head of k and v.
        masking: 0 without a mask, 1 if true elements are kept, 2 if it is added.
    """
    log2_e: tl.constexpr = 1.4426950408889634
    first = tl.program_id(0) * block_rows
    head = tl.program_id(1) % heads
    batch = (tl.program_id(1) // heads).to(tl.int64)
    row = first + tl.arange(0, block_rows)
    inner = tl.arange(0, block_width)
    at = tl.arange(0, block_columns)
    inside = (row < rows)[:, None] & (inner < width)[None, :]
    left = tl.load(
        q + batch * q_batch + head * q_head + row[:, None] * q_row + inner[None, :],
        mask=inside, other=0.0,
    )  # fmt: skip
    keys = k + batch * k_batch + head // sharing * k_head
    values = v + batch * v_batch + head // sharing * v_head
    masks = mask + batch * mask_batch + head * mask_head
    largest = tl.full((block_rows,), -float("inf"), tl.float32)
    total = tl.zeros((block_rows,), tl.float32)
    summed = tl.zeros((block_rows, block_width), tl.float32)
    end = columns
    if causal:
        end = tl.minimum(columns, first + block_rows)
    for start in range(0, end, block_columns):
        column = start + at
        held = (column < columns)[:, None] & (inner < width)[None, :]
        right = tl.load(keys + column[:, None] * k_row + inner[None, :], mask=held, other=0.0)
        products = tl.dot(left, tl.trans(right), input_precision=precision) * (scale * log2_e)
        seen = (column < columns)[None, :]
        if causal:
            seen = seen & (column[None, :] <= row[:, None])
        if masking > 0:
            if mask_row == 0:
                given = tl.load(masks + column * mask_column, mask=column < columns, other=0)
                given = given[None, :]
            else:
                given = tl.load(
                    masks + row[:, None] * mask_row + column[None, :] * mask_column,
                    mask=(row < rows)[:, None] & (column < columns)[None, :], other=0,
                )  # fmt: skip
            if masking == 1:
                seen = seen & (given != 0)
            else:
                products += given.to(tl.float32) * log2_e
        products = tl.where(seen, products, -float("inf"))
        new = tl.maximum(largest, tl.max(products, 1))
        base = tl.where(new == -float("inf"), 0.0, new)
        shrink = tl.exp2(largest - base)
        weights = tl.exp2(products - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        other = tl.load(values + column[:, None] * v_row + inner[None, :], mask=held, other=0.0)
        summed = summed * shrink[:, None]
        summed = tl.dot(weights.to(other.dtype), other, summed, input_precision=precision)
        largest = new
    made = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    place = ((batch * rows + row[:, None]) * heads + head) * width + inner[None, :]
    tl.store(out + place, made.to(out.dtype.element_ty), mask=inside)
