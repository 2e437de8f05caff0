"""PyPlover's two chains of kernels: a vector addition, and a small convolutional network.

The network is the one of the composition `digits`: 32 filters, two dense layers, weights that stay
on the device. PyPlover's has other layers and a larger image; both take six launches or fewer that
keep a device busy for a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from dandelion.compositions.digits import bundle as digits
from dandelion.compositions.digits import oracle as digits_oracle
from dandelion.compositions.vector_add import bundle as vector_add
from dandelion.compositions.vector_add import oracle as vector_oracle

from dandelion.documents import RegistrationDocument

from .bare import Step, Work

_BLOCK = 256
_LANES = 64


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of kernels as a function, and as bare work.

    Attributes:
        name: for people.
        document: its function.
        function: the function's name.
        entry, result: its input set and its output set.
        work: the same for a bare loop.
        body: a request's bytes.
        expected: tells whether a reply's bytes are right.
    """

    name: str
    document: RegistrationDocument
    function: str
    entry: str
    result: str
    work: Work
    body: bytes
    expected: Callable[[bytes], bool]


@cache
def vector_addition() -> Chain:
    """Add a constant vector of a million float32 to another."""
    a = np.asarray(vector_add.example_inputs(1)["a"], np.float32)
    size = a.nbytes
    arguments = ("a", size, "constant", size, "sum", size)
    step = Step("add", arguments, (-(-vector_oracle.COUNT // _BLOCK), 1, 1), (_BLOCK, 1, 1))
    work = Work(
        "vector_add",
        (vector_add.HERE / "add.c").read_text(),
        {"a": size, "constant": size, "sum": size},
        "a",
        "sum",
        (step,),
        constants={"constant": vector_oracle.constant().tobytes()},
    )
    document = RegistrationDocument(functions=vector_add.document().functions)
    right = vector_oracle.add(a).tobytes()
    return Chain(
        "vecAdd", document, "add", "a", "sum", work, a.tobytes(), lambda reply: reply == right
    )


@cache
def network() -> Chain:
    """Classify an image of 8 x 8 points with a convolution, a pooling and two dense layers."""
    weights = {name: tensor.tobytes() for name, tensor in digits.weights().items()}
    filters, side, hidden, classes = 32, 8, _LANES, 10
    maps = filters * side * side
    sizes = {"image": side * side * 4, "maps": maps * 4, "pooled": maps, "hidden": hidden * 4}
    sizes |= {"logits": classes * 4} | {name: len(data) for name, data in weights.items()}
    convolution = ("image", "conv_weights", "conv_bias", "maps", side, filters)
    dense = ("pooled", "hidden_weights", "hidden_bias", "hidden", maps // 4, hidden)
    last = ("hidden", "output_weights", "output_bias", "logits", hidden, classes)
    steps = (
        Step("convolution", convolution, (1, 1, filters), (side, side, 1)),
        Step("relu", ("maps", sizes["maps"]), (maps // _LANES, 1, 1), (_LANES, 1, 1)),
        Step("max_pool", ("maps", "pooled", side, filters), (1, 1, filters), (4, 4, 1)),
        Step("dense", dense, (hidden, 1, 1), (_LANES, 1, 1)),
        Step("relu", ("hidden", sizes["hidden"]), (1, 1, 1), (_LANES, 1, 1)),
        Step("dense", last, (classes, 1, 1), (_LANES, 1, 1)),
    )
    source = (digits.HERE / "network.c").read_text()
    work = Work("network", source, sizes, "image", "logits", steps, constants=weights)
    image = digits_oracle.pixels_to_images(digits.held_out().pixels[:1])
    logits = digits_oracle.logits(image, digits.weights())[0]

    def right(reply: bytes) -> bool:
        return bool(np.allclose(np.frombuffer(reply, np.float32), logits, rtol=1e-4, atol=1e-4))

    body = np.ascontiguousarray(image, np.float32).tobytes()
    document = RegistrationDocument(functions=(digits.classify(),))
    return Chain("CNN", document, "classify", "image", "logits", work, body, right)
