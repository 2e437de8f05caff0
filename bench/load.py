"""Load over HTTP from a generator in a process of its own.

An **open loop** sends each request at a time that was fixed beforehand, whatever became of those
before it, as independent users do. Its latency is taken from the *intended* time: if a server
stalls, or no connection is free, the requests that could not be sent meanwhile have waited too, and
they count. A **closed loop** waits for each answer before it sends again, so that a stalled server
is asked less while it stalls and looks better than it is; its latency says what one request costs.

Source: B. Schroeder, A. Wierman, M. Harchol-Balter, Open Versus Closed: A Cautionary Tale, NSDI
2006; G. Tene on "coordinated omission", the error that latency from the intended time avoids.
"""

from __future__ import annotations

import enum
import subprocess
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dandelion.search_path import environment

from .histogram import Histogram, HistogramRecord
from .systems.servers import module

_NS = 1_000_000_000
_GRACE_S = 15.0
_LATE_SHARE = 0.2
_BUSY_SHARE = 0.9
_KEPT_UP = 0.95


class Arrivals(enum.Enum):
    """How the intended times of an open loop follow each other."""

    POISSON = "poisson"  # independent users: gaps are exponential
    EVEN = "even"  # one gap for all


class HttpRequest(msgspec.Struct, frozen=True):
    """A request that is sent again and again.

    Attributes:
        path: of the URL.
        body: bytes of the body.
        content_type, accept: headers.
        expect: the body of the only right answer; None takes any answer with a status below 400.
        numbered: send the number of the request in a header ``x-number``, counted from 0.
        method: of HTTP.
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


class Load(msgspec.Struct, frozen=True):
    """What a generator saw. Requests whose turn came in the warm-up are not part of it.

    Attributes:
        offered_per_s: requests that were to be sent, in a second.
        achieved_per_s: right answers in a second, over as long a time, which begins as much later
            as a median answer takes.
        latency: of right answers, from the intended time of the request.
        service: of right answers, from the time at which the request was sent.
        errors: failed requests by what happened: "status 503", "wrong answer", "refused", "closed",
            "unanswered" (at the end), or "generator: ..." if that itself failed.
        late_us_p99: how much later than it could have the generator sent a request.
        seconds: for how long the requests were to be sent.
        bottleneck: whether the generator was late, or had hardly any time left, so that the figures
            are about itself.
        queued: requests whose turn came while all connections were in use.
        busy: share of its time in which the generator worked.
        started_ns: of the monotonic clock, when the first request of the warm-up could be sent.
    """

    offered_per_s: float
    achieved_per_s: float
    latency: HistogramRecord
    service: HistogramRecord
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
        return sum(self.latency.counts.values())

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
        """Give the metrics of a row: of latencies in microseconds, and "achieved_per_s"."""
        latencies: dict[str, float] = Histogram.of(self.latency).values()
        return latencies | {"achieved_per_s": self.achieved_per_s}


class LoadOrder(msgspec.Struct, frozen=True):
    """What the generator is told.

    Attributes:
        port: of the server, on 127.0.0.1.
        requests: sent in turn.
        connections: how many, all opened before the first request.
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


class Seen(msgspec.Struct, frozen=True):
    """What the generator answers; see `Load`.

    Attributes:
        offered: requests after the warm-up.
        achieved: right answers in the time that `Load.achieved_per_s` tells.
        late: by how much requests were sent later than they could have been.
    """

    offered: int
    achieved: int
    latency: HistogramRecord
    service: HistogramRecord
    late: HistogramRecord
    errors: dict[str, int]
    queued: int
    busy: float
    started_ns: int


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
) -> Load:
    """Send requests at times that are fixed beforehand.

    Args:
        port: of the server, on 127.0.0.1.
        request: what is sent; several are sent in turn.
        rate_per_s: requests in a second.
        seconds: how long, after the warm-up.
        arrivals: how the times follow each other.
        connections: how many are open; a request that finds none free is sent when one is.
        warm_up_s: time at the same rate that comes first and does not count.
        seed: of the times.
        drain_s: how long answers may take after the last request; by default as long as `seconds`,
            at least a second.
    """
    drain_s = max(1.0, seconds) if drain_s is None else drain_s
    several = _several(request)
    return _generate(
        LoadOrder(
            port, several, connections, rate_per_s, arrivals, seed, warm_up_s, seconds, drain_s
        )
    )


