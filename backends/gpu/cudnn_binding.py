"""cuDNN's C interface: what `.cudnn` uses of it, and where the library is.

Only the graph interface (``cudnnBackend...``) is used: descriptors with attributes. It is a dozen
functions, the same in all versions 9; what an attribute is called is a number.

Source: NVIDIA's documentation of cuDNN, chapter "Backend API"; numbers as in ``cudnn_graph.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Iterable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from .cublaslt_binding import Binding, library_folders

NAME = "libcudnn.so.9"
_NEEDED = ("libcublasLt.so", "libnvrtc.so")
"""What cuDNN asks the loader for by name, and ends the process if that is not found."""


class Kind(enum.IntEnum):
    """Kinds of descriptors."""

    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    CONVOLUTION_FORWARD = 10
    POINTWISE_OPERATION = 13
    GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17


class Attribute(enum.IntEnum):
    """Attributes of descriptors."""

    POINTWISE_MODE = 0
    POINTWISE_PRECISION = 1
    CONVOLUTION_COMPUTE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_DIMENSIONS = 106
    HEURISTICS_MODE = 200
    HEURISTICS_GRAPH = 201
    HEURISTICS_RESULTS = 202
    CONFIG_ENGINE = 300
    PLAN_HANDLE = 400
    PLAN_CONFIG = 401
    PLAN_WORKSPACE_BYTES = 402
    FORWARD_ALPHA = 700
    FORWARD_BETA = 701
    FORWARD_CONVOLUTION = 702
    FORWARD_WEIGHT = 703
    FORWARD_IMAGE = 704
    FORWARD_RESULT = 705
    POINTWISE_DESCRIPTOR = 750
    POINTWISE_X = 751
    POINTWISE_B = 752
    POINTWISE_Y = 753
    GRAPH_HANDLE = 800
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_TYPE = 901
    TENSOR_SIZES = 902
    TENSOR_STRIDES = 903
    TENSOR_NUMBER = 906
    TENSOR_IS_VIRTUAL = 907
    PACK_NUMBERS = 1000
    PACK_POINTERS = 1001
    PACK_WORKSPACE = 1003
    ENGINE_NOTES = 1303


class ValueType(enum.IntEnum):
    """Types of attributes."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    POINTER = 6
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    NOTE = 11
    POINTWISE_MODE = 14
    DESCRIPTOR = 15


class DataType(enum.IntEnum):
    """Element types."""

    F32 = 0
    F16 = 2
    BF16 = 9


class Pointwise(enum.IntEnum):
    """What is done to each element."""

    ADD = 0
    RELU = 100
    GELU_TANH = 107


class Note(enum.IntEnum):
    """What an engine does to numbers."""

    TENSOR_CORE = 0
    DOWN_CONVERT = 1
    REDUCED_PRECISION = 2
    FFT = 3
    NOT_DETERMINISTIC = 4
    WINOGRAD_13 = 8


HEURISTICS = (3, 2)
"""Modes of heuristics: the recommended one, and the one that always finds an engine."""
CROSS_CORRELATION = 1
_TEXT_BYTES = 512
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (POINTER(c_void_p),),
    "cudnnDestroy": (c_void_p,),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnBackendCreateDescriptor": (c_int, POINTER(c_void_p)),
    "cudnnBackendDestroyDescriptor": (c_void_p,),
    "cudnnBackendFinalize": (c_void_p,),
    "cudnnBackendSetAttribute": (c_void_p, c_int, c_int, c_int64, c_void_p),
    "cudnnBackendGetAttribute": (c_void_p, c_int, c_int, c_int64, POINTER(c_int64), c_void_p),
    "cudnnBackendExecute": (c_void_p, c_void_p, c_void_p),
}


def status_text(library: Any, status: int) -> str:
    """The name of a status, and what the library says about it."""
    name = library.cudnnGetErrorString(status).decode()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    library.cudnnGetLastErrorString(text, _TEXT_BYTES)
    words = " ".join(text.value.decode(errors="replace").split())
    return f"{name}: {words}" if words else name


def load(driver_version: int, folders: Iterable[Path] | None = None) -> Binding | None:
    """Load the library; None if there is none.

    Args:
        driver_version: of the device's driver, for example 13000.
        folders: where to look before the loader's own path; by default `library_folders`.
    """
    searched = list(library_folders() if folders is None else folders)
    for path in _paths(NAME, searched):
        library = _opened(path)
        if library is None:
            continue
        major = int(library.cudnnGetCudartVersion()) // 1000
        needed = [f"{name}.{major}" for name in _NEEDED]
        if major <= driver_version // 1000 and all(_is_loaded(n, searched) for n in needed):
            return Binding(library, path, int(library.cudnnGetVersion()))
    return None


def _paths(name: str, folders: Sequence[Path]) -> list[str]:
    """Where a library may be; the loader's own path is last."""
    return [*(str(folder / name) for folder in folders if (folder / name).is_file()), name]


def _is_loaded(name: str, folders: Sequence[Path]) -> bool:
    """Load a library, so that it is found by its name wherever it lies."""
    for path in _paths(name, folders):
        with contextlib.suppress(OSError):
            ctypes.CDLL(path)
            return True
    return False


def _opened(path: str) -> Any:
    try:
        library = ctypes.CDLL(path)
        for name, types in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        for name in ("cudnnGetVersion", "cudnnGetCudartVersion"):
            function = getattr(library, name)
            function.argtypes, function.restype = (), c_size_t
        library.cudnnGetErrorString.argtypes = (c_int,)
        library.cudnnGetErrorString.restype = c_char_p
        library.cudnnGetLastErrorString.argtypes = (c_char_p, c_size_t)
        library.cudnnGetLastErrorString.restype = None
    except (OSError, AttributeError):
        return None
    return library
