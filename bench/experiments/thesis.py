"""What the figures of the GPU thesis share: raising a load in turns, and reading the result.

A load is raised until a system can no more: until fewer than 95 % of the requests are answered in
time, or more than 1 % fail, as in the thesis. Systems are asked in turns at each load, and one that
can no more is left out from then on. Arrivals are those of independent users (Poisson), and
latencies count from the time at which a request should have been sent.

Two figures are read off a curve. The *base latency* is the median at the lowest load. The
*throughput* is the highest rate at which right answers came, at whatever load, so that it does not
depend on which loads were tried, as long as the highest was too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..columns import ACHIEVED, P50, P99, P999
from ..experiment import Bench
from ..histogram import Histogram
from ..load import HttpRequest, Load, open_loop
from ..records import Axis, Claim, Panel, Row, Unit
from ..systems.bare import Work
from ..systems.entrants import Entrant

LOADED = (P50, P99, P999, ACHIEVED)
LOAD = Axis("offered load", Unit.PER_SECOND)
FIXED_RATE = 25.0
"""Requests in a second where something else than the load is varied, as in the thesis."""

NOT_MEASURED = "not measured here: a system did not run, or not to its limit, or at too few points"

_KEPT_UP = 0.95
_ERRORS = 0.01
_FEW = 2.0  # so many late answers are no overload, where requests are few

Requests = Callable[[Entrant, int], HttpRequest | Sequence[HttpRequest]]
"""Gives what is sent to a system, for so many requests."""


@dataclass(slots=True)
class Curve:
    """What one system did over a range of x.

    Attributes:
        system: its name.
        points: x and what was measured there, in the order of measuring.
        over: the last of them was too much.
    """

    system: str
    points: list[tuple[float, Load]] = field(default_factory=list)
    over: bool = False

    @property
    def base_us(self) -> float:
        """The median latency at the first x."""
        return self.median_us(0)

    @property
    def throughput(self) -> float:
        """The highest rate of right answers."""
        return max((load.achieved_per_s for _, load in self.points), default=math.nan)

    def median_us(self, index: int) -> float:
        """The median latency at one of the points; nan if nothing was answered there."""
        return self.quantile_us(index, 50.0)

    def quantile_us(self, index: int, percent: float) -> float:
        """A percentile of the latency at one of the points; nan if nothing was answered there."""
        if not -len(self.points) <= index < len(self.points) or not self.points[index][1].count:
            return math.nan
        found: float = Histogram.of(self.points[index][1].latency).percentile(percent)
        return found

    def at(self, x: float) -> float:
        """The median latency at an x; nan if it was not measured."""
        found = [index for index, (there, _) in enumerate(self.points) if there == x]
        return self.median_us(found[0]) if found else math.nan

    def rows(self) -> list[Row]:
        """Give a row for each point."""
        rows = []
        for index, (x, load) in enumerate(self.points):
            words = [load.note] if load.note else []
            if self.over and index == len(self.points) - 1:
                words.append(
                    "more than it can answer" if not load.bottleneck else "the client at its limit"
                )
            values = load.values() if load.count else {"achieved_per_s": load.achieved_per_s}
            rows.append(Row(self.system, x, values, load.count, load.failed, "; ".join(words)))
        return rows


def overloaded(load: Load) -> bool:
    """Whether a system could no more."""
    missing = (load.offered_per_s - load.achieved_per_s) * load.seconds
    late = missing > max(_FEW, (1 - _KEPT_UP) * load.offered_per_s * load.seconds)
    return not load.count or late or load.failed > _ERRORS * (load.failed + load.count)


def measured(
    bench: Bench, entrant: Entrant, requests: Requests, rate: float, seconds: float
) -> Load:
    """Put a system under a load."""
    warm_up_s = min(0.3, seconds / 3)
    asked = requests(entrant, round(rate * (seconds + warm_up_s)) + 2)
    return open_loop(
        entrant.server.port,
        asked,
        rate_per_s=rate,
        seconds=seconds,
        warm_up_s=warm_up_s,
        connections=bench.pick(16, 32, 128),
        seed=bench.seed,
    )


def raised(
    bench: Bench,
    entrants: Sequence[Entrant],
    requests: Requests,
    rates: Sequence[float],
    seconds: float,
    what: str = "",
) -> list[Curve]:
    """Raise the load on several systems, in turns; see the module's text.

    Args:
        bench: says where we are.
        entrants: the systems.
        requests: what they are asked.
        rates: requests in a second, ascending.
        seconds: how long each load lasts.
        what: for the words that show progress.
    """
    curves = {entrant.name: Curve(entrant.name) for entrant in entrants}
    for rate in rates:
        for entrant in entrants:
            curve = curves[entrant.name]
            if not curve.over:
                bench.say(f"{what}{entrant.name}, {rate:g}/s")
                load = measured(bench, entrant, requests, rate, seconds)
                curve.points.append((rate, load))
                curve.over = overloaded(load)
    return list(curves.values())


def varied(
    bench: Bench,
    entrants: Sequence[Entrant],
    works: Sequence[tuple[float, Work]],
    rate: float,
    seconds: float,
) -> list[Curve]:
    """Vary the work at a fixed load, all systems in turns; who can no more is left out.

    Args:
        works: x, and what is done there; ascending.
        rate: requests in a second.
        seconds: how long each x lasts.
    """
    curves = {entrant.name: Curve(entrant.name) for entrant in entrants}
    for x, work in works:
        for entrant in entrants:
            curve = curves[entrant.name]
            if not curve.over:
                bench.say(f"{entrant.name}, {work.name}")
                load = measured(bench, entrant, same(work), rate, seconds)
                curve.points.append((x, load))
                curve.over = overloaded(load)
    return list(curves.values())


def same(work: Work) -> Requests:
    """Ask for the same again and again."""
    return lambda entrant, _: entrant.request(work)


def panel(key: str, title: str, x: Axis, curves: Sequence[Curve], baseline: str = "") -> Panel:
    """Make a panel of curves."""
    rows = tuple(row for curve in curves for row in curve.rows())
    return Panel(key, title, x, LOADED, rows, baseline=baseline)


def curve_of(curves: Sequence[Curve], system: str) -> Curve:
    """Give the curve of a system; one without points if it was not measured."""
    return next((curve for curve in curves if curve.system == system), Curve(system))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a claim comes to here.

    Attributes:
        measured: words with figures.
        figures: what it rests on; if one of them is nan, it was not measured.
        holds: whether they say so.
        unsure: why this machine cannot tell, if it cannot.
    """

    measured: str
    figures: tuple[float, ...]
    holds: bool
    unsure: str = ""


