"""Blobs under their digests.

A blob is named by the SHA-256 of its bytes. That costs a second for each gigabyte or two, so what
comes with one registration is named once, and by several threads: see `Blobs`.
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
    """Blobs by digest. What is in here was named here, so the digests need no second look.

    Bytes that were added before are known by identity and cost nothing.
    """

    def __init__(self) -> None:
        self._blobs: dict[Digest, bytes] = {}
        self._named: dict[int, Digest] = {}  # by id; `_blobs` holds the bytes, so ids stay theirs

    def add(self, data: bytes) -> Digest:
        """Name a blob and keep it."""
        data = bytes(data)  # itself, unless it is something that might change
        known = self._named.get(id(data))
        return known if known is not None else self._keep(data, digest_of(data))

    def add_all(self, blobs: Iterable[bytes]) -> None:
        """Name many blobs, on several threads where that pays."""
        given = {id(data): data for data in map(bytes, blobs)}
        wanted = [data for key, data in given.items() if key not in self._named]
        if len(wanted) > 1 and sum(map(len, wanted)) > _WORTH_THREADS_BYTES:
            with ThreadPoolExecutor(_THREADS, "digest") as threads:
                digests = list(threads.map(digest_of, wanted))
        else:
            digests = [digest_of(data) for data in wanted]
        for data, digest in zip(wanted, digests, strict=True):
            self._keep(data, digest)

    def _keep(self, data: bytes, digest: Digest) -> Digest:
        if digest not in self._blobs:
            self._named[id(data)] = digest
            self._blobs[digest] = data
        return digest

    def __getitem__(self, digest: Digest) -> Bytes:
        return self._blobs[digest]

    def __iter__(self) -> Iterator[Digest]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)
