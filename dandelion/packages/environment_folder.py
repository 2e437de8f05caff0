"""The folder of one environment: sealed when complete, checked before use, locked, removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path

import msgspec

from dandelion.errors import InternalError, InvalidInput
from dandelion.function import Digest

LOCK = ".lock"
RECORD = "environment.json"
SITE = "site"


class EnvironmentRecord(msgspec.Struct, frozen=True):
    """What belongs into an environment."""

    wheels: dict[str, Digest]
    files: int
    size_bytes: int


def sealed(site: Path, wheels: dict[str, Digest]) -> EnvironmentRecord:
    """Check what was unpacked, make it this user's and read-only, and count it.

    Raises:
        InternalError: there are other things than files and folders.
    """
    user, group = os.geteuid(), os.getegid()
    files = size_bytes = 0
    for folder, folders, names in os.walk(site, topdown=False):
        if any(os.path.islink(os.path.join(folder, name)) for name in folders):
            raise InternalError("preparing packages made a link")
        for name in names:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise InternalError("preparing packages made something that is not a file")
            os.chown(path, user, group, follow_symlinks=False)
            os.chmod(path, 0o444)
            files, size_bytes = files + 1, size_bytes + found.st_size
        os.chown(folder, user, group, follow_symlinks=False)
        os.chmod(folder, 0o555)
    return EnvironmentRecord(wheels, files, size_bytes)


def is_whole(folder: Path) -> bool:
    """Tell whether it has as many files and bytes as were recorded."""
    record = read_record(folder)
    if record is None:
        return False
    files = size_bytes = 0
    for path, _, names in os.walk(folder / SITE):
        for name in names:
            files += 1
            size_bytes += os.lstat(os.path.join(path, name)).st_size
    return (files, size_bytes) == (record.files, record.size_bytes)


def read_record(folder: Path) -> EnvironmentRecord | None:
    """Read its record; None if there is none."""
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=EnvironmentRecord)
    except (OSError, msgspec.DecodeError):
        return None


def age(folder: Path) -> float:
    """Return when it was last taken into use; 0 if it is gone."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def remove(folder: Path) -> None:
    """Remove a folder with read-only folders in it; its record goes first."""
    with contextlib.suppress(FileNotFoundError):
        (folder / RECORD).unlink()
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def locked(path: Path, how: int) -> int:
    """Open a file and lock it, see ``flock(2)``; it is made if there is none.

    A lock file is only removed by a process that has it locked alone. So a file that has its name
    after it was locked keeps it; another one was removed meanwhile, and says nothing.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def check_owner(folder: Path) -> None:
    """Refuse a folder in which another user could put modules.

    Raises:
        InvalidInput: its owner is another user, or others may write to it.
    """
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = f"other users may write to {folder}"
        raise InvalidInput("packages_cache", message, "name a folder of the node's user")
