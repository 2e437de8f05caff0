"""Reads and digests the sets of asynchronous invocations, in threads where that takes time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import msgspec

from dandelion.asynchronous.records import KeptRequest
from dandelion.asynchronous.store import KeptStore, Part
from dandelion.asynchronous.stored_sets import DamagedSets, decode_sets, encode_sets, size_of
from dandelion.data import Bytes, ItemSet
from dandelion.errors import CatalogCorrupt

Found = TypeVar("Found")

_THREAD_BYTES = 256 * 1024


class KeptReader:
    """Reads from a store. For the loop's thread.

    Args:
        store: of the node.
        threads: that read and digest.
    """

    def __init__(self, store: KeptStore, threads: Executor) -> None:
        self._store = store
        self._threads = threads

    async def read(self, id_: str, part: Part) -> dict[str, ItemSet | None]:
        """Read the inputs or the result of an invocation.

        Raises:
            CatalogCorrupt, CatalogUnavailable: the store cannot give them.
        """
        if self._store.is_durable:
            return await self._in_thread(lambda: _decoded(self._store.read(id_, part), id_, part))
        data = self._store.read(id_, part)
        work = partial(_decoded, data, id_, part)
        return work() if len(data) <= _THREAD_BYTES else await self._in_thread(work)

    async def digest(self, request: KeptRequest, sets: Mapping[str, ItemSet | None]) -> str:
        """Digest everything that makes two requests the same."""
        work = partial(_digest, request, sets)
        return work() if size_of(sets) <= _THREAD_BYTES else await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _decoded(data: Bytes, id_: str, part: Part) -> dict[str, ItemSet | None]:
    try:
        return decode_sets(data)
    except DamagedSets as error:
        raise CatalogCorrupt(f"{part.value} of invocation {id_}", str(error)) from None


def _digest(request: KeptRequest, sets: Mapping[str, ItemSet | None]) -> str:
    """Digest everything that makes two requests the same."""
    found = hashlib.sha256(msgspec.msgpack.encode(request))
    for chunk in encode_sets(dict(sorted(sets.items()))):
        found.update(chunk)
    return found.hexdigest()
