"""Exported modules on a node with a device, beside torch in double precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dandelion.documents import FunctionDocument
from dandelion.export import ExportedModule, ExportReport, export_module
from dandelion.export.report import relative_error
from dandelion.export.torch_binding import example_arrays, reference_outputs
from dandelion.node import Node, Settings
from dandelion.set_values import item_set

Array = npt.NDArray[np.generic]
SETTINGS = Settings(backends=("cuda|hip|opencl",), arena_bytes=256 << 20)


def call(node: Node, function: FunctionDocument, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Register a function, call it, and remove it."""
    node.register(function)
    sets = {name: item_set(name, array) for name, array in inputs.items()}
    outputs = node.invoke_sets(function.name, sets).sets
    return {name: items.numpy().copy() for name, items in outputs.items() if items is not None}


def compared(
    node: Node, module: object, examples: Sequence[object], device: str = "gpu"
) -> tuple[ExportedModule, ExportReport, dict[str, Array]]:
    """Export a module and call it; returns its outputs and a report with their errors."""
    made = export_module("exported", module, examples, device=device)
    found = call(node, made.function, example_arrays(examples, made.inputs))
    expected = reference_outputs(module, examples, made.outputs)
    return made, made.report.with_errors(found, expected), found


def largest_error(node: Node, module: object, examples: Sequence[object]) -> float:
    """Largest error of all outputs, relative to the largest value or 1.

    A random program may compute differences of equal numbers, of which only rounding is left.
    """
    made = export_module("exported", module, examples)
    found = call(node, made.function, example_arrays(examples, made.inputs))
    expected = reference_outputs(module, examples, made.outputs)
    one = np.ones(1)
    return max(
        relative_error(np.append(found[name], one), np.append(expected[name], one))
        for name in made.outputs
    )
