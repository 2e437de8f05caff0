"""One convolution as cuDNN sees it: a graph of operations, and the engines that it proposes.

The graph is the convolution, then, as far as they are wanted, the sum with the addend, the sum with
the bias, and the activation. Values between them are f32 and exist in no memory. Tensors have their
sizes in the order NCHW whatever their layout is; strides say the layout. The number of groups
follows from the channels of image and weight.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dandelion.blueprint.operation_calls import ConvolutionCall, operand_calls
from dandelion.blueprint.operation_records import Activation, Computation, ElementType, ImageLayout
from dandelion.errors import DeviceFault

from .cudnn_binding import (
    CROSS_CORRELATION,
    HEURISTICS,
    Attribute,
    DataType,
    Kind,
    Note,
    Pointwise,
    ValueType,
)

NUMBERS = {"image": 1, "weight": 2, "out": 3, "addend": 4, "bias": 5}
"""By which a plan knows its tensors."""
TYPES = {
    ElementType.F32: DataType.F32,
    ElementType.F16: DataType.F16,
    ElementType.BF16: DataType.BF16,
}
_ACTIVATIONS = {Activation.RELU: Pointwise.RELU, Activation.GELU_TANH: Pointwise.GELU_TANH}
_ALIGNMENT_BYTES = 16
_VIRTUAL = 100
_CONFIGS = 64  # cuDNN 9.19 proposes 35; those without tensor cores may be the last
_NOTES = 16
_NEVER = {Note.DOWN_CONVERT, Note.REDUCED_PRECISION, Note.NOT_DETERMINISTIC, Note.WINOGRAD_13}
_NEVER_EXACT = {Note.TENSOR_CORE, Note.FFT}

Do = Callable[[str, int], None]


class Descriptors:
    """Descriptors that are destroyed together, the last one first.

    Args:
        library: the binding's.
        do: raises if a status is a failure.
    """

    def __init__(self, library: Any, do: Do) -> None:
        self._library = library
        self._do = do
        self._made: list[Any] = []

    def new(self, kind: Kind) -> Any:
        """Make a descriptor without attributes."""
        made = ctypes.c_void_p()
        create = self._library.cudnnBackendCreateDescriptor
        self._do(kind.name, create(kind, ctypes.byref(made)))
        self._made.append(made)
        return made

    def made(self, kind: Kind, attributes: Sequence[tuple[Attribute, ValueType, Any]]) -> Any:
        """Make a descriptor; values are arrays of ctypes."""
        descriptor = self.new(kind)
        for attribute, value_type, values in attributes:
            status = self._library.cudnnBackendSetAttribute(
                descriptor, attribute, value_type, len(values), values
            )
            self._do(attribute.name, status)
        self._do(kind.name, self._library.cudnnBackendFinalize(descriptor))
        return descriptor

    def numbers(
        self, of: Any, attribute: Attribute, value_type: ValueType, most: int, number: Any
    ) -> list[int]:
        """Read an attribute of at most so many numbers."""
        count, found = ctypes.c_int64(), (number * most)()
        status = self._library.cudnnBackendGetAttribute(
            of, attribute, value_type, most, ctypes.byref(count), found
        )
        self._do(attribute.name, status)
        return [int(value) for value in found[: min(count.value, most)]]

    def parts(self, of: Any, attribute: Attribute, kind: Kind, most: int) -> list[Any]:
        """Read an attribute of at most so many descriptors."""
        rooms = [self.new(kind) for _ in range(most)]
        count = ctypes.c_int64()
        status = self._library.cudnnBackendGetAttribute(
            of, attribute, ValueType.DESCRIPTOR, most, ctypes.byref(count), pointers(rooms)
        )
        self._do(attribute.name, status)
        return rooms[: count.value]

    def close(self) -> None:
        """Destroy them. May be called twice."""
        while self._made:
            self._library.cudnnBackendDestroyDescriptor(self._made.pop())


def pointers(values: Sequence[Any]) -> Any:
    """An array of pointers."""
    return (ctypes.c_void_p * len(values))(*(getattr(v, "value", v) for v in values))


def int64(*values: int) -> Any:
    """An array of integers."""
    return (ctypes.c_int64 * len(values))(*values)


def integer(value: int) -> Any:
    """An array of one constant of an enumeration."""
    return (ctypes.c_int * 1)(value)


def is_known(call: ConvolutionCall) -> bool:
    """Tell whether cuDNN may have such a convolution."""
    in_place = call.addend is not None and call.addend.buffer == call.out.buffer
    return call.dtype in TYPES and not in_place


def operations(call: ConvolutionCall, handle: Any, made: Descriptors) -> Any:
    """Make the graph of a convolution."""
    kind = TYPES[call.dtype]
    sizes = {
        "image": (call.batch, call.channels, *call.size),
        "weight": (call.filters, call.channels // call.groups, *call.kernel),
        "out": (call.batch, call.filters, *call.out_size),
        "addend": (call.batch, call.filters, *call.out_size),
        "bias": (1, call.filters, 1, 1),
    }
    alignments = {
        name: math.gcd(_ALIGNMENT_BYTES, part.offset_bytes) for name, part in operand_calls(call)
    }

    def tensor(name: str, number: int, element: DataType, virtual: bool) -> Any:
        return made.made(
            Kind.TENSOR,
            [
                (Attribute.TENSOR_TYPE, ValueType.DATA_TYPE, integer(element)),
                (Attribute.TENSOR_SIZES, ValueType.INT64, int64(*sizes[name])),
                (Attribute.TENSOR_STRIDES, ValueType.INT64, strides(sizes[name], call.layout)),
                (Attribute.TENSOR_NUMBER, ValueType.INT64, int64(number)),
                (Attribute.TENSOR_ALIGNMENT, ValueType.INT64, int64(alignments[name])),
                (Attribute.TENSOR_IS_VIRTUAL, ValueType.BOOLEAN, (ctypes.c_bool * 1)(virtual)),
            ],
        )

    follow: list[tuple[Pointwise, str]] = [
        (Pointwise.ADD, name) for name in ("addend", "bias") if name in alignments
    ]
    if call.activation is not Activation.NONE:
        follow.append((_ACTIVATIONS[call.activation], ""))
    values = [tensor("out", _VIRTUAL + at, DataType.F32, True) for at in range(len(follow))]
    values.append(tensor("out", NUMBERS["out"], kind, False))
    image, weight = (tensor(name, NUMBERS[name], kind, False) for name in ("image", "weight"))
    steps = [_convolution(call, made, image, weight, values[0])]
    for at, (mode, name) in enumerate(follow):
        other = tensor(name, NUMBERS[name], kind, False) if name else None
        steps.append(_pointwise(made, mode, values[at], other, values[at + 1]))
    return made.made(
        Kind.GRAPH,
        [
            (Attribute.GRAPH_HANDLE, ValueType.HANDLE, pointers([handle])),
            (Attribute.GRAPH_OPERATIONS, ValueType.DESCRIPTOR, pointers(steps)),
        ],
    )


def strides(sizes: tuple[int, ...], layout: ImageLayout) -> Any:
    """The strides of a dense tensor of these sizes, which are in the order NCHW."""
    _, channels, height, width = sizes
    if layout is ImageLayout.NHWC:
        return int64(height * width * channels, 1, width * channels, channels)
    return int64(channels * height * width, height * width, width, 1)


def _convolution(call: ConvolutionCall, made: Descriptors, x: Any, w: Any, y: Any) -> Any:
    pairs = {
        Attribute.CONVOLUTION_DILATIONS: call.dilation,
        Attribute.CONVOLUTION_STRIDES: call.stride,
        Attribute.CONVOLUTION_PRE_PADDINGS: call.padding,
        Attribute.CONVOLUTION_POST_PADDINGS: call.padding,
    }
    how = made.made(
        Kind.CONVOLUTION,
        [
            (Attribute.CONVOLUTION_COMPUTE, ValueType.DATA_TYPE, integer(DataType.F32)),
            (Attribute.CONVOLUTION_MODE, ValueType.CONVOLUTION_MODE, integer(CROSS_CORRELATION)),
            (Attribute.CONVOLUTION_DIMENSIONS, ValueType.INT64, int64(2)),
            *((key, ValueType.INT64, int64(*pair)) for key, pair in pairs.items()),
        ],
    )
    parts = {
        Attribute.FORWARD_CONVOLUTION: how,
        Attribute.FORWARD_IMAGE: x,
        Attribute.FORWARD_WEIGHT: w,
        Attribute.FORWARD_RESULT: y,
    }
    return made.made(
        Kind.CONVOLUTION_FORWARD,
        [
            *((key, ValueType.DESCRIPTOR, pointers([part])) for key, part in parts.items()),
            (Attribute.FORWARD_ALPHA, ValueType.FLOAT, (ctypes.c_float * 1)(1.0)),
            (Attribute.FORWARD_BETA, ValueType.FLOAT, (ctypes.c_float * 1)(0.0)),
        ],
    )


def _pointwise(made: Descriptors, mode: Pointwise, x: Any, b: Any, y: Any) -> Any:
    how = made.made(
        Kind.POINTWISE,
        [
            (Attribute.POINTWISE_MODE, ValueType.POINTWISE_MODE, integer(mode)),
            (Attribute.POINTWISE_PRECISION, ValueType.DATA_TYPE, integer(DataType.F32)),
        ],
    )
    parts = {
        Attribute.POINTWISE_DESCRIPTOR: how,
        Attribute.POINTWISE_X: x,
        Attribute.POINTWISE_Y: y,
        **({} if b is None else {Attribute.POINTWISE_B: b}),
    }
    given = [(key, ValueType.DESCRIPTOR, pointers([part])) for key, part in parts.items()]
    return made.made(Kind.POINTWISE_OPERATION, given)


def engines(call: ConvolutionCall, graph: Any, made: Descriptors) -> Iterator[Any]:
    """Yield the configurations of engines that may compute a graph, those expected fastest first.

    Engines whose results are less exact than the call says, or differ from run to run, are left
    out.
    """
    never = set(_NEVER)
    if call.dtype is ElementType.F32 and call.compute is Computation.F32:
        never |= _NEVER_EXACT
    for mode in HEURISTICS:
        try:
            requested = made.made(
                Kind.HEURISTICS,
                [
                    (Attribute.HEURISTICS_GRAPH, ValueType.DESCRIPTOR, pointers([graph])),
                    (Attribute.HEURISTICS_MODE, ValueType.HEURISTICS_MODE, integer(mode)),
                ],
            )
            found = made.parts(
                requested, Attribute.HEURISTICS_RESULTS, Kind.ENGINE_CONFIG, _CONFIGS
            )
        except DeviceFault:
            continue  # it has no engine for such a graph
        for config in found:
            if not never & set(_notes(config, made)):
                yield config


def _notes(config: Any, made: Descriptors) -> list[int]:
    """What the engine of a configuration does to numbers."""
    (engine,) = made.parts(config, Attribute.CONFIG_ENGINE, Kind.ENGINE, 1)
    return made.numbers(engine, Attribute.ENGINE_NOTES, ValueType.NOTE, _NOTES, ctypes.c_int)
