"""Vector addition in numpy, and the constant that is registered with the function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

COUNT = 1_000_000
"""Elements of each vector; the size of PyPlover's experiment."""

CONSTANT_SEED = 20


def constant() -> npt.NDArray[np.float32]:
    """Make the constant vector: [COUNT] float32, uniform in 0..1, always the same."""
    return np.random.default_rng(CONSTANT_SEED).random(COUNT, np.float32)


def add(a: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Add the constant to a vector [COUNT] float32.

    One addition is correctly rounded (IEEE 754) here as on every device: results are equal.
    """
    return a + constant()
