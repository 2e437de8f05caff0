"""A product of matrices as a kernel of the language Triton: as a function, and in its launcher."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import msgspec

import dandelion
import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, content
from dandelion.errors import BackendUnavailable

from .torch_products import cuda_torch

tl: Any = None  # triton.language, which the kernel finds here
TILES = {"bm": 128, "bn": 128, "bk": 64}
WARPS, STAGES = 8, 3


def _matmul(  # type: ignore[no-untyped-def]  # Triton's own types
    a, b, c, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr
):
    rows = tl.program_id(0) * bm + tl.arange(0, bm)
    columns = tl.program_id(1) * bn + tl.arange(0, bn)
    inner = tl.arange(0, bk)
    at_a = a + rows[:, None] * k + inner[None, :]
    at_b = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((bm, bn), tl.float32)
    for _ in range(k // bk):
        total = tl.dot(tl.load(at_a), tl.load(at_b), total)
        at_a += bk
        at_b += bk * n
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@functools.cache
def kernel() -> Any:  # of Triton
    """Give the kernel: c = a @ b for f16 and sums in f32; all sizes are multiples of the tiles.

    Raises:
        BackendUnavailable: Triton is missing.
    """
    global tl
    try:
        triton = importlib.import_module("triton")
        tl = importlib.import_module("triton.language")
    except ImportError as error:
        remedy = "pip install 'dandelion-engine[export]'"
        raise BackendUnavailable("triton", str(error), remedy) from None
    return triton.jit(_matmul)


def matmul_function(size: int, arch: str) -> FunctionDocument:
    """Describe a function that multiplies two square matrices as often as its input `times` says.

    Args:
        size: rows and columns.
        arch: of the device.

    Raises:
        BackendUnavailable: Triton is missing.
    """
    made = dandelion.triton_function(
        f"triton_matmul_{size}",
        kernel(),
        inputs=[f"a: float16[{size}, {size}]", f"b: float16[{size}, {size}]"],
        outputs=[f"c: float32[{size}, {size}]"],
        arguments=dict.fromkeys(("m", "n", "k"), size),
        constants=TILES,
        grid=(size // TILES["bm"], size // TILES["bn"]),
        num_warps=WARPS,
        num_stages=STAGES,
        targets=[arch],
    )
    (code,) = made.code
    config = bp.parse_blueprint(content(code.main).bytes())
    body = config.blueprint
    repeated = (bp.Repeat(bp.FromInput("times", 0), body.control_flow),)
    body = msgspec.structs.replace(body, inputs=(*body.inputs, "times"), control_flow=repeated)
    main = bp.print_blueprint(msgspec.structs.replace(config, blueprint=body))
    return msgspec.structs.replace(
        made,
        inputs=(*made.inputs, "times: int64[1]"),
        code=(msgspec.structs.replace(code, main=main),),
    )


def torch_launches(size: int, left: Any, right: Any) -> Callable[[int], Any]:
    """Put two matrices (numpy, f16) on the device; returns what launches the kernel some times.

    What is returned launches by Triton's own launcher, waits, and gives the product (of torch).

    Raises:
        BackendUnavailable: torch with CUDA, or Triton, is missing.
    """
    torch = cuda_torch()
    a, b = (torch.from_numpy(matrix).cuda() for matrix in (left, right))
    c = torch.empty((size, size), dtype=torch.float32, device="cuda")
    launch = kernel()[size // TILES["bm"], size // TILES["bn"]]

    def run(count: int) -> Any:
        for _ in range(count):
            launch(a, b, c, size, size, size, **TILES, num_warps=WARPS, num_stages=STAGES)
        torch.cuda.synchronize()
        return c

    return run
