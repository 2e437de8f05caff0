"""The routes below ``/v1/invocations``, and answers of ``POST /v1/invoke/{name}`` that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from dandelion.asynchronous.records import KeptRequest, KeptState, KeptView, Watched
from dandelion.data import ItemSet
from dandelion.errors import InvalidInput, Overloaded
from dandelion.frontend.asgi import (
    Header,
    Request,
    Response,
    clipped,
    did_you_mean,
    empty_stream,
)
from dandelion.frontend.event_stream import EVENT_STREAM, event_stream
from dandelion.frontend.interruptible import InterruptibleWaits
from dandelion.frontend.kept_documents import (
    events_document,
    invocations_document,
    kept_document,
)
from dandelion.frontend.negotiation import Codec, writers
from dandelion.frontend.preferences import Preferences
from dandelion.frontend.problem import ShuttingDown
from dandelion.frontend.results import ResultWriter
from dandelion.frontend.service import KeptInvocations

WAIT_LIMIT_S = 60.0
PAGE = 100
PAGE_LIMIT = 1000
_PLACE = b"../invocations/"
"""Relative to ``/v1/invoke/{name}``: a proxy may serve the node below a path."""
_GLANCE_S = 0.001  # a stream is refused at its beginning if the tenant has too many


class KeptRoutes:
    """Handlers of asynchronous invocations.

    Args:
        kept: the invocations of the node.
        results: writes results.
    """

    def __init__(self, kept: KeptInvocations, results: ResultWriter) -> None:
        self._kept = kept
        self._results = results
        self._waits = InterruptibleWaits()

    def stop(self) -> None:
        """End streams and long polls, when the server begins to drain."""
        self._waits.stop()

    async def submit(
        self,
        request: Request,
        requested: KeptRequest,
        sets: Mapping[str, ItemSet | None],
        preferences: Preferences,
        codecs: tuple[Codec, ...],
    ) -> Response:
        """Accept an invocation; respond with its result if it ends within the time to wait.

        Args:
            request: of the client.
            requested: what to invoke.
            sets: the inputs.
            preferences: how long to wait; it does not wait if too many requests of the tenant do.
            codecs: that the client accepts for the result, best first.
        """
        tenant = request.grant.tenant
        view = await self._kept.submit(requested, sets, tenant=tenant)
        del sets
        request.invocation = view.id
        headers: list[Header] = [
            (b"location", _PLACE + view.id.encode()),
            _applied(preferences),
        ]
        if preferences.wait_s:
            request.watch()
            watch = partial(self._kept.watch, view.id, tenant=tenant, end=True)
            wait_s = min(float(preferences.wait_s), WAIT_LIMIT_S)
            try:
                watched = await self._waits.wait(watch(wait_s=wait_s))
            except Overloaded:  # it is accepted: an error would make the client repeat it
                preferences = Preferences(respond_async=True)
                return _shown(view, 202, [*headers[:1], _applied(preferences)])
            view = view if watched is None else watched.view
            if view.state.has_ended:
                request.require_still()
                request.response_headers += headers
                outcome = await self._kept.result(view.id, tenant=tenant)
                return await self._results.write(outcome.id, outcome.sets, codecs)
        return _shown(view, 202, headers)

    async def once(
        self,
        request: Request,
        requested: KeptRequest,
        sets: Mapping[str, ItemSet | None],
        codecs: tuple[Codec, ...],
    ) -> Response:
        """Invoke once for an idempotency key, and respond with the result at the end.

        A repetition waits for the invocation that its key has, or gets its result. The invocation
        goes on if the client disconnects, since the client may repeat the request.

        Args:
            request, asked, sets, codecs: as of `submit`.

        Raises:
            ShuttingDown: the server drains; the request may be repeated later.
        """
        tenant = request.grant.tenant
        view = await self._kept.submit(requested, sets, tenant=tenant)
        del sets
        request.invocation = view.id
        request.watch()
        while not view.state.has_ended:
            watch = self._kept.watch(view.id, tenant=tenant, wait_s=WAIT_LIMIT_S, end=True)
            watched = await self._waits.wait(watch)
            if watched is None:
                raise ShuttingDown
            view = watched.view
            request.require_still()
        outcome = await self._kept.result(view.id, tenant=tenant)
        return await self._results.write(outcome.id, outcome.sets, codecs)

    async def describe(self, request: Request) -> Response:
        """``GET /v1/invocations/{id}``."""
        request.expect_query(("wait_s",))
        return _shown((await self._ended(request)).view)

    async def result(self, request: Request) -> Response:
        """``GET /v1/invocations/{id}/result``."""
        request.expect_query(("wait_s",))
        codecs = writers(request.header(b"accept").encode("latin-1"), Codec.JSON)
        watched = await self._ended(request)
        outcome = await self._kept.result(watched.view.id, tenant=request.grant.tenant)
        request.invocation = outcome.id
        return await self._results.write(outcome.id, outcome.sets, codecs)

    async def cancel(self, request: Request) -> Response:
        """``DELETE /v1/invocations/{id}``: end it, or forget it if it has ended."""
        request.expect_query(())
        id_ = request.parameters["id"]
        view = await self._kept.cancel(id_, tenant=request.grant.tenant)
        return _shown(view, 200 if view.state.has_ended else 202)

    async def listing(self, request: Request) -> Response:
        """``GET /v1/invocations``."""
        request.expect_query(("state", "after", "limit"))
        page = await self._kept.list(
            tenant=request.grant.tenant,
            state=_state(request.query.get("state")),
            after=request.query.get("after", ""),
            limit=_limit(request.query.get("limit")),
        )
        return Response([msgspec.json.encode(invocations_document(page))])

    async def events(self, request: Request) -> Response:
        """``GET /v1/invocations/{id}/events``: a stream, or with JSON one long poll."""
        request.expect_query(("wait_s", "after"))
        id_, tenant = request.parameters["id"], request.grant.tenant
        after = request.query.get("after") or request.header(b"last-event-id")
        wait_s = _wait_s(request)
        if b"application/json" in request.headers.get(b"accept", b"").lower():
            watched = await self._watched(request, after, wait_s)
            return Response([msgspec.json.encode(events_document(watched))])
        watched = await self._kept.watch(id_, tenant=tenant, after=after, wait_s=_GLANCE_S)
        if watched.view.state.has_ended and not watched.events:
            return Response([], EVENT_STREAM, 204, stream=empty_stream())  # do not connect again
        request.watch()
        stream = event_stream(self._kept, self._waits, tenant, watched, after)
        return Response([], EVENT_STREAM, stream=stream)

    async def _ended(self, request: Request) -> Watched:
        """Wait for the end of an invocation as long as the query says."""
        return await self._watched(request, "", _wait_s(request), end=True)

    async def _watched(
        self, request: Request, after: str, wait_s: float, *, end: bool = False
    ) -> Watched:
        watch = partial(
            self._kept.watch, request.parameters["id"], tenant=request.grant.tenant, after=after
        )
        if wait_s:
            request.watch()
            try:
                found = await self._waits.wait(watch(wait_s=wait_s, end=end))
            finally:
                request.stop_watching()
            request.require_still()
            if found is not None:
                return found
        return await watch(end=end)


def _applied(preferences: Preferences) -> Header:
    return b"preference-applied", preferences.applied()


def _shown(view: KeptView, status: int = 200, headers: list[Header] | None = None) -> Response:
    given = [(b"dandelion-invocation", view.id.encode()), *(headers or ())]
    return Response([msgspec.json.encode(kept_document(view))], status=status, headers=given)


def _wait_s(request: Request) -> float:
    text = request.query.get("wait_s", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_LIMIT_S:
        message = f"'{clipped(text)}' is not a number of seconds from 0 to {WAIT_LIMIT_S:g}"
        raise InvalidInput("query.wait_s", message, "for longer, ask again")
    return seconds


def _state(text: str | None) -> KeptState | None:
    if text is None:
        return None
    names = [state.value for state in KeptState]
    if text not in names:
        hint = did_you_mean(text, names) or f"states are {', '.join(names)}"
        raise InvalidInput("query.state", f"'{clipped(text)}' is not a state", hint)
    return KeptState(text)


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= PAGE_LIMIT):
        message = f"'{clipped(text)}' is not a number from 1 to {PAGE_LIMIT}"
        raise InvalidInput("query.limit", message)
    return int(text)
