"""What happened in an invocation, when and where; exported for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

EVENT_LIMIT = 10_000
"""Spans that one invocation keeps; of larger ones the first are kept and the rest is counted."""


class Span(NamedTuple):
    """Something with a beginning and an end.

    Attributes:
        name: application or stage, such as ``classify`` or ``copy_in``.
        track: where it happened: ``invocation``, ``queue``, or an engine's name.
        start_ns, end_ns: on `time.monotonic_ns`.
        number: which instance of its application.
    """

    name: str
    track: str
    start_ns: int
    end_ns: int
    number: int


@dataclass(slots=True)
class Trace:
    """The spans of one invocation. Holds no data of the invocation.

    Attributes:
        id: of the invocation.
        name: what was invoked.
        start_ns, end_ns: on `time.monotonic_ns`; the end is 0 while it runs.
        outcome: ``ok``, or the name of the error's class.
    """

    id: str
    name: str
    start_ns: int
    end_ns: int = 0
    outcome: str = ""
    spans: list[Span] = field(default_factory=list)
    left_out: int = 0

    def add(self, span: Span) -> None:
        """Keep a span, if there is room."""
        if len(self.spans) < EVENT_LIMIT:
            self.spans.append(span)
        else:
            self.left_out += 1

    def chrome_json(self) -> bytes:
        """Give the trace as JSON in the Chrome trace event format, times in microseconds."""
        whole = Span(self.name, "invocation", self.start_ns, self.end_ns or self.start_ns, 0)
        spans = [whole, *self.spans]
        tracks = {name: at for at, name in enumerate(dict.fromkeys(s.track for s in spans))}
        process = os.getpid()
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": at, "args": {"name": track}}
            for track, at in tracks.items()
        ]
        events += [
            {
                "ph": "X",
                "name": span.name,
                "cat": span.track,
                "pid": process,
                "tid": tracks[span.track],
                "ts": (span.start_ns - self.start_ns) / 1e3,
                "dur": (span.end_ns - span.start_ns) / 1e3,
                "args": {"instance": span.number},
            }
            for span in spans
        ]
        other = {"invocation": self.id, "outcome": self.outcome, "left_out": self.left_out}
        return msgspec.json.encode({"traceEvents": events, "otherData": other})


class TraceStore:
    """The last traces, by invocation. Safe from any thread."""

    def __init__(self, keep: int) -> None:
        self._traces: deque[Trace] = deque(maxlen=keep)

    def add(self, trace: Trace) -> None:
        """Keep a trace; the oldest goes if there are too many."""
        self._traces.append(trace)

    def get(self, invocation: str) -> Trace | None:
        """Find the trace of an invocation that ended lately."""
        return next((t for t in list(self._traces) if t.id == invocation), None)
