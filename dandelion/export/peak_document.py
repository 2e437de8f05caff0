"""A PyTorch module as a function for one architecture: Inductor's kernels and library operations.

The way is: `torch_binding` (torch.export) -> `peak_graph` (operations) -> `inductor_binding`
(kernels in Triton) -> `peak_kernels` (binaries) -> this file (packed weights, a blueprint).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from dandelion.arrays import text_of
from dandelion.blueprint import (
    Access,
    Blueprint,
    Buffer,
    Code,
    Computation,
    Scalar,
    ScalarType,
    part,
)
from dandelion.blueprint.builder import ArgumentLike
from dandelion.documents import FunctionDocument, StaticValue, gpu_function
from dandelion.errors import InvalidFunction, Problem
from dandelion.export import inductor_binding, product_records
from dandelion.export.operation_actions import add_operation
from dandelion.export.packing import packed
from dandelion.export.peak_graph import for_peak
from dandelion.export.peak_kernels import PeakKernels, PeakLaunch
from dandelion.export.peak_records import (
    AttentionProduct,
    FusedCall,
    FusedGraph,
    PeakProduct,
    Place,
    ProductCall,
)
from dandelion.export.targets import Target
from dandelion.export.torch_graph import ITEM_BYTES, Graph, TensorType, shapes_of
from dandelion.function import Limits
from dandelion.progress import ShowProgress

_NULL = 0


@dataclass(frozen=True, slots=True)
class PeakModule:
    """A function for one architecture, and numbers of it.

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


