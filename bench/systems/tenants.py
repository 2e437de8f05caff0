"""The table of systems that serve several tenants of one device.

* `SharedNode`: a node whose engines all tenants share.
* `Exclusive`: one process at a time. When another tenant's turn comes, the process is killed and
  that tenant's is started, which is a cold start. Serverless platforms give out GPUs in this way.
* `TimeSliced`: a process for each tenant, all alive, and the device switches between them.
* `TimeSliced` under MPS (`mps_partitions`): all alive, running at the same time, each on a part of
  the compute units.

Processes run requests in a bare loop; see `tenant_process`. For load on them, see `tenant_load`.
"""

from __future__ import annotations

import abc
import contextlib
import shutil
import threading
from collections import deque
from collections.abc import Mapping

from dandelion.backends.gpu.mps import CONTROL, MpsDaemon

from dandelion.documents import RegistrationDocument
from dandelion.errors import TimedOut

from ..processes import Closeable
from . import kaas_graphs, names
from .kaas_shapes import TunedShape
from .nodes import MIB, gpu_settings, one_item, open_node, staged_call
from .tenant_process import TenantProcess, TenantStart


class Tenants(Closeable):
    """Answers requests of tenants, from any thread; `name` is that of the system."""

    name: str

    @abc.abstractmethod
    def call(self, tenant: int, body: bytes) -> bytes:
        """Answer a request."""

    def give_up(self, over: bool) -> None:
        """Fail requests that wait for another tenant's; or take requests again."""


class SharedNode(Tenants):
    """A node in this process, with an engine for the device, and workers or none.

    Args:
        backend: of the GPU functions.
        given: what each request runs.
        tenants: how many.
        workers: that share the device, 0 for the sequential engine alone; None for the default of
            the backend.
        policy: of the node.
        same: all tenants have the constants of the first.
        weights_bytes: device memory that constants may take in each engine; 0 for enough.
        document: the tenants' functions, in order, instead of new ones.

    Raises:
        BackendUnavailable: an engine does not start.
    """

    def __init__(
        self,
        backend: str,
        given: TunedShape,
        tenants: int,
        *,
        workers: int | None = 0,
        policy: str = "fair",
        same: bool = False,
        weights_bytes: int = 0,
        document: RegistrationDocument | None = None,
    ) -> None:
        if workers is None:
            self.name = names.DANDELION
        else:
            self.name = names.CONCURRENT if workers == 2 else names.engines(workers)
        self.name += f", {policy}" if policy != "fair" else ""
        self.workers = workers or 0
        self._functions = [kaas_graphs.function_name(given.shape, t) for t in range(tenants)]
        self._closing = contextlib.ExitStack()
        settings = node_settings(backend, given, tenants, workers, weights_bytes)
        settings |= {"policy": policy}
        wanted = 0 if workers is None else workers + 1
        self.node = self._closing.enter_context(open_node(settings, wanted))
        self.node.wait_ready()
        try:
            document = document or kaas_graphs.document(given, tenants, same=same)
            for tenant, function in enumerate(document.functions):
                self.node.register(function, tenant=_tenant(tenant))
        except BaseException:
            self.close()
            raise

    def call(self, tenant: int, body: bytes) -> bytes:
        sets = one_item(kaas_graphs.INPUT, body)
        result = self.node.invoke_sets(
            self._functions[tenant], sets, deadline_s=300.0, tenant=_tenant(tenant)
        )
        found = result.sets[kaas_graphs.OUTPUT]
        assert found is not None
        return bytes(found.items[0].data)

    def stages(self, tenant: int, body: bytes) -> dict[str, float]:
        """Answer a request, and give the stages of `staged_call`."""
        sets = one_item(kaas_graphs.INPUT, body)
        return staged_call(self.node, self._functions[tenant], sets, _tenant(tenant))[1]

    def close(self) -> None:
        self._closing.close()


def _tenant(number: int) -> str:
    return f"tenant{number}"


