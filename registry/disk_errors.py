"""Errors of the file system and SQLite, converted to errors of the catalogue.

A full disk, a read-only disk and a locked file are temporary; they are never reported as damage.
SQLite often reports only "disk I/O error" or "unable to open database file". Then the cause is
found by writing a small file into the same folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from dandelion.errors import CatalogCorrupt, CatalogUnavailable, DandelionError, DiskFull

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REMEDIES = {
    errno.EROFS: "mount its file system for writing",
    errno.EACCES: "let the user of this process read and write it",
    errno.EPERM: "let the user of this process read and write it",
    errno.EIO: "check the disk and the kernel's log",
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "close files of other programs",
    errno.ENOMEM: "free memory",
}
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_UNCLEAR = frozenset(
    {
        *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
    }
)
_PROBE_BYTES = 64 * 1024


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Convert exceptions of the file system and SQLite to the catalogue's errors.

    Args:
        path: the file or folder in use.

    Raises:
        DiskFull: no space is left, or a quota is used up.
        CatalogUnavailable: locked, read-only, not permitted, or an I/O error.
        CatalogCorrupt: anything else.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise of_sqlite(error, path) from None
    except OSError as error:
        raise of_system(error, path) from None
    except UnicodeDecodeError as error:  # instead of SQLite's error, if that quotes damaged bytes
        raise CatalogCorrupt(str(path), f"it has text that is not UTF-8: {error}") from None


def of_system(error: OSError, path: Path, needed_bytes: int = 0) -> DandelionError:
    """Return the catalogue's error for one of the file system.

    Args:
        error: the exception.
        path: the file in use, if the error does not name one.
        needed_bytes: size of the data to write.
    """
    where = os.fsdecode(error.filename) if error.filename else str(path)
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(where, reason, needed_bytes, _free_bytes(path))
    if error.errno in _REMEDIES:
        return CatalogUnavailable(where, reason, _REMEDIES[error.errno])
    return CatalogCorrupt(where, reason)


def of_sqlite(error: sqlite3.Error, path: Path) -> DandelionError:
    """Return the catalogue's error for one of SQLite on the file `path`."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extension
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(str(path), os.strerror(errno.ENOSPC), 0, _free_bytes(path))
    if code in _LOCKED:
        remedy = "end that program, or wait for it, and try again"
        return CatalogUnavailable(str(path), "another program has it locked", remedy)
    if code in _UNCLEAR:
        cause = _probe_file_system(path)
        if cause is not None:
            return of_system(cause, path)
        return CatalogUnavailable(str(path), str(error), _REMEDIES[errno.EIO])
    return CatalogCorrupt(str(path), str(error))


def _probe_file_system(path: Path) -> OSError | None:
    """Read the file and write another one beside it; return the system's error, if any."""
    probe = path.with_name(f"probe.{secrets.token_hex(4)}")
    try:
        with path.open("r+b") as file:
            file.read(1)
        try:
            with probe.open("xb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None


def _free_bytes(path: Path) -> int:
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return 0
