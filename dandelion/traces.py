"""What happened in an invocation, when and where; exported for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from dandelion.markup import Element, dim, element, heading, page
from dandelion.timeline import BARS_LIMIT, Bar, timeline

EVENT_LIMIT = 10_000
"""Calls that one invocation keeps; of larger ones the first are kept and the rest is counted."""


STAGES = " stages"
"""Ends the name of the track with the stages of an engine's calls."""


class TraceDocument(bytes):
    """A trace as JSON in the Chrome trace event format. A notebook shows its timeline."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return page(self.element())

    def element(self) -> Element:
        """Draw the calls, for notebooks."""
        found = msgspec.json.decode(self)
        events, other = found["traceEvents"], found["otherData"]
        tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
        spans = [e for e in events if e["ph"] == "X"]
        whole = next((e for e in spans if tracks[e["tid"]] == "invocation"), None)
        bars = [
            Bar(e["name"], tracks[e["tid"]], e["ts"] / 1e3, e["dur"] / 1e3,
                e.get("args", {}).get("instance", 0), e.get("args", {}).get("error", ""))
            for e in spans if e is not whole and not tracks[e["tid"]].endswith(STAGES)
        ]  # fmt: skip
        whole_ms = whole["dur"] / 1e3 if whole is not None else 0.0
        name = whole["name"] if whole is not None else ""
        words = (other.get("outcome", ""), f"{whole_ms:.2f} ms", other.get("invocation", ""))
        more = max(0, len(bars) - BARS_LIMIT) + other.get("left_out", 0)
        left = dim(f"{more} more are not shown") if more else None
        return element("div", heading("invocation", name, *words), timeline(bars, whole_ms), left)


class Span(NamedTuple):
    """Something with a beginning and an end.

    Attributes:
        name: application or stage, such as ``classify`` or ``copy_in``.
        track: where it happened: ``invocation``, ``queue``, or an engine's name.
        start_ns, end_ns: on `time.monotonic_ns`.
        number: which instance of its application.
        attempt: how often the instance had been run, this time included.
        error: class name of the error that it ended with; empty if it gave outputs.
    """

    name: str
    track: str
    start_ns: int
    end_ns: int
    number: int
    attempt: int = 1
    error: str = ""


class CallRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call, as it was; its spans are made when they are read.

    Attributes:
        application, number: which instance.
        engine: name of the engine that ran it, or ``cache``.
        queued_ns: since when it waited for an engine; 0 if it did not.
        started_ns, ended_ns: on `time.monotonic_ns`.
        stages: durations in nanoseconds, one after the other.
        attempt, error: as of `Span`.
        span_id: of its span, if other services were told it.
    """

    application: str
    number: int
    engine: str
    queued_ns: int
    started_ns: int
    ended_ns: int
    stages: dict[str, int]
    attempt: int = 1
    error: str = ""
    span_id: str = ""

    def spans(self) -> Iterator[Span]:
        """Give the time in the queue, on the engine, and there in each stage."""
        name, number, start_ns = self.application, self.number, self.started_ns
        if self.queued_ns:
            yield Span(name, "queue", self.queued_ns, start_ns, number, self.attempt)
        yield Span(name, self.engine, start_ns, self.ended_ns, number, self.attempt, self.error)
        for stage, duration_ns in self.stages.items():
            yield Span(stage, f"{self.engine}{STAGES}", start_ns, start_ns + duration_ns, number)
            start_ns += duration_ns


class Trace(msgspec.Struct, array_like=True, eq=False):
    """What happened in one invocation. Holds no data of the invocation.

    Attributes:
        id: of the invocation.
        name: what was invoked.
        start_ns, end_ns: on `time.monotonic_ns`; the end is 0 while it runs.
        tenant: whose invocation it is.
        outcome: ``ok``, or the name of the error's class.
        caught, retried: numbers of failures that the composition caught, and tried again.
        left_out: how many calls were not kept.
        calls: those that were kept, in the order in which they ended.
    """

    id: str
    name: str
    start_ns: int
    tenant: str = ""
    end_ns: int = 0
    outcome: str = ""
    left_out: int = 0
    caught: int = 0
    retried: int = 0
    calls: list[CallRecord] = []

    def add(self, call: CallRecord) -> None:
        """Keep a call, if there is room."""
        if len(self.calls) < EVENT_LIMIT:
            self.calls.append(call)
        else:
            self.left_out += 1

    @property
    def spans(self) -> list[Span]:
        """All spans that were kept, in the order in which they ended."""
        return [span for call in self.calls for span in call.spans()]

    def element(self) -> Element:
        """Draw the calls that were kept, for notebooks."""
        return self.chrome_json().element()

    def _repr_html_(self) -> str:
        return page(self.element())

    def chrome_json(self) -> TraceDocument:
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
                "args": _arguments(span),
            }
            for span in spans
        ]
        other = {
            "invocation": self.id,
            "tenant": self.tenant,
            "outcome": self.outcome,
            "left_out": self.left_out,
            "caught": self.caught,
            "retried": self.retried,
        }
        return TraceDocument(msgspec.json.encode({"traceEvents": events, "otherData": other}))


def _arguments(span: Span) -> dict[str, Any]:
    """Give what a viewer shows of a span; attempts and errors only where there are some."""
    shown: dict[str, Any] = {"instance": span.number}
    if span.attempt > 1:
        shown["attempt"] = span.attempt
    if span.error:
        shown["error"] = span.error
    return shown
