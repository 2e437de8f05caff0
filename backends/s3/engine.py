"""Requests to S3-compatible stores over obstore, whose own threads do the network's work.

An object is asked for once. Its size comes with the head of the answer, and is counted against the
limits before the body is received. A small body arrives as one piece, a larger one is written into
its context piece by piece. Contents above ``part_bytes`` are written in parts; until the last one
is there, the object is as it was.

The library follows redirects of reads, and has no option against that. But a service must not
choose which addresses the node connects to. So everything but the host of the endpoint is reached
through a proxy, and the address of this proxy is one that nothing can listen on (`NOWHERE`). A
redirect to another host ends there, before its name is resolved. Proxies of the environment are not
used, either.
"""

from __future__ import annotations

from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from dandelion.data import Bytes

from ..stores.engine import Produced, StoresEngine, StoreWork
from ..stores.failures import ItemFailed, ItemRefused
from ..stores.jobs import Job
from ..stores.request import ByteRange, read_range
from .errors import failure_of, is_absent
from .listing import list_objects
from .opening import opened_store
from .settings import S3StoreSettings

WHOLE_BYTES = 1024 * 1024
"""Bodies up to this size arrive in one piece."""

PIECE_BYTES = 1024 * 1024
_PARTS_AT_ONCE = 4
_KEY_LIMIT_BYTES = 1024
_RAISED = (BaseError, ValueError, OSError)

S3Work = StoreWork[S3Store]
S3Job = Job[S3Store]


class S3Engine(StoresEngine[S3Store, S3StoreSettings]):
    """Performs the requests of many calls at once."""

    name = "s3"

    def _open_store(self, name: str, given: S3StoreSettings) -> S3Store:
        return opened_store(name, given, self._settings)

    def _check_path(self, path: str, is_prefix: bool) -> None:
        if len(path.encode()) > _KEY_LIMIT_BYTES:
            raise ItemRefused(f"the path has more than {_KEY_LIMIT_BYTES} bytes")
        parts = path.split("/")
        if is_prefix and parts[-1] == "":  # the whole store, or a prefix with a slash at its end
            parts.pop()
        if any(part in ("", ".", "..") for part in parts):
            raise ItemRefused(f"path '{path[:80]}' has a part that is empty, '.' or '..'")

    async def _one(self, work: S3Work, job: S3Job) -> Produced:
        try:
            match work.operation.name:
                case "get":
                    return await _get(work, job)
                case "put":
                    return await self._put(job)
                case "list":
                    return await list_objects(job)
                case _:
                    await obstore.delete_async(job.store.client, job.path)
                    return [(0, job.named(job.line))]
        except _RAISED as error:
            raise failure_of(error) from None

    async def _put(self, job: S3Job) -> Produced:
        settings = self._settings.stores[job.store.name]
        content: Any = job.content if len(job.content) else b""
        await obstore.put_async(
            job.store.client,
            job.path,
            content,
            use_multipart=len(job.content) > settings.part_bytes,
            chunk_size=settings.part_bytes,
            max_concurrency=_PARTS_AT_ONCE,
        )
        return [(0, job.named(job.line))]

    async def close(self) -> None:
        self._stores.clear()  # a client closes its connections when it is dropped


async def _get(work: S3Work, job: S3Job) -> Produced:
    wanted = read_range(job.request.options.get("range"))
    options: Any = {} if wanted is None else {"range": _range(wanted)}
    try:
        result = await obstore.get_async(job.store.client, job.path, options=options)
    except FileNotFoundError as error:
        if not is_absent(error):
            raise
        return [(1, job.named(job.line))]
    start, end = result.range
    size = end - start
    work.budget.take(job.item.name, size)
    return [(0, job.named(await _receive(work, result, size)))]


async def _receive(work: S3Work, result: obstore.GetResult, size_bytes: int) -> Bytes:
    if not size_bytes:
        return b""
    if size_bytes <= WHOLE_BYTES:
        body = memoryview(await result.bytes_async())
        if len(body) != size_bytes:
            raise _incomplete(len(body), size_bytes)
        return work.budget.placed(body)
    context = work.budget.context(size_bytes)
    offset = 0
    async for piece in result.stream(min_chunk_size=PIECE_BYTES):
        if offset + len(piece) > size_bytes:
            raise _incomplete(offset + len(piece), size_bytes)
        context.write(offset, piece)
        offset += len(piece)
    if offset != size_bytes:
        raise _incomplete(offset, size_bytes)
    return context.read(0, size_bytes)


def _incomplete(found: int, size_bytes: int) -> ItemFailed:
    return ItemFailed(f"the answer has {found} bytes instead of {size_bytes}", transient=True)


def _range(wanted: ByteRange) -> Any:
    if wanted.first is None:
        return {"suffix": wanted.last}
    if wanted.last is None:
        return {"offset": wanted.first}
    return (wanted.first, wanted.last + 1)
