"""Register and call `heat_plate`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import RegistrationDocument, gpu_function

from .oracle import relax

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "heat_plate"
ROWS, COLUMNS = 24, 40
TOLERANCE = 1e-2


def document() -> RegistrationDocument:
    """Describe the functions `sweep` and `change`, and the two compositions."""
    files = {"heat.c": HERE / "heat.c"}
    sweep = gpu_function(
        "sweep",
        HERE / "sweep.json",
        inputs=("plate: float32[?]", "shape: int64[2]"),
        outputs=("swept: float32[?]",),
        files=files,
    )
    change = gpu_function(
        "change",
        HERE / "change.json",
        inputs=("after: float32[?]", "before: float32[?]", "tolerance: float32[1]"),
        outputs=("largest: float32[1]",),
        files=files,
    )
    text = (HERE / "heat_plate.dandelion").read_text()
    return RegistrationDocument(functions=(sweep, change), compositions=(text,))


def inputs(plate: npt.NDArray[np.float32], tolerance: float) -> dict[str, Value]:
    """Make the input sets for a plate.

    Args:
        plate: temperatures [rows, columns] float32; those at the edges stay as they are.
        tolerance: the largest change of a point in the last sweep, in the same unit.
    """
    return {
        "plate": plate.reshape(-1),
        "shape": np.array(plate.shape, np.int64),
        "tolerance": np.array([tolerance], np.float32),
    }


def example_inputs(seed: int) -> dict[str, Value]:
    """Draw a plate of 24 x 40 points whose edges have 0 to 100 degrees; it is cold inside."""
    plate = np.zeros((ROWS, COLUMNS), np.float32)
    edges = np.random.default_rng(seed).uniform(0, 100, 4).astype(np.float32)
    plate[0], plate[-1], plate[:, 0], plate[:, -1] = edges
    return inputs(plate, TOLERANCE)


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `warm` [rows, columns] float32, and `left` [1] float32 if the sweeps did not do."""
    shape = tuple(np.asarray(inputs["shape"]))
    plate, left, _ = relax(
        np.asarray(inputs["plate"], np.float32).reshape(shape),
        float(np.asarray(inputs["tolerance"])[0]),
    )
    found: Arrays = {"warm": plate.reshape(-1)}
    return found if left is None else {**found, "left": np.array([left], np.float32)}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """View the outputs as float32, as far as they are there."""
    return {n: s.numpy("float32", (-1,)) for n, s in outputs.items() if s is not None}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare exactly."""
    return results.keys() == expected.keys() and all(
        np.array_equal(results[name], expected[name]) for name in expected
    )
