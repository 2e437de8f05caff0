"""Limits of the system that keep a kernel host from starting, in words that help to raise them."""

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
_LIMITS = {errno.EAGAIN: _PROCESSES, errno.EMFILE: _FILES, errno.ENFILE: _FILES}


def limit_of(error: OSError) -> tuple[str, str] | None:
    """Tell which limit an error comes from, and how to raise it; None if it comes from none.

    Args:
        error: of starting a process or a thread, or of making a descriptor.
    """
    return _LIMITS.get(error.errno or 0)


def explained(error: OSError) -> str:
    """Write an error, with the limit that it comes from and how to raise that."""
    limit = limit_of(error)
    return f"{error}: {limit[0]} ({limit[1]})" if limit else str(error)
