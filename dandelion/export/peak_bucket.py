"""The launches of a model for one architecture and one number of rows, and the names they use."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from dandelion.blueprint import Access, Blueprint, Buffer, Scalar, ScalarType, part
from dandelion.blueprint.builder import ArgumentLike
from dandelion.errors import InvalidFunction, Problem
from dandelion.export import product_records
from dandelion.export.operation_actions import add_operation
from dandelion.export.packing import Packed
from dandelion.export.peak_kernels import PeakKernel, PeakLaunch
from dandelion.export.peak_records import (
    AttentionProduct,
    FusedGraph,
    PeakProduct,
    Place,
    ProductCall,
)
from dandelion.export.torch_graph import Constant, Graph, shapes_of

_NULL = 0


class PeakBucket:
    """The launches for calls with up to a number of rows.

    Args:
        rows: that number; 0 if shapes are fixed.
        prefix: of the names of its kernels, buffers and constants.
        graph: as Inductor got it.
        made: what it made of that.
        kernels: that launches need, by name.
        launches: in order.
        products: operations, by name.

    Attributes:
        inputs, outputs: types of the sets.
        buffers: sizes in bytes of all other buffers but constants, by their names in the blueprint.
        constants: by the names that `weights` know them by.

    Raises:
        InvalidFunction: an output is not a whole buffer.
    """

    def __init__(
        self, rows: int, prefix: str, graph: Graph, made: FusedGraph,
        kernels: Mapping[str, PeakKernel], launches: Sequence[PeakLaunch | ProductCall],
        products: Mapping[str, PeakProduct],
    ) -> None:  # fmt: skip
        self.rows = rows
        self.launches = launches
        self._prefix = prefix
        self._kernels, self._products = kernels, products
        types = shapes_of(graph) | {
            node.name: node.type for node in graph.nodes if node.operator == "getitem"
        }
        self.inputs = graph.inputs
        self.outputs = {n: types[value] for n, value in graph.outputs.items()}
        self._renamed = self._buffer_names(made)
        used = {place.buffer for launch in launches for place in _places(launch)}
        self.buffers = {
            self._renamed[n]: size for n, size in made.buffers.items() if size and n in used
            and self._renamed[n] not in self.outputs
        }  # fmt: skip
        scratch = self._scratch_bytes()
        if scratch:
            self.buffers[f"{self._prefix}global_scratch"] = scratch
        self.constants: dict[str, Constant] = {
            self._prefix + n: constant
            for n, constant in {**graph.constants, **made.constants}.items()
            if n in used
        }

    def kernels(self) -> dict[str, tuple[PeakKernel, list[Access]]]:
        """Its kernels by their names in the blueprint, with what they do with their parameters.

        The second launch that writes a buffer adds to it, so the rest must stay as it is.
        """
        found = {name: list(kernel.access) for name, kernel in self._kernels.items()}
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
        return {self._prefix + n: (kernel, found[n]) for n, kernel in self._kernels.items()}

    def add(self, built: Blueprint, weights: Packed) -> None:
        """Add the launches to a blueprint that has the buffers and kernels."""
        for launch in self.launches:
            if isinstance(launch, ProductCall):
                self._add_operation(built, weights, launch)
            else:
                self._add_launch(built, weights, launch)

    # names

    def _buffer_names(self, made: FusedGraph) -> dict[str, str]:
        """New names of buffers: outputs have those of their sets."""
        renamed = {}
        for name, place in made.outputs.items():
            wanted = self.outputs[name].size_bytes
            whole = not place.offset_bytes and made.buffers.get(place.buffer) == wanted
            if not whole or place.buffer in renamed:
                message = f"output '{name}' does not have a buffer of its own"
                raise InvalidFunction((Problem("inductor", message, f"outputs.{name}"),))
            renamed[place.buffer] = name
        taken = {*self.inputs, *self.outputs}
        for buffer in made.buffers:
            new = self._prefix + buffer
            while buffer not in renamed and new in taken:
                new += "_"
            renamed.setdefault(buffer, new)
        return renamed

    def _at(self, weights: Packed, place: Place) -> tuple[str, int]:
        """The buffer of a place in the blueprint, and the byte there."""
        constant = self._prefix + place.buffer
        if constant not in self.constants:
            return self._renamed.get(place.buffer, place.buffer), place.offset_bytes
        group, first = weights.places[constant]
        return group, first * weights.sets[group].itemsize + place.offset_bytes

    # launches

    def _scratch_bytes(self) -> int:
        """Memory that Triton's launcher would allocate for blocks."""
        return max(
            (
                self._kernels[one.kernel].compiled.scratch_bytes * _blocks(one)
                for one in self.launches
                if isinstance(one, PeakLaunch)
            ),
            default=0,
        )

    def _add_launch(self, built: Blueprint, weights: Packed, launch: PeakLaunch) -> None:
        compiled = self._kernels[launch.kernel].compiled
        arguments: list[ArgumentLike] = []
        for argument in launch.arguments:
            if isinstance(argument, Place):
                buffer, offset = self._at(weights, argument)
                arguments.append(part(built[buffer], offset))
            else:
                kind, value = argument
                arguments.append(Scalar(ScalarType(kind), value))
        scratch = built[f"{self._prefix}global_scratch"] if compiled.scratch_bytes else _NULL
        built.launch(
            self._prefix + launch.kernel, [*arguments, scratch, _NULL], grid=launch.grid,
            block=compiled.threads, shared_mem_bytes=compiled.shared_bytes,
        )  # fmt: skip

    def _add_operation(self, built: Blueprint, weights: Packed, call: ProductCall) -> None:
        product = self._products[call.product]
        assert not isinstance(product, AttentionProduct), "attention is a kernel"

        def operand(
            product: product_records.Product, place: product_records.Place
        ) -> tuple[Buffer, int]:
            """The buffer of an operand, and its first element there in bytes."""
            which = next(at for at, one in enumerate(product.places) if one is place)
            buffer, offset = self._at(weights, call.reads[which])
            return built[buffer], offset + place.offset * product.dtype.size_bytes

        out = built[self._renamed[call.out]]
        add_operation(built, product, out, functools.partial(operand, product))


def _places(launch: PeakLaunch | ProductCall) -> list[Place]:
    if isinstance(launch, ProductCall):
        return [*launch.reads, Place(launch.out)]
    return [argument for argument in launch.arguments if isinstance(argument, Place)]


def _blocks(launch: PeakLaunch) -> int:
    x, y, z = launch.grid
    return x * y * z
