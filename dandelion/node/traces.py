"""The traces of the last invocations."""

from __future__ import annotations

from collections import deque

from dandelion.traces import Trace


class TraceStore:
    """The last traces, by invocation. Safe from any thread."""

    def __init__(self, keep: int) -> None:
        self._traces: deque[Trace] = deque(maxlen=keep)

    def add(self, trace: Trace) -> None:
        """Keep a trace; the oldest goes if there are too many."""
        self._traces.append(trace)

    def get(self, invocation: str, tenant: str | None = None) -> Trace | None:
        """Find the trace of an invocation that ended lately; with a tenant, only one of its own.

        A search that finds nothing visits all traces, also if another tenant has that one.
        """
        found = (t for t in list(self._traces) if t.id == invocation)
        return next((t for t in found if tenant in (None, t.tenant)), None)
