"""A PyTorch module as a function: its graph, its kernels, and a document with both.

The way is: `torch_binding` (torch.export) -> `batch_norm` (folding) -> `stored_values` and
`tinygrad_binding` (kernels) -> this file (packed weights, a blueprint, a document).
"""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dandelion.export.aten_layers
import dandelion.export.aten_pointwise
import dandelion.export.aten_products
import dandelion.export.aten_shape  # noqa: F401  # fills the table
from dandelion.arrays import text_of
from dandelion.blueprint import (
    COMPUTATIONS,
    Blueprint,
    Buffer,
    Computation,
    ElementType,
    scalar,
)
from dandelion.blueprint.builder import ArgumentLike
from dandelion.documents import FunctionDocument, StaticValue, content, gpu_function
from dandelion.errors import InvalidFunction, InvalidInput, Problem, nearest
from dandelion.export import tinygrad_binding, torch_binding
from dandelion.export.aten import RULES
from dandelion.export.batch_norm import folded
from dandelion.export.buckets import Bucket, BucketKernels, checked_batch, joined, single
from dandelion.export.kernels import Kernels, KernelSource, OperationLaunch
from dandelion.export.operation_actions import add_operation
from dandelion.export.packing import Packed, packed
from dandelion.export.peak_bucket import PeakBucket
from dandelion.export.peak_document import peak_bucket, peak_module
from dandelion.export.product_records import Place
from dandelion.export.product_rows import rows_in_order
from dandelion.export.products import with_products
from dandelion.export.report import ExportReport
from dandelion.export.row_sizes import add_buckets, batching_for, declared, limits_for
from dandelion.export.rows import check_rows, with_rows
from dandelion.export.targets import Target, target_of
from dandelion.export.torch_graph import GETITEM, Constant, Graph, shapes_of
from dandelion.function import Limits
from dandelion.progress import ShowProgress, no_progress

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_HEAD = """/* Made by dandelion.export.torch_function. Each kernel computes one value of the model;
 * the blueprint has their order. */
#include "dandelion.h"

"""


@dataclass(frozen=True, slots=True)
class ExportedModule:
    """A function and how it was made.

    Attributes:
        function: the document.
        report: numbers.
        inputs, outputs: names of the sets that a call gives and gets.
    """

    function: FunctionDocument
    report: ExportReport
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def torch_function(
    name: str,
    module: object,
    example_inputs: Sequence[object],
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    device: str = "gpu",
    precision: str = "f32",
    batch: Sequence[int] | None = None,
    batch_wait_s: float = 0.0,
    route: str = "portable",
    target: str = "",
    limits: Limits | None = None,
) -> FunctionDocument:
    """Describe a PyTorch module as a GPU function; see `export_module` for the arguments."""
    made = export_module(
        name, module, example_inputs, inputs=inputs, outputs=outputs, device=device,
        precision=precision, batch=batch, batch_wait_s=batch_wait_s, route=route, target=target,
        limits=limits,
    )  # fmt: skip
    return made.function


