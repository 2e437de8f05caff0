"""A PyTorch module as a function: its graph, its kernels, and a document with both.

The way is: `torch_binding` (torch.export) -> `batch_norm` (folding) -> `stored_values` and
`tinygrad_binding` (kernels) -> `portable_part` -> `route_parts` (packed weights, a blueprint, a
document). That of the route ``peak`` is in `peak_document`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dandelion.export.aten_layers
import dandelion.export.aten_pointwise
import dandelion.export.aten_products
import dandelion.export.aten_shape  # noqa: F401  # fills the table
from dandelion.blueprint import (
    COMPUTATIONS,
    Computation,
    ElementType,
)
from dandelion.documents import FunctionDocument, content
from dandelion.errors import InvalidFunction, InvalidInput, Problem, nearest
from dandelion.export import tinygrad_binding, torch_binding
from dandelion.export.aten import RULES
from dandelion.export.batch_norm import folded
from dandelion.export.buckets import checked_batch, joined, single
from dandelion.export.convolutions import Convolutions
from dandelion.export.kernels import Kernels
from dandelion.export.packing import Packed
from dandelion.export.peak_bucket import PeakBucket
from dandelion.export.peak_document import PeakPart, peak_bucket
from dandelion.export.portable_part import PortablePart
from dandelion.export.product_rows import rows_in_order
from dandelion.export.products import with_products
from dandelion.export.report import ExportReport
from dandelion.export.route_parts import RoutePart, function_of
from dandelion.export.rows import check_rows, with_rows
from dandelion.export.targets import Target, target_of
from dandelion.export.torch_graph import GETITEM, Constant, Graph, shapes_of
from dandelion.function import Limits
from dandelion.progress import ShowProgress, no_progress

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


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
    absent_if_zero: Sequence[str] = (),
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
        name, module, example_inputs, inputs=inputs, outputs=outputs,
        absent_if_zero=absent_if_zero, device=device, precision=precision, batch=batch,
        batch_wait_s=batch_wait_s, route=route, target=target, limits=limits,
    )  # fmt: skip
    return made.function


def export_module(
    name: str,
    module: object,
    example_inputs: Sequence[object],
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    absent_if_zero: Sequence[str] = (),
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
        absent_if_zero: names of int32 outputs; such a set is absent if its first element is zero. A
            loop of a composition can end by it (``until``). Not possible with `batch`.
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
            made by torch's compiler, that run on no other device and are faster; or ``both``: the
            engine takes the fastest that it can load.
        target: a backend and an architecture, such as ``cuda:90`` or ``hip:gfx942``; or several,
            with commas between them.
        limits: what one instance may use.
        show: is told how far it is, see `dandelion.progress.progress`.

    Raises:
        InvalidInput: an argument is not valid, or the module is in training mode.
        InvalidFunction: the module cannot be exported; each operator at fault with its line.
        BackendUnavailable: a tool of the route is not installed, or in another version.
    """
    _check_choices(device, precision)
    sizes = checked_batch(batch)
    targets = _targets(route, target)
    began = time.monotonic()
    buckets: dict[Target, list[PeakBucket]] = {one: [] for one in targets}
    made: list[tuple[int, Kernels, Mapping[str, Constant]]] = []
    for rows in sizes or (0,):
        show(0, 0, f"graph for {rows} rows" if rows else "graph")
        examples = with_rows(example_inputs, rows) if rows else example_inputs
        graph = torch_binding.graph_of(module, examples, outputs, inputs)
        _check_names(graph)
        _check_absent(absent_if_zero, graph, sizes)
        for one in targets:
            prefix = "" if route == "peak" and len(targets) == 1 else f"{one.arch}_"
            prefix += f"b{rows}_" if rows else ""
            found = peak_bucket(rows, graph, Computation(precision), one, prefix, show)
            buckets[one].append(found)
        if route != "peak":
            kernels, constants = _portable(graph, device == "gpu", Computation(precision), show)
            made.append((rows, kernels, constants))
    if sizes:
        check_rows(module, example_inputs)
    parts: list[RoutePart] = []
    if made:
        parts.append(PortablePart(name, joined(made) if sizes else single(kernels, constants)))
    parts += [PeakPart(found, one) for one, found in buckets.items()]
    function, weights = function_of(name, parts, limits, batch_wait_s, absent_if_zero)
    report = _report(graph, parts, function, weights, began)
    return ExportedModule(function, report, tuple(graph.inputs), tuple(graph.outputs))


