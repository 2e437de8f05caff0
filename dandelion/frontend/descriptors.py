"""Limits of open file descriptors, and how many connections they allow."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource

log = logging.getLogger("dandelion.frontend")

_SHARE = 8
_LEAST = 256


def reserve_descriptors(connections: int) -> None:
    """Make room for so many connections among the open files of this process.

    The soft limit is raised to what they need, up to the hard limit. It is not raised further. Some
    programs close every possible descriptor when they start; with a limit of 10^9 that takes
    minutes.

    The kernel doubles its table of descriptors when it is full. In a process with several threads
    that waits for all processors, which takes 10 to 100 ms, and `accept` would wait that long. So
    the table gets its size now.

    Source: `expand_fdtable` in Linux; it never shrinks a table.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + max(_LEAST, connections // (_SHARE - 1) + 1)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        soft = max(soft, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    last = needed - 1 if soft == resource.RLIM_INFINITY else min(needed, soft) - 1
    made = os.eventfd(0)
    try:
        with contextlib.suppress(OSError):  # all up to the limit are open
            os.close(fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, last))
    finally:
        os.close(made)


def connection_limit(wanted: int) -> int:
    """Return how many connections leave enough descriptors for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    reserved = min(max(_LEAST, soft // _SHARE), soft // 2)
    if wanted <= soft - reserved:
        return wanted
    log.warning(
        "fewer connections than set: raise the limit of open files",
        extra={"max_connections": wanted, "possible": soft - reserved, "open_files": soft},
    )
    return soft - reserved
