"""Keeps short records of the last invocations, and answers what a tenant did lately."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dandelion.activity import (
    Activity,
    ActivityQuery,
    FunctionActivity,
    InvocationSummary,
    RunningInvocation,
)
from dandelion.errors import DandelionError
from dandelion.errors.function import PRINTED
from dandelion.node.invocation import Invocation
from dandelion.scheduler import Flow, InvocationState
from dandelion.scheduler.counts import FlowCounts

MESSAGE_LIMIT = 500  # characters
RUNNING_LIMIT = 100


@dataclass(slots=True)
class _Kept:
    """The last invocations of one tenant, and how many it had: others must not learn that."""

    last: deque[InvocationSummary]
    count: int = 0


class ActivityLog:
    """The last invocations of all tenants. Written on the node's loop, read from any thread.

    Args:
        keep: how many are kept for each tenant.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._by_tenant: dict[str, _Kept] = {}
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def add(self, invocation: Invocation, error: DandelionError | None) -> None:
        """Keep an invocation that ended; the oldest of its tenant goes if there are too many."""
        if not self._keep:
            return
        started_ns, ended_ns = invocation.started_ns, invocation.ended_ns
        kept = self._by_tenant.get(invocation.tenant.name)
        if kept is None:
            kept = _Kept(deque(maxlen=self._keep))
            self._by_tenant[invocation.tenant.name] = kept
        kept.count += 1
        kept.last.append(
            InvocationSummary(
                kept.count,
                invocation.id,
                invocation.walk.plan.name,
                "ok" if error is None else type(error).__name__,
                "" if error is None else _message(error),
                self.unix_s(started_ns),
                (ended_ns - started_ns) / 1e6,
                invocation.queued_ns / 1e6,
                invocation.run_ns / 1e6,
                invocation.calls_ended,
            )
        )

    def unix_s(self, at_ns: int) -> float:
        """Convert a time of `time.monotonic_ns` to seconds since 1970."""
        return (self._epoch_ns + at_ns) / 1e9

    def find(self, tenant: str, query: ActivityQuery) -> tuple[list[InvocationSummary], bool]:
        """Give the newest invocations that fit, and whether there are more."""
        kept = self._by_tenant.get(tenant)
        if kept is None:
            return [], False
        newest_first = reversed(list(kept.last))
        found = list(itertools.islice(_fitting(newest_first, query), query.limit + 1))
        return found[: query.limit], len(found) > query.limit

    def cursor(self, tenant: str) -> int:
        """Give the number of the tenant's last invocation."""
        kept = self._by_tenant.get(tenant)
        return 0 if kept is None else kept.count


def _message(error: DandelionError) -> str:
    """Give the text of an error, shortened; what a function wrote is in its logs."""
    text = str(error).partition(PRINTED)[0]
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "\u2026"


def _fitting(
    newest_first: Iterable[InvocationSummary], query: ActivityQuery
) -> Iterator[InvocationSummary]:
    for one in newest_first:
        if one.number <= query.after:
            return
        if query.before and one.number >= query.before:
            continue
        if query.name and one.name != query.name:
            continue
        if query.failed and one.outcome == "ok":
            continue
        yield one


def activity_of(
    log: ActivityLog,
    tenant: str,
    query: ActivityQuery,
    invocations: Iterable[InvocationState],
    flows: Iterable[Flow],
) -> Activity:
    """Answer what a tenant did lately; on the node's loop.

    Args:
        log: of the node.
        tenant: of the caller.
        query: which invocations it wants.
        invocations: all that run.
        flows: all functions that were called.
    """
    found, more = log.find(tenant, query)
    own = [one for one in invocations if one.tenant.name == tenant]
    running = [
        RunningInvocation(one.id, one.walk.plan.name, log.unix_s(one.started_ns), len(one.calls))
        for one in own[:RUNNING_LIMIT]
    ]
    return Activity(
        log.cursor(tenant), tuple(found), more, tuple(running), len(own), _functions(tenant, flows)
    )


def _functions(tenant: str, flows: Iterable[Flow]) -> tuple[FunctionActivity, ...]:
    counts: dict[str, FlowCounts] = {}
    waiting: dict[str, int] = {}
    for flow in flows:
        if flow.tenant.name == tenant:
            counts.setdefault(flow.spec.name, FlowCounts()).add(flow.counts)
            waiting[flow.spec.name] = waiting.get(flow.spec.name, 0) + flow.waiting
    return tuple(
        FunctionActivity(
            name,
            c.calls,
            c.failures,
            waiting[name],
            c.quantile_ns(0.5) / 1e6,
            c.quantile_ns(0.99) / 1e6,
            c.busy_ns / 1e9,
            c.queued_ns / 1e9,
        )
        for name, c in sorted(counts.items())
    )