def peak_module(
    name: str, graph: Graph, precision: Computation, target: Target, limits: Limits | None,
    show: ShowProgress,
) -> PeakModule:  # fmt: skip
    """Make the function.

    Args:
        name: registered name.
        graph: of the module.
        precision: how products of float32 are computed.
        target: the architecture.
        limits: what one instance may use.
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
    return _Layout(name, rewritten, made, kernels, launches, products, target).module(limits)


def _launch(
    call: FusedCall | ProductCall, products: Mapping[str, PeakProduct], kernels: PeakKernels
) -> PeakLaunch | ProductCall:
    if isinstance(call, FusedCall):
        return kernels.fused(call)
    product = products[call.product]
    return kernels.attention(call, product) if isinstance(product, AttentionProduct) else call


class _Layout:
    """The buffers of the function."""

    def __init__(
        self, name: str, graph: Graph, made: FusedGraph, kernels: PeakKernels,
        launches: list[PeakLaunch | ProductCall], products: Mapping[str, PeakProduct],
        target: Target,
    ) -> None:  # fmt: skip
        self.name, self.graph, self.made = name, graph, made
        self.kernels, self.launches, self.products = kernels, launches, products
        self.target = target
        self.inputs = {n: _outside(kind) for n, kind in graph.inputs.items()}
        types = shapes_of(graph) | {
            node.name: node.type for node in graph.nodes if node.operator == "getitem"
        }
        self.outputs = {n: _outside(types[value]) for n, value in graph.outputs.items()}
        self.renamed = self.output_buffers()
        used = {place.buffer for launch in launches for place in _places(launch)}
        taken = {*self.inputs, *self.outputs, *made.buffers}
        self.weights = packed({**graph.constants, **made.constants}, used, taken)
        self.buffers = self.sizes(used)

    def output_buffers(self) -> dict[str, str]:
        """New names of the buffers that are outputs."""
        renamed = {}
        for name, place in self.made.outputs.items():
            wanted = self.outputs[name].size_bytes
            whole = not place.offset_bytes and self.made.buffers.get(place.buffer) == wanted
            if not whole or place.buffer in renamed:
                message = f"output '{name}' does not have a buffer of its own"
                raise InvalidFunction((Problem("inductor", message, f"outputs.{name}"),))
            renamed[place.buffer] = name
        taken = {*self.inputs, *self.outputs}
        for buffer in self.made.buffers:
            new = buffer
            while buffer not in renamed and new in taken:
                new += "_"
            renamed.setdefault(buffer, new)
        return renamed

    def sizes(self, used: set[str]) -> dict[str, int]:
        return {
            self.renamed[name]: size for name, size in self.made.buffers.items()
            if size and (name in used or self.renamed[name] in self.outputs)
        }  # fmt: skip

    def at(self, place: Place) -> tuple[str, int]:
        """The buffer of a place in the blueprint, and the byte there."""
        if place.buffer not in self.weights.places:
            return self.renamed.get(place.buffer, place.buffer), place.offset_bytes
        group, first = self.weights.places[place.buffer]
        return group, first * self.weights.sets[group].itemsize + place.offset_bytes

    def module(self, limits: Limits | None) -> PeakModule:
        text, files = self.blueprint()
        static: dict[str, Mapping[str, StaticValue]] = {
            group: {group: data} for group, data in self.weights.sets.items()
        }
        inputs = {n: text_of(t.dtype, t.shape) for n, t in self.inputs.items()}
        inputs |= {n: text_of(d.dtype.name, d.shape) for n, d in self.weights.sets.items()}
        outputs = {n: text_of(t.dtype, t.shape) for n, t in self.outputs.items()}
        function = gpu_function(
            self.name, text, inputs=[f"{n}: {kind}" for n, kind in inputs.items()],
            outputs=[f"{n}: {kind}" for n, kind in outputs.items()], files=files, static=static,
            limits=limits,
        )  # fmt: skip
        operations = sum(isinstance(launch, ProductCall) for launch in self.launches)
        given = sum(kind.size_bytes for kind in self.inputs.values())
        return PeakModule(
            function, len(self.kernels.kernels), len(self.launches), operations,
            self.weights.size_bytes, sum(self.buffers.values()) + given,
        )  # fmt: skip

    def blueprint(self) -> tuple[str, dict[str, bytes]]:
        files = {}
        codes = {}
        for name, kernel in self.kernels.kernels.items():
            path = f"{name}.{self.target.arch}.{self.target.suffix}"
            files[path] = kernel.compiled.code
            codes[name] = [Code(path, self.target.backend, self.target.arch)]
        built = Blueprint(
            list(self.inputs), weights=list(self.weights.sets), outputs=list(self.outputs),
            modules=codes,
        )  # fmt: skip
        for buffer, size in self.buffers.items():
            built.buffer(buffer, size, temporary=buffer not in self.outputs)
        scratch = self.scratch(built)
        access = self.access()
        for name, kernel in self.kernels.kernels.items():
            ways = [way.value for way in access[name]]
            last = ["both" if kernel.compiled.scratch_bytes else "value", "value"]
            symbol = kernel.compiled.symbol
            built.kernel(
                name, module=name, symbol="" if symbol == name else symbol, access=[*ways, *last]
            )
        for launch in self.launches:
            self.add(built, launch, scratch)
        return built.json(), files

    def access(self) -> dict[str, list[Access]]:
        """What each kernel does with its parameters.

        The second launch that writes a buffer adds to it, so the rest must stay as it is.
        """
        found = {name: list(kernel.access) for name, kernel in self.kernels.kernels.items()}
        written: set[str] = set()
        for launch in self.launches:
            if isinstance(launch, ProductCall):
                written.add(launch.out)
                continue
            ways = found[launch.kernel]
            for at, argument in enumerate(launch.arguments):
                if isinstance(argument, Place) and ways[at] is not Access.READ:
                    if argument.buffer in written:
                        ways[at] = Access.BOTH
                    written.add(argument.buffer)
        return found

    def scratch(self, built: Blueprint) -> Buffer | None:
        """Memory that Triton's launcher would allocate for blocks; None if no kernel needs it."""
        needed = max(
            (
                self.kernels.kernels[one.kernel].compiled.scratch_bytes * _blocks(one)
                for one in self.launches
                if isinstance(one, PeakLaunch)
            ),
            default=0,
        )
        return built.buffer("global_scratch", needed, temporary=True) if needed else None

    def add(
        self, built: Blueprint, launch: PeakLaunch | ProductCall, scratch: Buffer | None
    ) -> None:
        if isinstance(launch, ProductCall):
            product = self.products[launch.product]
            assert not isinstance(product, AttentionProduct)
            at = functools.partial(self.operand, built, product, launch)
            add_operation(built, product, built[self.renamed[launch.out]], at)
            return
        kernel = self.kernels.kernels[launch.kernel]
        arguments: list[ArgumentLike] = []
        for argument in launch.arguments:
            if isinstance(argument, Place):
                buffer, offset = self.at(argument)
                arguments.append(part(built[buffer], offset))
            else:
                kind, value = argument
                arguments.append(Scalar(ScalarType(kind), value))
        has_scratch = scratch is not None and kernel.compiled.scratch_bytes
        arguments += [scratch if has_scratch and scratch is not None else _NULL, _NULL]
        built.launch(
            launch.kernel, arguments, grid=launch.grid, block=kernel.compiled.threads,
            shared_mem_bytes=kernel.compiled.shared_bytes,
        )  # fmt: skip

    def operand(
        self, built: Blueprint, product: product_records.Product, call: ProductCall,
        place: product_records.Place,
    ) -> tuple[Buffer, int]:  # fmt: skip
        """The buffer of an operand, and its first element there in bytes."""
        which = next(at for at, one in enumerate(product.places) if one is place)
        buffer, offset = self.at(call.reads[which])
        return built[buffer], offset + place.offset * product.dtype.size_bytes


def _places(launch: PeakLaunch | ProductCall) -> list[Place]:
    if isinstance(launch, ProductCall):
        return [*launch.reads, Place(launch.out)]
    return [argument for argument in launch.arguments if isinstance(argument, Place)]


def _blocks(launch: PeakLaunch) -> int:
    x, y, z = launch.grid
    return x * y * z


def _outside(kind: TensorType) -> TensorType:
    """The type of a set: they have no bfloat16."""
    assert kind.dtype in ITEM_BYTES
    return TensorType(kind.shape, "float32" if kind.dtype == "bfloat16" else kind.dtype)
