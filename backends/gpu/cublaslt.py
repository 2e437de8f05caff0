"""Products of matrices by cuBLASLt, for `.cudalike`.

cuBLASLt has matrices by columns, ours lie by rows: it computes the transposed result from both
factors exchanged, so nothing is moved, and its bias, one value for each of its rows, is ours for
each column.

The library proposes algorithms for the shape of a product and the alignment of its operands. They
are asked for once for each shape, when a call is planned, since the memory that the algorithm needs
is part of the plan. The handle is made then too, outside of any capture. An operation that the
library has no algorithm for is not here; a template computes it.

Handles of the library are host memory. Those of a prepared product are released with it.
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dandelion.blueprint.operation_calls import GemmCall, MatrixCall, OperationCall, operand_calls
from dandelion.blueprint.operation_records import Activation, BiasAxis, Computation, ElementType
from dandelion.errors import DeviceFault

from .calls import LibrarySite
from .cublaslt_binding import (
    Attribute,
    Binding,
    ComputeType,
    DataType,
    Epilogue,
    Heuristic,
    LayoutAttribute,
    Preference,
)
from .cudalike_library import PreparedOperation
from .layout import ALIGNMENT_BYTES
from .lowering import Library

WORKSPACE_BYTES = 32 << 20
"""Most memory that an algorithm may need: NVIDIA's advice for Hopper."""

_PROPOSALS = 8
_KNOWN = 4096
_TYPES = {
    ElementType.F64: DataType.F64,
    ElementType.F32: DataType.F32,
    ElementType.F16: DataType.F16,
    ElementType.BF16: DataType.BF16,
}
_COMPUTES = {
    Computation.F64: ComputeType.F64,
    Computation.F32: ComputeType.F32,
    Computation.TF32: ComputeType.TF32,
    Computation.BF16: ComputeType.BF16,
    Computation.F16: ComputeType.F16,
}
_ACTIVATIONS = {Activation.RELU: Epilogue.RELU, Activation.GELU_TANH: Epilogue.GELU}

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """What the library proposes for a shape."""

    data: bytes
    workspace_bytes: int


class CublasLt(Library):
    """The library on the current device.

    Args:
        binding: loaded.
        site: where products are launched.

    Raises:
        DeviceFault: the library refuses this device.
    """

    def __init__(self, binding: Binding, site: LibrarySite) -> None:
        self._library = binding.library
        self._describe = binding.describe
        self._name = site.name
        self._stream = site.stream
        self._known: OrderedDict[Key, _Algorithm | None] = OrderedDict()
        self._live: set[_Handles] = set()
        self._handle: Any = ctypes.c_void_p()
        self._do("open", self._library.cublasLtCreate(ctypes.byref(self._handle)))

    def workspace_bytes(self, call: OperationCall) -> int | None:
        found = self._algorithm(call) if isinstance(call, GemmCall) else None
        return None if found is None else found.workspace_bytes

    def prepare(
        self, call: OperationCall, addresses: Mapping[str, int], workspace: tuple[int, int]
    ) -> PreparedOperation:
        assert isinstance(call, GemmCall), "the library has nothing else"
        found = self._algorithm(call)
        assert found is not None, "the plan asked for it"
        handles = _Handles(self._library, self._do)
        self._live.add(handles)
        try:
            handles.make(call, addresses.get("bias", 0))
        except DeviceFault:
            self._release(handles)
            raise
        number = ctypes.c_double if call.dtype is ElementType.F64 else ctypes.c_float
        alpha, beta = number(call.alpha), number(call.beta if call.c else 0.0)
        data = ctypes.create_string_buffer(found.data, len(found.data))
        added = "c" if call.c else "out"
        of = handles.layouts
        arguments = (
            self._handle, handles.product, ctypes.addressof(alpha),
            addresses["b"], of["b"], addresses["a"], of["a"], ctypes.addressof(beta),
            addresses[added], of[added], addresses["out"], of["out"], ctypes.addressof(data),
            workspace[0] or None, min(workspace[1], WORKSPACE_BYTES), self._stream,
        )  # fmt: skip
        kept = (alpha, beta, data, handles)
        return PreparedOperation(self._launch, arguments, kept, lambda: self._release(handles))

    def _launch(self, *arguments: Any) -> tuple[int]:
        *others, stream = arguments
        status = self._library.cublasLtMatmul(*others, int(stream))
        if status:
            raise DeviceFault(self._name, "product", self._describe(status))
        return (0,)

    def _algorithm(self, call: GemmCall) -> _Algorithm | None:
        if call.bias is not None and call.bias_axis is not BiasAxis.COLUMNS:
            return None
        key = _key(call)
        if key not in self._known:
            self._known[key] = self._proposed(call)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _proposed(self, call: GemmCall) -> _Algorithm | None:
        """Ask for algorithms; None if there is none for this product."""
        handles = _Handles(self._library, self._do)
        try:
            handles.make(call, _bias_alignment(call))
            preference = handles.preference(_alignments(call))
            found = (Heuristic * _PROPOSALS)()
            count = ctypes.c_int()
            of = handles.layouts
            status = self._library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, handles.product, of["b"], of["a"], of["c" if call.c else "out"],
                of["out"], preference, _PROPOSALS, found, ctypes.byref(count),
            )  # fmt: skip
        except DeviceFault:
            return None  # it does not know such a product
        finally:
            handles.close()
        usable = [] if status else [one for one in found[: count.value] if one.state == 0]
        if not usable:
            return None
        return _Algorithm(bytes(usable[0].algorithm), int(usable[0].workspace_bytes))

    def _do(self, operation: str, status: int) -> None:
        if status:
            raise DeviceFault(self._name, f"cublasLt {operation}", self._describe(status))

    def _release(self, handles: _Handles) -> None:
        self._live.discard(handles)
        handles.close()

    def close(self) -> None:
        for handles in tuple(self._live):
            self._release(handles)
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.cublasLtDestroy(handle)


