"""FIXTURE. Triton kernels and the functions made of them. Import it only where Triton is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

import dandelion
import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument

TARGETS = ("sm_90", "gfx942")
STAGES = {"sm_90": 3, "gfx942": 2}
X, Y, C = bp.Buffer("x"), bp.Buffer("y"), bp.Buffer("cfg")


@triton.jit
def add(x, y, z, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < n
    tl.store(z + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def softmax(x, y, columns, stride, block: tl.constexpr):
    i = tl.arange(0, block)
    row = tl.program_id(0)
    values = tl.load(x + row * stride + i, mask=i < columns, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * stride + i, powers / tl.sum(powers, 0), mask=i < columns)


@triton.jit
def matmul(a, b, c, m, n, k, sam, sak, sbk, sbn, scm, scn,
           bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * bm + tl.arange(0, bm)
    columns = tl.program_id(1) * bn + tl.arange(0, bn)
    inner = tl.arange(0, bk)
    at_a = a + (rows % m)[:, None] * sam + inner[None, :] * sak
    at_b = b + inner[:, None] * sbk + (columns % n)[None, :] * sbn
    total = tl.zeros((bm, bn), tl.float32)
    for step in range(tl.cdiv(k, bk)):
        left = tl.load(at_a, mask=inner[None, :] < k - step * bk, other=0.0)
        right = tl.load(at_b, mask=inner[:, None] < k - step * bk, other=0.0)
        total = tl.dot(left, right, total)
        at_a += bk * sak
        at_b += bk * sbk
    at_c = c + rows[:, None] * scm + columns[None, :] * scn
    tl.store(at_c, total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def gather(table, places, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    place = tl.load(places + i, mask=i < n, other=0)
    tl.store(out + i, tl.load(table + place, mask=i < n), mask=i < n)


@triton.jit
def histogram(x, counts, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(counts + tl.load(x + i, mask=i < n, other=0), 1, mask=i < n)


@triton.jit
def tiles(x, y, rows, columns, block: tl.constexpr):
    """Copy by tensor descriptors, which lie in scratch memory."""
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [block, block])
    target = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [block, block])
    at = [tl.program_id(0) * block, tl.program_id(1) * block]
    target.store(at, source.load(at))


@triton.jit
def scalars(y, a, b, c: tl.int64, d: tl.float64, e: tl.int8, f):
    total = a + b + c + d + e
    if f:
        total += 1
    tl.store(y, total.to(tl.float32))


def add_function(targets: Sequence[str] = TARGETS, **more: Any) -> FunctionDocument:
    """z = x + y for vectors of any length."""
    return dandelion.triton_function(
        "add",
        add,
        inputs=["x: float32", "y: float32"],
        outputs=["z: float32"],
        arguments={"n": X.elements("f32")},
        constants={"block": 1024},
        sizes={"z": "x"},
        grid=bp.ceil_div(X.elements("f32"), 1024),
        targets=targets,
        **more,
    )


def softmax_function(targets: Sequence[str] = TARGETS) -> FunctionDocument:
    """Softmax over rows; `cfg` has the numbers of rows and of columns."""
    return dandelion.triton_function(
        "softmax",
        softmax,
        inputs=["cfg: int64[2]", "x: float32"],
        outputs=["y: float32"],
        arguments={"columns": C[1], "stride": C[1]},
        constants={"block": 1024},
        sizes={"y": "x"},
        grid=C[0],
        targets=targets,
    )


def matmul_function(
    m: int,
    n: int,
    k: int,
    dtype: str = "float16",
    targets: Sequence[str] = TARGETS,
    stages: Mapping[str, int] = STAGES,
    **more: Any,
) -> FunctionDocument:
    """c = a @ b of fixed sizes, with sums in float32."""
    return dandelion.triton_function(
        "matmul",
        matmul,
        inputs=[f"a: {dtype}[{m}, {k}]", f"b: {dtype}[{k}, {n}]"],
        outputs=[f"c: float32[{m}, {n}]"],
        arguments={
            "m": m, "n": n, "k": k, "sam": k, "sak": 1, "sbk": n, "sbn": 1, "scm": n, "scn": 1,
        },
        constants={"bm": 128, "bn": 128, "bk": 64 if dtype == "float16" else 32},
        grid=lambda meta: (bp.ceil_div(m, meta["bm"]), bp.ceil_div(n, meta["bn"])),
        num_warps=8,
        num_stages={arch: count for arch, count in stages.items() if arch in targets},
        targets=targets,
        **more,
    )  # fmt: skip


def histogram_function(targets: Sequence[str] = TARGETS) -> FunctionDocument:
    """Count each of 256 values."""
    return dandelion.triton_function(
        "histogram",
        histogram,
        inputs=["x: int32"],
        outputs=["counts: int32[256]"],
        arguments={"n": X.elements("i32")},
        constants={"block": 256},
        grid=bp.ceil_div(X.elements("i32"), 256),
        targets=targets,
    )


def tiles_function(targets: Sequence[str] = TARGETS) -> FunctionDocument:
    """A copy of a matrix; `cfg` has the number of rows and that of columns divided by 16."""
    return dandelion.triton_function(
        "tiles",
        tiles,
        inputs=["cfg: int64[2]", "x: float16"],
        outputs=["y: float16"],
        arguments={"rows": C[0], "columns": C[1] * 16},
        constants={"block": 64},
        sizes={"y": "x"},
        grid=(bp.ceil_div(C[0], 64), bp.ceil_div(C[1] * 16, 64)),
        targets=targets,
    )


def scalars_function(targets: Sequence[str] = TARGETS) -> FunctionDocument:
    """y = 1 + 2.5 + 3 + 4 + 5 + 1, by parameters of six types."""
    return dandelion.triton_function(
        "scalars",
        scalars,
        inputs=["x: float32"],
        outputs=["y: float32[1]"],
        arguments={
            "a": bp.scalar("u16", 1), "b": 2.5, "c": X.elements("f32"), "d": 4.0, "e": 5, "f": True,
        },
        grid=1,
        targets=targets,
    )  # fmt: skip
