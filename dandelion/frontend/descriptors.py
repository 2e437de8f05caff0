"""Limits of open file descriptors, and how many connections they allow."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("dandelion.frontend")

_SHARE = 8
_LEAST = 256


def raise_limit(connections: int) -> None:
    """Raise the soft limit of descriptors to what the connections need, up to the hard limit.

    It is not raised further. Some programs close every possible descriptor when they start; with a
    limit of 10^9 that takes minutes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + max(_LEAST, connections // (_SHARE - 1) + 1)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


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
