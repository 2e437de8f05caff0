"""From records of invocations to OpenTelemetry's spans."""

from __future__ import annotations

import random
from collections.abc import Iterator

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from dandelion.span_export.messages import InvocationRecord
from dandelion.traces import CallRecord

_FAILED = StatusCode.ERROR
_UNSET = Status(StatusCode.UNSET)


class SpanMaker:
    """Makes spans.

    Args:
        version: of the engine.
    """

    def __init__(self, version: str) -> None:
        self._resource = Resource.create()  # reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        if self._resource.attributes.get("service.name", "").startswith("unknown_service"):  # type: ignore[union-attr]
            self._resource = self._resource.merge(Resource({"service.name": "dandelion"}))
        self._scope = InstrumentationScope("dandelion", version)

    def spans(self, record: InvocationRecord, shift_ns: int) -> Iterator[ReadableSpan]:
        """Yield the span of an invocation, then those of its calls."""
        own, trace = record.span, record.trace
        context = own.context
        trace_id, flags = int(context.trace_id, 16), TraceFlags(context.flags)
        state = TraceState.from_header([context.state]) if context.state else TraceState()
        whole = SpanContext(trace_id, int(context.span_id, 16), False, flags, state)
        parent = None
        if own.parent_id:
            parent = SpanContext(trace_id, int(own.parent_id, 16), True, flags, state)
        attributes: dict[str, str | int] = {
            "dandelion.name": trace.name,
            "dandelion.tenant": trace.tenant,
            "dandelion.outcome": trace.outcome,
            "dandelion.invocation": trace.id,
        }
        if trace.left_out:
            attributes["dandelion.calls_left_out"] = trace.left_out
        status = _UNSET
        if trace.outcome != "ok":
            attributes["error.type"] = trace.outcome
            status = Status(_FAILED, trace.outcome)
        yield ReadableSpan(
            f"invoke {trace.name}",
            whole,
            parent,
            self._resource,
            attributes,
            kind=SpanKind.SERVER,
            status=status,
            start_time=trace.start_ns + shift_ns,
            end_time=trace.end_ns + shift_ns,
            instrumentation_scope=self._scope,
        )
        for call in trace.calls:
            span_id = int(call.span_id, 16) if call.span_id else _random_id()
            yield self._call(
                call, SpanContext(trace_id, span_id, False, flags, state), whole, shift_ns
            )

    def _call(
        self, call: CallRecord, context: SpanContext, parent: SpanContext, shift_ns: int
    ) -> ReadableSpan:
        attributes: dict[str, str | int] = {
            "dandelion.application": call.application,
            "dandelion.instance": call.number,
            "dandelion.engine": call.engine,
            "dandelion.attempt": call.attempt,
        }
        status = _UNSET
        if call.error:
            attributes["error.type"] = call.error
            status = Status(_FAILED, call.error)
        events = []
        at_ns = call.started_ns + shift_ns
        if call.queued_ns:
            waited_ns = call.started_ns - call.queued_ns
            events.append(Event("started", {"dandelion.queue_ns": waited_ns}, timestamp=at_ns))
        for stage, duration_ns in call.stages.items():
            events.append(Event(stage, {"dandelion.duration_ns": duration_ns}, timestamp=at_ns))
            at_ns += duration_ns
        return ReadableSpan(
            call.application,
            context,
            parent,
            self._resource,
            attributes,
            events,
            status=status,
            start_time=(call.queued_ns or call.started_ns) + shift_ns,
            end_time=call.ended_ns + shift_ns,
            instrumentation_scope=self._scope,
        )


def _random_id() -> int:
    return random.getrandbits(64) or 1
