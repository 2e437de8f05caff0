"""hipBLASLt's C interface with the names and numbers of cuBLASLt's, so that `.cublaslt` uses it.

AMD's library has the same functions with the same parameters; attributes, operations, kinds of
computation and the record of an algorithm have other numbers and sizes, which are translated here.
Products of f32 with factors rounded to TF32 are computed in f32, since only some devices have it.

It was tested against a fake library alone, as there was no AMD device.

Source: AMD's documentation of hipBLASLt; numbers as in ``hipblaslt.h``, ``hipblas-common.h`` and
``library_types.h`` of ROCm 6 and 7, compared with those of AMD's package ``rocm.bindings``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from ctypes import POINTER, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from .cublaslt_binding import Attribute, Binding, ComputeType, LayoutAttribute, Preference

NAMES = ("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so")
"""Versions of the interface that are known, newest first."""
_PREFIX, _OURS = "hipblasLt", "cublasLt"
_ATTRIBUTES = {
    Attribute.TRANSPOSE_A: 0,
    Attribute.TRANSPOSE_B: 1,
    Attribute.EPILOGUE: 2,
    Attribute.BIAS_POINTER: 3,
}
_LAYOUT = {LayoutAttribute.BATCH_COUNT: 0, LayoutAttribute.BATCH_STRIDE: 1}
_WORKSPACE = 1
_PLAIN, _TRANSPOSED = 111, 112
_COMPUTES = {
    ComputeType.F32: 2,
    ComputeType.TF32: 2,
    ComputeType.F16: 4,
    ComputeType.BF16: 5,
    ComputeType.F64: 7,
}
_HANDLE, _OUT = c_void_p, POINTER(c_void_p)


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint8 * 16), ("workspace_bytes", c_size_t))


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_SET = (_HANDLE, c_int, c_void_p, c_size_t)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Create": (_OUT,),
    "Destroy": (_HANDLE,),
    "MatmulDescCreate": (_OUT, c_int, c_int),
    "MatmulDescDestroy": (_HANDLE,),
    "MatmulDescSetAttribute": _SET,
    "MatrixLayoutCreate": (_OUT, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutDestroy": (_HANDLE,),
    "MatrixLayoutSetAttribute": _SET,
    "MatmulPreferenceCreate": (_OUT,),
    "MatmulPreferenceDestroy": (_HANDLE,),
    "MatmulPreferenceSetAttribute": _SET,
    "MatmulAlgoGetHeuristic": (*(_HANDLE,) * 7, c_int, POINTER(_Heuristic), POINTER(c_int)),
    "Matmul": (
        *(_HANDLE, _HANDLE, c_void_p, c_void_p, _HANDLE, c_void_p, _HANDLE, c_void_p, c_void_p),
        *(_HANDLE, c_void_p, _HANDLE, c_void_p, c_void_p, c_size_t, c_void_p),
    ),
}


_STATUS = {
    1: "NOT_INITIALIZED",
    2: "ALLOC_FAILED",
    3: "INVALID_VALUE",
    4: "MAPPING_ERROR",
    5: "EXECUTION_FAILED",
    6: "INTERNAL_ERROR",
    7: "NOT_SUPPORTED",
    8: "ARCH_MISMATCH",
}


def status_text(status: int) -> str:
    """The name of a status."""
    return f"HIPBLAS_STATUS_{_STATUS.get(status, status)}"


class Translated:
    """hipBLASLt under cuBLASLt's names.

    Args:
        library: loaded.
    """

    def __init__(self, library: Any) -> None:
        for name in _FUNCTIONS:
            setattr(self, _OURS + name, getattr(library, _PREFIX + name))
        self._set_product = library.hipblasLtMatmulDescSetAttribute
        self._set_layout = library.hipblasLtMatrixLayoutSetAttribute
        self._set_preference = library.hipblasLtMatmulPreferenceSetAttribute
        self._make_product = library.hipblasLtMatmulDescCreate
        self._ask = library.hipblasLtMatmulAlgoGetHeuristic
        self.cublasLtMatmulDescCreate = self._product
        self.cublasLtMatmulDescSetAttribute = self._product_attribute
        self.cublasLtMatrixLayoutSetAttribute = self._layout_attribute
        self.cublasLtMatmulPreferenceSetAttribute = self._preference_attribute
        self.cublasLtMatmulAlgoGetHeuristic = self._heuristic

    def _product(self, made: Any, compute: ComputeType, scale: int) -> int:
        return int(self._make_product(made, _COMPUTES[compute], scale))

    def _product_attribute(self, product: Any, key: Attribute, value: Any, size: int) -> int:
        if key in (Attribute.TRANSPOSE_A, Attribute.TRANSPOSE_B):
            given = ctypes.cast(value, POINTER(ctypes.c_int32)).contents.value
            value = ctypes.byref(ctypes.c_int32(_TRANSPOSED if given else _PLAIN))
        return int(self._set_product(product, _ATTRIBUTES[key], value, size))

    def _layout_attribute(self, layout: Any, key: LayoutAttribute, value: Any, size: int) -> int:
        return int(self._set_layout(layout, _LAYOUT[key], value, size))

    def _preference_attribute(self, preference: Any, key: Preference, value: Any, size: int) -> int:
        if key is not Preference.WORKSPACE_BYTES:
            return 0  # it asks operands for no more than the alignment of an element
        return int(self._set_preference(preference, _WORKSPACE, value, size))

    def _heuristic(self, *arguments: Any) -> int:
        *requested, wanted, proposals, count = arguments
        found = (_Heuristic * wanted)()
        status = int(self._ask(*requested, wanted, found, count))
        for ours, theirs in zip(proposals, found, strict=True):
            ctypes.memmove(
                ctypes.addressof(ours), ctypes.addressof(theirs), ctypes.sizeof(_Algorithm)
            )
            ours.workspace_bytes, ours.state = theirs.workspace_bytes, theirs.state
        return status


def load(folders: Iterable[Path] | None = None) -> Binding | None:
    """Load the newest library; None if there is none.

    Args:
        folders: where to look before the loader's own path; by default `library_folders`.
    """
    searched = list(library_folders() if folders is None else folders)
    for name in NAMES:
        for path in (*(str(folder / name) for folder in searched), name):
            with contextlib.suppress(OSError, AttributeError):
                return Binding(Translated(_opened(path)), path, 0, status_text)
    return None


def _opened(path: str) -> Any:
    library = ctypes.CDLL(path)
    for name, types in _FUNCTIONS.items():
        function = getattr(library, _PREFIX + name)
        function.argtypes, function.restype = types, c_int
    return library


def library_folders() -> Iterator[Path]:
    """Folders where the library may be: of ROCm."""
    for variable in ("ROCM_PATH", "HIP_PATH"):
        home = os.environ.get(variable)
        if home and os.path.isabs(home):
            yield Path(home) / "lib"
    yield Path("/opt/rocm/lib")
