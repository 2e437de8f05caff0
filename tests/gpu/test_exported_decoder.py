"""An exported decoder that writes a text in one call, beside torch's CUDA graph of a step.

Times are printed as JSON, a line for each case (``pytest -s``): microseconds for each token. torch
starts the graph of the next step when it has seen that there is one, as the engine does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch

from dandelion import composition
from dandelion.export import torch_function
from dandelion.export.torch_binding import example_arrays
from dandelion.node import Node, Settings
from tests.decoder_model import FED, DecoderStep

CALLS = 7
SIZES = {"small": (4, 256, 8, 128, 1000), "gpt2": (12, 768, 12, 256, 50257)}
CASES = [
    (size, precision, route)
    for size in SIZES
    for precision in ("f32", "tf32", "bf16")
    for route in ("portable", "peak", "both")
]


def median(action: Callable[[], object]) -> float:
    action()
    took = []
    for _ in range(CALLS):
        start = time.perf_counter()
        action()
        took.append(time.perf_counter() - start)
    return float(np.median(took))


class GraphedDecoder:
    """torch's CUDA graph of a step that also feeds its results back."""

    def __init__(self, module: DecoderStep, begin: tuple[Any, ...]) -> None:
        moved = module.cuda()
        self._begin = begin
        self._state = [one.cuda() for one in begin]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):
                moved(*self._state)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self._graph):
            found = moved(*self._state)
            for state, name in zip(self._state, FED.values(), strict=True):
                state.copy_(found[name])
        self._more = found["more"]

    def text(self) -> Any:
        for state, first in zip(self._state, self._begin, strict=True):
            state.copy_(first)
        self._graph.replay()
        while self._more.item():
            self._graph.replay()
        return self._state[0].cpu().numpy()


@pytest.mark.parametrize(("size", "precision", "route"), CASES)
def test_a_text_in_one_call(size: str, precision: str, route: str, cuda: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    torch.manual_seed(0)
    module = DecoderStep(*SIZES[size]).eval()
    with torch.no_grad():
        module.tokens.weight.normal_(std=0.05)
        module.places.weight.normal_(std=0.5)  # so that texts are not one token again and again
    if precision == "bf16":
        module = module.to(torch.bfloat16)
    begin = module.begin(7)
    target = "" if route == "portable" else f"cuda:{cuda.removeprefix('sm_')}"
    step = torch_function(
        "step", module, begin, absent_if_zero=["more"], route=route, target=target,
        precision="tf32" if precision == "tf32" else "f32",
    )  # fmt: skip

    @composition
    def write(text: Any, position: Any, keys: Any, values: Any) -> Any:
        made = step(text=text, position=position, keys=keys, values=values)
        made.repeat(module.length - 1, feed=FED, until="more")
        return {"text": made.longer}

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        graphed = GraphedDecoder(module, begin)
        wanted = graphed.text()
        torch_s = median(graphed.text)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    del graphed
    given = example_arrays(begin, tuple(FED))
    options = {"cuda": {"pool_bytes": "2G", "weights": "2G", "workers": "0"}}
    settings = Settings(backends=("null", "cuda"), options=options, arena_bytes=2 << 30)
    with Node(settings) as node:
        node.register(write)

        def call() -> Any:
            found = node.invoke_sets("write", given)
            assert len(found.trace.calls) == 1
            return found.sets["text"].numpy()

        for _ in range(3):  # alternatives are measured in the second call
            tokens = call()
        node_s = median(call)
    same = int((tokens == wanted).cumprod().sum())
    count = module.length - 1
    line = {
        "size": size, "precision": precision, "route": route, "tokens": count,
        "node_us": round(node_s / count * 1e6, 1), "torch_us": round(torch_s / count * 1e6, 1),
        "ratio": round(node_s / torch_s, 2), "same": same,
        "different": len(np.unique(wanted)),
    }  # fmt: skip
    print(json.dumps(line))
    if precision == "f32":
        assert same == module.length
    assert same >= 4
