"""Performing requests: one client session on the event loop, shared by all calls.

Steps of an item: its text is read; the host is checked; a connection is made to an address that was
checked after resolution (`_CheckedResolver`; the connector uses only these addresses); redirects
are followed, and every hop is checked again. A body of known length is written into a context of
its own as it arrives. A body of unknown length is collected in one buffer and copied once. Very
small bodies stay on the heap.

A call is limited by its deadline, by the function's ``output_bytes`` for all responses together,
and by the engine's `HttpSettings.concurrency`. `protocol` limits how long a server can keep the
loop busy. The first item that fails cancels the others and fails the call.

The environment is ignored: no proxy, no credentials, no cookies.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import AsyncEngine, Call, InstanceSets
from dandelion.errors import RequestFailed, TimedOut, TooLarge
from dandelion.memory import MemoryDomain

from .policy import AddressPolicy, Refused
from .protocol import BoundedHandler
from .request import (
    IDEMPOTENT,
    REDIRECTS,
    HttpRequest,
    head_item,
    read_request,
)
from .settings import HttpSettings

HEAP_BYTES = 1024
"""Bodies up to this size stay on the heap, where they cost less than a context."""

SLICE_BYTES = 256 * 1024
_COPY_BYTES = 4 * 1024 * 1024
_LINE_LIMIT_BYTES = 64 * 1024
_FIRST_PAUSE_S = 0.05
_IDLE_S = 3.0  # less than servers keep a connection open: a POST on a closed one is lost
_NO_DEFAULT_HEADERS = ("User-Agent", "Accept-Encoding", "Content-Type")
_LOST = (aiohttp.ClientConnectionError, ConnectionError)  # before a response began


@dataclass(slots=True)
class _Room:
    """The remaining bytes for the responses of one call."""

    limit_bytes: int
    taken_bytes: int = 0

    def take(self, item: str, size_bytes: int) -> None:
        self.taken_bytes += size_bytes
        if self.taken_bytes > self.limit_bytes:
            raise TooLarge(f"response of item '{item}'", self.taken_bytes, self.limit_bytes)


class HttpEngine(AsyncEngine):
    """Performs the requests of many calls at once.

    Args:
        settings: the operator's settings.
        resolver: resolves names; by default the system's resolver.
    """

    name = "http"

    def __init__(self, settings: HttpSettings, resolver: AbstractResolver | None = None) -> None:
        self._settings = settings
        self._resolver = resolver
        self._places = asyncio.Semaphore(settings.concurrency)
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
        room = _Room(call.function.spec.limits.output_bytes)
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

    async def _one(self, call: Call, item: Item, room: _Room) -> tuple[Item, Item]:
        request = None
        try:
            request = read_request(item.data)
            async with self._places:
                head, body = await self._follow(request, item.name, room, call.domain)
        except (Refused, aiohttp.ClientError, ConnectionError) as error:
            message = _describe(error, self._settings)
            lost = isinstance(error, (*_LOST, aiohttp.ClientPayloadError)) and not isinstance(
                error, aiohttp.ClientSSLError
            )
            may_repeat = lost and request is not None and request.method in IDEMPOTENT
            name = call.function.spec.name
            raise RequestFailed(name, item.name, message, may_repeat) from None
        return Item(item.name, item.key, head), Item(item.name, item.key, body)

    async def _follow(
        self, request: HttpRequest, item: str, room: _Room, domain: MemoryDomain
    ) -> tuple[bytes, Bytes]:
        for _ in range(self._settings.redirects + 1):
            async with await self._send(request) as response:
                location = response.headers.get("Location")
                if response.status not in REDIRECTS or location is None:
                    return await _receive(request, response, item, room, domain)
                request = request.redirected(response.status, location)
        raise Refused(f"more than {self._settings.redirects} redirects")

    async def _send(self, request: HttpRequest) -> aiohttp.ClientResponse:
        assert request.url.raw_host is not None
        self._settings.policy.check_literal(request.url.raw_host)
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


class _CheckedResolver(AbstractResolver):
    """Resolves names, and returns only addresses that may be reached."""

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver) -> None:
        self._policy = policy
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if self._policy.trusts(host):
            return found
        admitted = [result for result in found if self._policy.admits(result["host"])]
        if not admitted:
            raise Refused(f"'{host}' has no address that may be reached")
        return admitted

    async def close(self) -> None:
        await self._inner.close()


def _session(settings: HttpSettings, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    inner = resolver or aiohttp.ThreadedResolver()
    connector = aiohttp.TCPConnector(
        resolver=_CheckedResolver(settings.policy, inner),
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


async def _receive(
    request: HttpRequest,
    response: aiohttp.ClientResponse,
    item: str,
    room: _Room,
    domain: MemoryDomain,
) -> tuple[bytes, Bytes]:
    version = response.version or aiohttp.HttpVersion11
    head = head_item((version.major, version.minor), response.status, response.raw_headers)
    room.take(item, len(head))
    bodiless = request.method.upper() == "HEAD" or response.status in (204, 304)
    if bodiless or response.content_length == 0:
        return head, b""
    if response.content_length is None:
        return head, await _receive_unsized(response, item, room, domain)
    room.take(item, response.content_length)
    if response.content_length <= HEAP_BYTES:
        return head, await response.read()
    return head, await _receive_sized(response, response.content_length, domain)


async def _receive_sized(
    response: aiohttp.ClientResponse, size_bytes: int, domain: MemoryDomain
) -> Bytes:
    context = domain.acquire(size_bytes)
    offset = 0
    async for piece in response.content.iter_any():
        context.write(offset, piece)
        offset += len(piece)
    if offset != size_bytes:
        raise aiohttp.ClientPayloadError(f"{offset} of {size_bytes} bytes")
    return context.read(0, size_bytes)


async def _receive_unsized(
    response: aiohttp.ClientResponse, item: str, room: _Room, domain: MemoryDomain
) -> Bytes:
    body = bytearray()  # not a list, which is many times larger for chunks of two bytes
    async for piece in response.content.iter_any():
        room.take(item, len(piece))
        body += piece
    if len(body) <= HEAP_BYTES:
        return bytes(body)
    context = domain.acquire(len(body))
    with memoryview(body) as view:
        for start in range(0, len(view), _COPY_BYTES):
            context.write(start, view[start : start + _COPY_BYTES])
            await asyncio.sleep(0)  # a large body takes a tenth of a second
    return context.read(0, len(body))


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
