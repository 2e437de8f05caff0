"""What a node and its span exporter say to each other: MessagePack over a socket pair."""

from __future__ import annotations

import msgspec

from dandelion.trace_context import InvocationSpan
from dandelion.traces import Trace

MESSAGE_LIMIT_BYTES = 64 * 1024 * 1024


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """Where spans go.

    Attributes:
        url: of the collector.
        headers: for it. They may have secrets, so they are in no argument and no log.
        version: of the engine.
        export_s: how long to try to send one request, retries included.
    """

    url: str
    headers: dict[str, str]
    version: str
    export_s: float


class InvocationRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An invocation that ended: its own span, and what spans of its calls are made of."""

    span: InvocationSpan
    trace: Trace


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Some invocations.

    Attributes:
        shift_ns: what is added to times on `time.monotonic_ns` to get the time of day.
    """

    shift_ns: int
    records: list[InvocationRecord]


class ExportResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a batch.

    Attributes:
        spans: how many the collector took.
        reason: why it did not take the others; empty if it took all.
    """

    spans: int
    reason: str = ""
