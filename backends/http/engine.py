"""Performing requests: one client session on the event loop, shared by all calls.

Steps of an item: its text is read; the host is checked; a connection is made to an address that was
checked after resolution (`CheckedResolver`; the connector uses only these addresses); redirects
are followed, and every hop is checked again. A body of known length is written into a context of
its own as it arrives. One of unknown length is collected in contexts and copied once. Very small
bodies stay on the heap.

A call is limited by its deadline, by the function's ``output_bytes`` for all responses together,
and by the engine's `HttpSettings.concurrency`; tenants take these places in turn. `protocol` limits
how long a server can keep the loop busy. The first item that fails cancels the others and fails the
call.

The environment is ignored: no proxy, no credentials, no cookies.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import aiohttp
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict

from dandelion.checked_resolver import CheckedResolver, SystemResolver
from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import AsyncEngine, Call, InstanceSets
from dandelion.errors import (
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
    TimedOut,
)
from dandelion.memory import MemoryDomain
from dandelion.tenant_places import TenantPlaces

from . import cache_rules as rules
from .cache import ResponseCache
from .cache_rules import StoredResponse
from .policy import AnswerRefused, Refused
from .protocol import BoundedHandler
from .request import (
    IDEMPOTENT,
    REDIRECTS,
    HttpRequest,
    head_item,
    read_request,
)
from .responses import HEAP_BYTES, Answer, OutputRoom, joined, receive, version_of
from .settings import WHOLE_RESPONSE, HttpSettings

SLICE_BYTES = 256 * 1024
_LINE_LIMIT_BYTES = 64 * 1024
_FIRST_PAUSE_S = 0.05
_IDLE_S = 3.0  # less than servers keep a connection open: a POST on a closed one is lost
_NO_DEFAULT_HEADERS = ("User-Agent", "Accept-Encoding", "Content-Type")
_LOST = (aiohttp.ClientConnectionError, ConnectionError)  # before a response began


class HttpEngine(AsyncEngine):
    """Performs the requests of many calls at once.

    Args:
        settings: the operator's settings.
        resolver: resolves names; by default the system's resolver.
        clock: seconds since 1970, for the ages of cached responses.
    """

    name = "http"

    def __init__(
        self,
        settings: HttpSettings,
        resolver: AbstractResolver | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        sizes = settings.cache_bytes, settings.cache_entry_bytes
        self._cache = ResponseCache(*sizes) if settings.cache_bytes else None
        self._resolver = resolver
        self._places = TenantPlaces(settings.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def _run(self, call: Call) -> InstanceSets:
        (requests,) = call.inputs
        if requests is None:
            return (None, None)
        began = time.perf_counter_ns()
        left_s = call.left_s()
        try:
            if not left_s:
                raise TimeoutError
            async with asyncio.timeout(left_s):
                pairs = await self._all(call, requests)
        except TimeoutError:
            raise TimedOut(call.function.spec.name, "wall", call.limit_s) from None
        call.stages["requests"] = time.perf_counter_ns() - began
        heads, bodies = call.function.spec.output_names
        return (
            ItemSet(heads, tuple(head for head, _ in pairs)),
            ItemSet(bodies, tuple(body for _, body in pairs)),
        )

    async def _all(self, call: Call, requests: ItemSet) -> list[tuple[Item, Item]]:
        room = OutputRoom(call.function.spec.limits.output_bytes)
        if len(requests) == 1:
            return [await self._one(call, requests[0], room)]
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._one(call, item, room)) for item in requests]
        except BaseExceptionGroup as failed:
            error: BaseException = failed.exceptions[0]
            if isinstance(error, RequestFailed) and error.may_repeat:
                error = dataclasses.replace(error, may_repeat=_are_idempotent(requests))
            raise error from None
        return [each.result() for each in running]

    async def _one(self, call: Call, item: Item, room: OutputRoom) -> tuple[Item, Item]:
        request = None
        try:
            request = read_request(item.data).traced(call.trace_context)
            async with self._places.taken(call.tenant):
                head, body = await self._follow(request, item.name, room, call)
            if WHOLE_RESPONSE in call.function.code.options:
                room.take(item.name, 1 + len(body))
                whole = await joined(head, body, call.domain)
                return Item(item.name, item.key, whole), Item(item.name, item.key, body)
        except (Refused, aiohttp.ClientError, ConnectionError) as error:
            message = _in_one_line(_describe(error, self._settings))
            kind = _kind_of(error)
            failure = kind(call.function.spec.name, item.name, message)
            idempotent = request is not None and request.method in IDEMPOTENT
            failure.may_repeat = failure.transient and idempotent
            raise failure from None
        return Item(item.name, item.key, head), Item(item.name, item.key, body)

    async def _follow(
        self, request: HttpRequest, item: str, room: OutputRoom, call: Call
    ) -> tuple[bytes, Bytes]:
        for hop in range(self._settings.redirects + 1):
            try:
                if self._cache is None:
                    answer = await self._exchange(request, item, room, call)
                else:
                    answer = await self._cached(self._cache, request, item, room, call)
            except (Refused, aiohttp.InvalidURL) as error:
                if hop:
                    raise AnswerRefused(str(error)) from None
                raise
            if not isinstance(answer, HttpRequest):
                return answer
            request = answer
        raise AnswerRefused(f"more than {self._settings.redirects} redirects")

    async def _exchange(
        self, request: HttpRequest, item: str, room: OutputRoom, call: Call
    ) -> Answer | HttpRequest:
        """Send a request; return its response, or the request of a redirect."""
        async with await self._send(request) as response:
            redirected = _redirected(request, response)
            return redirected or await receive(request, response, item, room, call.domain)

    async def _cached(
        self, cache: ResponseCache, request: HttpRequest, item: str, room: OutputRoom, call: Call
    ) -> Answer | HttpRequest:
        """As `_exchange`, by way of the cache."""
        self._check_host(request)
        passes = rules.passes_by(request)
        known = None if passes else cache.find(call.tenant, request)
        if known is not None and rules.is_usable(known, request, self._clock()):
            return self._served(known, item, room, call.domain)
        if not passes and rules.only_if_cached(request):
            return head_item((1, 1), 504, ()), b""
        requested = request
        if known is not None:
            requested = replace(request, headers=request.headers + rules.validators(known))
        sent_s = self._clock()
        async with await self._send(requested) as response:
            times_s = sent_s, self._clock()
            for url in rules.invalidated(request, response.status, response.raw_headers):
                cache.drop(call.tenant, url)
            if known is not None and response.status == 304:
                fresh = rules.freshened(known, response.raw_headers, times_s)
                if fresh is not None:
                    parts = fresh.version, fresh.status, fresh.headers
                    self._store(cache, request, parts, fresh.body, times_s, call)
                    return self._served(fresh, item, room, call.domain)
                cache.drop(call.tenant, request.url)
            else:
                redirected = _redirected(request, response)
                if redirected is not None:
                    return redirected
                head, body = await receive(request, response, item, room, call.domain)
                if not passes:
                    received = version_of(response), response.status, response.raw_headers
                    self._store(cache, request, received, body, times_s, call)
                return head, body
        return await self._exchange(request, item, room, call)  # the 304 was about another response

    def _store(
        self,
        cache: ResponseCache,
        request: HttpRequest,
        parts: tuple[tuple[int, int], int, rules.RawHeaders],
        body: Bytes,
        times_s: tuple[float, float],
        call: Call,
    ) -> None:
        made, status = None, parts[1]
        if len(body) <= cache.entry_bytes:
            made = rules.stored(request, *parts, bytes(body), times_s)
        if made is not None:
            cache.put(call.tenant, request, made)
        elif status < 500 or status in rules.STORED_STATUSES:  # what is stored is not current now
            cache.drop(call.tenant, request.url)

    def _served(
        self, known: StoredResponse, item: str, room: OutputRoom, domain: MemoryDomain
    ) -> Answer:
        head = rules.served_head(known, self._clock())
        room.take(item, len(head) + len(known.body))
        if len(known.body) <= HEAP_BYTES:
            return head, known.body
        context = domain.acquire_to_fill(len(known.body))
        context.write(0, known.body)
        return head, context.read(0, len(known.body))

    def _check_host(self, request: HttpRequest) -> None:
        assert request.url.raw_host is not None
        self._settings.policy.check_literal(request.url.raw_host)

    async def _send(self, request: HttpRequest) -> aiohttp.ClientResponse:
        self._check_host(request)
        attempts = 1 + (self._settings.retries if request.method in IDEMPOTENT else 0)
        for attempt in range(attempts):
            try:
                return await self._attempt(request)
            except aiohttp.ClientSSLError:
                raise
            except _LOST:
                if attempt == attempts - 1:
                    raise
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, request: HttpRequest) -> aiohttp.ClientResponse:
        headers = CIMultiDict(request.headers)
        size = len(request.body)
        if size > SLICE_BYTES:
            headers["Content-Length"] = str(size)
        return await self._opened().request(
            request.method,
            request.url,
            headers=headers,
            data=_slices(request.body) if size > SLICE_BYTES else bytes(request.body) or None,
            allow_redirects=False,
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # a session must be made on the loop that uses it
            self._session = _session(self._settings, self._resolver)
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _are_idempotent(requests: ItemSet) -> bool:
    """Tell whether a call may be run again, although some of its requests were performed."""
    try:
        return all(read_request(item.data).method in IDEMPOTENT for item in requests)
    except Refused:
        return False


def _session(settings: HttpSettings, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    inner = resolver or SystemResolver(settings.concurrency)
    connector = aiohttp.TCPConnector(
        resolver=CheckedResolver(settings.policy, inner),
        limit=0,  # the engine limits concurrency itself
        keepalive_timeout=_IDLE_S,
    )
    loop = asyncio.get_running_loop()
    made = functools.partial(BoundedHandler, loop=loop)
    connector._factory = made  # type: ignore[assignment]  # makes a subclass
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, connect=settings.connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_NO_DEFAULT_HEADERS,
        auto_decompress=False,
        trust_env=False,
        read_bufsize=SLICE_BYTES,
        max_line_size=_LINE_LIMIT_BYTES,
        max_field_size=_LINE_LIMIT_BYTES,
    )
    session._retry_connection = False  # it would double each of our own attempts
    return session


async def _slices(body: Bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(view), SLICE_BYTES):
        yield view[start : start + SLICE_BYTES]


def _redirected(request: HttpRequest, response: aiohttp.ClientResponse) -> HttpRequest | None:
    location = response.headers.get("Location")
    if response.status not in REDIRECTS or location is None:
        return None
    return request.redirected(response.status, location)


def _kind_of(error: Exception) -> type[RequestFailed]:
    if isinstance(error, Refused | aiohttp.InvalidURL):
        return RequestFailed if isinstance(error, AnswerRefused) else RequestRefused
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientResponseError):
        return RequestFailed
    return RequestInterrupted


def _in_one_line(text: str) -> str:
    """Join the lines of a message; in the last line, aiohttp's parser points into the one before.

    `RequestFailed` is shown in tables, pages and logs that have a line for each failure.
    """
    return " ".join(text.split()).removesuffix(" ^")


def _describe(error: Exception, settings: HttpSettings) -> str:
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, aiohttp.ServerTimeoutError):
        return f"no connection within {settings.connect_s:g} s"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"no secure connection: {error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {error.os_error}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return f"the response broke off: {error}"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"the response is not valid HTTP: {error.message}"
    if isinstance(error, aiohttp.InvalidURL):
        return f"the URL cannot be used: {error}"
    return f"the connection was lost: {error}"
