"""Records of backends: resources, demands of calls, capacities of engines, sharing of devices."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LEAST_THREADS = 64
"""A smaller block counts as this many threads: a compute unit also holds limited blocks."""


class Hosting(enum.Enum):
    """Where the node runs a driver's engines.

    ========= ==================================================================================
    INLINE    on the node's loop; for functions that cost less than a thread switch
    THREAD    in a thread of the node, one for each engine; untrusted code runs in its sandboxes
    PROCESS   in a child process that maps the arena; for devices, whose faults end a process
    CONFINED  in child processes, one for each engine, that are started when calls need them, map
              no arena, and give up all rights before they get code of users
    LOOP      many at once on the node's event loop, as coroutines (`AsyncEngine`); for I/O
    ========= ==================================================================================
    """

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
    CONFINED = "confined"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Resource:
    """A core or device on which one or more engines can be started.

    Attributes:
        name: the backend's name of it, for example ``0`` or ``cpu``; the argument of
            `EngineFactory.engine`.
        description: readable text, for example ``NVIDIA H200, 141 GB``.
        memory_bytes: memory of its own, 0 if it uses the host's.
        details: facts for ``dandelion doctor``.
    """

    name: str
    description: str
    memory_bytes: int = 0
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources that a call will need, known before it runs.

    Attributes:
        output_bytes: upper bound of all outputs with their alignment; None if unknown beforehand.
        device_bytes: device memory, without constants that stay there.
        blocks, block_threads: thread blocks of the largest launch, and threads in each of them.
    """

    output_bytes: int | None = None
    device_bytes: int = 0
    blocks: int = 0
    block_threads: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The resources of an engine, to compare with the `Demand` of a call.

    Attributes:
        device_bytes: device memory for one call; 0 is unlimited.
        blocks: compute units, each of which runs one block or more; 0 is unknown.
        archs: architectures whose code its device runs, best first; empty where there are none.
        unit_threads: threads that a compute unit holds at the same time; 0 is unknown.
        constants_bytes: device memory for constants that stay there between calls.
        constants_unit_bytes: each function's constants take a multiple of this.
        constants_least_bytes: constants of a function that are smaller do not stay.
        constants_shared: the engines of the device share this memory: constants that one of them
            has copied there are mapped by the others.
    """

    device_bytes: int = 0
    blocks: int = 0
    archs: tuple[str, ...] = ()
    unit_threads: int = 0
    constants_bytes: int = 0
    constants_unit_bytes: int = 1
    constants_least_bytes: int = 0
    constants_shared: bool = False

    def bytes_of_constants(self, size_bytes: int) -> int:
        """Device memory that a function's constants take if they stay; 0 if they do not."""
        if not self.constants_bytes or size_bytes < max(1, self.constants_least_bytes):
            return 0
        return -(-size_bytes // self.constants_unit_bytes) * self.constants_unit_bytes

    def saturated_by(self, demand: Demand) -> bool:
        """Tell whether a call has a launch that fills the device by itself."""
        if not self.blocks:
            return False
        together = self.unit_threads // max(demand.block_threads, _LEAST_THREADS)
        return demand.blocks >= self.blocks * max(together, 1)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How several engine processes, the workers, share one resource.

    Attributes:
        environment: of the workers' processes.
        concurrent: whether they run at the same time, or take turns.
        shared_fault_domain: whether a fault of one ends the calls of all.
        description: readable text.
        close: stops the services of the workers, such as a daemon.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    concurrent: bool = False
    shared_fault_domain: bool = False
    description: str = "processes that take turns"
    close: Callable[[], None] = lambda: None
