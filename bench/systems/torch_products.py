"""Products of matrices in PyTorch, as a CUDA graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dandelion.errors import BackendUnavailable

Product = Callable[[], None]


def cuda_torch() -> Any:  # the module
    """Load torch.

    Raises:
        BackendUnavailable: there is no torch with CUDA.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise BackendUnavailable("torch", str(error), "pip install torch") from None
    if not torch.cuda.is_available():
        raise BackendUnavailable("torch", "no CUDA device", "install torch with CUDA")
    return torch


def torch_products(m: int, n: int, k: int, precision: str, count: int) -> Product:
    """Capture `count` products of one pair of matrices; returns what replays and waits.

    Args:
        m, n, k: sizes.
        precision: ``f32``, ``tf32`` or ``bf16``.
        count: of `torch.mm` in the graph.

    Raises:
        BackendUnavailable: there is no torch with CUDA.
    """
    torch = cuda_torch()
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.rand(m, k, device="cuda", dtype=dtype) - 0.5
    b = torch.rand(k, n, device="cuda", dtype=dtype) - 0.5
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            torch.mm(a, b, out=out)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return run
