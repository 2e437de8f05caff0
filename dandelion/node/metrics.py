"""Metrics of a node in Prometheus' text format, made from a snapshot of plain counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dandelion.capacity import ClusterInfo
from dandelion.node.info import NodeInfo
from dandelion.node.observer import BUCKETS_S, InvocationCounts


class _Snapshot(Collector):
    def __init__(self, info: NodeInfo) -> None:
        self._info = info

    def collect(self) -> Iterator[Metric]:
        info = self._info
        ended = CounterMetricFamily(
            "dandelion_invocations",
            "Invocations that ended, by tenant and outcome.",
            labels=["tenant", "outcome"],
        )
        for tenant, counts in sorted(info.invocations.items()):
            for outcome, count in sorted(counts.by_outcome.items()):
                ended.add_metric([tenant, outcome], count)
        yield ended
        yield self._durations()
        yield GaugeMetricFamily(
            "dandelion_invocations_running", "Invocations under way.", info.running
        )
        yield GaugeMetricFamily(
            "dandelion_calls_waiting", "Instances that wait for an engine.", info.waiting
        )
        yield GaugeMetricFamily(
            "dandelion_calls_paused", "Instances that wait before another attempt.", info.paused
        )
        yield GaugeMetricFamily(
            "dandelion_loop_step_seconds",
            "The longest time that the scheduler kept the node's event loop.",
            info.longest_turn_s,
        )
        yield from self._functions()
        yield from self._tenants()
        yield from self._arena()
        yield from self._constants()
        yield from self._cache()
        yield from self._records()
        yield from self._engines()
        yield from self._cluster()

    def _cluster(self) -> Iterator[Metric]:
        cluster = self._info.cluster
        if cluster is None:
            return
        members = GaugeMetricFamily(
            "dandelion_cluster_members", "Nodes of the cluster, by state.", labels=["state"]
        )
        for state, count in sorted(Counter(m.state for m in cluster.members).items()):
            members.add_metric([state], count)
        yield members
        yield GaugeMetricFamily(
            "dandelion_cluster_majority",
            "1 if this node sees more than half of the voters.",
            cluster.majority,
        )
        documented = {
            "sent_calls": "Calls that other nodes ran for this one.",
            "served_calls": "Calls that this node ran for others.",
            "lost_calls": "Calls that were lost with the node that ran them.",
            "sent_bytes": "Bytes sent to other nodes.",
            "received_bytes": "Bytes received from other nodes.",
            "taken_over": "Asynchronous invocations of lost nodes that this one went on with.",
        }
        for name, text in documented.items():
            yield CounterMetricFamily(f"dandelion_cluster_{name}", text, getattr(cluster, name))
        yield GaugeMetricFamily(
            "dandelion_cluster_kept_copies",
            "Asynchronous invocations of any node of which this one has a copy.",
            cluster.kept_copies,
        )
        yield GaugeMetricFamily(
            "dandelion_cluster_kept_copies_bytes",
            "Inputs and results of these copies.",
            cluster.kept_copies_bytes,
        )
        yield GaugeMetricFamily(
            "dandelion_cluster_full_voters",
            "Voters that have no room for copies of all asynchronous invocations of this node.",
            len(cluster.full_voters),
        )
        yield from _nodes(cluster)

    def _durations(self) -> Metric:
        durations = HistogramMetricFamily(
            "dandelion_invocation_duration_seconds",
            "Time from the call to its result, by tenant.",
            labels=["tenant"],
        )
        for tenant, counts in sorted(self._info.invocations.items()):
            durations.add_metric([tenant], _cumulative(counts), counts.total_s)
        return durations

    def _functions(self) -> Iterator[Metric]:
        labels = ["tenant", "function"]
        families = {
            "calls": CounterMetricFamily("dandelion_calls", "Calls that ended.", labels=labels),
            "failures": CounterMetricFamily(
                "dandelion_call_failures", "Calls that failed.", labels=labels
            ),
            "caught": CounterMetricFamily(
                "dandelion_call_failures_caught",
                "Failed calls that compositions caught.",
                labels=labels,
            ),
            "retried": CounterMetricFamily(
                "dandelion_call_failures_retried",
                "Failed calls that compositions tried again.",
                labels=labels,
            ),
            "busy_ns": CounterMetricFamily(
                "dandelion_call_run_seconds", "Time of calls on engines.", labels=labels
            ),
            "queued_ns": CounterMetricFamily(
                "dandelion_call_queue_seconds", "Time that calls waited.", labels=labels
            ),
            "batches": CounterMetricFamily(
                "dandelion_call_batches", "Batches in which calls were joined.", labels=labels
            ),
            "output_bytes": CounterMetricFamily(
                "dandelion_call_output_bytes", "Bytes of results.", labels=labels
            ),
        }
        for (tenant, function), counts in sorted(self._info.functions.items()):
            for field, family in families.items():
                value = getattr(counts, field)
                family.add_metric([tenant, function], value / 1e9 if field[-3:] == "_ns" else value)
        yield from families.values()
        queued = GaugeMetricFamily(
            "dandelion_calls_queued", "Calls that wait, by function.", labels=labels
        )
        for (tenant, function), count in sorted(self._info.queued.items()):
            queued.add_metric([tenant, function], count)
        yield queued
        memory = GaugeMetricFamily(
            "dandelion_functions_bytes",
            "Code and constants of functions in the node's memory.",
            labels=["tenant"],
        )
        for tenant, size in sorted(self._info.functions_bytes.items()):
            memory.add_metric([tenant], size)
        yield memory

    def _tenants(self) -> Iterator[Metric]:
        documented = {
            "share": "Share of engine time, by weight among the tenants that have calls.",
            "invocations": "Invocations that run, by tenant.",
            "calls": "Calls on engines, by tenant.",
            "waiting": "Calls that wait for an engine, by tenant.",
            "arena_bytes": "Charged for inputs and results, by tenant.",
            "device_bytes": "Constants on devices and memory of calls there, by tenant.",
        }
        for name, text in documented.items():
            family = GaugeMetricFamily(f"dandelion_tenant_{name}", text, labels=["tenant"])
            for tenant in self._info.tenants:
                family.add_metric([tenant.name], getattr(tenant, name))
            yield family

    def _arena(self) -> Iterator[Metric]:
        arena, transfers = self._info.arena, self._info.transfers
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

    def _constants(self) -> Iterator[Metric]:
        documented = {
            "copies": "Constants copied to devices.",
            "copied_bytes": "Bytes of constants copied to devices.",
        }
        for name, text in documented.items():
            value = getattr(self._info.constants, name)
            yield CounterMetricFamily(f"dandelion_constants_{name}", text, value)

    def _cache(self) -> Iterator[Metric]:
        cache = self._info.cache
        yield CounterMetricFamily("dandelion_cache_hits", "Results from the cache.", cache.hits)
        yield CounterMetricFamily("dandelion_cache_misses", "Results not there.", cache.misses)
        yield CounterMetricFamily("dandelion_cache_evictions", "Results dropped.", cache.evictions)
        yield GaugeMetricFamily("dandelion_cache_bytes", "Bytes of kept results.", cache.bytes)

    def _records(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "dandelion_access_log_dropped",
            "Lines of the access log that were lost.",
            self._info.lines_dropped,
        )
        spans = self._info.spans
        if spans is None:
            return
        yield CounterMetricFamily(
            "dandelion_trace_spans_exported", "Spans that the collector took.", spans.exported
        )
        yield CounterMetricFamily(
            "dandelion_trace_spans_dropped", "Spans that were lost.", spans.dropped
        )

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
        for engine in self._info.engines:
            values = [engine.name or engine.backend, engine.backend]
            calls.add_metric(values, engine.calls)
            failures.add_metric(values, engine.failures)
            busy.add_metric(values, engine.busy_s)
            ready.add_metric(values, engine.state == "ready")
        yield from (calls, failures, busy, ready)
        yield from self._workers()
        yield from self._cores()

    def _cores(self) -> Iterator[Metric]:
        text = "Cores of compute and I/O engines, where they are divided."
        family = GaugeMetricFamily("dandelion_cores", text, labels=["side"])
        moved = CounterMetricFamily("dandelion_cores_moved", "Cores that changed their side.")
        cores = self._info.cores
        if cores is not None:
            family.add_metric(["compute"], cores.compute)
            family.add_metric(["io"], cores.io)
            moved.add_metric([], cores.moves)
        yield from (family, moved)

    def _workers(self) -> Iterator[Metric]:
        labels = ["backend", "resource"]
        documented = {
            "most": "Workers that a device may have, where the node chooses how many run.",
            "started": "Workers of a device that are up or starting.",
            "active": "Workers of a device that take calls.",
        }
        for name, text in documented.items():
            family = GaugeMetricFamily(f"dandelion_workers_{name}", text, labels=labels)
            for workers in self._info.workers:
                family.add_metric([workers.backend, workers.resource], getattr(workers, name))
            yield family


def _cumulative(counts: InvocationCounts) -> list[tuple[str, float]]:
    total = 0
    buckets = []
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts.buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def exposition(info: NodeInfo) -> bytes:
    """Write a snapshot in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(info))
    return generate_latest(registry)


