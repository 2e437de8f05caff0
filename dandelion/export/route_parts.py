"""A function of the launches that one route made of a model, or several routes.

Each part has the launches of all sizes of a batch. The parts of several routes are candidates of
one blueprint: an engine leaves out those whose binaries are not for its device, and takes the
fastest of the others. Constants of all parts are packed together, so those that two routes store in
the same way are there once.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Mapping, Sequence

from dandelion.arrays import text_of
from dandelion.blueprint import Blueprint, Code
from dandelion.documents import FunctionDocument, StaticValue, gpu_function
from dandelion.errors import InvalidFunction, Problem
from dandelion.export.packing import Packed, packed
from dandelion.export.row_sizes import add_buckets, batching_for, declared, limits_for
from dandelion.export.torch_graph import Constant, TensorType
from dandelion.function import Limits

_HINT = "rename the module's attribute that has this name, or export with one route"


class RoutePart(abc.ABC):
    """What one route made of a model.

    Names of buffers, modules, files and kernels are different from those of other parts.

    Attributes:
        inputs, outputs: types of the sets, for the largest number of rows.
        rows: of each bucket, in ascending order; none if shapes are fixed.
        constants: that launches use, by name.
        buffers: sizes in bytes of the other buffers, by name.
        modules: code of each module, by name.
        files: that these name.
        kernels: how many there are.
        launches, library_operations: how many a call has, with the largest number of rows.
        buffer_bytes: that it uses besides its sets.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    rows: Sequence[int]
    constants: Mapping[str, Constant]
    buffers: Mapping[str, int]
    modules: Mapping[str, Sequence[str | Code]]
    files: Mapping[str, str | bytes]
    kernels: int
    launches: int
    library_operations: int
    buffer_bytes: int

    @abc.abstractmethod
    def declare(self, built: Blueprint) -> None:
        """Declare the kernels."""

    @abc.abstractmethod
    def add(self, built: Blueprint, weights: Packed, index: int) -> None:
        """Add the launches of the bucket of an index."""


def function_of(
    name: str,
    parts: Sequence[RoutePart],
    limits: Limits | None,
    wait_s: float,
    absent: Sequence[str] = (),
) -> tuple[FunctionDocument, Packed]:
    """Write the document of a function.

    Args:
        name: registered name.
        parts: of the same model; calls are planned with the first.
        limits: what one instance may use.
        wait_s: how long a call waits for others, in seconds.
        absent: outputs that are left out if their first element, of 32 bits, is zero.

    Returns:
        The document, and the places of the first part's constants.

    Raises:
        InvalidFunction: two parts have the same name for a buffer, a module or a file.
    """
    first = parts[0]
    assert all(p.inputs == first.inputs and p.outputs == first.outputs for p in parts)
    _check_names(parts)
    buffers = {n: size for part in parts for n, size in part.buffers.items()}
    weights = packed([p.constants for p in parts], {*first.inputs, *first.outputs, *buffers})
    sets = weights[0].sets
    built = Blueprint(
        list(first.inputs), weights=list(sets), outputs=list(first.outputs),
        modules={n: list(codes) for part in parts for n, codes in part.modules.items()},
    )  # fmt: skip
    for buffer, size in buffers.items():
        built.buffer(buffer, size, temporary=True)
    for part in parts:
        part.declare(built)

    def add(index: int) -> None:
        if len(parts) == 1:
            first.add(built, weights[0], index)
            return
        with built.candidates() as made:
            for part, places in zip(parts, weights, strict=True):
                with made.alternative():
                    part.add(built, places, index)

    add_buckets(built, first.inputs, first.outputs, first.rows, add)
    for output in absent:
        built.present_if(built[output], built[output])
    any_rows = bool(first.rows)
    inputs = {n: declared(kind, any_rows) for n, kind in first.inputs.items()}
    inputs |= {n: text_of(data.dtype.name, data.shape) for n, data in sets.items()}
    outputs = {n: declared(kind, any_rows) for n, kind in first.outputs.items()}
    static: dict[str, Mapping[str, StaticValue]] = {
        group: {group: data} for group, data in sets.items()
    }
    function = gpu_function(
        name, built.json(), inputs=[f"{n}: {kind}" for n, kind in inputs.items()],
        outputs=[f"{n}: {kind}" for n, kind in outputs.items()],
        files={path: data for part in parts for path, data in part.files.items()},
        static=static, limits=limits or limits_for(first.outputs, first.rows),
        batching=batching_for(first.inputs, first.rows, wait_s),
    )  # fmt: skip
    return function, weights[0]


def _check_names(parts: Sequence[RoutePart]) -> None:
    kinds: dict[str, list[Mapping[str, object]]] = {
        "buffer": [part.buffers for part in parts],
        "module": [part.modules for part in parts],
        "file": [part.files for part in parts],
    }
    problems = [
        Problem("duplicate", f"two routes have a {kind} of this name", name, hint=_HINT)
        for kind, named in kinds.items()
        for name, count in Counter(name for names in named for name in names).items()
        if count > 1
    ]
    if problems:
        raise InvalidFunction(tuple(problems))
