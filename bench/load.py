"""Load over HTTP from a generator in a process of its own.

An **open loop** sends each request at a time that was fixed beforehand, as independent users do.
Latency counts from that *intended* time: requests that could not be sent while a server stalled, or
while no connection was free, have waited too. A **closed loop** waits for each answer before it
sends again, so it asks a stalled server less often and hides the stall.

Source: B. Schroeder, A. Wierman, M. Harchol-Balter, Open Versus Closed: A Cautionary Tale, NSDI
2006; G. Tene on "coordinated omission", the error that latency from the intended time avoids.
"""

from __future__ import annotations

import enum
import subprocess
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dandelion.search_path import environment

from .processes import module
from .samples import Samples

_NS = 1_000_000_000
_GRACE_S = 15.0
_SUSTAINED = 0.95


class Arrivals(enum.Enum):
    """How the intended times of an open loop follow each other."""

    POISSON = "poisson"  # independent users: gaps are exponential
    EVEN = "even"  # all gaps are equal


class HttpRequest(msgspec.Struct, frozen=True):
    """A request that is sent repeatedly.

    Attributes:
        expect: the only right body of an answer; None takes any answer with a status below 400.
        numbered: send the number of the request, counted from 0, in a header ``x-number``.
        headers: further ones, names and values.
    """

    path: str
    body: bytes = b""
    content_type: str = "application/octet-stream"
    accept: str = "application/octet-stream"
    expect: bytes | None = None
    numbered: bool = False
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


class LoadResult(msgspec.Struct, frozen=True):
    """Output of the generator program: what it measured, without the requests of the warm-up.

    Attributes:
        offered_per_s: requests that were to be sent.
        achieved_per_s: right answers; those of an open loop in an interval that begins one median
            latency later.
        latency: of right answers, from the intended time of the request.
        service: of right answers, from the time at which the request was sent.
        errors: failed requests by reason: "status 503", "wrong answer", "refused", "closed",
            "unanswered" (at the end), or "generator: ..." if the generator itself failed.
        late_us_p99: how much later than possible the generator sent requests.
        seconds: for how long requests were to be sent.
        bottleneck: the generator was late, or hardly ever idle, so the values are about itself.
        queued: requests that were due while all connections were in use.
        busy: share of its time in which the generator worked.
        started_ns: monotonic clock, when the first request of the warm-up could be sent.
    """

    offered_per_s: float
    achieved_per_s: float
    latency: Samples
    service: Samples
    errors: dict[str, int]
    late_us_p99: float
    seconds: float
    bottleneck: bool
    queued: int = 0
    busy: float = 0.0
    started_ns: int = 0

    @property
    def count(self) -> int:
        """Right answers."""
        return self.latency.count

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return sum(self.errors.values())

    @property
    def note(self) -> str:
        """What a reader of the row must know; empty if nothing."""
        errors = [f"{count} x {what}" for what, count in sorted(self.errors.items())]
        return ", ".join([*errors, *(["the client was the bottleneck"] if self.bottleneck else [])])

    def values(self) -> dict[str, float]:
        """Give the values of a row: latencies in microseconds, and "achieved_per_s"."""
        return self.latency.values() | {"achieved_per_s": self.achieved_per_s}

    def overloaded(self, latency_bound_us: float, error_bound: float = 0.01) -> bool:
        """Return whether the server reached its limit.

        Args:
            latency_bound_us: the highest permitted 99th percentile.
            error_bound: the highest permitted share of failed requests.
        """
        if not self.count or self.achieved_per_s < _SUSTAINED * self.offered_per_s:
            return True
        if self.failed > error_bound * (self.failed + self.count):
            return True
        return self.latency.percentile(99) > latency_bound_us


