"""The heap domain: contexts on the process's own heap. For tests and trusted embedded use."""

from __future__ import annotations

import threading
from functools import partial
from typing import ClassVar

import numpy as np

from dandelion.errors import ContextFull
from dandelion.memory.context import Context, DomainStats, MemoryDomain
from dandelion.memory.lease import leased_view


class HeapDomain(MemoryDomain):
    """Contexts of fresh, zeroed heap memory, bounded in their sum.

    Args:
        capacity_bytes: largest sum of leased contexts.
    """

    kind: ClassVar[str] = "heap"

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._contexts = 0
        self._lock = threading.RLock()  # the collector may end a lease in the same thread

    def _acquire(self, size_bytes: int) -> Context:
        with self._lock:
            if self._used_bytes + size_bytes > self._capacity_bytes:
                raise ContextFull(self.kind, size_bytes, self._capacity_bytes - self._used_bytes)
            self._used_bytes += size_bytes
            self._contexts += 1
        release = partial(self._release, size_bytes)
        try:
            block = np.zeros(size_bytes, dtype=np.uint8).data
        except MemoryError:
            release()
            raise ContextFull(self.kind, size_bytes, 0) from None
        return Context(self, 0, size_bytes, leased_view(block, 0, size_bytes, release))

    def _release(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes
            self._contexts -= 1

    def stats(self) -> DomainStats:
        return DomainStats(self._capacity_bytes, self._used_bytes, self._contexts)
