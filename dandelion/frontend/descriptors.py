"""How many connections the process has descriptors for."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("dandelion.frontend")

_SHARE = 8
_LEAST = 256


def raise_limit(connections: int) -> None:
    """Raise the soft limit of descriptors, as far as it may be, to what the connections need.

    Not further: where the hard limit is a thousand million, programs that close every possible
    descriptor before they start would take minutes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + max(_LEAST, connections // (_SHARE - 1) + 1)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def connection_limit(wanted: int) -> int:
    """Give the number of connections that leave enough descriptors for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    spare = min(max(_LEAST, soft // _SHARE), soft // 2)
    if wanted <= soft - spare:
        return wanted
    log.warning(
        "fewer connections than set: raise the limit of open files",
        extra={"max_connections": wanted, "possible": soft - spare, "open_files": soft},
    )
    return soft - spare
