"""A PyTorch module as a function for one architecture: Inductor's kernels and library operations.

The way is: `torch_binding` (torch.export) -> `peak_graph` (operations) -> `inductor_binding`
(kernels in Triton) -> `peak_kernels` (binaries) -> `peak_bucket` (launches, once for each size of a
batch) -> this file -> `route_parts` (packed weights, a blueprint).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from dandelion.blueprint import Blueprint, Code, Computation
from dandelion.errors import InvalidFunction
from dandelion.export import inductor_binding
from dandelion.export.buckets import row_problems
from dandelion.export.packing import Packed
from dandelion.export.peak_bucket import PeakBucket
from dandelion.export.peak_graph import for_peak
from dandelion.export.peak_kernels import PeakKernels, PeakLaunch
from dandelion.export.peak_records import AttentionProduct, FusedCall, PeakProduct, ProductCall
from dandelion.export.route_parts import RoutePart
from dandelion.export.targets import Target
from dandelion.export.torch_graph import Graph
from dandelion.progress import ShowProgress


def peak_bucket(
    rows: int, graph: Graph, precision: Computation, target: Target, prefix: str,
    show: ShowProgress,
) -> PeakBucket:  # fmt: skip
    """Make the kernels and launches of a graph.

    Args:
        rows: the size of the batch that the graph is for; 0 if it is for no other.
        graph: of the module.
        precision: how products of float32 are computed.
        target: the architecture.
        prefix: of names, so that they differ from those of other buckets and routes.
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
    return PeakBucket(rows, prefix, rewritten, made, kernels.kernels, launches, products)


def _launch(
    call: FusedCall | ProductCall, products: Mapping[str, PeakProduct], kernels: PeakKernels
) -> PeakLaunch | ProductCall:
    if isinstance(call, FusedCall):
        return kernels.fused(call)
    product = products[call.product]
    return kernels.attention(call, product) if isinstance(product, AttentionProduct) else call


class PeakPart(RoutePart):
    """Binaries for one architecture.

    Args:
        buckets: for each size of a batch, in ascending order; or one for fixed shapes.
        target: the architecture.

    Raises:
        InvalidFunction: an input or output does not have the rows as its first dimension.
    """

    def __init__(self, buckets: Sequence[PeakBucket], target: Target) -> None:
        problems = [p for b in buckets if b.rows for p in row_problems(b.rows, b.inputs, b.outputs)]
        if problems:
            raise InvalidFunction(tuple(problems))
        largest = buckets[-1]
        self._buckets = buckets
        self.inputs, self.outputs = largest.inputs, largest.outputs
        self.rows = [bucket.rows for bucket in buckets if bucket.rows]
        self.constants = {n: c for bucket in buckets for n, c in bucket.constants.items()}
        self.buffers = {n: size for bucket in buckets for n, size in bucket.buffers.items()}
        self._kernels = {n: made for bucket in buckets for n, made in bucket.kernels().items()}
        self._module_of: dict[str, str] = {}
        files: dict[str, bytes] = {}
        modules: dict[str, list[Code]] = {}
        first: dict[str, str] = {}
        for name, (kernel, _) in self._kernels.items():
            digest = hashlib.sha256(kernel.compiled.code).hexdigest()
            self._module_of[name] = module = first.setdefault(digest, name)
            if module == name:  # else an equal binary is there
                path = f"{name}.{target.arch}.{target.suffix}"
                files[path] = kernel.compiled.code
                modules[name] = [Code(path, target.backend, target.arch)]
        self.files, self.modules = files, modules
        self.kernels, self.launches = len(files), len(largest.launches)
        self.library_operations = sum(isinstance(one, ProductCall) for one in largest.launches)
        self.buffer_bytes = sum(largest.buffers.values())

    def declare(self, built: Blueprint) -> None:
        for name, (kernel, ways) in self._kernels.items():
            last = ["both" if kernel.compiled.scratch_bytes else "value", "value"]
            symbol = kernel.compiled.symbol
            built.kernel(
                name, module=self._module_of[name], symbol="" if symbol == name else symbol,
                access=[*(way.value for way in ways), *last],
            )  # fmt: skip

    def add(self, built: Blueprint, weights: Packed, index: int) -> None:
        self._buckets[index].add(built, weights)
