"""Memory domains that wrap a domain: a limit, a ledger, failures on demand."""

from __future__ import annotations

import threading
import weakref
from typing import ClassVar

from dandelion.data import Bytes
from dandelion.errors import ContextFull
from dandelion.memory.context import Context, DomainStats, MemoryDomain


class _Wrapper(MemoryDomain):
    kind: ClassVar[str] = "wrapped"

    def __init__(self, inner: MemoryDomain) -> None:
        self.inner = inner

    def _acquire(self, size_bytes: int) -> Context:
        return self.inner.acquire(size_bytes)

    def recycle(self) -> int:
        return self.inner.recycle()

    def locate(self, data: Bytes) -> int | None:
        return self.inner.locate(data)

    def stats(self) -> DomainStats:
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()


class Limited(_Wrapper):
    """Refuses single contexts above `limit_bytes`."""

    def __init__(self, inner: MemoryDomain, limit_bytes: int) -> None:
        super().__init__(inner)
        self._limit_bytes = limit_bytes

    def _acquire(self, size_bytes: int) -> Context:
        if size_bytes > self._limit_bytes:
            raise ContextFull(self.inner.kind, size_bytes, self._limit_bytes)
        return self.inner.acquire(size_bytes)


class Tracked(_Wrapper):
    """Remembers which contexts are alive: `alive` lists their sizes in bytes."""

    def __init__(self, inner: MemoryDomain) -> None:
        super().__init__(inner)
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()
        self.acquired = 0

    @property
    def alive(self) -> list[int]:
        """Sizes of the contexts whose memory is still referred to."""
        return list(self._sizes.values())

    def _acquire(self, size_bytes: int) -> Context:
        context = self.inner.acquire(size_bytes)
        with self._lock:
            self.acquired += 1
            number = self.acquired
        self._sizes[number] = size_bytes
        # The array under the view lives exactly as long as any view into the context.
        weakref.finalize(context.view.obj, self._sizes.pop, number, None)
        return context


class Failing(_Wrapper):
    """Gives `after` contexts and then fails every time, as a full domain does."""

    def __init__(self, inner: MemoryDomain, after: int) -> None:
        super().__init__(inner)
        self.left = after

    def _acquire(self, size_bytes: int) -> Context:
        if self.left <= 0:
            raise ContextFull(self.inner.kind, size_bytes, 0)
        self.left -= 1
        return self.inner.acquire(size_bytes)
