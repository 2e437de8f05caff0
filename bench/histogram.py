"""Latencies in a histogram of bounded size and bounded relative error.

Values are whole nanoseconds. Below 2048 ns each has a bucket of its own; above, every power of two
is split into 1024 buckets of equal width, so that a bucket is at most 1/1024 of its values wide and
its middle at most 0.05 % off. The lowest, the highest and the sum are kept exactly. Two histograms
add up to the histogram of all their values, which lists of percentiles do not.

Source: the layout is that of HdrHistogram, http://hdrhistogram.org, with three significant digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

_BITS = 11
_HALF = 1 << (_BITS - 1)
_NS_OF_US = 1000.0

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
"""Which percentiles `Histogram.values` gives, by the key of the metric."""


class HistogramRecord(msgspec.Struct, frozen=True):
    """A histogram as it crosses processes and is kept.

    Attributes:
        counts: how many values, by the number of the bucket.
        lowest_ns, highest_ns, total_ns: of all values; 0 if there are none.
    """

    counts: dict[int, int] = {}
    lowest_ns: int = 0
    highest_ns: int = 0
    total_ns: int = 0


class Histogram:
    """Counts values in log-linear buckets."""

    __slots__ = ("_counts", "_highest", "_lowest", "_total", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._lowest = 0
        self._highest = 0
        self._total = 0
        self.count = 0

    @classmethod
    def of(cls, record: HistogramRecord) -> Histogram:
        """Make the histogram that a record holds."""
        made = cls()
        made._counts = dict(record.counts)
        made._lowest = record.lowest_ns
        made._highest = record.highest_ns
        made._total = record.total_ns
        made.count = sum(record.counts.values())
        return made

    def as_record(self) -> HistogramRecord:
        """Give its content, to be sent or kept."""
        return HistogramRecord(dict(self._counts), self._lowest, self._highest, self._total)

    def record(self, value_us: float, count: int = 1) -> None:
        """Count a value.

        Args:
            value_us: in microseconds; what is below zero, as clocks may have it, counts as zero.
            count: how often.
        """
        self.record_ns(round(value_us * _NS_OF_US), count)

    def record_ns(self, value_ns: int, count: int = 1) -> None:
        """Count a value in whole nanoseconds."""
        value_ns = max(value_ns, 0)
        bucket = bucket_of(value_ns)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self._lowest = min(self._lowest, value_ns) if self.count else value_ns
        self._highest = max(self._highest, value_ns)
        self._total += value_ns * count
        self.count += count

    def record_all(self, values_us: Iterable[float]) -> None:
        """Count values in microseconds."""
        for value in values_us:
            self.record(value)

    def merge(self, other: Histogram) -> None:
        """Count all values of another histogram."""
        if not other.count:
            return
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self._lowest = min(self._lowest, other._lowest) if self.count else other._lowest
        self._highest = max(self._highest, other._highest)
        self._total += other._total
        self.count += other.count

    @property
    def lowest(self) -> float:
        """The lowest value, in microseconds; nan if there is none."""
        return self._lowest / _NS_OF_US if self.count else math.nan

    @property
    def highest(self) -> float:
        """The highest value, in microseconds; nan if there is none."""
        return self._highest / _NS_OF_US if self.count else math.nan

    @property
    def mean(self) -> float:
        """The mean of all values, in microseconds; nan if there is none."""
        return self._total / self.count / _NS_OF_US if self.count else math.nan

    def percentile(self, q: float) -> float:
        """Give the least value that at least `q` percent of all values do not exceed.

        Args:
            q: 0 to 100.

        Returns:
            Microseconds, at most 0.05 % off; nan if there are no values.

        Raises:
            ValueError: `q` is out of its range.
        """
        if not 0 <= q <= 100:
            raise ValueError(f"a percentile of {q}")
        if not self.count:
            return math.nan
        # The product may end a hair above a whole number, which must not cost a rank.
        rank = max(1, math.ceil(q / 100 * self.count - 1e-9 * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return self._inside(middle_of(bucket)) / _NS_OF_US
        raise AssertionError("the counts of the buckets do not add up")

    def spread(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Give its buckets: values in microseconds, ascending, and how often each was counted."""
        buckets = sorted(self._counts)
        values = [self._inside(middle_of(b)) / _NS_OF_US for b in buckets]
        counts = [self._counts[b] for b in buckets]
        return np.array(values, np.float64), np.array(counts, np.int64)

    def values(self) -> dict[str, float]:
        """Give the metrics of a row, in microseconds; none if there are no values."""
        if not self.count:
            return {}
        found = {key: self.percentile(q) for key, q in PERCENTILES.items()}
        return found | {"mean": self.mean, "lowest": self.lowest, "highest": self.highest}

    def _inside(self, value_ns: float) -> float:
        return min(max(value_ns, self._lowest), self._highest)


def bucket_of(value_ns: int) -> int:
    """Number the bucket of a value; numbers ascend with values."""
    shift = max(value_ns.bit_length() - _BITS, 0)
    return shift * _HALF + (value_ns >> shift)


def middle_of(bucket: int) -> float:
    """Give the middle of a bucket, in nanoseconds."""
    shift = max(bucket // _HALF - 1, 0)
    first = (bucket - shift * _HALF) << shift
    return first + ((1 << shift) - 1) / 2