def claim(figure: str, says: str, verdict: Verdict) -> Claim:
    """Make a claim of the thesis.

    Args:
        figure: like "5.1".
        says: what the thesis says, in our words.
        verdict: what was measured here.
    """
    source = f"GPU thesis, Fig. {figure}"
    if any(math.isnan(number) for number in verdict.figures):
        return Claim(source, says, NOT_MEASURED)
    if verdict.unsure:
        return Claim(source, says, f"{verdict.measured}; {verdict.unsure}")
    return Claim(source, says, verdict.measured, verdict.holds)


def unsure(bench: Bench, *curves: Curve) -> str:
    """Say why this run cannot tell what holds of a GPU; empty if it can.

    Args:
        bench: of the run.
        curves: whose throughput it is about, so that the client must have had more.
    """
    if not bench.gpu:
        return "there is no GPU here, and all share the same cores"
    if bench.quick:
        return "a quick run cannot tell"
    late = [curve.system for curve in curves if curve.points and curve.points[-1][1].bottleneck]
    return f"the client was the bottleneck of {', '.join(late)}" if late else ""


def twice(curves: Sequence[Curve], one: str, other: str) -> tuple[str, float]:
    """Compare the throughput of two systems; give words and the ratio of the one to the other.

    The ratio is nan if the other was not pushed to its limit, and a lower bound if the one was not.
    """
    a, b = curve_of(curves, one), curve_of(curves, other)
    ratio = a.throughput / b.throughput if b.over else math.nan
    bound = "" if a.over else "at least "
    words = f"{one} {bound}{a.throughput:.0f}/s, {other} {b.throughput:.0f}/s: {bound}{ratio:.2f}x"
    return words, ratio


def us(value: float) -> str:
    """Write a latency."""
    return f"{value / 1000:.2f} ms" if value >= 1000 else f"{value:.0f} us"