def closed_loop(
    port: int,
    request: Requests,
    *,
    callers: int,
    seconds: float,
    warm_up_s: float = 0.5,
) -> Load:
    """Let callers ask again as soon as they are answered, each over a connection of its own.

    Args:
        port: of the server, on 127.0.0.1.
        request: what is sent; several are sent in turn.
        callers: how many.
        seconds: how long, after the warm-up.
        warm_up_s: time that comes first and does not count.
    """
    several = _several(request)
    order = LoadOrder(port, several, callers, 0.0, Arrivals.EVEN, 1, warm_up_s, seconds, 1.0)
    return _generate(order)


def sweep(
    measure: Callable[[float], Load],
    rates: Sequence[float],
    *,
    latency_bound_us: float,
    error_bound: float = 0.01,
) -> list[tuple[float, Load]]:
    """Raise the rate until a server can no more.

    Args:
        measure: puts the server under a load of so many requests in a second.
        rates: ascending.
        latency_bound_us: p99 that is too much.
        error_bound: share of failed requests that is too much.

    Returns:
        What was measured; the last is the one at which a bound was passed, or at which less than
        95 % of what was offered was achieved, if there was one.
    """
    found = []
    for rate in rates:
        load = measure(rate)
        found.append((rate, load))
        if not load.count or load.achieved_per_s < _KEPT_UP * load.offered_per_s:
            break
        if load.failed > error_bound * (load.failed + load.count):
            break
        if Histogram.of(load.latency).percentile(99) > latency_bound_us:
            break
    return found


def intended_times(
    rate_per_s: float, seconds: float, arrivals: Arrivals, seed: int
) -> NDArray[np.int64]:
    """Fix the times at which an open loop sends.

    Returns:
        Nanoseconds from the start, ascending, all within `seconds`. The number of requests is
        the same for all kinds of arrivals: Poisson arrivals, given their number, are so many
        independent times in order.
    """
    count = max(1, round(rate_per_s * seconds))
    if arrivals is Arrivals.EVEN:
        places = (np.arange(count) + 0.5) / count
    else:
        places = np.sort(np.random.default_rng(seed).random(count))
    return (places * seconds * _NS).astype(np.int64)


def _several(request: Requests) -> tuple[HttpRequest, ...]:
    return (request,) if isinstance(request, HttpRequest) else tuple(request)


def _generate(order: LoadOrder) -> Load:
    """Run the generator; whatever happens to it, an answer comes within a known time."""
    limit_s = order.warm_up_s + order.seconds + order.drain_s + _GRACE_S
    try:
        done = subprocess.run(
            module("dandelion.bench.load_generator"),
            input=msgspec.msgpack.encode(order),
            capture_output=True,
            timeout=limit_s,
            env=environment(),
            check=True,
        )
        return _judged(order, msgspec.msgpack.decode(done.stdout, type=Seen))
    except subprocess.TimeoutExpired:
        return _failed(order, f"did not end within {limit_s:.0f} s")
    except subprocess.CalledProcessError as error:
        wrote = error.stderr.decode(errors="replace").strip().splitlines()
        return _failed(order, wrote[-1] if wrote else f"ended with {error.returncode}")
    except msgspec.DecodeError as error:
        return _failed(order, str(error))


def _failed(order: LoadOrder, why: str) -> Load:
    nothing, errors = HistogramRecord(), {f"generator: {why}": 1}
    return Load(order.rate_per_s, 0.0, nothing, nothing, errors, 0.0, order.seconds, True)


def _judged(order: LoadOrder, seen: Seen) -> Load:
    late, latency = Histogram.of(seen.late), Histogram.of(seen.latency)
    was_late = late.count > 0 and any(
        late.percentile(q) > _LATE_SHARE * latency.percentile(q) for q in (50, 99)
    )
    return Load(
        offered_per_s=seen.offered / order.seconds,
        achieved_per_s=seen.achieved / order.seconds,
        latency=seen.latency,
        service=seen.service,
        errors=seen.errors,
        late_us_p99=late.percentile(99) if late.count else 0.0,
        seconds=order.seconds,
        bottleneck=was_late or seen.busy > _BUSY_SHARE,
        queued=seen.queued,
        busy=seen.busy,
        started_ns=seen.started_ns,
    )
