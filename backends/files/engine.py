"""Calls of file operations in threads of the engine.

A thread that was begun ends by itself: the system has no way to interrupt it. When its call is
cancelled or late, it stops before the next piece, and the call does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dandelion.data import Item
from dandelion.errors import BackendUnavailable

from ..stores.engine import Produced, StoresEngine, StoreWork
from ..stores.failures import ItemFailed, ItemRefused
from ..stores.jobs import Job, Operation
from ..stores.listing import listed
from ..stores.request import read_range
from ..stores.settings import StoresSettings
from .folder import opened_folder, parts_of, read_file, write_file
from .settings import FilesStoreSettings
from .tree import TreeWalk

_TRANSIENT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    | {errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.ETXTBSY}
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LIST_LIMIT = 10_000
_LIST_DEFAULT = 1000


class FolderHandle:
    """The descriptor of a folder that the operator named. For any thread.

    A folder that was removed is opened again: files would be missing in it that are in the one that
    has its path now.

    Args:
        path: of the folder.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fd = os.open(path, _FOLDER)

    @contextlib.contextmanager
    def used(self) -> Iterator[int]:
        """Give a descriptor of its own, so that closing the engine closes no one that is in use.

        Raises:
            ItemFailed: the folder was removed.
        """
        with self._lock:
            if not os.fstat(self._fd).st_nlink:
                self._open_again()
            fd = os.dup(self._fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_again(self) -> None:
        try:
            fd = os.open(self._path, _FOLDER)
        except OSError as error:
            reason = f"the folder of the store was removed: {error.strerror}"
            raise ItemFailed(reason, transient=True) from None
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close it. May be called twice."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


FileWork = StoreWork[FolderHandle]
FileJob = Job[FolderHandle]


class Unwanted(Exception):
    """The call of a thread has ended."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Stops a thread between pieces."""

    flag: threading.Event

    def __call__(self) -> None:
        if self.flag.is_set():
            raise Unwanted


class FilesEngine(StoresEngine[FolderHandle, FilesStoreSettings]):
    """Reads, writes and lists files for many calls at once."""

    name = "files"

    def __init__(
        self, settings: StoresSettings[FilesStoreSettings], operations: Mapping[str, Operation]
    ) -> None:
        with contextlib.ExitStack() as opened:  # closes them if one cannot be opened
            self._opened = opened
            super().__init__(settings, operations)
            self._opened = opened.pop_all()
        self._threads = ThreadPoolExecutor(settings.concurrency, "dandelion-files")

    def _open_store(self, name: str, given: FilesStoreSettings) -> FolderHandle:
        try:
            handle = FolderHandle(given.folder)
        except OSError as error:
            reason = f"the folder of store '{name}' cannot be opened: {error.strerror}"
            remedy = "create it, and let the node's user read it"
            raise BackendUnavailable("files", reason, remedy) from None
        self._opened.callback(handle.close)
        return handle

    def _check_path(self, path: str, is_prefix: bool) -> None:
        parts_of(path, is_prefix)

    async def _one(self, work: FileWork, job: FileJob) -> Produced:
        flag = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._done, work, job, Stopping(flag))
        finally:
            flag.set()

    def _done(self, work: FileWork, job: FileJob, check: Stopping) -> Produced:
        """Do a job, in a thread."""
        check()
        try:
            with job.store.client.used() as root:
                return self._operate(work, job, root, check)
        except OSError as error:
            raise _failure(error) from None

    def _operate(self, work: FileWork, job: FileJob, root: int, check: Stopping) -> Produced:
        settings = self._settings.stores[job.store.name]
        parts = [*parts_of(job.prefix, True), *parts_of(job.request.path, work.operation.lists)]
        match work.operation.name:
            case "read":
                wanted = read_range(job.request.options.get("range"))
                most, name = settings.file_bytes, job.item.name
                data = read_file(root, parts, wanted, most, name, work.budget, check)
                return [(1, job.named(job.line)) if data is None else (0, job.named(data))]
            case "write":
                if len(job.content) > settings.file_bytes:
                    message = f"the content has {len(job.content)} bytes"
                    raise ItemRefused(f"{message}, more than {settings.file_bytes}")
                keep = settings.keep_free_bytes
                write_file(root, parts, job.content, keep, settings.sync, check)
                return [(0, job.named(job.line))]
            case _:
                return _list(job, root, parts, check)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self._opened.close()
        self._stores.clear()


def _list(job: FileJob, root: int, parts: list[str], check: Stopping) -> list[tuple[int, Item]]:
    limit = job.request.number("limit", _LIST_DEFAULT, _LIST_LIMIT)
    after = tuple(job.request.options.get("after", "").split("/"))
    above = tuple(part for part in job.request.path.split("/") if part)
    walk = TreeWalk(check, after if any(after) else ())
    try:
        with opened_folder(root, parts) as folder:
            found = list(itertools.islice(walk.files(folder, above), limit + 1))
    except FileNotFoundError:
        found = []
    return listed(job.item, job.request, found, limit)


def _failure(error: OSError) -> ItemFailed:
    """Make the failure of an item. It has no path: the operator's folder is no one else's."""
    if isinstance(error, PermissionError):
        return ItemFailed("the node's user may not do that here")
    reason = error.strerror or type(error).__name__
    return ItemFailed(f"the system says: {reason}", error.errno in _TRANSIENT)