class _Handles:
    """The library's handles of one product.

    Attributes:
        product: how it is computed.
        layouts: of each matrix, by our names.
    """

    def __init__(self, library: Any, do: Callable[[str, int], None]) -> None:
        self._library = library
        self._do = do
        self.product: Any = None
        self.layouts: dict[str, Any] = {}
        self._preference: Any = None

    def make(self, call: GemmCall, bias: int) -> None:
        """Describe a product; `bias` is an address."""
        library, kind = self._library, _TYPES[call.dtype]
        scale = DataType.F64 if call.dtype is ElementType.F64 else DataType.F32
        self.product = ctypes.c_void_p()
        made = ctypes.byref(self.product)
        self._do("product", library.cublasLtMatmulDescCreate(made, _COMPUTES[call.compute], scale))
        self._set(Attribute.TRANSPOSE_A, ctypes.c_int32(call.b.transposed))
        self._set(Attribute.TRANSPOSE_B, ctypes.c_int32(call.a.transposed))
        epilogue = _ACTIVATIONS.get(call.activation, Epilogue(0))
        if call.bias is not None:
            epilogue |= Epilogue.BIAS
            self._set(Attribute.BIAS_POINTER, ctypes.c_void_p(bias))
        self._set(Attribute.EPILOGUE, ctypes.c_uint32(epilogue or Epilogue.PLAIN))
        for name, matrix in _matrices(call).items():
            self.layouts[name] = self._layout(matrix, kind)

    def _set(self, attribute: Attribute, value: Any) -> None:
        function = self._library.cublasLtMatmulDescSetAttribute
        size = ctypes.sizeof(value)
        self._do("product", function(self.product, attribute, ctypes.byref(value), size))

    def _layout(self, matrix: MatrixCall, kind: DataType) -> Any:
        library, layout = self._library, ctypes.c_void_p()
        rows, columns = matrix.stored
        # its rows are our columns
        create = library.cublasLtMatrixLayoutCreate
        self._do("matrix", create(ctypes.byref(layout), kind, columns, rows, matrix.ld))
        values = {
            LayoutAttribute.BATCH_COUNT: ctypes.c_int32(matrix.batch),
            LayoutAttribute.BATCH_STRIDE: ctypes.c_int64(matrix.batch_stride),
        }
        function = library.cublasLtMatrixLayoutSetAttribute
        try:
            for attribute, value in values.items() if matrix.batch > 1 else ():
                size = ctypes.sizeof(value)
                self._do("matrix", function(layout, attribute, ctypes.byref(value), size))
        except DeviceFault:
            library.cublasLtMatrixLayoutDestroy(layout)
            raise
        return layout

    def preference(self, alignments: Mapping[str, int]) -> Any:
        """What algorithms may need."""
        library = self._library
        self._preference = ctypes.c_void_p()
        create = library.cublasLtMatmulPreferenceCreate
        self._do("preference", create(ctypes.byref(self._preference)))
        keys = {
            "b": Preference.ALIGNMENT_A, "a": Preference.ALIGNMENT_B,
            "c": Preference.ALIGNMENT_C, "out": Preference.ALIGNMENT_D,
        }  # fmt: skip
        values: dict[Preference, Any] = {
            keys[name]: ctypes.c_uint32(bytes_) for name, bytes_ in alignments.items()
        }
        values[Preference.WORKSPACE_BYTES] = ctypes.c_size_t(WORKSPACE_BYTES)
        function = library.cublasLtMatmulPreferenceSetAttribute
        for key, value in values.items():
            size = ctypes.sizeof(value)
            self._do("preference", function(self._preference, key, ctypes.byref(value), size))
        return self._preference

    def close(self) -> None:
        """Destroy what was made. May be called twice."""
        library = self._library
        layouts, self.layouts = self.layouts, {}
        product, self.product = self.product, None
        preference, self._preference = self._preference, None
        for layout in layouts.values():
            library.cublasLtMatrixLayoutDestroy(layout)
        if product:
            library.cublasLtMatmulDescDestroy(product)
        if preference:
            library.cublasLtMatmulPreferenceDestroy(preference)


def _matrices(call: GemmCall) -> dict[str, MatrixCall]:
    found = operand_calls(call)
    return {name: operand for name, operand in found if isinstance(operand, MatrixCall)}


def _alignments(call: GemmCall) -> dict[str, int]:
    """To how many bytes each matrix is aligned, whatever its buffer's place."""
    found = {
        name: math.gcd(ALIGNMENT_BYTES, matrix.offset_bytes)
        for name, matrix in _matrices(call).items()
    }
    return {"c": found["out"], **found}


def _bias_alignment(call: GemmCall) -> int:
    """To how many bytes the bias is aligned; 0 if there is none."""
    return 0 if call.bias is None else math.gcd(ALIGNMENT_BYTES, call.bias.offset_bytes)


def _key(call: GemmCall) -> Key:
    """All that an algorithm depends on."""
    matrices = tuple(
        (name, m.stored, m.transposed, m.ld, m.batch_stride, m.batch)
        for name, m in _matrices(call).items()
    )
    alignments = (*_alignments(call).values(), _bias_alignment(call))
    return (
        matrices, alignments, call.beta == 0, call.dtype, call.compute,
        call.activation,
    )  # fmt: skip
