"""Register and call `inference`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import RegistrationDocument, gpu_function

from .oracle import FILTER_SIDE, SIDE, filter_weights, layer

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "inference"
RELATIVE = 1e-5


def document() -> RegistrationDocument:
    """Describe the function `layer` with its filter, and the composition."""
    function = gpu_function(
        "layer",
        HERE / "layer.json",
        inputs=(
            f"images: float32[?, {SIDE}, {SIDE}]",
            "cfg: int64[2]",
            f"filter: float32[{FILTER_SIDE}, {FILTER_SIDE}]",
        ),
        outputs=(f"pooled: float32[?, {SIDE // 2}, {SIDE // 2}]",),
        files={"layer.c": HERE / "layer.c"},
        static={"filter": {"filter": filter_weights().tobytes()}},
    )
    text = (HERE / "inference.dandelion").read_text()
    return RegistrationDocument(functions=(function,), compositions=(text,))


def example_inputs(seed: int, repetitions: int = 1, batch: int = 1) -> dict[str, Value]:
    """Draw images: `images` [batch, 224, 224] float32 in 0..1, `cfg` [repetitions, batch] int64."""
    images = np.random.default_rng(seed).random((batch, SIDE, SIDE), np.float32)
    return {"cfg": np.array([repetitions, batch], np.int64), "images": images}


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `pooled` [batch, 112, 112] float32; repetitions use the same input."""
    return {"pooled": layer(inputs["images"], filter_weights())}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """View `pooled` as float32 images."""
    found = outputs["pooled"]
    return {"pooled": found.numpy("float32", (-1, SIDE // 2, SIDE // 2))} if found else {}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare to 1e-5 of the largest value.

    Not of the single value: a sum's rounding error depends on the size of its terms, which may
    cancel.
    """
    if results.keys() != expected.keys():
        return False
    got, wanted = results["pooled"], expected["pooled"]
    if got.shape != wanted.shape:
        return False
    return bool(np.abs(got - wanted).max() <= RELATIVE * np.abs(wanted).max())  # False for NaN
