"""How library operations become steps of a plan, and the contract of a vendor's library.

A device may have a `Library`. What it can do becomes a call of it; all else becomes a launch of a
template, which every device can run. Around a library's product there may be templates too:

- a convolution with a larger kernel is unfolded into memory of the plan, then multiplied, if there
  is no library that has it;
- a bias of each row, and what else follows an operation and a library does not know, is done
  afterwards.

Memory that only these steps use is part of the plan like any buffer: it is placed, shared, zeroed
and waited for like others.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dandelion.blueprint import Access
from dandelion.blueprint.operation_calls import (
    ConvolutionCall,
    GemmCall,
    MatrixCall,
    OperationCall,
    operand_calls,
)
from dandelion.blueprint.operation_records import Activation, BiasAxis, ImageLayout
from dandelion.errors import DeviceFault

from .direct_convolution import convolving, padded_images, padding
from .template_device import finishing, on_device, unfolding
from .template_processor import on_processor
from .templates import PREFIX, TemplateLaunch

UNFOLDED_BYTES = 1 << 30
"""A convolution is unfolded if that takes at most so much memory."""


class Library(abc.ABC):
    """A vendor's library of operations on one device. Used by the thread of the device."""

    @abc.abstractmethod
    def workspace_bytes(self, call: OperationCall) -> int | None:
        """Tell how much memory an operation needs besides its operands; None if it is not here."""

    @abc.abstractmethod
    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> object:
        """Make an operation ready to be launched, or captured in a graph, many times.

        Args:
            call: for which `workspace_bytes` gave a number.
            addresses: of the first element of each operand, by its field.
            workspace: address and size in bytes.

        Returns:
            What the device launches.

        Raises:
            DeviceFault: the library fails.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the library holds. May be called twice."""


class DeferredLibrary(Library):
    """A library that is loaded when it is first asked for something.

    Args:
        load: gives it; None if there is none. With a `DeviceFault` it is as if there were none.
    """

    def __init__(self, load: Callable[[], Library | None]) -> None:
        self._load = load
        self._is_loaded = False
        self._library: Library | None = None

    @property
    def is_present(self) -> bool:
        """Whether it was loaded."""
        return self._library is not None

    def workspace_bytes(self, call: OperationCall) -> int | None:
        if not self._is_loaded:
            self._is_loaded = True
            with contextlib.suppress(DeviceFault):
                self._library = self._load()
        return None if self._library is None else self._library.workspace_bytes(call)

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> object:
        assert self._library is not None, "it had this operation"
        return self._library.prepare(call, addresses, workspace)

    def close(self) -> None:
        """Release what the library holds; it may be loaded again."""
        library, self._library = self._library, None
        self._is_loaded = False
        if library is not None:
            library.close()


class Libraries(Library):
    """The libraries of a device, one for each kind of operation.

    Args:
        loaders: give them, when an operation of the kind is first planned; see `DeferredLibrary`.
    """

    def __init__(self, loaders: Mapping[type[OperationCall], Callable[[], Library | None]]) -> None:
        self.parts = {kind: DeferredLibrary(load) for kind, load in loaders.items()}

    def workspace_bytes(self, call: OperationCall) -> int | None:
        found = self.parts.get(type(call))
        return None if found is None else found.workspace_bytes(call)

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> object:
        return self.parts[type(call)].prepare(call, addresses, workspace)

    def close(self) -> None:
        """Release what they hold; they may be loaded again."""
        for part in self.parts.values():
            part.close()


class AssumedLibrary(Library):
    """Stands for a library where plans are made without a device: it can do all operations.

    A convolution is assumed to need what it needs without a library of convolutions.

    Args:
        bytes_needed: for each of them.
    """

    def __init__(self, bytes_needed: int) -> None:
        self._bytes = bytes_needed

    def workspace_bytes(self, call: OperationCall) -> int | None:
        if isinstance(call, ConvolutionCall):
            return self._bytes + (0 if _is_product(call) else _unfolded_bytes(call))
        plain = call.bias is None or call.bias_axis is BiasAxis.COLUMNS
        return self._bytes if plain else None

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> object:
        raise NotImplementedError("it has no device")

    def close(self) -> None:
        """It has nothing."""


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """An operation that the device's library carries out.

    Attributes:
        call: which.
        workspace: name of the memory that it needs besides; empty if it needs none.
    """

    call: OperationCall
    workspace: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """The steps of one operation, in order.

    Attributes:
        steps: calls of the library and launches of templates.
        memory: sizes in bytes of the memory that only they use, by name.
    """

    steps: tuple[LibraryStep | TemplateLaunch, ...]
    memory: Mapping[str, int] = field(default_factory=dict)


Step: TypeAlias = LibraryStep | TemplateLaunch


