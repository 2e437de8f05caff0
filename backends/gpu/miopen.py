"""Convolutions by MIOpen, for `.cudalike`.

MIOpen's immediate mode lists solutions of a shape, of which the fastest on this device is kept; see
`.timed_library`. It takes no memory of its own, measures nothing, and compiles a solution when it
is told to, so a call that is captured only launches.

Solutions by products of matrices are not taken: they use rocBLAS, which has memory of its own. With
hipBLASLt a convolution is unfolded in memory of the plan and multiplied instead, see `.lowering`.

Sums, bias and activation are done after the convolution. Rejected: MIOpen's fusion plans. Compiling
one may run and time kernels in memory that the library allocates, it is not said which algorithm
was taken, and those of Winograd cannot be excluded, so it is not known how exact the result is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dandelion.blueprint.operation_calls import ConvolutionCall, operand_calls
from dandelion.blueprint.operation_records import Activation, Computation, ElementType, ImageLayout
from dandelion.errors import DeviceFault

from .calls import LibrarySite
from .cublaslt_binding import Binding
from .cudalike_library import PreparedOperation
from .miopen_binding import (
    CROSS_CORRELATION,
    Algorithm,
    Attribute,
    DataType,
    Layout,
    MathType,
    Solution,
)
from .timed_library import WORKSPACE_BYTES, LibraryShape, LibraryWay, TimedLibrary

_TYPES = {
    ElementType.F32: DataType.F32,
    ElementType.F16: DataType.F16,
    ElementType.BF16: DataType.BF16,
}
_LAYOUTS = {ImageLayout.NCHW: Layout.NCHW, ImageLayout.NHWC: Layout.NHWC}
_VECTOR_BYTES = 16
"""Kernels load and store so many bytes at once; it is not declared how operands are aligned."""
_MOST_ELEMENTS = 2**31 - 1  # strides are of type int
_MOST_SOLUTIONS = 256


class Miopen(TimedLibrary):
    """The library on the current device.

    Args:
        binding: loaded.
        site: where convolutions are launched and timed.

    Raises:
        DeviceFault: the library refuses this device.
    """

    def __init__(self, binding: Binding, site: LibrarySite) -> None:
        super().__init__(site, f"miopen {binding.version}")
        self.library = binding.library
        self._describe = binding.describe
        self._stream = int(site.stream)
        self.handle: Any = ctypes.c_void_p()
        made = ctypes.byref(self.handle)
        self.do("open", self.library.miopenCreateWithStream(made, self._stream))

    def _has(self, call: ConvolutionCall) -> bool:
        followed = (call.addend, call.bias, call.activation) != (None, None, Activation.NONE)
        parts = [part for _, part in operand_calls(call)]
        return (
            call.dtype in _TYPES
            and not followed
            and (call.groups == 1 or call.dilation == (1, 1))
            and not any(part.offset_bytes % _VECTOR_BYTES for part in parts)
            and max(part.elements for part in parts) <= _MOST_ELEMENTS
        )

    def _shape(self, call: ConvolutionCall) -> LibraryShape:
        return _Problem(self, call)

    def launch(self, arguments: Sequence[Any], stream: Any) -> tuple[int]:
        """Launch a solution; the arguments are those of MIOpen after the handle."""
        number = int(stream)
        if number != self._stream:
            self.do("stream", self.library.miopenSetStream(self.handle, number))
            self._stream = number
        self.do(
            "convolution", self.library.miopenConvolutionForwardImmediate(self.handle, *arguments)
        )
        return (0,)

    @property
    def stream(self) -> Any:
        """Where convolutions are launched."""
        return self._site.stream

    def do(self, operation: str, status: int) -> None:
        """Raise `DeviceFault` if a status is a failure."""
        if status:
            raise DeviceFault(self._site.name, f"MIOpen {operation}", self._describe(status))

    def _close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self.library.miopenDestroy(handle)


class _Problem(LibraryShape):
    """A convolution in MIOpen's descriptors.

    Attributes:
        tensors: descriptors, by the name of the operand.
        convolution: how it is computed.

    Raises:
        DeviceFault: the library refuses one of them.
    """

    def __init__(self, library: Miopen, call: ConvolutionCall) -> None:
        self.library = library
        self.tensors: dict[str, Any] = {}
        self.convolution: Any = None
        self._call = call
        try:
            self._make(call)
        except DeviceFault:
            self.close()
            raise

    def _make(self, call: ConvolutionCall) -> None:
        sizes = {
            "image": (call.batch, call.channels, *call.size),
            "weight": (call.filters, call.channels // call.groups, *call.kernel),
            "out": (call.batch, call.filters, *call.out_size),
        }
        of, do = self.library.library, self.library.do
        for name, lengths in sizes.items():
            made = ctypes.c_void_p()
            do("tensor", of.miopenCreateTensorDescriptor(ctypes.byref(made)))
            self.tensors[name] = made
            kind, layout = _TYPES[call.dtype], _LAYOUTS[call.layout]
            describe = of.miopenSetNdTensorDescriptorWithLayout
            do("tensor", describe(made, kind, layout, _integers(lengths), len(lengths)))
        convolution = ctypes.c_void_p()
        do("convolution", of.miopenCreateConvolutionDescriptor(ctypes.byref(convolution)))
        self.convolution = convolution
        pairs = (_integers(pair) for pair in (call.padding, call.stride, call.dilation))
        begin = of.miopenInitConvolutionNdDescriptor
        do("convolution", begin(convolution, 2, *pairs, CROSS_CORRELATION))
        do("groups", of.miopenSetConvolutionGroupCount(convolution, call.groups))
        change = of.miopenSetConvolutionAttribute
        do("attribute", change(convolution, Attribute.DETERMINISTIC, 1))
        do("attribute", change(convolution, Attribute.OTHER_F16, 0))
        math = MathType.PEDANTIC if _is_exact(call) else MathType.TF32
        change(convolution, Attribute.MATH_TYPE, math)  # unknown to versions without TF32

    def ways(self) -> Iterator[tuple[int, Callable[[], LibraryWay | None]]]:
        exact = _is_exact(self._call)
        for found in self._solutions():
            algorithm = found.algorithm
            less_exact = algorithm in (Algorithm.FFT, Algorithm.WINOGRAD)
            if algorithm == Algorithm.GEMM or (exact and less_exact):
                continue
            yield found.number, lambda found=found: self._compiled(found)  # type: ignore[misc]  # a bound default

    def _solutions(self) -> list[Solution]:
        of, do = self.library.library, self.library.do
        count = ctypes.c_size_t()
        ask = of.miopenConvolutionForwardGetSolutionCount
        do("solutions", ask(*self.arguments, ctypes.byref(count)))
        most = min(count.value, _MOST_SOLUTIONS)
        found = (Solution * max(most, 1))()
        take = of.miopenConvolutionForwardGetSolution
        do("solutions", take(*self.arguments, most, ctypes.byref(count), found))
        return list(found[: min(count.value, most)])

    @property
    def arguments(self) -> tuple[Any, ...]:
        """How functions about solutions take it."""
        of = self.tensors
        return self.library.handle, of["weight"], of["image"], self.convolution, of["out"]

    def _compiled(self, solution: Solution) -> LibraryWay | None:
        """Compile a solution; None if it does not work or needs too much memory."""
        if solution.workspace_bytes > WORKSPACE_BYTES:
            return None
        compile_ = self.library.library.miopenConvolutionForwardCompileSolution
        if compile_(*self.arguments, solution.number):
            return None
        return _Solution(self, solution)

    def close(self) -> None:
        of = self.library.library
        tensors, self.tensors = self.tensors, {}
        convolution, self.convolution = self.convolution, None
        for tensor in tensors.values():
            of.miopenDestroyTensorDescriptor(tensor)
        if convolution is not None:
            of.miopenDestroyConvolutionDescriptor(convolution)


class _Solution(LibraryWay):
    """A solution of a problem; it has no handles of its own."""

    def __init__(self, problem: _Problem, solution: Solution) -> None:
        self.workspace_bytes = int(solution.workspace_bytes)
        self._problem = problem
        self._number = int(solution.number)

    def prepare(
        self, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> PreparedOperation:
        problem = self._problem
        tensors, library = problem.tensors, problem.library
        arguments = (
            tensors["weight"], addresses["weight"], tensors["image"], addresses["image"],
            problem.convolution, tensors["out"], addresses["out"], workspace[0] or None,
            workspace[1], self._number,
        )  # fmt: skip
        return PreparedOperation(library.launch, (arguments, library.stream), (problem,))

    def close(self) -> None:
        """There is nothing."""


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _is_exact(call: ConvolutionCall) -> bool:
    """Tell whether its products are to be as exact as its elements."""
    return call.compute is Computation.F32
