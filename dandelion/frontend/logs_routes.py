"""``GET /v1/logs``: what the functions of a tenant wrote, as lines of JSON.

With ``Accept: application/json`` it is one document, a `LogPage`.

A follower asks its node for new lines several times a second. Its connection gets an empty line now
and then, so that neither side takes a quiet one for a dead one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial

import msgspec

from dandelion.call_logs import PAGE_LINES, LogPage
from dandelion.data import Bytes
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import Request, Response, clipped
from dandelion.frontend.service import Service
from dandelion.frontend.stream_places import StreamPlaces

JSON_LINES = b"application/x-ndjson"
LAST_HEADER = b"dandelion-logs-last"
FOLLOW_S = 0.25
"""How often a follower asks for new lines."""
QUIET_S = 15.0
_QUERY = ("function", "invocation", "after", "limit", "follow")
_encoder = msgspec.json.Encoder()


class LogsRoute:
    """Handles the route.

    Args:
        node: has the lines.
    """

    def __init__(self, node: Service) -> None:
        self._node = node
        self._places = StreamPlaces("followers of logs")
        self._stopped: asyncio.Event | None = None

    def start(self) -> None:
        """Prepare for followers; on the loop."""
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End all followers; on the loop."""
        if self._stopped is not None:
            self._stopped.set()

    async def __call__(self, request: Request) -> Response:
        """Give lines, and with `follow` all later ones."""
        request.expect_query(_QUERY)
        follows = request.query.get("follow", "false")
        if follows not in ("true", "false", ""):
            raise InvalidInput("query.follow", f"'{clipped(follows)}' is not true or false")
        limit = _number(request, "limit", PAGE_LINES)
        after = _number(request, "after", 0)
        ask = partial(
            self._node.logs,
            function=request.query.get("function"),
            invocation=request.query.get("invocation"),
            tenant=request.grant.tenant,
            limit=min(limit, PAGE_LINES),
        )
        if follows == "false" or request.method == "HEAD":
            page = await asyncio.to_thread(ask, after=after)
            if request.header(b"accept").partition(";")[0].strip() == "application/json":
                return Response([_encoder.encode(page)])
            headers = [(LAST_HEADER, b"%d" % page.last)]
            return Response([_encoder.encode_lines(page.lines)], JSON_LINES, headers=headers)
        page = await asyncio.to_thread(ask, after=after)
        self._places.check(request.grant.tenant)  # it takes its place in the same turn of the loop
        return Response([], JSON_LINES, stream=self._follow(request, page, ask))

    async def _follow(
        self, request: Request, page: LogPage, ask: partial[LogPage]
    ) -> AsyncGenerator[Bytes, None]:
        assert self._stopped is not None, "it was started"
        request.watch()
        try:
            with self._places.taken(request.grant.tenant):
                sent_s = 0.0
                while not self._stopped.is_set():
                    now_s = time.monotonic()
                    if page.lines or now_s - sent_s > QUIET_S:
                        sent_s = now_s
                        yield _encoder.encode_lines(page.lines) or b"\n"
                    try:
                        async with asyncio.timeout(FOLLOW_S):
                            await self._stopped.wait()
                    except TimeoutError:
                        page = await asyncio.to_thread(ask, after=page.last)
        finally:
            request.stop_watching()


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(f"query.{name}", f"'{clipped(text)}' is not a number from 0")
    return int(text)
