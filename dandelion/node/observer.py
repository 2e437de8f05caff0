"""What happens in a node, seen from one place: traces, metrics and log lines are made from it.

The runtime calls the observer on the loop; nothing else instruments the node. It keeps counts and
records of what happened, and no data of invocations.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Protocol

from dandelion.driver import InstanceSets
from dandelion.errors import Cancelled, DandelionError, root_of
from dandelion.invocation_totals import TotalsTable
from dandelion.node.activity import ActivityLog
from dandelion.node.call_logs import CallLogs
from dandelion.node.invocation import Invocation
from dandelion.node.spans import SpanSender
from dandelion.node.traces import TraceStore
from dandelion.recording.recorder import SeenCall
from dandelion.scheduler import CallState, InvocationState
from dandelion.traces import CallRecord

BUCKETS_S: tuple[float, ...] = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025)
BUCKETS_S += (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of durations, in seconds."""

log = logging.getLogger("dandelion.invocations")


class Observer(Protocol):
    """Sees what happens; must not raise and must not take long."""

    def call_ended(self, call: CallState, error: DandelionError | None = None) -> None:
        """A call is off its engine, with outputs or an error."""

    def answered(self, call: CallState, answer: InstanceSets | DandelionError) -> None:
        """A call of its own, or a member of a batch, gave outputs or an error."""

    def found(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        """The result of a call was kept from an earlier one."""

    def refused(self, invocation: InvocationState, error: DandelionError) -> None:
        """An invocation was not admitted."""

    def invocation_ended(self, invocation: InvocationState) -> None:
        """An invocation has its outputs or its error."""


@dataclass(slots=True)
class InvocationCounts:
    """What became of the invocations of one tenant, and how long they took."""

    by_outcome: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, outcome: str, duration_s: float) -> None:
        """Count an invocation that ended."""
        self.by_outcome[outcome] = self.by_outcome.get(outcome, 0) + 1
        self.total_s += duration_s
        self.buckets[bisect_left(BUCKETS_S, duration_s)] += 1

    def copy(self) -> InvocationCounts:
        """Take a snapshot."""
        return InvocationCounts(dict(self.by_outcome), list(self.buckets), self.total_s)


class Recorder:
    """The node's observer: keeps traces and counts, and logs invocations that fail.

    Args:
        traces: keeps what happened in the last invocations.
        activity: keeps a short record of more of them.
        logs: keeps what functions wrote.
        spans: exports recorded invocations; None if that is not wanted.

    Attributes:
        counts: by tenant.
        totals: by tenant and name.
    """

    def __init__(
        self,
        traces: TraceStore,
        activity: ActivityLog,
        logs: CallLogs,
        spans: SpanSender | None = None,
    ) -> None:
        self._traces = traces
        self._activity = activity
        self._logs = logs
        self._spans = spans
        self.counts: dict[str, InvocationCounts] = {}
        self.totals = TotalsTable()

    def call_ended(self, call: CallState, error: DandelionError | None = None) -> None:
        """Add the call to its invocation's trace; a batch to those of its members."""
        engine = call.engine
        if engine is None:
            return
        if call.printed:
            self._keep_printed(call)
        started_ns = call.started_ns or call.sent_ns
        ended_ns = max(call.ended_ns, started_ns)
        failed = "" if error is None else type(root_of(error)).__name__
        for one in call.members or (call,):
            invocation, run = one.invocation, one.run
            if isinstance(invocation, Invocation):
                queued_ns = one.queued_ns if call.sent_ns > one.queued_ns else 0
                invocation.calls_ended += 1
                invocation.run_ns += ended_ns - started_ns
                if queued_ns:
                    invocation.queued_ns += started_ns - queued_ns
                invocation.trace.add(
                    CallRecord(
                        run.application.id,
                        run.number,
                        engine.name,
                        queued_ns,
                        started_ns,
                        ended_ns,
                        call.stages,
                        run.attempt + one.attempt - 1,
                        failed,
                        call.span_id,
                    )
                )

    def _keep_printed(self, call: CallState) -> None:
        """Keep what a call wrote; the node that owns the invocation keeps that of its calls."""
        invocation = call.invocation
        if invocation.served and isinstance(invocation, Invocation):
            invocation.printed = call.printed
        else:
            self._logs.add(call)

    def answered(self, call: CallState, answer: InstanceSets | DandelionError) -> None:
        """Add the call to the recording of its invocation, if there is one."""
        invocation = call.invocation
        if isinstance(invocation, Invocation) and invocation.recorder is not None:
            invocation.recorder.add(_seen(call, answer))

    def found(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        """Note in trace and recording that a result was kept."""
        run, invocation = call.run, call.invocation
        if isinstance(invocation, Invocation):
            invocation.trace.add(
                CallRecord(run.application.id, run.number, "cache", 0, now_ns, now_ns, {})
            )
            self.answered(call, outputs)

    def refused(self, invocation: InvocationState, error: DandelionError) -> None:
        """Count it; a refusal has no duration. The owner counts a call of another node."""
        if invocation.served:
            return
        counts, outcome = self._counts_of(invocation.tenant.name).by_outcome, type(error).__name__
        counts[outcome] = counts.get(outcome, 0) + 1
        if isinstance(invocation, Invocation):
            invocation.trace.end_ns = time.monotonic_ns()
            invocation.trace.outcome = outcome
            self._export(invocation)

    def _export(self, invocation: Invocation) -> None:
        span = invocation.span
        if span is not None and span.recorded and self._spans is not None:
            self._spans.add(span, invocation.trace)

    def _counts_of(self, tenant: str) -> InvocationCounts:
        counts = self.counts.get(tenant)
        if counts is None:
            counts = self.counts[tenant] = InvocationCounts()
        return counts

    def invocation_ended(self, invocation: InvocationState) -> None:
        """Count it, keep its trace, and log it if it failed; the owner does if it is served."""
        if invocation.served:
            return
        error, tenant = invocation.error, invocation.tenant.name
        outcome = "ok" if error is None else type(error).__name__
        duration_ns = invocation.ended_ns - invocation.started_ns
        self._counts_of(tenant).add(outcome, duration_ns / 1e9)
        name = invocation.walk.plan.name
        self.totals.add(tenant, name, duration_ns, succeeded=error is None)
        if isinstance(invocation, Invocation):
            invocation.trace.end_ns = invocation.ended_ns
            invocation.trace.outcome = outcome
            invocation.trace.caught = invocation.walk.caught
            invocation.trace.retried = invocation.walk.retried
            self._traces.add(invocation.trace)
            self._export(invocation)
            self._activity.add(invocation, error)
        if error is not None and not isinstance(error, Cancelled):
            level = logging.ERROR if root_of(error).status >= 500 else logging.INFO
            text = str(error)  # log records may be kept, and with an error the data of its call
            log.log(level, "%s %s/%s failed: %s", invocation.id, tenant, name, text)


def _seen(call: CallState, answer: InstanceSets | DandelionError) -> SeenCall:
    ran = call.batch or call  # a member of a batch ran as a part of it
    return SeenCall(
        call.run.function,
        call.run.instance,
        call.run.application.id,
        call.run.number,
        call.run.inputs,
        None if isinstance(answer, DandelionError) else answer,
        answer if isinstance(answer, DandelionError) else None,
        "" if ran.engine is None else ran.engine.name,
        ran.started_ns or ran.sent_ns,
        ran.ended_ns,
        call.run.origin,
    )
