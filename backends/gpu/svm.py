"""Memory that an OpenCL device shares with the host, in whole pages."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from dandelion.memory.context import PAGE_BYTES
from dandelion.memory.lease import address_of

from .device_facts import Protection

_PROT_READ, _PROT_WRITE = 1, 2
_RIGHTS = {
    Protection.NONE: 0,
    Protection.READ: _PROT_READ,
    Protection.WRITE: _PROT_READ | _PROT_WRITE,
}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class SharedRange:
    """Fine-grained shared virtual memory that begins and ends with a page.

    Args:
        cl: the binding.
        context: of the device.
        size_bytes: how much; rounded up to pages.

    Attributes:
        array: the bytes, as an array.
        address: of the first one.

    Raises:
        MemoryError: there is not that much.
    """

    def __init__(self, cl: Any, context: Any, size_bytes: int) -> None:
        self._size_bytes = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        self._whole = cl.fsvm_empty(context, (self._size_bytes + PAGE_BYTES,), "u1")
        start = -address_of(self._whole.data) % PAGE_BYTES
        self.array = self._whole[start : start + self._size_bytes]
        self.address = address_of(self.array.data)

    def zero(self) -> None:
        """Overwrite all of it; it is open for writing."""
        ctypes.memset(self.address, 0, self._size_bytes)

    def protect(self, protection: Protection) -> None:
        """Set what code of this process may do with it.

        Raises:
            OSError: the system refuses.
        """
        if _libc.mprotect(self.address, self._size_bytes, _RIGHTS[protection]):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
