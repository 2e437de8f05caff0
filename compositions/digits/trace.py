"""Read a node's trace of one invocation: which engine ran what, how often, how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One entry of a Chrome trace; times in microseconds since the invocation began."""

    ph: str
    name: str
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0


class Trace(msgspec.Struct, frozen=True):
    """A Chrome trace, as returned by `dandelion.frontend.client.Client.trace`."""

    traceEvents: tuple[Event, ...]  # noqa: N815  # the name in the format

    def spans(self) -> list[Event]:
        """Return the entries that have a duration."""
        return [event for event in self.traceEvents if event.ph == "X"]


@dataclass(frozen=True, slots=True)
class Row:
    """All spans of one name on tracks of one kind.

    Attributes:
        name: application or stage.
        track: the engine's name without its resource, or ``queue``.
        count: how many spans.
        mean_s, longest_s: of their durations.
        from_s, to_s: beginning of the first, end of the last, since the invocation began.
    """

    name: str
    track: str
    count: int
    mean_s: float
    longest_s: float
    from_s: float
    to_s: float


def read_trace(data: bytes) -> Trace:
    """Decode a trace.

    Raises:
        msgspec.ValidationError: it is not a trace.
    """
    return msgspec.json.decode(data, type=Trace)


def rows(trace: Trace) -> list[Row]:
    """Summarize spans by name and kind of track, in order of their start."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for span in sorted(trace.spans(), key=lambda event: event.ts):
        if span.cat != "invocation":
            groups.setdefault((span.name, _kind(span.cat)), []).append(span)
    return [_row(name, track, spans) for (name, track), spans in groups.items()]


def _kind(track: str) -> str:
    return track.removesuffix(" stages").partition(":")[0]


def _row(name: str, track: str, spans: Iterable[Event]) -> Row:
    spans = list(spans)
    durations = [span.dur / 1e6 for span in spans]
    ends = [(span.ts + span.dur) / 1e6 for span in spans]
    mean = sum(durations) / len(durations)
    return Row(name, track, len(spans), mean, max(durations), spans[0].ts / 1e6, max(ends))


def engines_of(trace: Trace, application: str) -> list[str]:
    """Name the engines that ran an application."""
    spans = trace.spans()
    return sorted({s.cat for s in spans if s.name == application and s.cat != "queue"})
