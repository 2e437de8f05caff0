"""A PyTorch module as a function for one architecture: Inductor's kernels and library operations.

The way is: `torch_binding` (torch.export) -> `peak_graph` (operations) -> `inductor_binding`
(kernels in Triton) -> `peak_kernels` (binaries) -> `peak_bucket` (launches, once for each size of a
batch) -> this file (packed weights, a blueprint).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dandelion.arrays import text_of
from dandelion.blueprint import Blueprint, Code, Computation
from dandelion.documents import FunctionDocument, StaticValue, gpu_function
from dandelion.errors import InvalidFunction
from dandelion.export import inductor_binding
from dandelion.export.buckets import row_problems
from dandelion.export.packing import Packed, packed
from dandelion.export.peak_bucket import PeakBucket
from dandelion.export.peak_graph import for_peak
from dandelion.export.peak_kernels import PeakKernels, PeakLaunch
from dandelion.export.peak_records import AttentionProduct, FusedCall, PeakProduct, ProductCall
from dandelion.export.row_sizes import add_buckets, batching_for, declared, limits_for
from dandelion.export.targets import Target
from dandelion.export.torch_graph import Graph
from dandelion.function import Limits
from dandelion.progress import ShowProgress


@dataclass(frozen=True, slots=True)
class PeakModule:
    """A function for one architecture, and numbers of it; those of a call are of the largest size.

    Attributes:
        function: the document.
        kernels, launches, library_operations: how many.
        static_bytes: of the packed weights.
        buffer_bytes: of all other buffers.
    """

    function: FunctionDocument
    kernels: int
    launches: int
    library_operations: int
    static_bytes: int
    buffer_bytes: int


def peak_bucket(
    rows: int, graph: Graph, precision: Computation, target: Target, show: ShowProgress
) -> PeakBucket:
    """Make the kernels and launches of a graph.

    Args:
        rows: the size of the batch that the graph is for; 0 if it is for no other.
        graph: of the module.
        precision: how products of float32 are computed.
        target: the architecture.
        show: is told how far it is.

    Raises:
        InvalidFunction: an operator is not supported, or a kernel does not compile.
        BackendUnavailable: torch or Triton is not installed, or in another version.
    """
    show(0, 0, "kernels of Inductor")
    rewritten, products = for_peak(graph, precision)
    made = inductor_binding.fused(rewritten, target)
    kernels = PeakKernels(made.sources, target)
    launches: list[PeakLaunch | ProductCall] = []
    for at, call in enumerate(made.calls):
        show(at, len(made.calls), "compiling")
        launches.append(_launch(call, products, kernels))
    return PeakBucket(rows, rewritten, made, kernels.kernels, launches, products)


def _launch(
    call: FusedCall | ProductCall, products: Mapping[str, PeakProduct], kernels: PeakKernels
) -> PeakLaunch | ProductCall:
    if isinstance(call, FusedCall):
        return kernels.fused(call)
    product = products[call.product]
    return kernels.attention(call, product) if isinstance(product, AttentionProduct) else call


def peak_module(
    name: str, buckets: Sequence[PeakBucket], target: Target, limits: Limits | None, wait_s: float
) -> PeakModule:
    """Make the function.

    Args:
        name: registered name.
        buckets: for each size of a batch, in ascending order; or one for fixed shapes.
        target: the architecture.
        limits: what one instance may use.
        wait_s: how long a call waits for others, in seconds.

    Raises:
        InvalidFunction: an input or output does not have the rows as its first dimension.
    """
    rows = [bucket.rows for bucket in buckets if bucket.rows]
    problems = [p for b in buckets if b.rows for p in row_problems(b.rows, b.inputs, b.outputs)]
    if problems:
        raise InvalidFunction(tuple(problems))
    largest = buckets[-1]
    constants = {n: c for bucket in buckets for n, c in bucket.constants.items()}
    buffers = {n: size for bucket in buckets for n, size in bucket.buffers.items()}
    weights = packed(constants, constants, {*largest.inputs, *largest.outputs, *buffers})
    text, files = _blueprint(buckets, rows, weights, target)
    static: dict[str, Mapping[str, StaticValue]] = {
        group: {group: data} for group, data in weights.sets.items()
    }
    inputs = {n: declared(kind, bool(rows)) for n, kind in largest.inputs.items()}
    inputs |= {n: text_of(data.dtype.name, data.shape) for n, data in weights.sets.items()}
    outputs = {n: declared(kind, bool(rows)) for n, kind in largest.outputs.items()}
    if limits is None and rows:
        limits = limits_for(largest.outputs, rows)
    function = gpu_function(
        name, text, inputs=[f"{n}: {kind}" for n, kind in inputs.items()],
        outputs=[f"{n}: {kind}" for n, kind in outputs.items()], files=files, static=static,
        limits=limits, batching=batching_for(largest.inputs, rows, wait_s),
    )  # fmt: skip
    operations = sum(isinstance(launch, ProductCall) for launch in largest.launches)
    ends = (*largest.inputs.values(), *largest.outputs.values())
    return PeakModule(
        function, len(files), len(largest.launches), operations, weights.size_bytes,
        sum(largest.buffers.values()) + sum(kind.size_bytes for kind in ends),
    )  # fmt: skip


def _blueprint(
    buckets: Sequence[PeakBucket], rows: Sequence[int], weights: Packed, target: Target
) -> tuple[str, dict[str, bytes]]:
    """Write the blueprint; gives the files of its modules, too. Equal binaries are one file."""
    kernels = {name: made for bucket in buckets for name, made in bucket.kernels().items()}
    files: dict[str, bytes] = {}
    codes: dict[str, list[str | Code]] = {}
    modules: dict[str, str] = {}
    of: dict[str, str] = {}
    for name, (kernel, _) in kernels.items():
        digest = hashlib.sha256(kernel.compiled.code).hexdigest()
        of[name] = module = modules.setdefault(digest, name)
        if module == name:
            path = f"{name}.{target.arch}.{target.suffix}"
            files[path] = kernel.compiled.code
            codes[name] = [Code(path, target.backend, target.arch)]
    largest = buckets[-1]
    built = Blueprint(
        list(largest.inputs), weights=list(weights.sets), outputs=list(largest.outputs),
        modules=codes,
    )  # fmt: skip
    for bucket in buckets:
        for buffer, size in bucket.buffers.items():
            built.buffer(buffer, size, temporary=True)
    for name, (kernel, ways) in kernels.items():
        last = ["both" if kernel.compiled.scratch_bytes else "value", "value"]
        symbol = kernel.compiled.symbol
        built.kernel(
            name, module=of[name], symbol="" if symbol == name else symbol,
            access=[*(way.value for way in ways), *last],
        )  # fmt: skip

    def add(index: int) -> None:
        buckets[index].add(built, weights)

    add_buckets(built, largest.inputs, largest.outputs, rows, add)
    return built.json(), files
