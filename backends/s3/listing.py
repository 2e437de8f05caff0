"""Listing objects, although the library gives paths instead of keys.

The library drops a slash at the beginning or at the end of a key, and cannot ask for such a key.
The usual one is an empty object ``a/b/``, which tools make for an empty folder. Its entry would
look as one of ``a/b``, and a listing that goes on behind ``a/b`` would find it again. So three
rules find these entries, of which the first needs no request:

- The store sends keys in the order of their bytes. A path ``p`` that comes behind ``p`` itself, or
  behind a path between ``p`` and ``p/``, is of the key ``p/``.
- An empty object is looked up. If there is none with this path, its key had a slash.
- Keys that begin with a slash come in front of those that begin with a letter or a digit. Where
  they can be, entries are left out until the first object behind ``0`` comes. The store is asked
  for this object before the listing begins, so one that is added in front of it is left out too.

An object with content whose key begins with a slash can have a path behind this first object. Then
the listing fails, as it does for keys that the library cannot read. One case is left: the object
``p/`` has content, and there is none with the key ``p``. It is listed as ``p``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import InvalidPathError, PermissionDeniedError
from obstore.store import S3Store

from ..stores.engine import Produced, at_once
from ..stores.failures import ItemFailed
from ..stores.jobs import Job
from ..stores.listing import Found, listed

if TYPE_CHECKING:
    from obstore import ObjectMeta  # the library has it for type checkers only

_LIMIT = 10_000
_DEFAULT = 1000
_PAGE = 1000
_LOOKUPS_AT_ONCE = 8
_BEHIND_SLASH = "0"
"""The character behind the slash. Only this key itself can be on both sides of the border."""

T = TypeVar("T")


async def list_objects(job: Job[S3Store]) -> Produced:
    """List the objects below a prefix."""
    limit = job.request.number("limit", _DEFAULT, _LIMIT)
    after = job.request.options.get("after")
    start = "" if after is None else (job.prefix + after).strip("/")
    prefix = job.path.rstrip("/")
    objects = ObjectFilter(job.store.client, f"{prefix}/" if prefix else "", start)
    await objects.begin()
    stream = obstore.list(
        job.store.client, prefix or None, offset=start or None, chunk_size=min(limit + 1, _PAGE)
    )
    found: list[Found] = []
    async for page in _readable(stream):
        for meta in await objects.of(page):
            path = meta["path"][len(job.prefix) :]
            modified = meta["last_modified"].astimezone(UTC)
            found.append(Found(path, meta["size"], modified, meta["e_tag"]))
        if len(found) > limit:
            break
    return listed(job.item, job.request, found, limit)


@dataclass(slots=True)
class ObjectFilter:
    """Leaves out the entries of a listing whose keys are not their paths.

    Attributes:
        client: of the store.
        prefix: that all paths begin with; it ends with a slash, or is empty for the whole bucket.
        last: the path before the next one.
        may_begin_with_slash: the next key may be one that begins with a slash.
    """

    client: S3Store
    prefix: str
    last: str
    may_begin_with_slash: bool = field(init=False)
    _exist: dict[str, bool] = field(init=False, default_factory=dict)
    _first: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.may_begin_with_slash = not self.prefix and self.last < _BEHIND_SLASH

    async def begin(self) -> None:
        """Prepare for the first page, before it is asked for."""
        if self.may_begin_with_slash:
            self._first = await _first_path(self.client, _BEHIND_SLASH)

    async def of(self, page: Sequence[ObjectMeta]) -> list[ObjectMeta]:
        """Return the entries of the next page that are of objects with their paths.

        Raises:
            ItemFailed: an object has a key that begins with a slash.
        """
        below = [meta for meta in page if meta["path"] and meta["path"].startswith(self.prefix)]
        empty = [meta["path"] for meta in below if not meta["size"]]
        self._exist.clear()
        await at_once(empty, _LOOKUPS_AT_ONCE, self._look_up)
        return [meta for meta in below if await self._is_object(meta)]

    async def _is_object(self, meta: ObjectMeta) -> bool:
        path = meta["path"]
        if path <= self.last < f"{path}/":
            return False
        if self.may_begin_with_slash and not await self._has_no_slash(meta):
            return False
        if not self._exist.get(path, True):
            return False
        self.last = path
        return True

    async def _has_no_slash(self, meta: ObjectMeta) -> bool:
        """Tell whether the key of an entry is known to begin with no slash."""
        path = meta["path"]
        if path <= _BEHIND_SLASH:
            if path not in self._exist:
                await self._look_up(path)
            return path > self.last
        if path > self._first:  # which has been deleted, or comes later
            self._first = await _first_path(self.client, _BEHIND_SLASH)
        if path > self._first and meta["size"]:
            raise _unreadable()
        self.may_begin_with_slash = path != self._first
        return path == self._first

    async def _look_up(self, path: str) -> None:
        try:
            await obstore.head_async(self.client, path)
        except FileNotFoundError:
            self._exist[path] = False
        except PermissionDeniedError:  # the credentials may list objects, and not read them
            self._exist[path] = True
        else:
            self._exist[path] = True


async def _first_path(client: S3Store, behind: str) -> str:
    """Return the first path behind a key; empty if there is none."""
    async for page in _readable(obstore.list(client, offset=behind, chunk_size=1)):
        for meta in page:
            if meta["path"] > behind:
                return meta["path"]
    return ""


async def _readable(stream: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield the pages of a listing; the library cannot read keys that are not paths."""
    try:
        async for page in stream:
            yield page
    except (ValueError, InvalidPathError):
        raise _unreadable() from None


def _unreadable() -> ItemFailed:
    reason = "an object there has a key with a part that is empty, '.' or '..'"
    return ItemFailed(f"{reason}; list a prefix without it")
