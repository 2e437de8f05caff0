"""Jacobi's method in numpy, value for value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Plate = npt.NDArray[np.float32]

MOST = 5000
"""Largest number of sweeps, as the composition has it."""


def sweep(plate: Plate) -> Plate:
    """Make each inner point the mean of its four neighbours; the edges stay.

    Args:
        plate: temperatures [rows, columns] float32.
    """
    swept = plate.copy()
    above, below = plate[:-2, 1:-1], plate[2:, 1:-1]
    left, right = plate[1:-1, :-2], plate[1:-1, 2:]
    swept[1:-1, 1:-1] = np.float32(0.25) * (((above + below) + left) + right)
    return swept


def relax(plate: Plate, tolerance: float, most: int = MOST) -> tuple[Plate, float | None, int]:
    """Sweep until no point changes by more than the tolerance.

    Returns:
        The plate, the largest change of the last sweep if it is more than the tolerance, else None,
        and the number of sweeps.
    """
    for count in range(1, most + 1):
        swept = sweep(plate)
        change = float(np.abs(swept - plate).max(initial=0))
        plate = swept
        if not change > tolerance:
            return plate, None, count
    return plate, change, most
