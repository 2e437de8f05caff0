"""Messages between the node and the process that prepares packages."""

from __future__ import annotations

import errno

import msgspec

from dandelion.errors import Problem
from dandelion.function import Digest

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""The system's errors for a full disk. Others say that it fails, or that a file is gone."""


class PackageSource(msgspec.Struct, frozen=True):
    """Where wheels come from.

    Attributes:
        folder: with wheels; absolute, or empty.
        index: URL of a package index (the "simple" interface), or empty. A folder goes first.
    """

    folder: str = ""
    index: str = ""


class PrepareLimits(msgspec.Struct, frozen=True):
    """The limits of one process that prepares packages.

    Attributes:
        wall_s, cpu_s: seconds.
        memory_bytes: of its address space.
        disk_bytes: of all files that it writes, downloads included.
        files: their number.
    """

    wall_s: float = 300.0
    cpu_s: int = 120
    memory_bytes: int = 2 << 30
    disk_bytes: int = 4 << 30
    files: int = 200_000


class PrepareJob(msgspec.Struct, frozen=True):
    """What to prepare.

    Attributes:
        parent: id of the process that asks.
        requirements: as `read_requirements` returns them.
        wheels: if there are any, only these are taken.
        folder: an empty folder to unpack into; empty to resolve only.
        known: keys of environments that are there already.
    """

    parent: int
    requirements: tuple[str, ...]
    wheels: dict[str, Digest]
    source: PackageSource
    limits: PrepareLimits
    folder: str = ""
    known: tuple[str, ...] = ()


class PrepareAnswer(msgspec.Struct, frozen=True):
    """What was prepared.

    Attributes:
        wheels: that were chosen.
        problems: why it cannot be prepared; then there are no wheels.
        unavailable: the index cannot be reached or is not one, or a file cannot be used.
        disk_error: the one of `NO_SPACE` that the system gave; 0 if none.
    """

    wheels: dict[str, Digest] = {}
    problems: tuple[Problem, ...] = ()
    unavailable: str = ""
    disk_error: int = 0
