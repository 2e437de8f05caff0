"""Convolutions as actions of a blueprint on a real device, beside those of torch.

Results are compared with torch's in f64 on the CPU. Times are those of one convolution within a
graph, beside `torch.nn.functional.conv2d` in a CUDA graph with channels last; they are printed as
JSON, a line for each layer (``pytest -s``).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")

import torch
from dandelion.backends.gpu.compiling import CodeCache
from dandelion.backends.gpu.reference_library import STORED, narrowed
from torch.nn import functional

import dandelion.blueprint as bp
from dandelion.blueprint.operation_calls import ConvolutionCall
from tests.fake_driver.fake import Real, Runner, function

CASES = 200
BOUNDS = {"f32": 2e-5, "tf32": 3e-3, "f16": 2e-3, "bf16": 1.6e-2}
CALLS, MANY = 12, 33
MOST_RATIO = 1.15
LEAST_US = 10.0
"""Shorter convolutions are within the noise of a difference of two calls."""
LAYERS = {  # of ResNet-50: channels, filters, kernel, stride, size of the image
    "stem": (3, 64, 7, 2, 224),
    "1.reduce": (256, 64, 1, 1, 56),
    "1.middle": (64, 64, 3, 1, 56),
    "1.expand": (64, 256, 1, 1, 56),
    "2.stride": (128, 128, 3, 2, 56),
    "2.skip": (256, 512, 1, 2, 56),
    "2.reduce": (512, 128, 1, 1, 28),
    "2.middle": (128, 128, 3, 1, 28),
    "2.expand": (128, 512, 1, 1, 28),
    "3.reduce": (1024, 256, 1, 1, 14),
    "3.middle": (256, 256, 3, 1, 14),
    "3.expand": (256, 1024, 1, 1, 14),
    "4.reduce": (2048, 512, 1, 1, 7),
    "4.middle": (512, 512, 3, 1, 7),
    "4.expand": (512, 2048, 1, 1, 7),
}


@pytest.fixture(scope="module")
def runner(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    folder: Path = tmp_path_factory.mktemp("code")
    made = Runner(
        Real("cuda", folder), pool_bytes=4 << 30, cache=CodeCache(folder), arena_bytes=1 << 28
    )
    yield made
    libraries: Any = made.engine.device.lowering().library
    assert libraries.parts[ConvolutionCall].is_present, "cuDNN was not found"
    made.close()


class Convolution:
    """A function of one convolution with random inputs, and its result by torch in f64."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        self.compute = pick.choice(sorted(BOUNDS))
        self.dtype = bp.ElementType(self.compute.replace("tf32", "f32"))
        self.layout = pick.choice(["nchw", "nhwc"])
        self.groups = pick.choice([1, 1, 1, 2, 4])
        part = pick.choice([1, 3, 8, 16, 24])
        channels = part * self.groups
        filters = self.groups * pick.choice([1, 4, 8, 32])
        if pick.random() < 0.15:  # depthwise
            channels = filters = self.groups = pick.choice([8, 17, 64])
        kernel = pick.choice([(1, 1), (3, 3), (5, 5), (1, 7), (2, 3)])
        self.stride, self.padding, self.dilation = (
            pick.choice(choices)
            for choices in (
                [(1, 1), (1, 1), (2, 2), (2, 1)], [(0, 0), (1, 1), (2, 0)], [(1, 1), (1, 1), (2, 2)]
            )
        )  # fmt: skip
        size = (pick.randint(11, 40), pick.randint(11, 40))
        batch = pick.choice([1, 2, 5])
        self.activation = pick.choice(["none", "relu", "gelu_tanh"])
        x, w = (batch, channels, *size), (filters, channels // self.groups, *kernel)
        numbers = torch.Generator().manual_seed(seed)
        wide = {"x": torch.randn(x, generator=numbers), "w": torch.randn(w, generator=numbers)}
        out = functional.conv2d(wide["x"], wide["w"], None, *self.places()).shape
        if pick.random() < 0.6:
            wide["v"] = torch.randn(filters, generator=numbers)
        if pick.random() < 0.4:
            wide["r"] = torch.randn(out, generator=numbers)
        self.data = {name: self.stored(value) for name, value in wide.items()}
        self.given = {name: self.loaded(name, value) for name, value in wide.items()}
        made = bp.Blueprint(inputs=list(wide), outputs=["y"])
        made.convolution(
            made.x, made.w, made.buffer("y", out.numel() * self.dtype.size_bytes), batch=batch,
            channels=channels, size=size, filters=filters, kernel=kernel, stride=self.stride,
            padding=self.padding, dilation=self.dilation, groups=self.groups,
            addend=made["r"] if "r" in wide else None, bias=made["v"] if "v" in wide else None,
            layout=self.layout, dtype=self.dtype.value, activation=self.activation,
            compute="tf32" if self.compute == "tf32" else "f32",
        )  # fmt: skip
        self.function = function(made, {})

    def places(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def stored(self, value: torch.Tensor) -> np.ndarray[Any, Any]:
        """The elements as they lie in memory."""
        if self.layout == "nhwc" and value.dim() == 4:
            value = value.permute(0, 2, 3, 1)
        return narrowed(value.double().contiguous().numpy().reshape(-1), self.dtype)

    def loaded(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The elements after rounding, in f64."""
        rounded = torch.from_numpy(self.data[name].astype(np.float64))
        if self.layout == "nhwc" and value.dim() == 4:
            n, c, h, w = value.shape
            return rounded.reshape(n, h, w, c).permute(0, 3, 1, 2)
        return rounded.reshape(value.shape)

    def expected(self) -> np.ndarray[Any, Any]:
        given = self.given
        made = functional.conv2d(given["x"], given["w"], given.get("v"), *self.places())
        made = made + given["r"] if "r" in given else made
        if self.activation == "relu":
            made = made.relu()
        if self.activation == "gelu_tanh":
            made = functional.gelu(made, approximate="tanh")
        if self.layout == "nhwc":
            made = made.permute(0, 2, 3, 1)
        return made.contiguous().numpy().reshape(-1)


@pytest.mark.timeout(300)
def test_random_convolutions(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """One engine is tried for each, so that most of them need not be compiled for it."""
    monkeypatch.setattr("dandelion.backends.gpu.timed_library.MOST_WAYS", 1)
    wrong = []
    for seed in range(CASES):
        case = Convolution(seed)
        expected = case.expected()
        for _ in range(2):
            sets = [runner.one(name, data) for name, data in case.data.items()]
            out = runner.run(case.function, *sets)[0]
            assert out is not None
            found = out.numpy(STORED[case.dtype]).astype(np.float64)
            error = np.abs(found - expected).max() / max(1.0, np.abs(expected).max())
            if not error < BOUNDS[case.compute]:
                wrong.append((seed, case.compute, case.layout, float(error)))
    assert not wrong


def median_us(action: Callable[[], object]) -> float:
    took = []
    for _ in range(CALLS):
        start = time.perf_counter()
        action()
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e6


def ours_us(runner: Runner, layer: tuple[int, ...], batch: int, precision: str) -> float:
    """Time a layer: what more of them within a call take."""
    channels, filters, kernel, stride, size = layer
    dtype = bp.ElementType("bf16" if precision == "bf16" else "f32")
    edge = (size + 2 * (kernel // 2) - kernel) // stride + 1
    random_ = np.random.default_rng(1)
    x = narrowed(random_.standard_normal(batch * channels * size**2), dtype)
    w = narrowed(random_.standard_normal(filters * channels * kernel**2), dtype)
    took = []
    for count in (1, MANY):
        made = bp.Blueprint(inputs=["x"], weights=["w", "v"], outputs=["z"])
        y = made.buffer("y", batch * filters * edge**2 * dtype.size_bytes, temporary=True)
        made.buffer("z", 256)
        with made.repeat(count):
            made.convolution(
                made.x, made.w, y, batch=batch, channels=channels, size=size, filters=filters,
                kernel=kernel, stride=stride, padding=kernel // 2, bias=made.v, layout="nhwc",
                dtype=dtype.value, compute="tf32" if precision == "tf32" else "f32",
            )  # fmt: skip
        bias = narrowed(random_.standard_normal(filters), dtype)
        wanted = function(made, {}, ("z",), {"w": w.tobytes(), "v": bias.tobytes()})
        sets = [runner.one(n, d) for n, d in (("x", x), ("w", w), ("v", bias))]
        for _ in range(4):
            runner.run(wanted, *sets)
        took.append(median_us(lambda wanted=wanted, sets=sets: runner.run(wanted, *sets)))
        runner.engine.forget(wanted)
    return (took[1] - took[0]) / (MANY - 1)


def torch_us(layer: tuple[int, ...], batch: int, precision: str) -> float:
    """Time a layer of torch in the same way."""
    channels, filters, kernel, stride, size = layer
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    last = {"device": "cuda", "dtype": dtype}
    x = torch.randn(batch, channels, size, size, **last).to(memory_format=torch.channels_last)
    w = torch.randn(filters, channels, kernel, kernel, **last).to(memory_format=torch.channels_last)
    v = torch.randn(filters, **last)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                functional.conv2d(x, w, v, stride, kernel // 2)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(MANY - 1):
                functional.conv2d(x, w, v, stride, kernel // 2)

        def call() -> None:
            graph.replay()
            torch.cuda.synchronize()

        call()
        return median_us(call) / (MANY - 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_times_of_layers(runner: Runner, precision: str, batch: int) -> None:
    ratios = []
    for name, layer in LAYERS.items():
        ours, theirs = ours_us(runner, layer, batch, precision), torch_us(layer, batch, precision)
        line = {"layer": name, "batch": batch, "precision": precision}
        times = {"dandelion_us": round(ours, 1), "torch_us": round(theirs, 1)}
        print(json.dumps(line | times | {"ratio": round(ours / theirs, 2)}), flush=True)
        if theirs >= LEAST_US:
            ratios.append(ours / theirs)
    assert float(np.median(ratios)) < MOST_RATIO
