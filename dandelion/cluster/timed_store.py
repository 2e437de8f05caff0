"""A log store whose requests are timed, so that one that does not answer is noticed meanwhile.

A call on a file system that has stopped does not return, so an error of the call comes too late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from dandelion.cluster.log_store import LogStore, StoredHead
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable

SLOW_S = 3.0
"""A request that takes longer, beside the time for its data, makes the store unusable."""
_NS_PER_BYTE = 100
"""The time for data: 10 MB/s."""
_READ_BYTES = 32 << 20
"""What is read is taken to be of this size: a command or a part of a snapshot is smaller."""


class TimedStore(LogStore):
    """See `LogStore`. Reading blobs is not timed: their sizes are not known here.

    Args:
        store: does the work.
        clock: gives the time in nanoseconds.
    """

    def __init__(self, store: LogStore, clock: Callable[[], int]) -> None:
        self.name = store.name
        self._store = store
        self._clock = clock
        self._ends_ns: dict[object, int] = {}  # by request: when it should have ended

    def problem(self) -> CatalogUnavailable | None:
        """Return the error of a request that takes too long now, if there is one. Any thread."""
        now_ns = self._clock()
        if all(end_ns >= now_ns for end_ns in list(self._ends_ns.values())):
            return None
        reason = f"a request to it has taken more than {SLOW_S:g} s so far"
        return CatalogUnavailable(self.name, reason, "check the store, and the network to it")

    def head(self) -> StoredHead | None:
        with self._timed():
            return self._store.head()

    def swap(self, content: bytes, tag: str) -> str:
        with self._timed(len(content)):
            return self._store.swap(content, tag)

    def put(self, name: str, data: Bytes) -> None:
        with self._timed(memoryview(data).nbytes):
            self._store.put(name, data)

    def get(self, name: str) -> Bytes | None:
        if name.startswith("blobs/"):
            return self._store.get(name)
        with self._timed(_READ_BYTES):
            return self._store.get(name)

    def has(self, name: str) -> bool:
        with self._timed():
            return self._store.has(name)

    def delete(self, name: str) -> None:
        with self._timed():
            self._store.delete(name)

    def close(self) -> None:
        self._store.close()

    @contextlib.contextmanager
    def _timed(self, size_bytes: int = 0) -> Iterator[None]:
        request = object()
        limit_ns = int(SLOW_S * 1e9) + size_bytes * _NS_PER_BYTE
        self._ends_ns[request] = self._clock() + limit_ns
        try:
            yield
        finally:
            del self._ends_ns[request]
