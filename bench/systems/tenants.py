"""Tenants of one device: what answers their requests, and how they ask.

`Tenants` is what is compared: it answers a request of a tenant. `closed_loop` has every tenant ask
again as soon as it was answered, and counts; `open_loop` asks at times that are fixed beforehand
and takes latencies from these times, so that whoever is late counts as late.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from dandelion.data import Item, ItemSet
from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.node import Node, Settings
from dandelion.node.traces import Trace

from ..closing import Closing
from ..histogram import Histogram
from . import kaas_graphs, names
from .kaas_shapes import Tuned

MIB = 1024 * 1024
_READY_S = 120.0


class Tenants(Closing):
    """Answers requests of tenants, from any thread.

    Attributes:
        name: of the system.
    """

    name: str

    @abc.abstractmethod
    def call(self, tenant: int, body: bytes) -> bytes:
        """Answer a request."""

    def give_up(self, patience_over: bool) -> None:
        """Fail what waits in a line that moves slowly, from any thread; or take requests again."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""


class Dandelion(Tenants):
    """A node in this process, with an engine for the device, and workers or none.

    Args:
        backend: of the GPU functions.
        given: what each request runs.
        tenants: how many.
        workers: that share the device, 0 for the sequential engine alone.
        same: all tenants have the constants of the first.
        weights_bytes: device memory that constants may take in each engine; 0 for enough. Where
            constants do not stay on the device it is of no matter.
        document: registered in place of the tenants' functions.
        name: of the system; by default it follows from the workers.

    Attributes:
        workers: as given.

    Raises:
        BackendUnavailable: the engines do not come up.
    """

    def __init__(
        self,
        backend: str,
        given: Tuned,
        tenants: int,
        *,
        workers: int = 0,
        same: bool = False,
        weights_bytes: int = 0,
        document: RegistrationDocument | None = None,
        name: str = "",
    ) -> None:
        self.name = name or named(workers)
        self.workers = workers
        self._shape = shape = given.shape
        settings = _settings(backend, given, tenants, workers, weights_bytes)
        self.node = Node(settings)
        try:
            self.node.start()
            wait_ready(self.node, workers)
            self.node.register(document or kaas_graphs.document(given, tenants, same=same))
        except BaseException:
            self.node.close()
            raise
        self._functions = [kaas_graphs.function_name(shape, t) for t in range(tenants)]

    def call(self, tenant: int, body: bytes) -> bytes:
        outcome = self.node.invoke_sets(self._functions[tenant], self._sets(body), deadline_s=300.0)
        found = outcome.sets[kaas_graphs.OUTPUT]
        assert found is not None
        return bytes(found.items[0].data)

    def stages(self, tenant: int, body: bytes) -> dict[str, float]:
        """Answer a request, and tell how long it took and where, in microseconds.

        Returns:
            ``total``, the engine's stages but zeroing, and ``dispatch`` for all the rest.
        """
        began = time.perf_counter_ns()
        outcome = self.node.invoke_sets(self._functions[tenant], self._sets(body))
        total = (time.perf_counter_ns() - began) / 1e3
        return split(outcome.trace, total)

    def _sets(self, body: bytes) -> dict[str, ItemSet | None]:
        name = kaas_graphs.INPUT
        return {name: ItemSet(name, (Item(name, 0, body),))}

    def close(self) -> None:
        self.node.close()


def split(trace: Trace, total_us: float) -> dict[str, float]:
    """Split the time of an invocation of one GPU function by the stages of its trace."""
    engine = [s for s in trace.spans if s.track.endswith(" stages") and s.name != "zero"]
    found: dict[str, float] = {}
    for span in engine:
        found[span.name] = found.get(span.name, 0.0) + (span.end_ns - span.start_ns) / 1e3
    rest = max(0.0, total_us - sum(found.values()))
    return {"dispatch": rest, **found, "total": total_us}


def named(workers: int) -> str:
    """Name the engine with so many workers."""
    if workers == 0:
        return names.SEQUENTIAL
    return names.CONCURRENT if workers == 2 else names.concurrent(workers)


def _settings(
    backend: str, given: Tuned, tenants: int, workers: int, weights_bytes: int
) -> Settings:
    shape = given.shape
    # With its alignment and that of its mapping; each static set lies in the arena, too.
    held = shape.constant_bytes + 512 * len(shape.sizes()) + 2 * MIB
    buffers = shape.temporary_bytes + shape.input_bytes + shape.output_bytes
    pool = 2 * (buffers + 256 * (shape.temporaries + 2)) + 64 * MIB
    options = {"workers": str(workers)}
    if backend == "opencl":  # constants are copied to the pool with each call
        options["pool_bytes"] = str(pool + held)
    else:
        options["pool_bytes"] = str(pool)
        options["weights"] = str(weights_bytes or tenants * held + 64 * MIB)
    in_flight = 4 * (tenants + 1) * (shape.input_bytes + shape.output_bytes)
    return Settings(
        backends=(backend,),
        options={backend: options},
        arena_bytes=tenants * held + in_flight + 256 * MIB,
        cache_bytes=0,
        keep_traces=4,
    )


