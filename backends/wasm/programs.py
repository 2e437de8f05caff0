"""Compiled modules, each content once, as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dandelion.data import Bytes
from dandelion.function import Digest, digest_of

from .compiler import require
from .compilers import Compilers

KEPT_BYTES = 128 * 1024 * 1024


class Programs:
    """Compiles, and keeps the results that were used last. Safe from any thread.

    Args:
        kept_bytes: how much may be kept.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Digest, bytes] = OrderedDict()
        self._size_bytes = 0
        self._compilers = Compilers()
        self._lock = threading.Lock()

    def compiled(self, main: Bytes) -> bytes:
        """Give the machine code of a module, serialized.

        Raises:
            BackendUnavailable: there is no compiler.
            InvalidFunction, EngineDied, Cancelled: see `Compilers.compile`.
        """
        require()
        digest = digest_of(main)
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
                return found
        made = self._compilers.compile(main)
        with self._lock:
            self._keep(digest, made)
        return made

    def _keep(self, digest: Digest, made: bytes) -> None:
        if digest in self._kept:  # another thread was faster
            return
        self._kept[digest] = made
        self._size_bytes += len(made)
        while self._size_bytes > self._kept_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size_bytes -= len(dropped)

    def close(self) -> None:
        """End the processes that compile. It may be used again, and then starts them anew."""
        self._compilers.close()
