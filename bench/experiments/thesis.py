"""What the figures of the GPU thesis share: raising a load in turns, and reading the result.

A load is raised until a system is overloaded: until fewer than 95 % of the requests are answered in
time, or more than 1 % fail, as in the thesis. Systems are asked in turns at each load, and an
overloaded one is left out from then on. Arrivals are those of independent users (Poisson), and
latencies count from the time at which a request should have been sent.

Two values are read from a curve. The *base latency* is the median at the lowest load. The
*throughput* is the highest rate of right answers at any load, so it does not depend on which loads
were tried, as long as the highest was too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..experiment import Bench
from ..load import HttpRequest, LoadResult, open_loop
from ..records import Axis, Claim, Panel, Row, Unit
from ..samples import ACHIEVED, P50, P99, P999
from ..systems import names
from ..systems.bare import Workload
from ..systems.contenders import RunningContender

CONCURRENT = names.concurrent(2)
LOAD = Axis("offered load", Unit.PER_SECOND)
FIXED_RATE = 25.0
"""Requests per second where something else than the load is varied, as in the thesis."""

NOT_MEASURED = "not measured here: a system did not run, or not to its limit, or at too few points"

_SUSTAINED = 0.95
_ERRORS = 0.01
_FEW = 2.0  # so many late answers are no overload, where requests are few

RequestsOf = Callable[[RunningContender, int], HttpRequest | Sequence[HttpRequest]]
"""Gives what is sent to a system, for so many requests."""


@dataclass(slots=True)
class Curve:
    """What one system did over a range of x.

    Attributes:
        points: x and what was measured there, in the order of measuring.
        over: the last of them was too much.
    """

    system: str
    points: list[tuple[float, LoadResult]] = field(default_factory=list)
    over: bool = False

    @property
    def base_us(self) -> float:
        """The median latency at the first x."""
        return self.quantile_us(0)

    @property
    def throughput(self) -> float:
        """The highest rate of right answers."""
        return max((load.achieved_per_s for _, load in self.points), default=math.nan)

    def quantile_us(self, index: int, percent: float = 50.0) -> float:
        """Give a percentile of the latency at one point; nan if nothing was answered there."""
        if not -len(self.points) <= index < len(self.points):
            return math.nan
        return self.points[index][1].latency.percentile(percent)

    def at(self, x: float) -> float:
        """Give the median latency at an x; nan if it was not measured."""
        found = [load.latency.median for there, load in self.points if there == x]
        return found[0] if found else math.nan

    def rows(self) -> list[Row]:
        """Give a row for each point."""
        rows = []
        for index, (x, load) in enumerate(self.points):
            words = [load.note] if load.note else []
            if self.over and index == len(self.points) - 1:
                client = "the client at its limit"
                words.append(client if load.bottleneck else "more than it can answer")
            values = load.values()
            rows.append(Row(self.system, x, values, load.count, load.failed, "; ".join(words)))
        return rows


def overloaded(load: LoadResult) -> bool:
    """Return whether a system reached its limit."""
    missing = (load.offered_per_s - load.achieved_per_s) * load.seconds
    late = missing > max(_FEW, (1 - _SUSTAINED) * load.offered_per_s * load.seconds)
    return not load.count or late or load.failed > _ERRORS * (load.failed + load.count)


def _measured(
    bench: Bench, running: RunningContender, requests: RequestsOf, rate: float, seconds: float
) -> LoadResult:
    warm_up_s = min(0.3, seconds / 3)
    requested = requests(running, round(rate * (seconds + warm_up_s)) + 2)
    return open_loop(
        running.server.port, requested, rate_per_s=rate, seconds=seconds, warm_up_s=warm_up_s,
        connections=bench.pick(16, 32, 128), seed=bench.seed,
    )  # fmt: skip


def raised(
    bench: Bench,
    running: Sequence[RunningContender],
    requests: RequestsOf,
    rates: Sequence[float],
    seconds: float,
    what: str = "",
) -> list[Curve]:
    """Raise the load on several systems, in turns.

    Args:
        running: the systems.
        requests: what they are asked.
        rates: requests per second, ascending.
        seconds: how long each load lasts.
        what: for the words that show progress.
    """
    points = [(rate, rate, requests, f"{what}{{}}, {rate:g}/s") for rate in rates]
    return _curves(bench, running, points, seconds)


def varied(
    bench: Bench,
    running: Sequence[RunningContender],
    works: Sequence[tuple[float, Workload]],
    rate: float,
    seconds: float,
) -> list[Curve]:
    """Vary the workload, given with its x, at a fixed load, all systems in turns."""
    points = [(x, rate, same(work), f"{{}}, {work.name}") for x, work in works]
    return _curves(bench, running, points, seconds)


def _curves(
    bench: Bench,
    running: Sequence[RunningContender],
    points: Sequence[tuple[float, float, RequestsOf, str]],
    seconds: float,
) -> list[Curve]:
    curves = {one.name: Curve(one.name) for one in running}
    for x, rate, requests, words in points:
        for one in running:
            curve = curves[one.name]
            if not curve.over:
                bench.say(words.format(one.name))
                load = _measured(bench, one, requests, rate, seconds)
                curve.points.append((x, load))
                curve.over = overloaded(load)
    return list(curves.values())


def same(work: Workload) -> RequestsOf:
    """Ask for the same workload repeatedly."""
    return lambda running, _: running.request(work)


def panel(key: str, title: str, x: Axis, curves: Sequence[Curve], baseline: str = "") -> Panel:
    """Make a panel of curves."""
    rows = tuple(row for curve in curves for row in curve.rows())
    return Panel(key, title, x, (P50, P99, P999, ACHIEVED), rows, baseline=baseline)


def curves_of(curves: Sequence[Curve], *systems: str) -> list[Curve]:
    """Give the curves of systems; one without points for each that was not measured."""
    known = {curve.system: curve for curve in curves}
    return [known.get(system, Curve(system)) for system in systems]


def claim(
    bench: Bench,
    figure: str,
    says: str,
    measured: str,
    values: Sequence[float],
    holds: bool,
    *curves: Curve,
) -> Claim:
    """Make a claim of the thesis.

    Args:
        bench: of the run; without a GPU it cannot tell what holds.
        figure: like "5.1".
        says: what the thesis says, in our words.
        measured: what was measured here, in words.
        values: on which it depends; if one of them is nan, it was not measured.
        holds: whether the values agree.
        curves: whose throughput it is about, so the client must not have been the bottleneck.
    """
    source = f"GPU thesis, Fig. {figure}"
    if any(math.isnan(number) for number in values):
        return Claim(source, says, NOT_MEASURED)
    if reason := _unsure(bench, curves):
        return Claim(source, says, f"{measured}; {reason}")
    return Claim(source, says, measured, holds)


def _unsure(bench: Bench, curves: Sequence[Curve]) -> str:
    if not bench.gpu:
        return "there is no GPU here, and all share the same cores"
    if bench.quick:
        return "a quick run cannot tell"
    late = [curve.system for curve in curves if curve.points and curve.points[-1][1].bottleneck]
    return f"the client was the bottleneck of {', '.join(late)}" if late else ""


def against(a: Curve, b: Curve) -> tuple[str, float]:
    """Compare the throughput of two systems; give words and the ratio of the first to the second.

    The ratio is nan if `b` was not driven to its limit, and a lower bound if `a` was not.
    """
    ratio = a.throughput / b.throughput if b.over else math.nan
    bound = "" if a.over else "at least "
    words = (
        f"{a.system} {bound}{a.throughput:.0f}/s, {b.system} {b.throughput:.0f}/s: "
        f"{bound}{ratio:.2f}x"
    )
    return words, ratio


def us(value: float) -> str:
    """Write a latency."""
    return f"{value / 1000:.2f} ms" if value >= 1000 else f"{value:.0f} us"
