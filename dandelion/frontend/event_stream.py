"""Server-sent events of an asynchronous invocation.

An event has the id, the kind as its type, and JSON as its data. A comment is sent when nothing
happened for `HEARTBEAT_S`, so that proxies keep the connection and a client that left is noticed.
The stream ends after the event with the final state.

A client that reads slowly delays its own stream only: events are kept in a bounded log by the node,
and what such a client misses there is left out.

Source: WHATWG HTML, 9.2 (server-sent events).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from dandelion.asynchronous.records import KeptEvent, Watched
from dandelion.data import Bytes
from dandelion.errors import DandelionError
from dandelion.frontend.interruptible import InterruptibleWaits
from dandelion.frontend.kept_documents import event_document
from dandelion.frontend.problem import problem_of
from dandelion.frontend.service import KeptInvocations

EVENT_STREAM = b"text/event-stream"
HEARTBEAT_S = 15.0
_HEARTBEAT = b":\n\n"


async def event_stream(
    kept: KeptInvocations, waits: InterruptibleWaits, tenant: str, watched: Watched, after: str
) -> AsyncGenerator[Bytes, None]:
    """Yield the events of an invocation.

    Args:
        kept: is asked.
        waits: ends the stream when the server drains.
        tenant: whose invocation it is.
        watched: what was found already.
        after: the last event before that.
    """
    id_ = watched.view.id
    while True:
        chunk = b"".join([_written(event, id_) for event in watched.events])
        yield chunk or _HEARTBEAT
        if watched.events:
            after = watched.events[-1].id
        if watched.view.state.has_ended:
            return
        try:
            watch = kept.watch(id_, tenant=tenant, after=after, wait_s=HEARTBEAT_S)
            found = await waits.wait(watch)
        except DandelionError as error:  # it was forgotten, or too many wait
            yield _event("error", msgspec.json.encode(problem_of(error, id_)))
            return
        if found is None:
            return
        watched = found


def _written(event: KeptEvent, id_: str) -> bytes:
    data = msgspec.json.encode(event_document(event, id_))
    return b"id: %s\n%s" % (event.id.encode(), _event(event.kind, data))


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
