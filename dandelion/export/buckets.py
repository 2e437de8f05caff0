"""One function for several sizes of a batch: the kernels of each size, and one choice among them.

Kernels have fixed shapes, so the module is exported once for each size, its **bucket**. A call with
fewer rows than its bucket has zeros behind its rows, and results are cut; the blueprint says so
(`dandelion.blueprint.Case`), and no kernel knows. Equal kernels and constants are kept once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dandelion.errors import InvalidFunction, InvalidInput, Problem
from dandelion.export.kernels import KernelLaunch, Kernels, KernelSource, OperationLaunch
from dandelion.export.torch_graph import Constant, TensorType

MAX_BATCH = 65535

Launch = KernelLaunch | OperationLaunch


@dataclass(frozen=True, slots=True)
class Bucket:
    """The launches for calls with up to a number of rows.

    Attributes:
        rows: that number; None if shapes are fixed and nothing is chosen.
        launches: in order.
    """

    rows: int | None
    launches: Sequence[Launch]


@dataclass(frozen=True, slots=True)
class BucketKernels:
    """All kernels of a model, for each of its buckets.

    Attributes:
        sources: each kernel once.
        buckets: in ascending order.
        buffers: sizes in bytes of the buffers that are not inputs, outputs or constants.
        inputs, outputs: types of the largest bucket.
        constants: by the name in launches.
    """

    sources: Sequence[KernelSource]
    buckets: Sequence[Bucket]
    buffers: Mapping[str, int]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    constants: Mapping[str, Constant]

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each bucket; empty if shapes are fixed."""
        return tuple(bucket.rows for bucket in self.buckets if bucket.rows is not None)


def checked_batch(batch: Sequence[int] | None) -> tuple[int, ...]:
    """Check sizes of a batch; returns them in ascending order, none for None.

    Raises:
        InvalidInput: they are not different positive numbers.
    """
    if batch is None:
        return ()
    found = sorted(batch)
    if not found or len(set(found)) != len(found) or not 1 <= found[0] <= found[-1] <= MAX_BATCH:
        message = f"{list(batch)} are not different numbers of rows, 1 to {MAX_BATCH}"
        raise InvalidInput("batch", message, "write batch=(1, 4, 16)")
    return tuple(found)


def single(kernels: Kernels, constants: Mapping[str, Constant]) -> BucketKernels:
    """Wrap kernels for fixed shapes."""
    buffers = {n: size for n, size in kernels.buffers.items() if n not in kernels.outputs}
    bucket = Bucket(None, kernels.launches)
    return BucketKernels(
        kernels.sources, [bucket], buffers, kernels.inputs, kernels.outputs, constants
    )


def joined(made: Sequence[tuple[int, Kernels, Mapping[str, Constant]]]) -> BucketKernels:
    """Join the kernels of several sizes of a batch.

    Args:
        made: rows, kernels and constants of each, in ascending order.

    Raises:
        InvalidFunction: an input or output does not have the rows as its first dimension.
    """
    problems = [
        problem
        for rows, kernels, _ in made
        for problem in row_problems(rows, kernels.inputs, kernels.outputs)
    ]
    if problems:
        raise InvalidFunction(tuple(problems))
    sources = _Sources()
    buckets: list[Bucket] = []
    buffers: dict[str, int] = {}
    constants: dict[str, Constant] = {}
    for rows, kernels, given in made:
        outside = {*kernels.inputs, *kernels.outputs}
        names = {name: name for name in outside}
        for name, size in kernels.buffers.items():
            if name not in outside:
                names[name] = _unique(f"b{rows}_{name}", outside)
                buffers[names[name]] = size
        for name, constant in given.items():
            names[name] = _unique(f"b{rows}_{name}", {*outside, *buffers})
            constants[names[name]] = constant
        kernel_names = {source.name: sources.add(source) for source in kernels.sources}
        launches = [_renamed(launch, names, kernel_names) for launch in kernels.launches]
        buckets.append(Bucket(rows, launches))
    largest = made[-1][1]
    return BucketKernels(
        sources.all, buckets, buffers, largest.inputs, largest.outputs, constants
    )  # fmt: skip


class _Sources:
    """Kernels that differ in more than their names."""

    def __init__(self) -> None:
        self.all: list[KernelSource] = []
        self._names: dict[tuple[str, object, object], str] = {}

    def add(self, source: KernelSource) -> str:
        """Add a kernel unless there is an equal one; returns its name."""
        own = re.compile(rf"\b{re.escape(source.name)}\b")
        key = (own.sub("", source.text), source.access, source.offset)
        if key not in self._names:
            name = f"kernel_{len(self.all)}"
            text = own.sub(name, source.text)
            self.all.append(dataclasses.replace(source, name=name, text=text))
            self._names[key] = name
        return self._names[key]


def _renamed(launch: Launch, names: Mapping[str, str], kernels: Mapping[str, str]) -> Launch:
    buffers = tuple(names[name] for name in launch.buffers)
    if isinstance(launch, OperationLaunch):
        of = {value: names[name] for value, name in launch.of.items()}
        return dataclasses.replace(launch, buffers=buffers, of=of)
    return dataclasses.replace(launch, kernel=kernels[launch.kernel], buffers=buffers)


def row_problems(
    rows: int, inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType]
) -> list[Problem]:
    """List the inputs and outputs that do not have the rows as their first dimension."""
    found = []
    for kind, types in (("inputs", inputs), ("outputs", outputs)):
        for name, type_of in types.items():
            if type_of.shape[:1] != (rows,):
                message = f"its shape for {rows} rows is {list(type_of.shape)}"
                expected = f"the rows as the first dimension, [{rows}, ...]"
                found.append(Problem("batch", message, f"{kind}.{name}", expected=expected))
    return found


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