def export_module(
    name: str,
    module: object,
    example_inputs: Sequence[object],
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    device: str = "gpu",
    precision: str = "f32",
    batch: Sequence[int] | None = None,
    batch_wait_s: float = 0.0,
    route: str = "portable",
    target: str = "",
    limits: Limits | None = None,
    show: ShowProgress = no_progress,
) -> ExportedModule:
    """Describe a PyTorch module as a GPU function, and report on it.

    The document has kernels, a blueprint, and the weights. It needs none of the tools that made it
    where it runs. Shapes are those of the examples; with `batch` calls may have any number of rows
    in the first dimension. No GPU is needed.

    Args:
        name: registered name.
        module: a `torch.nn.Module` in evaluation mode, or a `torch.export.ExportedProgram`.
        example_inputs: arguments of a call; only shapes and element types of tensors matter.
        inputs: names of the input sets, in the order of the tensors in `example_inputs`. By default
            those of the parameters of the module's `forward`.
        outputs: names of the output sets, in the order of the tensors that the module returns. By
            default ``output``, or ``output_0``, ..., or the keys of the dict that it returns.
        device: what the kernels are optimised for, ``gpu`` or ``cpu``. They are correct on both.
        precision: how products of float32 are computed: ``f32``; or, on devices that do that
            faster, with factors rounded to ``tf32``, ``bf16`` or ``f16``. Sums are float32.
        batch: sizes of the first dimension for which there are kernels, such as ``(1, 4, 16)``. A
            call may have any number of rows up to the largest; it takes the time of the next size
            above it. The first dimension of all inputs and outputs are rows, and a row of an output
            depends on the same row of the inputs only. Calls that wait are joined up to the largest
            size. None fixes the first dimension, too.
        batch_wait_s: how long a call waits for others while a device is free, in seconds.
        route: ``portable``: sources that run on every backend; or ``peak``: binaries for `target`,
            made by torch's compiler, that run on no other device and are faster.
        target: a backend and an architecture, such as ``cuda:90`` or ``hip:gfx942``.
        limits: what one instance may use.
        show: is told how far it is, see `dandelion.progress.progress`.

    Raises:
        InvalidInput: an argument is not valid, or the module is in training mode.
        InvalidFunction: the module cannot be exported; each operator at fault with its line.
        BackendUnavailable: a tool of the route is not installed, or in another version.
    """
    if device not in ("gpu", "cpu"):
        raise InvalidInput("device", f"no kind of device '{device}'", "use gpu or cpu")
    known = [choice.value for choice in COMPUTATIONS[ElementType.F32]]
    if precision not in known:
        raise InvalidInput("precision", f"no precision '{precision}'", f"use {', '.join(known)}")
    sizes = checked_batch(batch)
    peak = _peak_target(route, target)
    began = time.monotonic()
    buckets: list[PeakBucket] = []
    made: list[tuple[int, Kernels, Mapping[str, Constant]]] = []
    for rows in sizes or (0,):
        show(0, 0, f"graph for {rows} rows" if rows else "graph")
        examples = with_rows(example_inputs, rows) if rows else example_inputs
        graph = torch_binding.graph_of(module, examples, outputs, inputs)
        _check_names(graph)
        if peak is not None:
            buckets.append(peak_bucket(rows, graph, Computation(precision), peak, show))
            continue
        _check_operators(graph)
        rewritten, products = with_products(
            rows_in_order(folded(graph)), Computation(precision), for_gpu=device == "gpu"
        )
        kernels = tinygrad_binding.kernels_of(rewritten, device == "gpu", products, show)
        made.append((rows, kernels, rewritten.constants))
    if sizes:
        check_rows(module, example_inputs)
    if peak is not None:
        found = peak_module(name, buckets, peak, limits, batch_wait_s)
        counts = (found.kernels, found.launches, found.library_operations)
        sizes_bytes = (found.static_bytes, found.buffer_bytes)
        report = _report(graph, found.function, counts, *sizes_bytes, began, sizes)
        return ExportedModule(found.function, report, tuple(graph.inputs), tuple(graph.outputs))
    whole = joined(made) if sizes else single(kernels, rewritten.constants)
    used = {n for bucket in whole.buckets for one in bucket.launches for n in one.buffers}
    weights = packed(whole.constants, used, {*whole.inputs, *whole.outputs, *whole.buffers})
    function = _function(name, whole, weights, limits, batch_wait_s)
    report = _portable_report(graph, whole, weights, function, began)
    return ExportedModule(function, report, tuple(whole.inputs), tuple(whole.outputs))


def _function(
    name: str, kernels: BucketKernels, weights: Packed, limits: Limits | None, wait_s: float
) -> FunctionDocument:
    """Write the document."""
    rows = kernels.rows
    inputs = {n: declared(t, bool(rows)) for n, t in kernels.inputs.items()}
    inputs |= {n: text_of(data.dtype.name, data.shape) for n, data in weights.sets.items()}
    outputs = {n: declared(t, bool(rows)) for n, t in kernels.outputs.items()}
    source = _HEAD + "\n".join(kernel.text for kernel in kernels.sources) + "\n"
    static: dict[str, Mapping[str, StaticValue]] = {
        group: {group: data} for group, data in weights.sets.items()
    }
    return gpu_function(
        name, _blueprint(name, kernels, weights),
        inputs=[f"{n}: {kind}" for n, kind in inputs.items()],
        outputs=[f"{n}: {kind}" for n, kind in outputs.items()],
        files={f"{name}.c": source}, static=static,
        limits=limits or limits_for(kernels.outputs, rows),
        batching=batching_for(kernels.inputs, rows, wait_s),
    )  # fmt: skip


def _peak_target(route: str, target: str) -> Target | None:
    """The architecture of the route; None if it is for all."""
    if route not in ("portable", "peak"):
        raise InvalidInput("route", f"no route '{route}'", "use portable or peak")
    if route == "peak":
        return target_of(target)
    if target:
        raise InvalidInput("target", "the portable route is for all devices", "use route peak")
    return None


def _portable_report(
    graph: Graph, kernels: BucketKernels, weights: Packed, function: FunctionDocument, began: float
) -> ExportReport:
    """Count; of several buckets, what is counted by call is that of the largest."""
    launches = kernels.buckets[-1].launches
    used = {name for launch in launches for name in launch.buffers}
    own_bytes = sum(size for buffer, size in kernels.buffers.items() if buffer in used)
    ends = (*kernels.inputs.values(), *kernels.outputs.values())
    operations = sum(isinstance(one, OperationLaunch) for one in launches)
    counts = (len(kernels.sources), len(launches), operations)
    buffer_bytes = own_bytes + sum(kind.size_bytes for kind in ends)
    return _report(graph, function, counts, weights.size_bytes, buffer_bytes, began, kernels.rows)


