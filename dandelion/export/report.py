"""What an export made, in numbers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from dandelion.arrays import Array


class ExportReport(msgspec.Struct, frozen=True):
    """What was made of a model.

    Attributes:
        operators: how often each operator of ATen occurs.
        kernels: number of different kernels.
        launches: number of launches of a call, library operations included.
        library_operations: how many of them are library operations.
        weight_bytes: bytes of the model's parameters and buffers that are used.
        static_bytes: bytes of the static sets that have them.
        buffer_bytes: bytes of inputs, outputs and temporary buffers if none shared memory.
        source_bytes: bytes of the sources and the blueprint.
        export_s: seconds that the export took.
        rows: sizes of the batch for which there are kernels; empty if shapes are fixed. Operators,
            launches and buffers are those of the largest.
        errors: largest difference of each output from the module in double precision, divided by
            the largest value; empty if it was not measured.
    """

    operators: dict[str, int]
    kernels: int
    launches: int
    weight_bytes: int
    static_bytes: int
    buffer_bytes: int
    source_bytes: int
    export_s: float
    errors: dict[str, float] = {}
    library_operations: int = 0
    rows: tuple[int, ...] = ()

    @property
    def size_ratio(self) -> float:
        """Bytes of the function, in binary form, over those of its weights."""
        return (self.static_bytes + self.source_bytes) / max(self.weight_bytes, 1)

    def with_errors(
        self, found: Mapping[str, Array], expected: Mapping[str, Array]
    ) -> ExportReport:
        """Add the errors of a call's outputs."""
        errors = {name: relative_error(found[name], expected[name]) for name in expected}
        return msgspec.structs.replace(self, errors=errors)

    def lines(self) -> list[str]:
        """The report as text."""
        counted = sorted(self.operators.items(), key=lambda pair: (-pair[1], pair[0]))
        names = ", ".join(f"{name} {count}" for name, count in counted)
        launched = f"{self.launches} launches, {self.library_operations} of them library operations"
        text = [
            f"{sum(self.operators.values())} operators: {names}",
            f"{launched}; {self.kernels} kernels; made in {self.export_s:.1f} s",
            f"{self.weight_bytes} bytes of weights, {self.buffer_bytes} of buffers",
            f"{self.source_bytes} bytes of code; {self.size_ratio:.3f} of the weights in all",
        ]
        if self.rows:
            text.append(
                f"calls of up to {self.rows[-1]} rows; kernels for {', '.join(map(str, self.rows))}"
            )
        for name, error in self.errors.items():
            text.append(f"{name}: error {error:.2g} of the largest value")
        return text


def relative_error(found: Array, expected: Array) -> float:
    """Largest difference divided by the largest expected value; infinite if one is not a number."""
    wanted = np.asarray(expected, np.float64)
    got = np.asarray(found, np.float64)
    differ = (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
    finite = np.isfinite(wanted)
    if not (finite & np.isfinite(got))[differ].all():
        return float("inf")
    largest = np.abs(got[differ] - wanted[differ]).max(initial=0.0)
    scale = float(np.abs(wanted[finite]).max(initial=0.0)) or 1.0
    return float(largest) / scale
