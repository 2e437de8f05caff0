"""A cache of compiled modules by content."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dandelion.data import Bytes
from dandelion.function import Digest, digest_of

from .compiler import require
from .compilers import Compilers

CACHE_BYTES = 128 * 1024 * 1024


class WasmPrograms:
    """Compiles modules, and caches the most recently used ones. Safe from any thread.

    Args:
        cache_bytes: size of the cache.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[Digest, bytes] = OrderedDict()
        self._size_bytes = 0
        self._compilers = Compilers()
        self._lock = threading.Lock()

    def compiled(self, main: Bytes) -> bytes:
        """Return the machine code of a module, serialized.

        Raises:
            BackendUnavailable: there is no compiler.
            InvalidFunction, EngineDied, Cancelled: see `Compilers.compile`.
        """
        require()
        digest = digest_of(main)
        with self._lock:
            found = self._cache.get(digest)
            if found is not None:
                self._cache.move_to_end(digest)
                return found
        made = self._compilers.compile(main)
        with self._lock:
            self._store(digest, made)
        return made

    def _store(self, digest: Digest, made: bytes) -> None:
        if digest in self._cache:  # another thread was faster
            return
        self._cache[digest] = made
        self._size_bytes += len(made)
        while self._size_bytes > self._cache_bytes and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._size_bytes -= len(dropped)

    def close(self) -> None:
        """Kill the compile processes. It may be used again, and then starts new ones."""
        self._compilers.close()
