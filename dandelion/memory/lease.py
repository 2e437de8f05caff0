"""Pieces of memory that return to their domain with their last view, and addresses of data.

This module is interpreted in any case: a compiled class cannot derive from an array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from dandelion.data import Bytes


class Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Owns a piece of memory; calls `release` once, when the last view is gone.

    Every memoryview or array that is derived from it keeps it alive, and it keeps the memory.
    """

    release: Callable[[], object] | None = None  # of a derived array: nothing

    def __del__(self) -> None:
        if self.release is not None:
            self.release()


def leased_view(
    memory: memoryview, offset_bytes: int, size_bytes: int, release: Callable[[], object]
) -> memoryview:
    """View a part of a memory; `release` is called when the last view of this part is gone."""
    lease = Lease((size_bytes,), _U8, memory, offset_bytes)
    lease.release = release
    return lease.data


def address_of(data: Bytes) -> int:
    """Return the address of the first byte of a bytes-like object that is not empty.

    An array object begins with the header of all objects and the pointer to its data. Reading this
    pointer takes a third of the time of numpy's own way, and is done for every item of a call.

    Source: ``PyArrayObject_fields`` in numpy's ``ndarraytypes.h``.
    """
    array = np.frombuffer(data, _U8)
    return int(_POINTER.from_address(id(array) + _DATA).value)


_U8 = np.dtype(np.uint8)
_POINTER = ctypes.c_size_t
_DATA = object.__basicsize__