class LoadOrder(msgspec.Struct, frozen=True):
    """Input of the generator program.

    Attributes:
        requests: sent in turn.
        connections: all opened before the first request.
        rate_per_s: of an open loop; 0 is a closed loop.
        arrivals, seed: see `intended_times`.
        warm_up_s, seconds: first the one, then the other.
        drain_s: how long answers may take after the last intended time.
    """

    port: int
    requests: tuple[HttpRequest, ...]
    connections: int
    rate_per_s: float
    arrivals: Arrivals
    seed: int
    warm_up_s: float
    seconds: float
    drain_s: float


Requests = HttpRequest | Sequence[HttpRequest]


def open_loop(
    port: int,
    request: Requests,
    *,
    rate_per_s: float,
    seconds: float,
    arrivals: Arrivals = Arrivals.POISSON,
    connections: int = 128,
    warm_up_s: float = 0.5,
    seed: int = 1,
    drain_s: float | None = None,
) -> LoadResult:
    """Send requests at times that are fixed beforehand.

    Args:
        request: what is sent; several are sent in turn.
        rate_per_s: of requests.
        seconds: how long, after the warm-up.
        arrivals: how the times follow each other.
        connections: how many are open; a request that finds none free is sent when one is.
        warm_up_s: time at the same rate that comes first and does not count.
        drain_s: how long answers may take after the last request; by default as long as `seconds`,
            at least a second.
    """
    drain_s = max(1.0, seconds) if drain_s is None else drain_s
    timing = (rate_per_s, arrivals, seed, warm_up_s, seconds, drain_s)
    return _generate(LoadOrder(port, _several(request), connections, *timing))


def closed_loop(
    port: int,
    request: Requests,
    *,
    callers: int,
    seconds: float,
    warm_up_s: float = 0.5,
    drain_s: float = 1.0,
) -> LoadResult:
    """Let callers ask again as soon as they are answered, each over its own connection.

    Args:
        request: what is sent; several are sent in turn.
        callers: how many ask at the same time.
        seconds: how long, after the warm-up.
        warm_up_s: time that comes first and does not count.
        drain_s: how long the last answers may take after that; later ones count as failed.
    """
    timing = (0.0, Arrivals.EVEN, 1, warm_up_s, seconds, drain_s)
    return _generate(LoadOrder(port, _several(request), callers, *timing))


def intended_times(
    rate_per_s: float, seconds: float, arrivals: Arrivals, seed: int
) -> NDArray[np.int64]:
    """Fix the times at which an open loop sends.

    Returns:
        Nanoseconds from the start, ascending, all within `seconds`. The number of requests is the
        same for all arrivals: Poisson arrivals, given their number, are independent times in order.
    """
    count = max(1, round(rate_per_s * seconds))
    if arrivals is Arrivals.EVEN:
        places = (np.arange(count) + 0.5) / count
    else:
        places = np.sort(np.random.default_rng(seed).random(count))
    return (places * seconds * _NS).astype(np.int64)


def _several(request: Requests) -> tuple[HttpRequest, ...]:
    return (request,) if isinstance(request, HttpRequest) else tuple(request)


def _generate(order: LoadOrder) -> LoadResult:
    """Run the generator; an answer comes within a known time, even if it fails."""
    limit_s = order.warm_up_s + order.seconds + order.drain_s + _GRACE_S
    try:
        done = subprocess.run(
            module("dandelion.bench.load_generator"), input=msgspec.msgpack.encode(order),
            capture_output=True, timeout=limit_s, env=environment(), check=True,
        )  # fmt: skip
        return msgspec.msgpack.decode(done.stdout, type=LoadResult)
    except subprocess.TimeoutExpired:
        why = f"did not end within {limit_s:.0f} s"
    except subprocess.CalledProcessError as error:
        wrote = error.stderr.decode(errors="replace").strip().splitlines()
        why = wrote[-1] if wrote else f"ended with {error.returncode}"
    except msgspec.DecodeError as error:
        why = str(error)
    errors = {f"generator: {why}": 1}
    return LoadResult(order.rate_per_s, 0.0, Samples(), Samples(), errors, 0.0, order.seconds, True)
