"""Contexts, and the contract of the domains that allocate them.

A `Context` is a zeroed, bounded piece of memory. Functions' inputs and outputs are in contexts, and
items refer to them by views. **Lifetime is reference counting alone**: a view keeps its context
alive; when the context and the last view into it are gone, a lease returns the bytes to the domain.
This applies to a user's numpy array as to the dispatcher's sets. So memory with a view cannot be
freed, and no memory can leak.

States of a piece of memory::

    free (zero) --acquire--> leased --last view gone--> returned (dirty) --recycle--> free (zero)
                                ^----------acquire_to_fill--------'

`_acquire` may only return zeroed bytes. Memory that the engine itself overwrites at once need not
be zeroed before (`acquire_to_fill`). Releasing memory is one append to a queue, since it may happen
anywhere, even inside the garbage collector; `recycle` zeroes it later.
"""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np

from dandelion.data import Bytes
from dandelion.errors import ContextFull, InvalidInput

PAGE_BYTES = 4096
_UNLOCKED_BYTES = 256 * 1024  # copying it takes longer than reacquiring the interpreter's lock


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


class Context(msgspec.Struct, eq=False):
    """A bounded, zeroed piece of a domain's memory.

    Attributes:
        domain: the domain that allocated it.
        offset_bytes: start within the domain's address range (0 where there is none).
        size_bytes: usable length.
        view: writable view of exactly these bytes.
    """

    domain: MemoryDomain
    offset_bytes: int
    size_bytes: int
    view: memoryview

    def write(self, offset_bytes: int, data: Bytes) -> memoryview:
        """Copy `data` in and return a read-only view of it.

        Raises:
            ContextFull: the data does not fit after `offset_bytes`.
        """
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        end = offset_bytes + size
        if offset_bytes < 0 or end > self.size_bytes:
            raise ContextFull("context", end, self.size_bytes)
        target = self.view[offset_bytes:end]
        if size >= _UNLOCKED_BYTES and (not isinstance(data, memoryview) or data.c_contiguous):
            np.copyto(np.frombuffer(target, _U8), np.frombuffer(data, _U8))  # releases the lock
            return target.toreadonly()
        if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
            data = data.cast("B")  # a view of an array of numbers
        target[:] = data
        return target.toreadonly()

    def read(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """View a part, read-only.

        Raises:
            ContextFull: the part is not inside the context.
        """
        end = offset_bytes + size_bytes
        if offset_bytes < 0 or size_bytes < 0 or end > self.size_bytes:
            raise ContextFull("context", end, self.size_bytes)
        return self.view[offset_bytes:end].toreadonly()


@dataclass(frozen=True, slots=True)
class DomainStats:
    """The usage of a domain. All sizes in bytes.

    `used_bytes` counts memory in contexts that still have views; `contexts` counts these.
    """

    capacity_bytes: int
    used_bytes: int
    contexts: int


class MemoryDomain(abc.ABC):
    """Allocates contexts from one kind of memory. Safe to call from any thread.

    Attributes:
        kind: name of the kind of memory; transfers are chosen by pairs of kinds.
    """

    kind: ClassVar[str]

    def acquire(self, size_bytes: int) -> Context:
        """Allocate a zeroed context of at least one byte.

        Raises:
            InvalidInput: the size is not positive.
            ContextFull: the domain has too little free memory; nothing changed.
        """
        if size_bytes <= 0:
            raise InvalidInput(
                "context", f"{size_bytes} bytes are not a valid size", "give 1 or more"
            )
        return self._acquire(size_bytes)

    def acquire_to_fill(self, size_bytes: int) -> Context:
        """Allocate a context for a caller that overwrites all of it at once; raises as `acquire`.

        It may have any content, so memory need not be zeroed first.
        """
        return self.acquire(size_bytes)

    def recycle(self) -> int:
        """Zero returned memory and make it free again. Returns the number of zeroed bytes."""
        return 0

    def locate(self, data: Bytes) -> int | None:
        """Return the offset of `data` in this domain's memory, or None if it is elsewhere."""
        return None

    @abc.abstractmethod
    def _acquire(self, size_bytes: int) -> Context: ...

    @abc.abstractmethod
    def stats(self) -> DomainStats:
        """Return the usage."""

    def close(self) -> None:
        """Return the memory to the system. Existing views stay valid."""


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
