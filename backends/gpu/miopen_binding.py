"""MIOpen's C interface: what `.miopen` uses of it, and where the library is.

Only descriptors and the immediate mode are used: the library lists solutions of a convolution, and
runs the one of a number, in memory that the caller gives. It was tested against a fake library
alone, as there was no AMD device.

Source: AMD's documentation of MIOpen, "Using the find APIs and immediate mode" and the reference of
``miopen.h``; numbers as in that header of ROCm 6 and 7.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Callable, Iterable
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from .cublaslt_binding import Binding
from .hipblaslt_binding import library_folders

NAMES = ("libMIOpen.so.1", "libMIOpen.so")
"""Versions of the interface that are known, newest first."""


class DataType(enum.IntEnum):
    """Element types."""

    F16 = 0
    F32 = 1
    BF16 = 5


class Layout(enum.IntEnum):
    """The order of dimensions in memory; sizes are given in the order NCHW whatever it is."""

    NCHW = 0
    NHWC = 1


class Attribute(enum.IntEnum):
    """Attributes of a convolution."""

    OTHER_F16 = 0  # instructions of gfx90a with less range; 0 never uses them
    DETERMINISTIC = 1
    MATH_TYPE = 3  # since ROCm 7; before there was only PEDANTIC


class MathType(enum.IntEnum):
    """How products of f32 are computed."""

    TF32 = 0
    PEDANTIC = 1


class Algorithm(enum.IntEnum):
    """What a solution does."""

    GEMM = 0
    DIRECT = 1
    FFT = 2
    WINOGRAD = 3
    IMPLICIT_GEMM = 5


class Solution(ctypes.Structure):
    """A way to compute a convolution that the library proposes."""

    _fields_ = (
        ("time_ms", c_float),
        ("workspace_bytes", c_size_t),
        ("number", c_uint64),
        ("algorithm", c_int),
    )


CROSS_CORRELATION = 0
_HANDLE, _OUT = c_void_p, POINTER(c_void_p)
_PROBLEM = (_HANDLE,) * 5  # handle, weight, image, convolution, result
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "miopenGetVersion": (POINTER(c_size_t),) * 3,
    "miopenCreateWithStream": (_OUT, c_void_p),
    "miopenDestroy": (_HANDLE,),
    "miopenSetStream": (_HANDLE, c_void_p),
    "miopenCreateTensorDescriptor": (_OUT,),
    "miopenDestroyTensorDescriptor": (_HANDLE,),
    "miopenSetNdTensorDescriptorWithLayout": (_HANDLE, c_int, c_int, POINTER(c_int), c_int),
    "miopenCreateConvolutionDescriptor": (_OUT,),
    "miopenDestroyConvolutionDescriptor": (_HANDLE,),
    "miopenInitConvolutionNdDescriptor": (
        *(_HANDLE, c_int, POINTER(c_int), POINTER(c_int), POINTER(c_int), c_int),
    ),
    "miopenSetConvolutionGroupCount": (_HANDLE, c_int),
    "miopenSetConvolutionAttribute": (_HANDLE, c_int, c_int),
    "miopenConvolutionForwardGetSolutionCount": (*_PROBLEM, POINTER(c_size_t)),
    "miopenConvolutionForwardGetSolution": (
        *(*_PROBLEM, c_size_t, POINTER(c_size_t), POINTER(Solution)),
    ),
    "miopenConvolutionForwardCompileSolution": (*_PROBLEM, c_uint64),
    "miopenConvolutionForwardImmediate": (
        *(_HANDLE, _HANDLE, c_void_p, _HANDLE, c_void_p, _HANDLE, _HANDLE, c_void_p),
        *(c_void_p, c_size_t, c_uint64),
    ),
}


def load(folders: Iterable[Path] | None = None) -> Binding | None:
    """Load the library; None if there is none.

    Args:
        folders: where to look before the loader's own path; by default `library_folders`.
    """
    searched = list(library_folders() if folders is None else folders)
    for name in NAMES:
        for path in (*(str(folder / name) for folder in searched), name):
            with contextlib.suppress(OSError, AttributeError):
                library = _opened(path)
                return Binding(library, path, _version(library), _describer(library))
    return None


def _opened(path: str) -> Any:
    library = ctypes.CDLL(path)
    for name, types in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    library.miopenGetErrorString.argtypes = (c_int,)
    library.miopenGetErrorString.restype = c_char_p
    return library


def _version(library: Any) -> int:
    parts = [c_size_t() for _ in range(3)]
    library.miopenGetVersion(*map(ctypes.byref, parts))
    major, minor, patch = (part.value for part in parts)
    return major * 1_000_000 + minor * 1000 + patch


def _describer(library: Any) -> Callable[[int], str]:
    def describe(status: int) -> str:
        return str(library.miopenGetErrorString(status).decode(errors="replace"))

    return describe
