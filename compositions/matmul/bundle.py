"""Register and call `matmul`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import (
    CodeDocument,
    Content,
    FunctionDocument,
    RegistrationDocument,
    gpu_function,
)

from .oracle import multiply

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "matmul"
SIDE = 128
BLOCK = 32


def function(blueprint: str = "matmul.json") -> FunctionDocument:
    """Describe the function `multiply`.

    Args:
        blueprint: ``matmul.json`` (canonical) or ``matmul.thesis.json`` (the thesis' spelling).
    """
    return gpu_function(
        "multiply",
        HERE / blueprint,
        inputs=("cfg: int64[?]", "A: int64"),
        outputs=("B: int64",),
        files={"matmul.c": HERE / "matmul.c"},
    )


def native_code() -> CodeDocument:
    """Describe a second code object of `multiply`: an executable for the backend `native`."""
    return CodeDocument("elf", Content(data=(HERE / "native" / "matmul.elf").read_bytes()))


def document(*, native: bool = False) -> RegistrationDocument:
    """Describe the function `multiply` and the composition.

    Args:
        native: also register code for CPUs; the node must have the backend `native`.
    """
    made = function()
    if native:
        made = msgspec.structs.replace(made, code=(*made.code, native_code()))
    text = (HERE / "matmul.dandelion").read_text()
    return RegistrationDocument(functions=(made,), compositions=(text,))


def example_inputs(seed: int) -> dict[str, Value]:
    """Draw a matrix: `A` [128, 128] int64, and `cfg` [1] int64, the blocks of a grid side."""
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**31), 2**31, (SIDE, SIDE), np.int64)
    return {"cfg": np.array([-(-SIDE // BLOCK)], np.int64), "A": a}


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `B` [n, n] int64."""
    return {"B": multiply(inputs["A"])}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """View `B` as a square int64 matrix."""
    found = outputs["B"]
    if found is None:
        return {}
    flat = found.numpy("int64", (-1,))
    return {"B": flat.reshape(round(flat.size**0.5), -1)}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare exactly."""
    return results.keys() == expected.keys() and np.array_equal(results["B"], expected["B"])