def node_settings(
    backend: str, given: TunedShape, tenants: int, workers: int | None, weights_bytes: int
) -> dict[str, object]:
    """Give settings of a node with room for the functions of so many tenants; see `SharedNode`."""
    shape = given.shape
    # With its alignment and that of its mapping; each static set is in the arena, too.
    constants = shape.constant_bytes + 512 * len(shape.sizes()) + 2 * MIB
    buffers = shape.temporary_bytes + shape.input_bytes + shape.output_bytes
    pool = 2 * (buffers + 256 * (shape.temporaries + 2)) + 64 * MIB
    options = {}
    if backend == "opencl":  # constants are copied to the pool with each call
        pool += constants
    else:
        options["weights"] = str(weights_bytes or tenants * constants + 64 * MIB)
    in_flight = 4 * (tenants + 1) * (shape.input_bytes + shape.output_bytes)
    functions_bytes = tenants * (constants + MIB) + 64 * MIB  # with their code
    arena_bytes = functions_bytes + in_flight + 256 * MIB
    return gpu_settings(backend, workers, str(pool), arena_bytes, **options) | {
        "cache_bytes": 0, "keep_traces": 4, "functions_bytes": functions_bytes,
    }  # fmt: skip


class FifoLock:
    """A lock that threads get in the order in which they asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        mine = threading.Lock()
        mine.acquire()
        with self._lock:
            first = not self._queue
            self._queue.append(mine)
        if not first:
            mine.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._queue.popleft()
            if self._queue:
                self._queue[0].release()


class Exclusive(Tenants):
    """One process at a time; the next tenant in line kills another tenant's process."""

    def __init__(self, backend: str, given: TunedShape) -> None:
        self.name = names.EXCLUSIVE
        self.switches = 0
        self._backend = backend
        self._given = given
        self._turns = FifoLock()
        self._alive: tuple[int, TenantProcess] | None = None
        self._given_up = False

    def give_up(self, over: bool) -> None:
        self._given_up = over

    def call(self, tenant: int, body: bytes) -> bytes:
        with self._turns:
            if self._given_up:
                raise TimedOut("tenant", "wall", 0.0)
            if self._alive is None or self._alive[0] != tenant:
                self.close()
                self.switches += 1
                started = TenantProcess(TenantStart(self._backend, self._given, tenant))
                self._alive = (tenant, started)
                started.wait()
            return self._alive[1].run(body)

    def close(self) -> None:
        if self._alive is not None:
            self._alive[1].close()
            self._alive = None


class TimeSliced(Tenants):
    """A process for each tenant, all alive.

    Args:
        backend, given, tenants: see `SharedNode`.
        name: of the system.
        environment: further variables of the processes.
        closing: is closed after the processes.

    Raises:
        BackendUnavailable, EngineDied: a process did not start.
    """

    def __init__(
        self,
        backend: str,
        given: TunedShape,
        tenants: int,
        *,
        name: str = names.TIME_SLICED,
        environment: Mapping[str, str] | None = None,
        closing: contextlib.ExitStack | None = None,
    ) -> None:
        self.name = name
        self._closing = contextlib.ExitStack()
        if closing is not None:
            self._closing.push(closing)
        try:
            starts = [TenantStart(backend, given, tenant) for tenant in range(tenants)]
            self._processes = [
                self._closing.enter_context(TenantProcess(start, environment)) for start in starts
            ]
            for process in self._processes:
                process.wait()
        except BaseException:
            self._closing.close()
            raise
        self._turns = [FifoLock() for _ in range(tenants)]

    def call(self, tenant: int, body: bytes) -> bytes:
        with self._turns[tenant]:
            return self._processes[tenant].run(body)

    def close(self) -> None:
        self._closing.close()


def mps_missing(backend: str) -> str:
    """Say why there can be no MPS partitions; empty if there can."""
    if backend != "cuda":
        return f"the device is no NVIDIA GPU (backend {backend})"
    return "" if shutil.which(CONTROL) else f"there is no {CONTROL}"


def mps_partitions(backend: str, given: TunedShape, tenants: int) -> TimeSliced:
    """Start a process for each tenant under their own MPS daemon.

    As in KaaS' experiment each may use an equal part of the compute units, in eighths of the device
    and not less than one.

    Raises:
        OSError: the daemon cannot be started.
        BackendUnavailable, EngineDied: a process did not start.
    """
    daemon = MpsDaemon()
    closing = contextlib.ExitStack()
    closing.callback(daemon.close)
    eighths = max(1, -(-8 // tenants))
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(100, -(-eighths * 100 // 8)))}
    environment = {**daemon.variables, **share}
    return TimeSliced(
        backend, given, tenants, name=names.MPS, environment=environment, closing=closing
    )
