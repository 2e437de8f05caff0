"""Blobs under their digests.

A blob is identified by the SHA-256 of its bytes. Hashing takes a second for each gigabyte or two,
so the blobs of one registration are hashed once, on several threads: see `Blobs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from dandelion.data import Bytes
from dandelion.function import Digest, digest_of

_THREADS = min(8, os.cpu_count() or 1)
_WORTH_THREADS_BYTES = 4 * 1024 * 1024


class Blobs(Mapping[Digest, Bytes]):
    """Blobs by digest. The digests were computed here, so they need no further check.

    Bytes objects that were added before are recognized by identity and not hashed again.
    """

    def __init__(self) -> None:
        self._blobs: dict[Digest, bytes] = {}
        self._digests: dict[int, Digest] = {}  # by id; `_blobs` keeps the bytes, so ids stay unique

    def add(self, data: bytes) -> Digest:
        """Hash a blob and store it."""
        data = bytes(data)  # a copy only if it is mutable
        known = self._digests.get(id(data))
        return known if known is not None else self._store(data, digest_of(data))

    def add_all(self, blobs: Iterable[bytes]) -> None:
        """Hash and store many blobs, on several threads if they are large."""
        given = {id(data): data for data in map(bytes, blobs)}
        missing = [data for key, data in given.items() if key not in self._digests]
        if len(missing) > 1 and sum(map(len, missing)) > _WORTH_THREADS_BYTES:
            with ThreadPoolExecutor(_THREADS, "digest") as threads:
                digests = list(threads.map(digest_of, missing))
        else:
            digests = [digest_of(data) for data in missing]
        for data, digest in zip(missing, digests, strict=True):
            self._store(data, digest)

    def _store(self, data: bytes, digest: Digest) -> Digest:
        if digest not in self._blobs:
            self._digests[id(data)] = digest
            self._blobs[digest] = data
        return digest

    def __getitem__(self, digest: Digest) -> Bytes:
        return self._blobs[digest]

    def __iter__(self) -> Iterator[Digest]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)
