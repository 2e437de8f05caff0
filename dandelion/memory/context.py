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
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from mypy_extensions import mypyc_attr

from dandelion.data import Bytes
from dandelion.errors import ContextFull, InvalidInput

PAGE_BYTES = 4096
_UNLOCKED_BYTES = 256 * 1024  # copying it takes longer than reacquiring the interpreter's lock
_U8 = np.dtype(np.uint8)


class Context:
    """A bounded, zeroed piece of a domain's memory.

    Attributes:
        domain: the domain that allocated it.
        offset_bytes: start within the domain's address range (0 where there is none).
        size_bytes: usable length.
        view: writable view of exactly these bytes.
    """

    __slots__ = ("domain", "offset_bytes", "size_bytes", "view")

    def __init__(
        self, domain: MemoryDomain, offset_bytes: int, size_bytes: int, view: memoryview
    ) -> None:
        self.domain = domain
        self.offset_bytes = offset_bytes
        self.size_bytes = size_bytes
        self.view = view

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


@mypyc_attr(allow_interpreted_subclasses=True)
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
