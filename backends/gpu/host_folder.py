"""Folders for kernel hosts: one for each, below one for their broker.

The broker removes a host's folder when the host is gone, and its own when it ends. A broker that is
killed leaves its own behind; the next one that starts removes it. Whether a broker lives is told by
a lock on its folder, which the system takes back from the dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from dandelion.confinement import lockdown

_PREFIX = "dandelion-kernels-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HostFolders:
    """The folders of one broker, in the system's folder for temporary files."""

    def __init__(self) -> None:
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        while (lock := _locked(self._folder)) is None:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = lock
        self._folder.chmod(0o711)  # hosts run as another user, and know the name of their own
        self._count = 0

    def make(self) -> Path:
        """Make a folder for a host."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(mode=0o700)
        return folder

    def remove(self, folder: Path) -> None:
        """Remove the folder of a host that is gone."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove everything; all hosts are gone. May be called twice."""
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def give_to_nobody(folder: Path) -> None:
    """Make the user of confined processes the owner of a folder and of all that is in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, lockdown.NOBODY, lockdown.NOBODY)


def sweep() -> None:
    """Remove what brokers of this user left that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                _remove_if_left(path)


def _locked(folder: Path) -> int | None:
    """Lock a new folder. None if another broker removes it, which found it without a lock."""
    try:
        descriptor = os.open(folder, _FLAGS)
    except FileNotFoundError:
        return None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    os.close(descriptor)
    return None


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, _FLAGS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
