"""cuBLASLt's C interface: what `.cublaslt` uses of it, and where the library is.

Source: NVIDIA's documentation of cuBLAS, chapter "Using the cuBLASLt API"; numbers as in
``cublasLt.h`` and ``library_types.h`` of versions 12 and 13, where they are the same.
"""

from __future__ import annotations

import ctypes
import enum
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

NAME = "libcublasLt.so"
MAJORS = (13, 12)
"""Versions of the interface that are known, newest first."""

Library: TypeAlias = Any  # a foreign library: types end here


class DataType(enum.IntEnum):
    """Element types."""

    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 14


class ComputeType(enum.IntEnum):
    """How products are computed."""

    F32 = 68
    F64 = 70
    F16 = 74  # of f32 elements, rounded to f16
    BF16 = 75
    TF32 = 77


class Attribute(enum.IntEnum):
    """Attributes of a product."""

    TRANSPOSE_A = 3
    TRANSPOSE_B = 4
    EPILOGUE = 7
    BIAS_POINTER = 8


class LayoutAttribute(enum.IntEnum):
    """Attributes of a matrix."""

    BATCH_COUNT = 5
    BATCH_STRIDE = 6


class Preference(enum.IntEnum):
    """What an algorithm may need."""

    WORKSPACE_BYTES = 1
    ALIGNMENT_A = 5
    ALIGNMENT_B = 6
    ALIGNMENT_C = 7
    ALIGNMENT_D = 8


class Epilogue(enum.IntFlag):
    """What is done to the elements of a result."""

    PLAIN = 1
    RELU = 2
    BIAS = 4
    GELU = 32


class Algorithm(ctypes.Structure):
    """How a product is computed: opaque."""

    _fields_ = (("data", c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """An algorithm that the library proposes."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}
_HANDLE, _OUT = c_void_p, POINTER(c_void_p)
_SET = (_HANDLE, c_int, c_void_p, c_size_t)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_OUT,),
    "cublasLtDestroy": (_HANDLE,),
    "cublasLtMatmulDescCreate": (_OUT, c_int, c_int),
    "cublasLtMatmulDescDestroy": (_HANDLE,),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatrixLayoutCreate": (_OUT, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (_HANDLE,),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatmulPreferenceCreate": (_OUT,),
    "cublasLtMatmulPreferenceDestroy": (_HANDLE,),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulAlgoGetHeuristic": (
        *(_HANDLE,) * 7, c_int, POINTER(Heuristic), POINTER(c_int),
    ),
    "cublasLtMatmul": (
        *(_HANDLE, _HANDLE, c_void_p, c_void_p, _HANDLE, c_void_p, _HANDLE, c_void_p, c_void_p),
        *(_HANDLE, c_void_p, _HANDLE, c_void_p, c_void_p, c_size_t, c_void_p),
    ),
}  # fmt: skip


def status_text(status: int) -> str:
    """The name of a status."""
    return f"CUBLAS_STATUS_{_STATUS.get(status, status)}"


@dataclass(frozen=True, slots=True)
class Binding:
    """A loaded library.

    Attributes:
        library: with its functions.
        path: where it was found.
        version: for example 130002.
        describe: gives the name of a status.
    """

    library: Library
    path: str
    version: int
    describe: Callable[[int], str] = status_text


def load(driver_version: int, folders: Iterable[Path] | None = None) -> Binding | None:
    """Load the newest library that the driver can run; None if there is none.

    Args:
        driver_version: of the device's driver, for example 13000.
        folders: where to look before the loader's own path; by default `library_folders`.
    """
    searched = list(library_folders() if folders is None else folders)
    for major in MAJORS:
        if major > driver_version // 1000:
            continue
        name = f"{NAME}.{major}"
        found = [str(folder / name) for folder in searched if (folder / name).is_file()]
        for path in (*found, name):
            library = _opened(path)
            if library is not None:
                return Binding(library, path, int(library.cublasLtGetVersion()))
    return None


def _opened(path: str) -> Library | None:
    try:
        library = ctypes.CDLL(path)
        for name, types in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        library.cublasLtGetVersion.restype = c_size_t
        library.cublasLtGetVersion.argtypes = ()
        library.cublasLtGetStatusString.restype = c_char_p
    except (OSError, AttributeError):
        return None
    return library


def library_folders() -> Iterator[Path]:
    """Folders where the library may be: of the toolkit, of NVIDIA's packages and of torch's."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home and os.path.isabs(home):
            yield from (Path(home) / part for part in ("lib64", "lib", "targets/x86_64-linux/lib"))
    for entry in sys.path:
        if os.path.isabs(entry) and os.path.isdir(entry):
            packages = Path(entry)
            yield from sorted(packages.glob("nvidia/*/lib"))
            yield packages / "torch" / "lib"