def _report(
    graph: Graph, function: FunctionDocument, counts: tuple[int, int, int], static_bytes: int,
    buffer_bytes: int, began: float, rows: tuple[int, ...] = (),
) -> ExportReport:  # fmt: skip
    operators = Counter(n.operator for n in graph.nodes if n.operator != GETITEM)
    read = {name for node in graph.nodes for name in node.inputs()}
    (code,) = function.code
    parts = (code.main, *code.files.values())
    kernels, launches, operations = counts
    return ExportReport(
        operators={n.removeprefix("aten."): count for n, count in operators.items()},
        kernels=kernels,
        launches=launches,
        library_operations=operations,
        weight_bytes=sum(c.type.size_bytes for n, c in graph.constants.items() if n in read),
        static_bytes=static_bytes,
        buffer_bytes=buffer_bytes,
        source_bytes=sum(len(content(part).bytes()) for part in parts),
        export_s=time.monotonic() - began,
        rows=rows,
    )


def _check_operators(graph: Graph) -> None:
    """Refuse operators that are not in the table, all at once."""
    problems = []
    for node in graph.nodes:
        if node.operator in RULES or node.operator == GETITEM:
            continue
        inside = f" in {node.part}" if node.part else ""
        problems.append(
            Problem(
                "unsupported-operator",
                f"operator {node.operator}{inside} is not supported",
                node.place,
                nearest=nearest(node.operator, RULES) or "",
            )
        )
    if problems:
        raise InvalidFunction(tuple(problems))


def _check_names(graph: Graph) -> None:
    """Refuse names that sets cannot have, and inputs without elements."""
    problems = []
    for kind, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        for name in names:
            if not _IDENTIFIER.fullmatch(name):
                raise InvalidInput(f"{kind}.{name}", "it is not an identifier", "name the outputs")
            if kind == "outputs" and name in graph.inputs:
                raise InvalidInput(f"outputs.{name}", "an input has this name", "name the outputs")
    types = shapes_of(graph)
    results = {name: types[value] for name, value in graph.outputs.items() if value in types}
    for kind, found in (("inputs", graph.inputs), ("outputs", results)):
        for name, kind_of in found.items():
            if not kind_of.elements:
                problems.append(Problem("empty", "it has no elements", f"{kind}.{name}"))
    if problems:
        raise InvalidFunction(tuple(problems))


def _blueprint(name: str, kernels: BucketKernels, weights: Packed) -> str:
    """Write the blueprint."""
    built = Blueprint(
        list(kernels.inputs), weights=list(weights.sets), outputs=list(kernels.outputs),
        modules=[f"{name}.c"],
    )  # fmt: skip
    for buffer, size in kernels.buffers.items():
        built.buffer(buffer, size, temporary=True)
    for kernel in kernels.sources:
        built.kernel(kernel.name, access=_access(kernel))

    def add(index: int) -> None:
        _add_launches(built, kernels, kernels.buckets[index], weights)

    add_buckets(built, kernels.inputs, kernels.outputs, kernels.rows, add)
    return built.json()


def _add_launches(
    built: Blueprint, kernels: BucketKernels, bucket: Bucket, weights: Packed
) -> None:
    sources = {kernel.name: kernel for kernel in kernels.sources}
    for launch in bucket.launches:
        if isinstance(launch, OperationLaunch):
            at = functools.partial(_operand, built, launch, weights)
            add_operation(built, launch.product, built[launch.buffers[0]], at)
            continue
        arguments: list[ArgumentLike] = []
        for buffer, offset in zip(launch.buffers, sources[launch.kernel].offset, strict=True):
            group, place = weights.places.get(buffer, (buffer, 0))
            arguments.append(built[group])
            if offset:
                arguments.append(scalar("u64", place))
        built.launch(launch.kernel, arguments, grid=launch.grid, block=launch.block)


def _operand(
    built: Blueprint, launch: OperationLaunch, weights: Packed, place: Place
) -> tuple[Buffer, int]:
    """The buffer of an operand, and its first element there in bytes."""
    value = launch.of[place.value]
    group, start = weights.places.get(value, (value, 0))
    return built[group], (start + place.offset) * launch.product.dtype.size_bytes


def _access(kernel: KernelSource) -> list[str]:
    ways = []
    for way, offset in zip(kernel.access, kernel.offset, strict=True):
        ways += [way.value, "value"] if offset else [way.value]
    return ways
