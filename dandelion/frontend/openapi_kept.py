"""OpenAPI operations of asynchronous invocations."""

from __future__ import annotations

from dandelion.asynchronous.records import KeptState
from dandelion.frontend.kept_routes import PAGE, PAGE_LIMIT, WAIT_LIMIT_S
from dandelion.frontend.openapi import json_content, operation_of, parameter, reference
from dandelion.frontend.routing import Json

_ID = parameter("path", "id", {"type": "string"}, "of the invocation", required=True)
_WAIT = parameter(
    "query",
    "wait_s",
    {"type": "number", "minimum": 0, "maximum": WAIT_LIMIT_S, "default": 0},
    "seconds to wait for it",
)


def list_kept_operation() -> Json:
    """Describe ``GET /v1/invocations``."""
    states = {"type": "string", "enum": [state.value for state in KeptState]}
    limit = {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT, "default": PAGE}
    parameters = [
        parameter("query", "state", states, "only those in this state"),
        parameter("query", "after", {"type": "string"}, "`after` of the page before"),
        parameter("query", "limit", limit),
    ]
    content = json_content(reference("InvocationsDocument"))
    return operation_of("List asynchronous invocations, newest first", content, parameters)


def describe_kept_operation() -> Json:
    """Describe ``GET /v1/invocations/{id}``."""
    content = json_content(reference("KeptDocument"))
    return operation_of("State of an asynchronous invocation", content, [_ID, _WAIT])


def cancel_kept_operation() -> Json:
    """Describe ``DELETE /v1/invocations/{id}``."""
    content = json_content(reference("KeptDocument"))
    summary = "Cancel it (202), or forget it if it has ended (200)"
    operation = operation_of(summary, content, [_ID])
    operation["responses"]["202"] = {"description": "it is being cancelled", "content": content}
    return operation


def kept_result_operation() -> Json:
    """Describe ``GET /v1/invocations/{id}/result``."""
    content = {
        "application/json": {"schema": reference("Result")},
        "application/msgpack": {"schema": reference("Result")},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    summary = "Result of an asynchronous invocation, as of the synchronous one (409: not yet)"
    return operation_of(summary, content, [_ID, _WAIT])


def kept_events_operation() -> Json:
    """Describe ``GET /v1/invocations/{id}/events``."""
    text = {"type": "string"}
    content: Json = {"text/event-stream": {}, **json_content(reference("EventsDocument"))}
    parameters = [
        _ID,
        parameter("header", "Last-Event-ID", text, "only what happened after this event"),
        parameter("query", "after", text, "the same"),
        _WAIT,
    ]
    title = "What happens in it, until its end; each server-sent event has an EventDocument"
    return operation_of(title, content, parameters)