def _nodes(cluster: ClusterInfo) -> Iterator[Metric]:
    """Give what is known of each node of a cluster, with the label ``node``."""
    engines = GaugeMetricFamily(
        "dandelion_cluster_engines",
        "How many calls a node runs at the same time.",
        labels=["node", "backend"],
    )
    free = GaugeMetricFamily(
        "dandelion_cluster_free_engines",
        "How many more calls a node would begin.",
        labels=["node", "backend"],
    )
    waiting = GaugeMetricFamily(
        "dandelion_cluster_waiting_calls", "Calls that wait on a node.", labels=["node"]
    )
    round_trip = GaugeMetricFamily(
        "dandelion_cluster_round_trip_seconds", "Of the last heartbeat.", labels=["node"]
    )
    up = GaugeMetricFamily(
        "dandelion_cluster_node_up", "1 if a node takes calls.", labels=["node", "state"]
    )
    used = CounterMetricFamily(
        "dandelion_cluster_tenant_engine_seconds",
        "How long tenants have used the engines of a node.",
        labels=["node", "tenant"],
    )
    for member in cluster.members:
        for backend, count in sorted(member.engines.items()):
            engines.add_metric([member.name, backend], count)
            free.add_metric([member.name, backend], member.free.get(backend, 0))
        waiting.add_metric([member.name], member.waiting)
        round_trip.add_metric([member.name], member.round_trip_s)
        up.add_metric([member.name, member.state], member.state in ("self", "alive"))
        for tenant, used_s in sorted(member.used_s.items()):
            used.add_metric([member.name, tenant], used_s)
    yield from (engines, free, waiting, round_trip, up, used)
