"""``dandelion invocations [ID]``: list asynchronous invocations, describe one, or follow it."""

from __future__ import annotations

from datetime import UTC, datetime

from dandelion.asynchronous.handle import InvocationHandle
from dandelion.asynchronous.records import KeptEvent, KeptState, KeptView
from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.errors import from_record
from dandelion.frontend.client import Client
from dandelion.frontend.kept_documents import (
    event_document,
    invocations_document,
    kept_document,
)
from dandelion.sizes import size_text

COLUMNS = ("id", "name", "state", "attempts", "created", "ended", "result")


def run(arguments: Arguments, out: Output) -> int:
    """List, describe or follow."""
    with connect(arguments) as client:
        if not arguments.name:
            return _list(client, arguments, out)
        handle = client.submitted(arguments.name)
        if arguments.follow:
            return follow(handle, out)
        view = handle.view()
    if out.as_json:
        out.document(kept_document(view))
        return 0
    out.table(COLUMNS, [_row(view)])
    if view.progress is not None:
        progress = view.progress
        out.line(
            f"{progress.applications_ended} of {progress.applications} applications, "
            f"instances: {progress.instances_ended} ended, {progress.instances_in_flight} running"
        )
    if view.error is not None:
        out.line(str(from_record(view.error)))
    if view.callback is not None:
        out.line(f"callback {view.callback.state.value}: {view.callback.problem}".rstrip(": "))
    return 0


def _list(client: Client, arguments: Arguments, out: Output) -> int:
    state = KeptState(arguments.state) if arguments.state else None
    page = client.invocations(state, arguments.after, arguments.limit)
    if out.as_json:
        out.document(invocations_document(page))
        return 0
    out.table(COLUMNS, [_row(view) for view in page.invocations])
    if page.after:
        out.line(f"more: --after {page.after}")
    return 0


def follow(handle: InvocationHandle, out: Output) -> int:
    """Print what happens until the end: lines, or JSON lines. Return 1 if it does not succeed."""
    if not out.as_json:
        out.line(handle.id)
    state = KeptState.WAITING
    for event in handle.events():
        state = event.state
        if out.as_json:
            out.json_line(event_document(event, handle.id))
        else:
            out.line(_text(event))
    return 0 if state is KeptState.SUCCEEDED else 1


def _text(event: KeptEvent) -> str:
    if event.kind == "state":
        error = "" if event.error is None else f": {from_record(event.error)}"
        return f"{event.state.value}{error}"
    parts = []
    if event.progress is not None:
        progress = event.progress
        parts.append(f"{progress.applications_ended}/{progress.applications} applications")
        ended, running = progress.instances_ended, progress.instances_in_flight
        parts.append(f"instances: {ended} ended, {running} running")
    if event.application:
        parts.append(f"{event.application} ended")
    parts += [
        f"{name} is complete (items: {size.items}, {size_text(size.size_bytes)})"
        for name, size in event.outputs.items()
    ]
    return "; ".join(parts)


def _row(view: KeptView) -> tuple[str, ...]:
    result = size_text(view.result_bytes) if view.state is KeptState.SUCCEEDED else ""
    if view.error is not None:
        result = view.error.type
    times = _time(view.created_s), _time(view.ended_s)
    return (view.id, view.name, view.state.value, str(view.attempts), *times, result)


def _time(seconds: float) -> str:
    if not seconds:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
