"""Blobs as files: one file for each content, named by its digest alone.

A blob is written to ``staging/``, flushed to the disk, renamed to ``blobs/ab/cdef...`` and its
folder flushed too; only then may a record refer to it. So a file below ``blobs/`` is complete
unless the disk is damaged, and every read checks the digest. Files that no record refers to are
deleted when the folder is opened; a process that was killed between two of these steps leaves them.

A file is never changed in place. Removing one does not affect existing mappings.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from dandelion.data import Bytes
from dandelion.errors import CatalogCorrupt, Unknown
from dandelion.function import Digest, digest_of

from .disk_errors import of_system

MAPPED_BYTES = 64 * 1024
"""Blobs from this size on are mapped; smaller ones are cheaper to copy."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREFIX_LENGTH = 2


class BlobFolder:
    """The blobs of a catalogue. Reads and writes may come from any thread.

    Args:
        root: the catalogue's folder.
        is_used: whether a record refers to a blob; on opening, all others are deleted.
    """

    def __init__(self, root: Path, is_used: Callable[[Digest], bool]) -> None:
        self._blobs = root / "blobs"
        self._staging = root / "staging"
        self._mapped: weakref.WeakValueDictionary[Digest, mmap.mmap] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._blobs.mkdir(exist_ok=True)
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(exist_ok=True)
        self._stored = self._sweep(is_used)
        flush_folder(root)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._stored

    def write(self, digest: Digest, data: Bytes) -> None:
        """Store a blob durably.

        Raises:
            DiskFull: the disk is full; nothing is left behind.
            CatalogUnavailable, CatalogCorrupt: the file system refuses for another reason.
        """
        target = self._path(digest)
        staged = self._staging / f"{digest}.{secrets.token_hex(4)}"
        try:
            _write_flushed(staged, data)
            if not target.parent.exists():
                target.parent.mkdir(exist_ok=True)
                flush_folder(self._blobs)
            staged.replace(target)
            flush_folder(target.parent)
        except OSError as error:
            with contextlib.suppress(OSError):  # else it is deleted when the folder is opened
                staged.unlink()
            raise of_system(error, self._blobs, memoryview(data).nbytes) from None
        with self._lock:
            self._mapped.pop(digest, None)
            self._stored.add(digest)

    def read(self, digest: Digest) -> Bytes:
        """Read a blob: small ones as bytes, large ones as a view of the mapped file.

        Raises:
            Unknown: it is not stored.
            CatalogCorrupt: it is gone, or its bytes no longer match its digest. It then counts as
                not stored, so that registering it again repairs it.
            CatalogUnavailable: it cannot be read now.
        """
        if digest not in self._stored:
            raise Unknown("blob", digest)
        with self._lock:
            mapped = self._mapped.get(digest)
        if mapped is not None:
            return memoryview(mapped)
        path = self._path(digest)
        try:
            return self._load(digest, path)
        except OSError as error:
            found = of_system(error, path)
            if isinstance(found, CatalogCorrupt):
                self._stored.discard(digest)
            raise found from None

    def size_bytes(self, digest: Digest) -> int:
        """Return the size of a blob; 0 if it is missing."""
        try:
            return os.stat(self.path(digest)).st_size
        except OSError:
            return 0

    def delete(self, digest: Digest) -> None:
        """Delete a blob. Views of it stay valid.

        A file that cannot be removed now, as on a disk that became read-only, is deleted when the
        folder is opened.
        """
        self._stored.discard(digest)
        with self._lock:
            self._mapped.pop(digest, None)
        if is_digest(digest):
            with contextlib.suppress(OSError):
                self._path(digest).unlink()

    def path(self, digest: Digest) -> Path:
        """Return the path of a blob."""
        return self._path(digest)

    def _path(self, digest: Digest) -> Path:
        assert is_digest(digest)
        return self._blobs / digest[:_PREFIX_LENGTH] / digest[_PREFIX_LENGTH:]

    def _load(self, digest: Digest, path: Path) -> Bytes:
        mapped: mmap.mmap | None = None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < MAPPED_BYTES:
                data: Bytes = file.read()
            else:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                data = memoryview(mapped)
        if digest_of(data) != digest:
            self._stored.discard(digest)
            raise CatalogCorrupt(str(path), f"its {size} bytes do not have the blob's digest")
        if mapped is not None:
            with self._lock:
                self._mapped[digest] = mapped
        return data

    def _sweep(self, is_used: Callable[[Digest], bool]) -> set[Digest]:
        kept: set[Digest] = set()
        for digest, file in blob_files(self._blobs):
            if is_used(digest):
                kept.add(digest)
            else:
                file.unlink()
        return kept


def is_digest(text: str) -> bool:
    """Tell whether a text is a valid digest."""
    return _DIGEST.fullmatch(text) is not None


def blob_files(blobs: Path) -> Iterator[tuple[Digest, Path]]:
    """List the files of a folder ``blobs/`` that are named as blobs; none if there is no folder."""
    if not blobs.is_dir():
        return
    for folder in blobs.iterdir():
        if not folder.is_dir():
            continue
        for file in folder.iterdir():
            if len(folder.name) == _PREFIX_LENGTH and is_digest(folder.name + file.name):
                yield Digest(folder.name + file.name), file


def flush_folder(path: Path) -> None:
    """Make changes of the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_flushed(path: Path, data: Bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
