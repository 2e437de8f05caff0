"""How tenants of one device ask: closed and open loops over systems of `tenants`.

`closed_loop` lets every tenant ask again as soon as it was answered; `open_loop` asks at times that
are fixed beforehand, and latencies count from these times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from dandelion.errors import DandelionError

from ..samples import Samples
from .tenants import Tenants


@dataclass(slots=True)
class TenantLoad:
    """What a load measured.

    Attributes:
        latency: of the answered requests.
        per_s: answers per second.
        errors: how many requests failed, by the name of the error.
    """

    latency: Samples = field(default_factory=Samples)
    per_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """How many requests failed."""
        return sum(self.errors.values())

    def fail(self, error: BaseException) -> None:
        """Count a request that failed."""
        kind = type(error).__name__
        self.errors[kind] = self.errors.get(kind, 0) + 1


def closed_loop(
    system: Tenants, bodies: Sequence[bytes], *, seconds: float, least: int = 0, most_s: float = 0.0
) -> TenantLoad:
    """Let tenants ask again as soon as they were answered.

    All begin at once and each ends with an answer, so the rate is that of all answers in the time
    from the first question to the last answer: counting parts of requests would count those that
    wait as if they were served. A tenant that is much slower than the others lowers the rate of
    all.

    Args:
        system: that answers.
        bodies: a request of each tenant.
        seconds: how long to ask.
        least: go on until so many requests were answered...
        most_s: ...but not longer than this.
    """
    load = TenantLoad()
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
                        load.fail(error)
                return
            with lock:
                spans.append((started, time.perf_counter()))
        system.give_up(True)

    with ThreadPoolExecutor(len(bodies)) as pool:
        for done in [pool.submit(ask, tenant) for tenant in range(len(bodies))]:
            done.result()
    system.give_up(False)
    last = max((end for _, end in spans), default=begin)
    load.per_s = len(spans) / (last - begin) if spans else 0.0
    load.latency = Samples.of_us((end - start) * 1e6 for start, end in spans)
    return load


def open_loop(
    system: Tenants,
    bodies: Sequence[bytes],
    *,
    rate_per_s: float,
    seconds: float,
    seed: int,
    patience_s: float = 10.0,
) -> TenantLoad:
    """Ask at times drawn beforehand; each request is a random tenant's.

    Args:
        system: that answers.
        bodies: a request of each tenant.
        rate_per_s: of all tenants together; arrivals are a Poisson process.
        seconds: how long to ask. Answers that come later count.
        seed: of times and tenants.
        patience_s: how long after that to wait. What is not answered then is an error, and counts
            as if it had been answered then: the true latency is longer.
    """
    load = TenantLoad()
    lock = threading.Lock()
    draw = np.random.default_rng(seed)
    count = max(1, round(rate_per_s * seconds))
    arrivals = np.cumsum(draw.exponential(1 / rate_per_s, count))
    tenants = draw.integers(0, len(bodies), count)
    begin = time.perf_counter()
    took_us: list[float] = []

    def ask(tenant: int, due: float) -> None:
        error: Exception | None = None
        try:
            system.call(tenant, bodies[tenant])
        except (DandelionError, OSError) as failure:
            error = failure
        with lock:
            took_us.append((time.perf_counter() - begin - due) * 1e6)
            if error is not None:
                load.fail(error)

    with ThreadPoolExecutor(min(count, 256)) as pool:
        requested = []
        for due, tenant in zip(arrivals.tolist(), tenants.tolist(), strict=True):
            time.sleep(max(0.0, begin + due - time.perf_counter()))
            requested.append(pool.submit(ask, tenant, due))
        wait(requested, patience_s)
        system.give_up(True)
        for done in requested:
            done.result()
        system.give_up(False)
    load.latency = Samples.of_us(took_us)
    load.per_s = (count - load.failed) / max(seconds, time.perf_counter() - begin)
    return load
