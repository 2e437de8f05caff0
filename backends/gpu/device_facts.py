"""What is known of a device, and what kernels may do with its protected memory."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a device can do beyond the least.

    Attributes:
        graphs: `capture` and `replay` work and are faster than launching one by one.
        graph_lanes: how many launches of a graph can run side by side, see `.forks`.
        asynchronous: calls return before the work is done.
        registers: `register` makes copies of that host memory faster.
        host_visible: the pool lies in host memory, so copies are memory copies.
        protected_memory: there is memory beside the pool, and its `Protection` holds for kernels.
        shared_memory: other processes can map protected memory, with rights of their own.
        host_execution: kernels run on the host's processors, as code of this process.
    """

    graphs: bool = False
    asynchronous: bool = False
    registers: bool = False
    host_visible: bool = False
    protected_memory: bool = False
    shared_memory: bool = False
    host_execution: bool = False
    graph_lanes: int = 1


class Protection(enum.Enum):
    """What kernels may do with protected memory."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Variables(enum.Enum):
    """Whether a module has variables, and what keeps one call's values from the next.

    Members:
        NONE: it has none.
        RESTORED: the device gives them their first values.
        UNKNOWN: there are, or may be, some that are not known; the module is loaded afresh.
    """

    NONE = "none"
    RESTORED = "restored"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Properties:
    """Facts about a device.

    Attributes:
        description: for people.
        memory_bytes: its memory, as far as a pool could use it.
        pool_bytes: size of a pool by default.
        compute_units: processors that run blocks in parallel.
        unit_threads: threads that one of them runs at the same time; 0 if it does not say.
        block_threads: bound on the threads of a block.
        shared_bytes: bound on the local memory of a block.
        archs: architectures whose binaries it loads, best first.
        details: more, for ``dandelion doctor``.
    """

    description: str
    memory_bytes: int
    pool_bytes: int
    compute_units: int = 1
    unit_threads: int = 0
    block_threads: int = 1024
    shared_bytes: int = 48 * 1024
    archs: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