def _check_choices(device: str, precision: str) -> None:
    if device not in ("gpu", "cpu"):
        raise InvalidInput("device", f"no kind of device '{device}'", "use gpu or cpu")
    known = [choice.value for choice in COMPUTATIONS[ElementType.F32]]
    if precision not in known:
        raise InvalidInput("precision", f"no precision '{precision}'", f"use {', '.join(known)}")


def _portable(
    graph: Graph, for_gpu: bool, computation: Computation, show: ShowProgress
) -> tuple[Kernels, Mapping[str, Constant]]:
    """Generate the kernels of the portable route, and give their constants."""
    _check_operators(graph)
    graph = Convolutions(rows_in_order(folded(graph))).rewritten()
    rewritten, products = with_products(
        graph, computation, for_gpu=for_gpu, least_channels=None if for_gpu else 1
    )
    return tinygrad_binding.kernels_of(rewritten, for_gpu, products, show), rewritten.constants


def _targets(route: str, target: str) -> list[Target]:
    """The architectures that there are binaries for."""
    if route not in ("portable", "peak", "both"):
        raise InvalidInput("route", f"no route '{route}'", "use portable, peak or both")
    if route == "portable":
        if target:
            raise InvalidInput("target", "the portable route is for all devices", "use route peak")
        return []
    found = [target_of(one.strip()) for one in target.split(",")]
    if len({one.arch for one in found}) < len(found):
        raise InvalidInput("target", f"'{target}' names one twice")
    return found


def _report(
    graph: Graph, parts: Sequence[RoutePart], function: FunctionDocument, weights: Packed,
    began: float,
) -> ExportReport:  # fmt: skip
    """Count; what is counted by call is that of the largest size, and of the last part."""
    operators = Counter(n.operator for n in graph.nodes if n.operator != GETITEM)
    read = {name for node in graph.nodes for name in node.inputs()}
    (code,) = function.code
    texts = (code.main, *code.files.values())
    last = parts[-1]
    ends = (*last.inputs.values(), *last.outputs.values())
    return ExportReport(
        operators={n.removeprefix("aten."): count for n, count in operators.items()},
        kernels=sum(part.kernels for part in parts),
        launches=last.launches,
        library_operations=last.library_operations,
        weight_bytes=sum(c.type.size_bytes for n, c in graph.constants.items() if n in read),
        static_bytes=weights.size_bytes,
        buffer_bytes=last.buffer_bytes + sum(kind.size_bytes for kind in ends),
        source_bytes=sum(len(content(text).bytes()) for text in texts),
        export_s=time.monotonic() - began,
        rows=tuple(last.rows),
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


def _check_absent(names: Sequence[str], graph: Graph, sizes: Sequence[int]) -> None:
    """Refuse outputs that cannot be left out."""
    where = "absent_if_zero"
    if isinstance(names, str):
        raise InvalidInput(where, "a list of names is expected", f"write ['{names}']")
    types = shapes_of(graph)
    for name in names:
        if name not in graph.outputs:
            close = nearest(name, graph.outputs)
            hint = f"did you mean '{close}'?" if close else f"there are {', '.join(graph.outputs)}"
            raise InvalidInput(f"{where}.{name}", "no output has this name", hint)
        found = types[graph.outputs[name]]
        if found.dtype != "int32":
            hint = "return it as tensor.int()"
            raise InvalidInput(f"{where}.{name}", f"int32 is expected, it is {found.dtype}", hint)
    if names and sizes:
        raise InvalidInput(where, "all outputs are there in a function with 'batch'")
