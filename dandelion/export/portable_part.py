"""The kernels and operations of the portable route as a part of a function."""

from __future__ import annotations

import functools

from dandelion.blueprint import Blueprint, Buffer, scalar
from dandelion.blueprint.builder import ArgumentLike
from dandelion.export.buckets import BucketKernels
from dandelion.export.kernels import KernelSource, OperationLaunch
from dandelion.export.operation_actions import add_operation
from dandelion.export.packing import Packed
from dandelion.export.product_records import Place
from dandelion.export.route_parts import RoutePart

_HEAD = """/* Made by dandelion.export.torch_function. Each kernel computes one value of the model;
 * the blueprint has their order. */
#include "dandelion.h"

"""


class PortablePart(RoutePart):
    """Sources that run on every backend.

    Args:
        name: of the function.
        made: its kernels.
    """

    def __init__(self, name: str, made: BucketKernels) -> None:
        self._name, self._made = name, made
        self.inputs, self.outputs, self.rows = made.inputs, made.outputs, made.rows
        used = {n for bucket in made.buckets for one in bucket.launches for n in one.buffers}
        self.constants = {n: c for n, c in made.constants.items() if n in used}
        self.buffers = made.buffers
        path = f"{name}.c"
        self.modules = {name: [path]}
        texts = [kernel.text for kernel in made.sources]
        self.files = {path: _HEAD + "\n".join(texts) + "\n"}
        largest = made.buckets[-1].launches
        self.kernels, self.launches = len(made.sources), len(largest)
        self.library_operations = sum(isinstance(one, OperationLaunch) for one in largest)
        in_largest = {n for one in largest for n in one.buffers}
        self.buffer_bytes = sum(size for n, size in made.buffers.items() if n in in_largest)

    def declare(self, built: Blueprint) -> None:
        for kernel in self._made.sources:
            built.kernel(kernel.name, module=self._name, access=_access(kernel))

    def add(self, built: Blueprint, weights: Packed, index: int) -> None:
        sources = {kernel.name: kernel for kernel in self._made.sources}
        for launch in self._made.buckets[index].launches:
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
