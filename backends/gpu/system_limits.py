"""Limits of the system that keep a kernel host from working, in words that help to raise them."""

from __future__ import annotations

import errno

_PROCESSES = (
    "the limit of processes and threads is reached",
    "raise it: ulimit -u, TasksMax= of a systemd service, --pids-limit of a container",
)
_FILES = (
    "the limit of open files is reached",
    "raise it: ulimit -n, LimitNOFILE= of a systemd service, --ulimit nofile of a container",
)
_SPACE = (
    "the folder of temporary files is full",
    "free some space, or set TMPDIR to a folder on another file system",
)
_MEMORY = (
    "there is no memory left",
    "free some, or raise the limit: MemoryMax= of a systemd service, --memory of a container",
)
_LIMITS = {
    errno.EAGAIN: _PROCESSES,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOMEM: _MEMORY,
}
NO_MEMORY = f"{_MEMORY[0]} ({_MEMORY[1]})"
EXHAUSTED = f"{NO_MEMORY}, or {_SPACE[0]} ({_SPACE[1]})"
"""What keeps a compiler from working that worked before."""


def limit_of(error: OSError | MemoryError) -> tuple[str, str] | None:
    """Tell which limit an error comes from, and how to raise it; None if it comes from none.

    Args:
        error: of starting a process or a thread, or of making a descriptor, a file or memory.
    """
    if isinstance(error, MemoryError):
        return _MEMORY
    return _LIMITS.get(error.errno or 0)


def explained(error: OSError) -> str:
    """Write an error, with the limit that it comes from and how to raise that."""
    limit = limit_of(error)
    return f"{error}: {limit[0]} ({limit[1]})" if limit else str(error)
