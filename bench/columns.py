"""Columns of latencies that most panels have, and rows made of what was timed."""

from __future__ import annotations

from .histogram import Histogram
from .records import Metric, Row, Unit

P50 = Metric("p50", "median", Unit.US, logarithmic=True)
P99 = Metric("p99", "99th percentile", Unit.US, logarithmic=True)
P999 = Metric("p999", "99.9th percentile", Unit.US, logarithmic=True, drawn=False)
LOWEST = Metric("lowest", "fastest", Unit.US, logarithmic=True, drawn=False)
ACHIEVED = Metric("achieved_per_s", "achieved", Unit.PER_SECOND, drawn=False, better="higher")
LATENCIES = (P50, P99, LOWEST)


def row(system: str, x: float | str, timed: Histogram, *, per: int = 1, note: str = "") -> Row:
    """Make a row of latencies.

    Args:
        system: who was timed.
        x: at which x.
        timed: latencies in microseconds.
        per: each of them covered so many operations; the row is about one.
        note: what a reader must know of it.
    """
    values = {key: value / per for key, value in timed.values().items()}
    return Row(system, x, values, timed.count, note=note)
