"""Records of what a node did lately, for the page and for programs."""

from __future__ import annotations

import msgspec


class InvocationSummary(msgspec.Struct, frozen=True, gc=False):
    """An invocation that ended.

    Attributes:
        number: counts the invocations of the tenant, from 1.
        id: of the invocation, for its trace.
        name: what was invoked.
        outcome: ``ok``, or the class of the error.
        message: of the error, shortened.
        started_s: when it began, seconds since 1970.
        duration_ms: from its begin to its end.
        queued_ms, run_ms: sums over its calls: waiting for engines, and on engines.
        calls: how many ended on engines.
    """

    number: int
    id: str
    name: str
    outcome: str
    message: str
    started_s: float
    duration_ms: float
    queued_ms: float
    run_ms: float
    calls: int


class RunningInvocation(msgspec.Struct, frozen=True, gc=False):
    """An invocation that runs.

    Attributes:
        id, name, started_s: as of `InvocationSummary`.
        calls: that have not ended.
    """

    id: str
    name: str
    started_s: float
    calls: int


class FunctionActivity(msgspec.Struct, frozen=True, gc=False):
    """What became of the calls of a function since the node started.

    Attributes:
        name: of the function.
        calls, failures: that ended on engines.
        waiting: that wait for an engine.
        p50_ms, p99_ms: time on an engine, accurate to an eighth.
        run_s, queued_s: sums of the time on engines and of the time before.
    """

    name: str
    calls: int
    failures: int
    waiting: int
    p50_ms: float
    p99_ms: float
    run_s: float
    queued_s: float


class Activity(msgspec.Struct, frozen=True):
    """What one tenant did lately.

    Attributes:
        cursor: to ask only for invocations that end later.
        invocations: that ended, newest first.
        more: there are older ones that fit the filters.
        running: that run, oldest first; a bounded number.
        running_count: how many run.
        functions: by name.
    """

    cursor: int
    invocations: tuple[InvocationSummary, ...]
    more: bool
    running: tuple[RunningInvocation, ...]
    running_count: int
    functions: tuple[FunctionActivity, ...]


class ActivityQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which invocations are asked for.

    Attributes:
        after: only those with a higher number.
        before: only those with a lower number; 0 is no limit.
        limit: at most so many.
        name: only of this function or composition; empty for all.
        failed: only those that failed.
    """

    after: int = 0
    before: int = 0
    limit: int = 100
    name: str = ""
    failed: bool = False
