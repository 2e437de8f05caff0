"""Counters of calls, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    calls: int = 0
    failures: int = 0
    busy_ns: int = 0
    queued_ns: int = 0
    output_bytes: int = 0
    batches: int = 0
    caught: int = 0
    retried: int = 0

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


@dataclass(slots=True)
class ConstantsCounts:
    """Counters of constants that were copied to devices, also by a call for itself alone."""

    copies: int = 0
    copied_bytes: int = 0
