"""Looking at a node: traces, logs, engines, counts, capacity and metrics."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial

from dandelion.activity import Activity, ActivityQuery
from dandelion.call_logs import PAGE_LINES, LogPage
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.catalog import CompositionRecord
from dandelion.errors import InvalidInput
from dandelion.invocation_totals import InvocationTotals
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node.activity import activity_of
from dandelion.node.capacity import (
    capacity_of,
    cores_capacity,
    tenant_capacities,
    workers_capacities,
)
from dandelion.node.components import Components
from dandelion.node.info import EngineInfo, NodeInfo, engine_info
from dandelion.scheduler.counts import FlowCounts
from dandelion.scheduler.engine import EnginePhase
from dandelion.traces import TraceDocument


class Viewing:
    """The methods of a node that show what it does and did. Safe from any thread."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._counting = threading.Lock()
        self._lines_dropped = 0

    def trace(self, invocation: str, tenant: str | None = None) -> TraceDocument | None:
        """Give the trace of an invocation that ended lately, as Chrome and Perfetto read it.

        With a tenant, traces of other tenants are not found.
        """
        trace = self._parts.traces.get(invocation, tenant)
        return None if trace is None else trace.chrome_json()

    def logs(
        self,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
        tenant: str = DEFAULT_TENANT,
    ) -> LogPage:
        """Give lines that functions wrote lately to their standard streams and to `logging`.

        Args:
            function: only lines of this function.
            invocation: only lines of this invocation.
            after: only later lines than those of an earlier page; its `last`.
            limit: how many, the newest.
            tenant: whose functions.
        """
        return self._parts.logs.page(tenant, function, invocation, after, limit)

    def engines(self) -> list[EngineInfo]:
        """All engines, and backends that do not work here with their reason."""
        infos = [engine_info(executor) for executor in list(self._parts.runtime.executors.values())]
        infos += [
            EngineInfo("", e.backend, "", "", EnginePhase.UNAVAILABLE.value, str(e), 0, 0, 0)
            for e in self._parts.backends.missing
        ]
        return infos

    def info(self) -> NodeInfo:
        """Take a snapshot of what metrics are made of."""
        return self._parts.ask(self._info)

    def _info(self) -> NodeInfo:
        parts = self._parts
        scheduler = parts.runtime.scheduler
        functions: dict[tuple[str, str], FlowCounts] = {}  # of all versions
        queued: Counter[tuple[str, str]] = Counter()
        for flow in scheduler.calls.flows.values():
            key = (flow.tenant.name, flow.spec.name)
            functions.setdefault(key, FlowCounts()).add(flow.counts)
            queued[key] += sum(len(queue.calls) for queue in flow.queues.values())
        memory = scheduler.calls.residency.node.by_tenant
        tenants = parts.spaces.tenants()
        return NodeInfo(
            {name: counts.copy() for name, counts in parts.recorder.counts.items()},
            len(scheduler.invocations),
            scheduler.calls.lines.waiting,
            functions,
            {key: count for key, count in queued.items() if count},
            tuple(self.engines()),
            parts.arena.stats(),
            parts.transfers.counts(),
            replace(parts.cache.counts),
            {tenant.name: size for tenant, size in memory.items()},
            parts.runtime.longest_turn_ns / 1e9,
            tenant_capacities(scheduler, tenants, tenants),
            replace(scheduler.calls.residency.counts),
            workers_capacities(scheduler, shows_all=True),
            len(scheduler.pauses),
            None if parts.spans is None else parts.spans.counts(),
            self._lines_dropped,
            self._cluster_info(),
            cores_capacity(scheduler),
        )

    def totals(self, tenant: str = DEFAULT_TENANT) -> list[InvocationTotals]:
        """Tell how many invocations of each name of a tenant ended, and how long they took."""
        return self._parts.ask(partial(self._parts.recorder.totals.of, tenant))

    def activity(
        self, tenant: str = DEFAULT_TENANT, query: ActivityQuery | None = None
    ) -> Activity:
        """Tell what a tenant did lately: invocations, and calls by function."""
        scheduler = self._parts.runtime.scheduler
        requested = query or ActivityQuery()

        def ask() -> Activity:
            invocations, flows = scheduler.invocations.values(), scheduler.calls.flows.values()
            return activity_of(self._parts.activity, tenant, requested, invocations, flows)

        return self._parts.ask(ask)

    def capacity(
        self, tenant: str | None = None, function: str | None = None, version: int | None = None
    ) -> NodeCapacity:
        """Tell what the node has and what is free.

        Args:
            tenant: of the caller: only its own row is shown, and engines in total. None shows all.
            function: also tell what would happen to a call of this function of the tenant (by
                default of the default tenant); see `Admission`.
            version: of the function; by default the newest.

        Raises:
            Unknown: there is no such function.
            InvalidInput: it is a composition.
        """
        asking = self._parts.spaces.of(tenant or DEFAULT_TENANT)
        spec = None if function is None else asking.library.find(function, version)
        if isinstance(spec, CompositionRecord):
            hint = f"ask for one of the functions that it uses: {', '.join(spec.uses)}"
            raise InvalidInput("function", f"'{function}' is a composition", hint)
        tenants = self._parts.spaces.tenants()
        ask = partial(
            capacity_of,
            self._parts.runtime,
            self._parts.arena,
            tenants,
            asking.tenant,
            spec,
            tenant is None,
        )
        return self._parts.ask(ask)

    def cluster(self) -> ClusterInfo | None:
        """Tell what the node knows of its cluster; None if it is in none."""
        return self._parts.loop.call(self._cluster_info) if self._parts.running else None

    def _cluster_info(self) -> ClusterInfo | None:
        cluster = self._parts.cluster
        return None if cluster is None else cluster.info()

    def lines_dropped(self, count: int) -> None:
        """Count lines of an access log that were lost."""
        with self._counting:  # servers may have loops of their own
            self._lines_dropped += count

    def metrics(self) -> bytes:
        """Write the metrics in Prometheus' text format."""
        from dandelion.node.metrics import exposition  # it takes long to load

        return exposition(self.info())