@dataclass(frozen=True, slots=True)
class Lowering:
    """How a device carries out library operations.

    Attributes:
        library: of the device, if there is one.
        on_processor: templates run on the host's processors.
        vector_bytes: length of their vectors.
    """

    library: Library | None = None
    on_processor: bool = False
    vector_bytes: int = 32

    def lowered(self, call: OperationCall, number: int) -> Lowered:
        """Make the steps of an operation.

        Args:
            call: which.
            number: different for each operation of a plan.
        """
        if isinstance(call, ConvolutionCall):
            return self._convolution(call, number)
        found = self._product(call, number)
        return Lowered((self._template(call),)) if found is None else found

    def _template(self, call: OperationCall) -> TemplateLaunch:
        return on_processor(call, self.vector_bytes) if self.on_processor else on_device(call)

    def _in_library(self, call: OperationCall, number: int) -> Lowered | None:
        needed = None if self.library is None else self.library.workspace_bytes(call)
        if needed is None:
            return None
        name = f"{PREFIX}workspace {number}" if needed else ""
        return Lowered((LibraryStep(call, name),), {name: needed} if needed else {})

    def _product(self, call: GemmCall, number: int) -> Lowered | None:
        """Give the steps with the library; None if it cannot multiply these matrices."""
        whole = self._in_library(call, number)
        if whole is not None or self.library is None:
            return whole
        if call.bias is None and call.activation is Activation.NONE:
            return None
        bare = replace(call, bias=None, activation=Activation.NONE, bias_axis=BiasAxis.COLUMNS)
        found = self._in_library(bare, number)
        if found is None:
            return None
        return Lowered((*found.steps, finishing(call)), found.memory)

    def _convolution(self, call: ConvolutionCall, number: int) -> Lowered:
        found = self._in_library(call, number) or self._finished(call, number)
        if found is not None:
            return found
        if _is_product(call):
            return self.lowered(
                _as_product(call, call.image.buffer, call.image.offset_bytes), number
            )
        size = _unfolded_bytes(call)
        if self.library is not None and size:
            name = f"{PREFIX}unfolded {number}"
            found = self._product(_as_product(call, name, 0), number)
            if found is not None:
                return Lowered((unfolding(call, name), *found.steps), {name: size, **found.memory})
        padded = padded_images(call) if self.on_processor else None
        if padded is None:
            return Lowered((self._template(call),))
        name = f"{PREFIX}padded {number}"
        steps = (
            padding(call, padded, name),
            convolving(call, padded, name, self.vector_bytes),
        )
        return Lowered(steps, {name: padded.elements * call.dtype.size_bytes})

    def _finished(self, call: ConvolutionCall, number: int) -> Lowered | None:
        """Give the steps with a library that knows the convolution, but not what follows it."""
        is_bare = (call.addend, call.bias, call.activation) == (None, None, Activation.NONE)
        if is_bare or (call.addend is not None and call.addend.buffer == call.out.buffer):
            return None
        bare = replace(call, addend=None, bias=None, activation=Activation.NONE)
        found = self._in_library(bare, number)
        if found is None:
            return None
        product = _as_product(call, call.image.buffer, 0)
        return Lowered((*found.steps, finishing(product, adds_c=True)), found.memory)


def _unfolded_bytes(call: ConvolutionCall) -> int:
    """How much memory unfolding takes; 0 if the convolution is not unfolded."""
    size = call.batch * call.depth * call.pixels * call.dtype.size_bytes
    return size if call.groups == 1 and size <= UNFOLDED_BYTES else 0


def _is_product(call: ConvolutionCall) -> bool:
    """Tell whether the image is already what unfolding would make of it."""
    return (
        call.groups == 1
        and call.kernel == (1, 1)
        and call.stride == (1, 1)
        and call.padding == (0, 0)
    )


def _as_product(call: ConvolutionCall, unfolded: str, offset_bytes: int) -> GemmCall:
    """Write a convolution of one group as a product with unfolded images."""
    pixels, depth, filters = call.pixels, call.depth, call.filters
    last = call.layout is ImageLayout.NHWC
    batch = 1 if last else call.batch
    m, n = (call.batch * pixels, filters) if last else (filters, pixels)
    weight_at = call.weight.offset_bytes
    if last:
        a = MatrixCall(unfolded, offset_bytes, m, depth, False, depth, m * depth, 1)
        b = MatrixCall(call.weight.buffer, weight_at, depth, n, True, depth, n * depth, 1)
    else:
        a = MatrixCall(call.weight.buffer, weight_at, m, depth, False, depth, 0, batch)
        b = MatrixCall(unfolded, offset_bytes, depth, n, False, n, depth * n, batch)
    out = MatrixCall(call.out.buffer, call.out.offset_bytes, m, n, False, n, m * n, batch)
    c = None
    if call.addend is not None:
        c = replace(out, buffer=call.addend.buffer, offset_bytes=call.addend.offset_bytes)
    return GemmCall(
        a, b, out, m, n, depth, batch, c, 1.0, 0.0 if c is None else 1.0, call.bias,
        BiasAxis.COLUMNS if last else BiasAxis.ROWS, call.dtype, call.compute, call.activation,
    )  # fmt: skip


def accesses(step: Step, covered: bool, call: OperationCall) -> dict[str, Access]:
    """What a step does with each buffer.

    Args:
        step: which.
        covered: the result fills its whole buffer, so what was there does not matter.
        call: the operation.
    """
    found: dict[str, Access] = {}

    def use(name: str, way: Access) -> None:
        if way is Access.WRITE and name == call.out.buffer and not covered:
            way = Access.BOTH
        found[name] = way if found.get(name, way) is way else Access.BOTH

    if isinstance(step, LibraryStep):
        for name, operand in operand_calls(step.call):
            use(operand.buffer, Access.WRITE if name == "out" else Access.READ)
        if step.workspace:
            use(step.workspace, Access.WRITE)
        return found
    for argument, way in zip(step.args, step.template.access, strict=True):
        if isinstance(argument, str):
            use(argument, way)
    return found
