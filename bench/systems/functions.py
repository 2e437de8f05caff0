"""Workloads as registered functions: the thesis' two, on GPUs and in numpy, and PyPlover's.

Everything is fixed but the one set that a request brings, so the bytes of a request and of its
reply are the same for all systems.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.digits import oracle as digits_oracle
from dandelion.compositions.inference import bundle as inference
from dandelion.compositions.inference import oracle
from dandelion.compositions.matmul import bundle as matmul
from dandelion.compositions.vector_add import bundle as vector_add
from dandelion.compositions.vector_add import oracle as vector_oracle

from dandelion.documents import (
    FunctionDocument,
    RegistrationDocument,
    gpu_function,
    python_function,
)

from .bare import IMAGE_BYTES, BareLaunch, Workload

_PYTHON_MATMUL = """
def run(A):
    import numpy as np

    a = A.numpy(np.int64, ({side}, {side}))
    return a @ a.T
"""
_PYTHON_INFERENCE = """
from __future__ import annotations
import numpy as np

FILTER_SIDE = {filter_side}

{layer}
{max_pool}

def run(images, filter):
    given = images.numpy(np.float32, (-1, {side}, {side}))
    weights = filter.numpy(np.float32, (FILTER_SIDE, FILTER_SIDE))
    for _ in range({times}):
        pooled = layer(given, weights)
    return pooled
"""


def gpu_code(work: Workload, nonce: int = 0) -> FunctionDocument:
    """Describe a workload as a GPU function of its name.

    Args:
        work: of `matmul_work` or `inference_work`.
        nonce: another number makes other code, which no device has loaded.
    """
    source = work.source + (f"\n/* {nonce} */\n" if nonce else "")
    if work.entry == "A":
        side = np.array([-(-matmul.SIDE // matmul.BLOCK)], np.int64)
        return gpu_function(
            work.name, matmul.HERE / "matmul.json", inputs=("cfg", "A"), outputs=("B",),
            files={"matmul.c": source}, static={"cfg": {"cfg": side.tobytes()}},
        )  # fmt: skip
    cfg = np.array([work.times, work.buffers["images"] // IMAGE_BYTES], np.int64).tobytes()
    return gpu_function(
        work.name, inference.HERE / "layer.json", inputs=("images", "cfg", "filter"),
        outputs=("pooled",), files={"layer.c": source},
        static={"filter": {"filter": work.constants["filter"]}, "cfg": {"cfg": cfg}},
    )  # fmt: skip


def cpu_code(work: Workload, nonce: int = 0) -> FunctionDocument:
    """Describe a workload as a Python function with numpy; see `gpu_code`."""
    static: Mapping[str, Mapping[str, bytes]] = {}
    inputs, outputs = ["A"], ["B"]
    text = _PYTHON_MATMUL.format(side=matmul.SIDE)
    if work.entry != "A":
        inputs, outputs = ["images", "filter"], ["pooled"]
        static = {"filter": {"filter": work.constants["filter"]}}
        text = _PYTHON_INFERENCE.format(
            filter_side=oracle.FILTER_SIDE, side=oracle.SIDE, times=work.times,
            layer=inspect.getsource(oracle.layer), max_pool=inspect.getsource(oracle.max_pool),
        )  # fmt: skip
    return python_function(
        f"{text}# {nonce}\n", name=work.name, entry="run", inputs=inputs, outputs=outputs,
        imports=("numpy",), static=static,
    )  # fmt: skip


def variants(work: Workload, count: int) -> list[Workload]:
    """Give the workload under other names; `gpu_code` with their number makes different code."""
    return [msgspec.structs.replace(work, name=f"{work.name}_{i}") for i in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class KernelChain:
    """A chain of kernels as a function, and as a bare workload.

    Attributes:
        document: its function.
        function: the function's name.
        work: the same for a bare loop; its entry and result are the function's sets, too.
        body: a request's bytes.
        expected: returns whether a reply's bytes are right.
    """

    name: str
    document: RegistrationDocument
    function: str
    work: Workload
    body: bytes
    expected: Callable[[bytes], bool]


@cache
def vector_addition() -> KernelChain:
    """Add a constant vector of a million float32 to another; PyPlover's vector addition."""
    a = np.asarray(vector_add.example_inputs(1)["a"], np.float32)
    size, grid = a.nbytes, (-(-vector_oracle.COUNT // 256), 1, 1)
    step = BareLaunch("add", ("a", size, "constant", size, "sum", size), grid, (256, 1, 1))
    source = (vector_add.HERE / "add.c").read_text()
    buffers = dict.fromkeys(("a", "constant", "sum"), size)
    constants = {"constant": vector_oracle.constant().tobytes()}
    work = Workload("vector_add", source, buffers, "a", "sum", (step,), constants=constants)
    document = RegistrationDocument(functions=vector_add.document().functions)
    right = vector_oracle.add(a).tobytes()
    return KernelChain("vecAdd", document, "add", work, a.tobytes(), lambda reply: reply == right)


@cache
def network() -> KernelChain:
    """Classify an image of 8 x 8 points, as the composition `digits` does.

    It has 32 filters, two dense layers, and weights that stay on the device. PyPlover's network has
    other layers and a larger image; both take at most six launches of a fraction of a millisecond.
    """
    weights = {name: tensor.tobytes() for name, tensor in digits.weights().items()}
    filters, side, hidden, classes = 32, 8, 64, 10
    maps = filters * side * side
    sizes = {"image": side * side * 4, "maps": maps * 4, "pooled": maps, "hidden": hidden * 4}
    sizes |= {"logits": classes * 4} | {name: len(data) for name, data in weights.items()}
    convolution = ("image", "conv_weights", "conv_bias", "maps", side, filters)
    dense = ("pooled", "hidden_weights", "hidden_bias", "hidden", maps // 4, hidden)
    last = ("hidden", "output_weights", "output_bias", "logits", hidden, classes)
    block = (64, 1, 1)
    steps = (
        BareLaunch("convolution", convolution, (1, 1, filters), (side, side, 1)),
        BareLaunch("relu", ("maps", sizes["maps"]), (maps // 64, 1, 1), block),
        BareLaunch("max_pool", ("maps", "pooled", side, filters), (1, 1, filters), (4, 4, 1)),
        BareLaunch("dense", dense, (hidden, 1, 1), block),
        BareLaunch("relu", ("hidden", sizes["hidden"]), (1, 1, 1), block),
        BareLaunch("dense", last, (classes, 1, 1), block),
    )
    source = (digits.HERE / "network.c").read_text()
    work = Workload("network", source, sizes, "image", "logits", steps, constants=weights)
    image = digits_oracle.pixels_to_images(digits.held_out().pixels[:1])
    logits = digits_oracle.logits(image, digits.weights())[0]

    def right(reply: bytes) -> bool:
        return bool(np.allclose(np.frombuffer(reply, np.float32), logits, rtol=1e-4, atol=1e-4))

    body = np.ascontiguousarray(image, np.float32).tobytes()
    document = RegistrationDocument(functions=(digits.classify(),))
    return KernelChain("CNN", document, "classify", work, body, right)