def wait_ready(node: Node, workers: int) -> None:
    """Wait for the sequential engine and its workers.

    Raises:
        BackendUnavailable: one of them does not come up.
    """
    end = time.monotonic() + _READY_S
    while True:
        engines = node.engines()
        states = [e.state for e in engines]
        if states.count("ready") == workers + 1:
            return
        lost = [e for e in engines if e.state not in ("ready", "starting")]
        if lost or time.monotonic() > end:
            reason = "; ".join(e.reason for e in lost) or "the engines did not come up"
            raise BackendUnavailable("node", reason)
        time.sleep(0.01)


# --- load -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Asked:
    """What came of a load.

    Attributes:
        latency: of the answered requests.
        per_s: answers in a second.
        errors: how many requests failed, by the name of the error.
    """

    latency: Histogram = field(default_factory=Histogram)
    per_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)

    def failed(self, error: BaseException) -> None:
        """Count a request that failed."""
        kind = type(error).__name__
        self.errors[kind] = self.errors.get(kind, 0) + 1


def closed_loop(
    system: Tenants, bodies: Sequence[bytes], *, seconds: float, least: int = 0, most_s: float = 0.0
) -> Asked:
    """Have tenants ask again as soon as they were answered.

    All begin at once and each ends with an answer, so the rate is that of all answers in the time
    from the first question to the last answer. Counting the parts of requests that lie in a window
    would count those that stand in line as if they were served. Tenants are alike: one that is much
    slower than the others would lengthen the time, and so lower the rate, of all.

    Args:
        system: that answers.
        bodies: a request of each tenant.
        seconds: how long to ask.
        least: go on until so many requests were answered...
        most_s: ...but not longer than this.
    """
    found = Asked()
    lock = threading.Lock()
    spans: list[tuple[float, float]] = []
    begin = time.perf_counter()

    def over(now: float) -> bool:
        enough = len(spans) >= least or now - begin >= most_s
        return now - begin >= seconds and enough

    def ask(tenant: int) -> None:
        while not over(started := time.perf_counter()):
            try:
                system.call(tenant, bodies[tenant])
            except (DandelionError, OSError) as error:
                with lock:
                    if not over(time.perf_counter()):  # otherwise it was given up
                        found.failed(error)
                return
            with lock:
                spans.append((started, time.perf_counter()))
        system.give_up(True)

    _all(ask, len(bodies))
    system.give_up(False)
    last = max((end for _, end in spans), default=begin)
    found.per_s = len(spans) / (last - begin) if spans else 0.0
    found.latency.record_all((end - start) * 1e6 for start, end in spans)
    return found


def _all(ask: Callable[[int], None], tenants: int) -> None:
    with ThreadPoolExecutor(tenants) as pool:
        for done in [pool.submit(ask, tenant) for tenant in range(tenants)]:
            done.result()


def open_loop(
    system: Tenants,
    bodies: Sequence[bytes],
    *,
    rate_per_s: float,
    seconds: float,
    seed: int,
    patience_s: float = 10.0,
) -> Asked:
    """Ask at times drawn beforehand, whoever is late; each request is a random tenant's.

    Args:
        system: that answers.
        bodies: a request of each tenant.
        rate_per_s: of all tenants together; arrivals are a Poisson process.
        seconds: how long to ask. Answers that come later count.
        seed: of times and tenants; the same for the same seed.
        patience_s: how long after that to wait. What is not answered then is an error, and counts
            as if it had been answered then: the true latency is longer.
    """
    found = Asked()
    lock = threading.Lock()
    draw = np.random.default_rng(seed)
    count = max(1, round(rate_per_s * seconds))
    arrivals = np.cumsum(draw.exponential(1 / rate_per_s, count))
    tenants = draw.integers(0, len(bodies), count)
    begin = time.perf_counter()
    answered = 0

    def ask(tenant: int, due: float) -> None:
        nonlocal answered
        error: Exception | None = None
        try:
            system.call(tenant, bodies[tenant])
        except (DandelionError, OSError) as failure:
            error = failure
        took = time.perf_counter() - begin - due
        with lock:
            found.latency.record(took * 1e6)
            answered += error is None
            if error is not None:
                found.failed(error)

    with ThreadPoolExecutor(min(count, 256)) as pool:
        asked = []
        for due, tenant in zip(arrivals.tolist(), tenants.tolist(), strict=True):
            time.sleep(max(0.0, begin + due - time.perf_counter()))
            asked.append(pool.submit(ask, tenant, due))
        wait(asked, patience_s)
        system.give_up(True)
        for done in asked:
            done.result()
        system.give_up(False)
    found.per_s = answered / max(seconds, time.perf_counter() - begin)
    return found
