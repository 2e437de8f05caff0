"""Files that the operator names: only regular ones, since others may have no end, or wait."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read.

    Raises:
        OSError: it cannot be opened, is not a regular file, or its path has a NUL.
    """
    if "\0" in str(path):  # open() raises ValueError, as do readers of what the file contains
        raise OSError(errno.EINVAL, "the path has a NUL", str(path))
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  # the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, as a FIFO without a writer does."""
    return os.open(path, flags | os.O_NONBLOCK)
