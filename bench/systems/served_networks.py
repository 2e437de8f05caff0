"""Networks that are served as exported functions and by torch, with random weights.

=========== ==================================== ==========================================
network     full                                 small
=========== ==================================== ==========================================
encoder     6 layers of BERT base, 128 tokens    2 layers of width 128, 32 tokens
images      a residual network of 18 layers,     one of 6 layers, 3 x 32 x 32
            3 x 224 x 224
=========== ==================================== ==========================================

As a program, ``NETWORK SCALE PRECISION`` as arguments, this module exports one for any number of
rows and writes the document to standard output. A full one is made for the CUDA device, if torch
finds one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable
from dandelion.export import export_module

SEED = 3
FUNCTION = "serve"
WORDS, CLASSES = 8192, 16


@dataclass(frozen=True, slots=True)
class ServedNetwork:
    """A network and what its requests are.

    Attributes:
        module: a `torch.nn.Module`.
        dtype, shape: of the input of one request, without the batch.
        batches: sizes of the batch for which there are kernels.
    """

    module: Any
    dtype: str
    shape: tuple[int, ...]
    batches: tuple[int, ...]

    def request(self, number: int) -> npt.NDArray[Any]:
        """Make the input of a request, ``[1, ...]``."""
        rng = np.random.default_rng(number)
        if self.dtype == "int64":
            return rng.integers(0, WORDS, (1, *self.shape))
        return rng.standard_normal((1, *self.shape), np.float32)


def torch_library() -> Any:
    """Import torch.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        remedy = "pip install 'dandelion-engine[export]'"
        raise BackendUnavailable("torch", str(error), remedy) from None


def network(name: str, scale: str) -> ServedNetwork:
    """Make a network; it has the same weights every time."""
    torch = torch_library()
    torch.manual_seed(SEED)
    return _NETWORKS[name](torch, scale == "full")


def _module(torch: Any, forward: Callable[..., Any], **parts: Any) -> Any:
    made = type("Network", (torch.nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(made, name, part)
    return made.eval()


def _encoder(torch: Any, full: bool) -> ServedNetwork:
    nn = torch.nn
    layers, width, heads, length = (6, 768, 12, 128) if full else (2, 128, 4, 32)

    def layer(self: Any, x: Any) -> Any:
        shape = (x.shape[0], length, 3, heads, width // heads)
        query, key, value = self.into(x).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = self.first(x + self.out(seen.transpose(1, 2).reshape(x.shape)))
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))

    def forward(self: Any, ids: Any) -> Any:
        x = self.start(self.words(ids) + self.places)
        for one in self.layers:
            x = one(x)
        return self.head(x[:, 0])

    made = [
        _module(
            torch, layer, into=nn.Linear(width, 3 * width), out=nn.Linear(width, width),
            wide=nn.Linear(width, 4 * width), narrow=nn.Linear(4 * width, width),
            first=nn.LayerNorm(width), second=nn.LayerNorm(width),
        )
        for _ in range(layers)
    ]  # fmt: skip
    whole = _module(
        torch, forward, words=nn.Embedding(WORDS, width),
        places=nn.Parameter(torch.randn(length, width)), start=nn.LayerNorm(width),
        layers=nn.ModuleList(made), head=nn.Linear(width, CLASSES),
    )  # fmt: skip
    return ServedNetwork(whole, "int64", (length,), (1, 8, 16, 32) if full else (1, 8))


def _images(torch: Any, full: bool) -> ServedNetwork:
    nn = torch.nn
    widths, blocks, side = ((64, 128, 256, 512), 2, 224) if full else ((16, 32), 1, 32)

    def normed(inputs: int, outputs: int, size: int, stride: int) -> Any:
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def block(inputs: int, outputs: int, stride: int) -> Any:
        def forward(self: Any, x: Any) -> Any:
            return torch.relu(self.skip(x) + self.second(torch.relu(self.first(x))))

        changes = stride > 1 or inputs != outputs
        return _module(
            torch, forward, first=normed(inputs, outputs, 3, stride),
            second=normed(outputs, outputs, 3, 1),
            skip=normed(inputs, outputs, 1, stride) if changes else nn.Identity(),
        )  # fmt: skip

    stem = [normed(3, widths[0], 7 if full else 3, 2), nn.ReLU()]
    body, before = [*stem, *([nn.MaxPool2d(3, 2, 1)] if full else [])], widths[0]
    for width in widths:
        for number in range(blocks):
            stride = 2 if number == 0 and width != widths[0] else 1
            body.append(block(before, width, stride))
            before = width
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))
    whole = nn.Sequential(*body, pooled).eval()
    return ServedNetwork(whole, "float32", (3, side, side), (1, 8, 16, 32) if full else (1, 8))


_NETWORKS = {"encoder": _encoder, "images": _images}


def _target() -> str:
    """Name the device for which torch's compiler makes kernels; empty if it can use none."""
    cuda = torch_library().cuda
    return "cuda:{}{}".format(*cuda.get_device_capability()) if cuda.is_available() else ""


def main(name: str, scale: str, precision: str) -> None:
    """Export a network."""
    served = network(name, scale)
    example = torch_library().from_numpy(served.request(0))
    target = _target() if scale == "full" else ""
    made = export_module(
        FUNCTION, served.module, (example,), inputs=["x"], outputs=["y"],
        device="gpu" if scale == "full" else "cpu", precision=precision, batch=served.batches,
        route="peak" if target else "portable", target=target,
    )  # fmt: skip
    document = RegistrationDocument(functions=(made.function,))
    sys.stdout.buffer.write(msgspec.msgpack.encode(document))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BackendUnavailable as error:
        raise SystemExit(str(error)) from None
