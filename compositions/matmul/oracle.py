"""A x transpose(A) in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.int64]


def multiply(a: Matrix) -> Matrix:
    """Multiply [n, n] int64 by its transpose, modulo 2^64 (numpy's integers wrap)."""
    return a @ a.T
