"""Register and call `vector_add`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import RegistrationDocument, gpu_function

from .oracle import COUNT, add, constant

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "vector_add"


def document() -> RegistrationDocument:
    """Describe the function `add` with its constant, and the composition."""
    vector = f"float32[{COUNT}]"
    function = gpu_function(
        "add",
        HERE / "add.json",
        inputs=(f"a: {vector}", f"constant: {vector}"),
        outputs=(f"sum: {vector}",),
        files={"add.c": HERE / "add.c"},
        static={"constant": {"constant": constant().tobytes()}},
    )
    text = (HERE / "vector_add.dandelion").read_text()
    return RegistrationDocument(functions=(function,), compositions=(text,))


def example_inputs(seed: int) -> dict[str, Value]:
    """Draw a vector: `a` [1000000] float32, uniform in 0..1."""
    return {"a": np.random.default_rng(seed).random(COUNT, np.float32)}


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `sum` [1000000] float32."""
    return {"sum": add(inputs["a"])}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """View `sum` as float32."""
    found = outputs["sum"]
    return {"sum": found.numpy("float32", (-1,))} if found else {}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare exactly."""
    return results.keys() == expected.keys() and np.array_equal(results["sum"], expected["sum"])
