"""Counters of calls, for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

_STEPS = 4
"""Buckets of the durations for each power of two: a quantile is off by an eighth at most."""


@dataclass(slots=True)
class FlowCounts:
    """Counters of the calls of a flow, for metrics.

    Attributes:
        calls: ended calls that were on an engine; `failures` of them with an error.
        busy_ns, queued_ns: time on engines, and time waiting for one.
        output_bytes: of all results.
        batches: how many batches were run; their calls are in `calls`.
        caught, retried: failed calls that became items of errors sets, and that were run again, by
            what compositions declare. A failure inside of a nested composition counts once.
        durations: number of calls by the bucket of their time on an engine.
    """

    calls: int = 0
    failures: int = 0
    busy_ns: int = 0
    queued_ns: int = 0
    output_bytes: int = 0
    batches: int = 0
    caught: int = 0
    retried: int = 0
    durations: dict[int, int] = field(default_factory=dict)

    def measured(self, duration_ns: int) -> None:
        """Count a call that ended."""
        self.calls += 1
        self.busy_ns += duration_ns
        length = duration_ns.bit_length()  # `_STEPS` buckets of equal width for each power of two
        bucket = duration_ns
        if length >= 3:
            bucket = (length - 2) * _STEPS + (duration_ns >> (length - 3) & 3)
        self.durations[bucket] = self.durations.get(bucket, 0) + 1

    def quantile_ns(self, part: float) -> float:
        """Estimate the time that this part of the calls does not exceed; 0 without calls."""
        wanted, seen = part * sum(self.durations.values()), 0
        for bucket in sorted(self.durations):
            seen += self.durations[bucket]
            if seen >= wanted:
                return _middle_ns(bucket)
        return 0.0

    def add(self, other: FlowCounts) -> None:
        """Count what another one counted, too."""
        self.calls += other.calls
        self.failures += other.failures
        self.busy_ns += other.busy_ns
        self.queued_ns += other.queued_ns
        self.output_bytes += other.output_bytes
        self.batches += other.batches
        self.caught += other.caught
        self.retried += other.retried
        for bucket, count in other.durations.items():
            self.durations[bucket] = self.durations.get(bucket, 0) + count


def _middle_ns(bucket: int) -> float:
    if bucket < _STEPS:
        return float(bucket)
    power, step = divmod(bucket, _STEPS)
    return (_STEPS + step + 0.5) * 2.0 ** (power - 1)


@dataclass(slots=True)
class ConstantsCounts:
    """Counters of constants that were copied to devices, also by a call for itself alone."""

    copies: int = 0
    copied_bytes: int = 0
