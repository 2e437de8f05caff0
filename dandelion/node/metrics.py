"""Metrics of a node in Prometheus' text format, read from plain counters when asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dandelion.memory import DomainStats, TransferCounts
from dandelion.node.cache import CacheCounts
from dandelion.node.hosts import EngineHost

BUCKETS_S: tuple[float, ...] = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025)
BUCKETS_S += (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class InvocationCounts:
    """What became of invocations: how many by outcome, and how long they took."""

    by_outcome: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, outcome: str, duration_s: float) -> None:
        """Count an invocation that ended."""
        self.by_outcome[outcome] = self.by_outcome.get(outcome, 0) + 1
        self.total_s += duration_s
        self.buckets[bisect_left(BUCKETS_S, duration_s)] += 1


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A snapshot of what metrics are made of."""

    invocations: InvocationCounts
    running: int
    waiting: int
    hosts: tuple[EngineHost, ...]
    arena: DomainStats
    transfers: TransferCounts
    cache: CacheCounts


class _Snapshot(Collector):
    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        ended = CounterMetricFamily(
            "dandelion_invocations", "Invocations that ended, by outcome.", labels=["outcome"]
        )
        for outcome, count in sorted(facts.invocations.by_outcome.items()):
            ended.add_metric([outcome], count)
        yield ended
        yield self._durations()
        yield GaugeMetricFamily(
            "dandelion_invocations_running", "Invocations under way.", facts.running
        )
        yield GaugeMetricFamily(
            "dandelion_calls_waiting", "Instances that wait for an engine.", facts.waiting
        )
        yield from self._arena()
        yield from self._cache()
        yield from self._engines()

    def _durations(self) -> Metric:
        total = 0
        buckets = []
        for bound, count in zip(
            (*map(str, BUCKETS_S), "+Inf"), self._facts.invocations.buckets, strict=True
        ):
            total += count
            buckets.append((bound, float(total)))
        durations = HistogramMetricFamily(
            "dandelion_invocation_duration_seconds", "Time from the call to its result."
        )
        durations.add_metric([], buckets, self._facts.invocations.total_s)
        return durations

    def _arena(self) -> Iterator[Metric]:
        arena, transfers = self._facts.arena, self._facts.transfers
        yield GaugeMetricFamily(
            "dandelion_arena_capacity_bytes", "Size of the arena.", arena.capacity_bytes
        )
        yield GaugeMetricFamily(
            "dandelion_arena_used_bytes", "Bytes of the arena in contexts.", arena.used_bytes
        )
        yield GaugeMetricFamily(
            "dandelion_contexts", "Contexts that are referred to.", arena.contexts
        )
        yield CounterMetricFamily(
            "dandelion_copied_bytes", "Bytes copied into the arena.", transfers.copied_bytes
        )
        yield CounterMetricFamily(
            "dandelion_copied_items", "Items copied into the arena.", transfers.copies
        )

    def _cache(self) -> Iterator[Metric]:
        cache = self._facts.cache
        yield CounterMetricFamily("dandelion_cache_hits", "Results from the cache.", cache.hits)
        yield CounterMetricFamily("dandelion_cache_misses", "Results not there.", cache.misses)
        yield CounterMetricFamily("dandelion_cache_evictions", "Results dropped.", cache.evictions)
        yield GaugeMetricFamily("dandelion_cache_bytes", "Bytes of kept results.", cache.bytes)

    def _engines(self) -> Iterator[Metric]:
        labels = ["engine", "backend"]
        calls = CounterMetricFamily("dandelion_engine_calls", "Calls that ended.", labels=labels)
        failures = CounterMetricFamily(
            "dandelion_engine_failures", "Calls that failed.", labels=labels
        )
        busy = CounterMetricFamily(
            "dandelion_engine_busy_seconds", "Time spent in calls.", labels=labels
        )
        ready = GaugeMetricFamily("dandelion_engine_ready", "1 if it takes calls.", labels=labels)
        for host in self._facts.hosts:
            values = [host.facts.name or host.facts.backend, host.facts.backend]
            calls.add_metric(values, host.facts.counts.calls)
            failures.add_metric(values, host.facts.counts.failures)
            busy.add_metric(values, host.facts.counts.busy_ns / 1e9)
            ready.add_metric(values, host.state.value == "ready")
        yield from (calls, failures, busy, ready)


def exposition(facts: NodeFacts) -> bytes:
    """Write a snapshot in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(facts))
    return generate_latest(registry)
