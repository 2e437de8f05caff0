"""Asynchronous invocations as JSON, for server and client. Times are those of RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from dandelion.asynchronous.failures import NotEnded as NotEnded  # else it cannot be restored
from dandelion.asynchronous.records import (
    CallbackRecord,
    CallbackState,
    KeptEvent,
    KeptPage,
    KeptState,
    KeptView,
    OutputSize,
    Progress,
    Watched,
)
from dandelion.errors import DandelionError, ErrorRecord, from_record
from dandelion.frontend.problem import ProblemDocument, problem_of


class CallbackDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of a callback.

    Attributes:
        url: where it is sent.
        state: whether it was delivered.
        attempts: how often it was sent.
        problem: why the last attempt failed.
    """

    url: str
    state: CallbackState
    attempts: int = 0
    problem: str = ""


class KeptDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An asynchronous invocation.

    Attributes:
        id: of the invocation, also of its trace.
        state: of the invocation.
        name, version: what is invoked; no version is the newest.
        attempts: how often it was begun.
        created, started, ended: when that was.
        expires: when it is forgotten.
        result_bytes: size of the stored result.
        progress: while it runs.
        error: why it failed.
        callback: what becomes of it.
    """

    id: str
    state: KeptState
    name: str
    version: int | None = None
    attempts: int = 0
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    expires: datetime | None = None
    result_bytes: int = 0
    progress: Progress | None = None
    error: ProblemDocument | None = None
    callback: CallbackDocument | None = None


class EventDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the history of an invocation; see `dandelion.asynchronous.records.KeptEvent`."""

    id: str
    kind: str
    state: KeptState
    application: str = ""
    outputs: dict[str, OutputSize] = {}
    progress: Progress | None = None
    error: ProblemDocument | None = None


class EventsDocument(msgspec.Struct, frozen=True):
    """What happened since an event, and how the invocation is now."""

    invocation: KeptDocument
    events: tuple[EventDocument, ...]


class InvocationsDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some invocations, newest first; ``?after=`` continues the list."""

    invocations: tuple[KeptDocument, ...]
    after: str | None = None


def kept_document(view: KeptView) -> KeptDocument:
    """Write a view."""
    callback = view.callback
    return KeptDocument(
        id=view.id,
        state=view.state,
        name=view.name,
        version=view.version,
        attempts=view.attempts,
        created=datetime.fromtimestamp(view.created_s, UTC),
        started=_time(view.started_s),
        ended=_time(view.ended_s),
        expires=_time(view.expires_s),
        result_bytes=view.result_bytes,
        progress=view.progress,
        error=_problem(view.error, view.id),
        callback=None
        if callback is None
        else CallbackDocument(callback.url, callback.state, callback.attempts, callback.problem),
    )


def kept_view(document: KeptDocument) -> KeptView:
    """Read a view."""
    given = document.callback
    return KeptView(
        id=document.id,
        name=document.name,
        version=document.version,
        state=document.state,
        attempts=document.attempts,
        created_s=document.created.timestamp(),
        started_s=_seconds(document.started),
        ended_s=_seconds(document.ended),
        expires_s=_seconds(document.expires),
        result_bytes=document.result_bytes,
        error=None if document.error is None else document.error.error,
        progress=document.progress,
        callback=None
        if given is None
        else CallbackRecord(given.url, given.state, given.attempts, problem=given.problem),
    )


def event_document(event: KeptEvent, id_: str) -> EventDocument:
    """Write an event of an invocation."""
    return EventDocument(
        event.id,
        event.kind,
        event.state,
        event.application,
        event.outputs,
        event.progress,
        _problem(event.error, id_),
    )


def kept_event(document: EventDocument) -> KeptEvent:
    """Read an event."""
    return KeptEvent(
        document.id,
        document.kind,
        document.state,
        document.application,
        document.outputs,
        document.progress,
        None if document.error is None else document.error.error,
    )


def events_document(watched: Watched) -> EventsDocument:
    """Write what a watcher is told."""
    events = tuple(event_document(event, watched.view.id) for event in watched.events)
    return EventsDocument(kept_document(watched.view), events)


def invocations_document(page: KeptPage) -> InvocationsDocument:
    """Write a page of a list."""
    return InvocationsDocument(tuple(map(kept_document, page.invocations)), page.after)


def _problem(record: ErrorRecord | None, id_: str) -> ProblemDocument | None:
    if record is None:
        return None
    error: DandelionError = from_record(record)
    return problem_of(error, id_)


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _seconds(time: datetime | None) -> float:
    return 0.0 if time is None else time.timestamp()
