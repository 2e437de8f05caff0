"""The HTTP function against servers on this machine: format, limits, allowed addresses."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from dandelion.data import Item, ItemSet
from dandelion.driver import AsyncEngine, Call, Hosting, InstanceSets, load_driver
from dandelion.errors import (
    ContextFull,
    InvalidFunction,
    InvalidInput,
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
    TimedOut,
    TooLarge,
)
from dandelion.function import CodeObject, Function, FunctionSpec, Limits
from dandelion.memory import HeapDomain, MemoryDomain, SharedDomain

http = importlib.import_module("dandelion.backends.http")
policy = importlib.import_module("dandelion.backends.http.policy")
settings = importlib.import_module("dandelion.backends.http.settings")
HttpEngine = importlib.import_module("dandelion.backends.http.engine").HttpEngine

LOCAL = {"allow": "127.0.0.0/8"}
MIB = 1024 * 1024


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario; anything that it leaves open is a warning, and so a failure."""
    asyncio.run(scenario)
    gc.collect()


@contextlib.asynccontextmanager
async def engine(
    options: dict[str, str] | None = None, resolver: AbstractResolver | None = None
) -> AsyncIterator[AsyncEngine]:
    made = HttpEngine(settings.read_settings(LOCAL if options is None else options), resolver)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def site(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """A well-behaved server; returns its URL."""
    app = web.Application(client_max_size=64 * MIB)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


@dataclass
class Raw:
    """A server that sends given answers, and records its requests."""

    answers: list[bytes]
    stay: bool = False
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    open: dict[asyncio.StreamWriter, asyncio.Event] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = self.open[writer] = asyncio.Event()
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            self.arrived.set()
            answer = self.answers.pop(0) if self.answers else b""
            writer.write(answer)
            await writer.drain()
            if self.stay:
                await reader.read()  # until the client leaves
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            writer.close()
            ended.set()

    async def leave(self) -> None:
        """End the connections that are still open."""
        for writer, ended in self.open.items():
            writer.transport.abort()
            await ended.wait()


@contextlib.asynccontextmanager
async def raw(*answers: bytes, host: str = "127.0.0.1", stay: bool = False) -> AsyncIterator[Raw]:
    """A server for one answer a connection, after which it closes or, with `stay`, waits."""
    served = Raw(list(answers), stay)
    server = await asyncio.start_server(served.serve, host, 0)
    served.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        await served.leave()
        await server.wait_closed()


def a_call(
    *items: bytes | Item,
    domain: MemoryDomain | None = None,
    limits: Limits | None = None,
    seconds: float = 20.0,
) -> Call:
    named = (i if isinstance(i, Item) else Item(f"r{n}", n, i) for n, i in enumerate(items))
    requests = ItemSet("requests", tuple(named)) if items else None
    spec = FunctionSpec(
        "HTTP", http.HTTP.inputs, http.HTTP.outputs, limits=limits or Limits(), kind="io"
    )
    function = Function(spec, http.HTTP.code[0])
    deadline = time.monotonic_ns() + int(seconds * 1e9)
    return Call(1, function, (requests,), domain or HeapDomain(64 * MIB), deadline)


def get(url: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    return "\n".join([f"{method} {url} HTTP/1.1", *lines, "", ""]).encode() + body


def only(outputs: InstanceSets) -> tuple[bytes, bytes]:
    heads, bodies = outputs
    assert heads is not None
    assert bodies is not None
    return heads.bytes(), bodies.bytes()


def fields(head: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in head.decode().splitlines()[1:])


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


# --- the format -----------------------------------------------------------------------------


def test_the_headers_item_is_written_byte_for_byte() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 Fine\r\nX-One: a  b\r\nX-ONE:c\r\nContent-Length: 2\r\n\r\nok"
        async with raw(answer) as server, engine() as e:
            outputs = await e.run(a_call(Item("page", 7, get(server.url + "/x?y=1"))))
        assert only(outputs) == (b"HTTP/1.1 200 OK\nx-one:a  b\nx-one:c\ncontent-length:2\n", b"ok")
        for out, name in zip(outputs, ("headers", "bodies"), strict=True):
            assert out is not None
            assert (out.name, out[0].name, out[0].key) == (name, "page", 7)
        assert server.requests[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")

    run(scenario())


def test_only_what_the_item_says_is_sent() -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            item = get(server.url, "x-a: 1", "x-b:2", "X-A:3", "accept:text/html", "x-c: käse")
            await e.run(a_call(item))
        lines = server.requests[0].decode().splitlines()
        host = server.url.removeprefix("http://")
        assert lines[0] == "GET / HTTP/1.1"
        assert sorted(lines[1:-1]) == sorted(
            [f"Host: {host}", "x-a: 1", "x-b: 2", "x-a: 3", "accept: text/html", "x-c: käse"]
        )

    run(scenario())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1", "HTTP/2.0"])
def test_lines_may_end_either_way(end: str, version: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            item = f"POST {server.url} {version}{end}a:b{end}{end}\r\n\n body".encode()
            await e.run(a_call(item))
            assert b"a: b\r\n" in server.requests[0]
            assert b"Content-Length: 8\r\n" in server.requests[0]

    run(scenario())


@pytest.mark.parametrize("tail", ["", "\n", "\na:b", "\na:b\n", "\na:b\n\n"])
def test_an_item_may_end_after_any_line(tail: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            assert (
                only(await e.run(a_call(f"GET {server.url} HTTP/1.1{tail}".encode())))[1] == b"ok"
            )

    run(scenario())


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "LOCK"])
@pytest.mark.parametrize("body", [b"", b"a\n\r\n\0\xff", b"z" * 400_000])
def test_any_method_and_body(method: str, body: bytes) -> None:
    async def handler(request: web.Request) -> web.Response:
        sent = await request.read()
        assert request.headers.get("Transfer-Encoding") is None
        return web.Response(body=request.method.encode() + b" " + sent)

    async def scenario() -> None:
        async with site(handler) as url, engine() as e:
            item = memoryview(get(url, method=method, body=body))
            assert only(await e.run(a_call(Item("r", 0, item))))[1] == method.encode() + b" " + body

    run(scenario())


def test_head_has_headers_and_an_empty_body() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        async with raw(answer) as server, engine() as e:
            head, body = only(await e.run(a_call(get(server.url, method="HEAD"))))
        assert fields(head)["content-length"] == "1000000"
        assert body == b""

    run(scenario())


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (200, "OK"),
        (204, "No Content"),
        (404, "Not Found"),
        (299, ""),
        (304, "Not Modified"),
        (500, "Internal Server Error"),
    ],
)
def test_any_status_is_a_success(status: int, phrase: str) -> None:
    async def scenario() -> None:
        answer = f"HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n".encode()
        async with raw(answer) as server, engine() as e:
            head, body = only(await e.run(a_call(get(server.url))))
        assert head.splitlines()[0].decode() == f"HTTP/1.1 {status} {phrase}"
        assert body == b""

    run(scenario())


def test_strange_header_bytes_come_through() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.0 200 OK\r\nx:\xff\xfe k\xc3\xa4se\r\nContent-Length: 0\r\n\r\n"
        async with raw(answer) as server, engine() as e:
            head, _ = only(await e.run(a_call(get(server.url))))
        assert head == b"HTTP/1.0 200 OK\nx:\xff\xfe k\xc3\xa4se\ncontent-length:0\n"

    run(scenario())


def test_compressed_bodies_are_not_decoded() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8bzz"
        async with raw(answer) as server, engine() as e:
            assert only(await e.run(a_call(get(server.url))))[1] == b"\x1f\x8bzz"
        assert b"accept-encoding" not in server.requests[0].lower()

    run(scenario())


def test_signed_urls_are_not_touched() -> None:
    async def scenario() -> None:
        target = "/a%2Fb/%7e?sig=%2B+%2f~&x=a%20b"
        async with raw(OK) as server, engine() as e:
            await e.run(a_call(get(server.url + target)))
        assert server.requests[0].split()[1].decode() == target

    run(scenario())


def test_no_requests_give_no_responses() -> None:
    async def scenario() -> None:
        async with engine() as e:
            assert await e.run(a_call()) == (None, None)

    run(scenario())


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\n\n",
        b"GET",
        b"GET http://127.0.0.1/",
        b"GET http://127.0.0.1/ HTTP/4.0",
        b"GET http://127.0.0.1/ http/1.1",
        b"G(T http://127.0.0.1/ HTTP/1.1",
        b"CONNECT http://127.0.0.1/ HTTP/1.1",
        b"\xff http://127.0.0.1/ HTTP/1.1",
        b"GET /path HTTP/1.1",
        b"GET 127.0.0.1:80/x HTTP/1.1",
        b"GET ftp://127.0.0.1/ HTTP/1.1",
        b"GET file:///etc/passwd HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://127.0.0.1:99999/ HTTP/1.1",
        b"GET http://[::1/ HTTP/1.1",
        b"GET http://127.0.0.1/ HTTP/1.1\nno colon\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\n:empty name\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nbad name:x\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nn\xc3\xa4me:x\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nname:a\0b\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nname:a\rInjected: b\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nname:\xff\n\n",
        b"POST http://127.0.0.1/ HTTP/1.1\ncontent-length:3\n\nfour",
        b"POST http://127.0.0.1/ HTTP/1.1\ntransfer-encoding: chunked\n\n0\r\n\r\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nhost: a\nHost: b\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nhost: a\nx: y\nhost: a\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\nx:" + b"y" * 70_000 + b"\n\n",
        b"GET http://127.0.0.1/ HTTP/1.1\n" + b"x:y\n" * 20_000 + b"\n\n",
    ],
)
def test_malformed_items_are_named(item: bytes) -> None:
    async def scenario() -> None:
        async with engine() as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(Item("broken", 0, item)))
        assert (caught.value.function, caught.value.item) == ("HTTP", "broken")
        assert "connect" not in caught.value.message  # it never connected

    run(scenario())


# --- bodies, bounds, many at once -----------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_are_in_one_context(chunked: bool) -> None:
    data = bytes(range(256)) * 20_000

    async def handler(request: web.Request) -> web.StreamResponse:
        if not chunked:
            return web.Response(body=data)
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(data), 100_000):
            await response.write(data[start : start + 100_000])
        return response

    async def scenario() -> None:
        domain = SharedDomain(16 * MIB)
        async with site(handler) as url, engine() as e:
            _, bodies = await e.run(a_call(get(url), domain=domain))
            assert bodies is not None
            assert bodies[0].data == data
            assert domain.locate(bodies[0].data) is not None
            assert domain.stats().contexts == 1
            del bodies
        assert domain.stats().used_bytes == 0
        domain.close()

    run(scenario())


def test_small_bodies_use_no_context() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 1000)

    async def scenario() -> None:
        async with site(handler) as url, engine() as e:
            assert len(only(await e.run(a_call(get(url), domain=HeapDomain(0))))[1]) == 1000

    run(scenario())


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_responses_may_not_be_too_large_together(chunked: bool, count: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if not chunked:
            return web.Response(body=b"x" * 50_000)
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(50):
            await response.write(b"x" * 1000)
        return response

    async def scenario() -> None:
        domain = HeapDomain(MIB)
        async with site(handler) as url, engine() as e:
            enough, scarce = count * 51_000, count * 50_000 - 1
            call = a_call(*[get(url)] * count, domain=domain, limits=Limits(output_bytes=enough))
            assert len((await e.run(call))[1] or ()) == count
            call = a_call(*[get(url)] * count, domain=domain, limits=Limits(output_bytes=scarce))
            with pytest.raises(TooLarge) as caught:
                await e.run(call)
            assert caught.value.limit_bytes == scarce
            del caught
        gc.collect()
        assert domain.stats().contexts == 0

    run(scenario())


def test_a_full_domain_says_so() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 50_000)

    async def scenario() -> None:
        async with site(handler) as url, engine() as e:
            with pytest.raises(ContextFull):
                await e.run(a_call(get(url), domain=HeapDomain(10_000)))

    run(scenario())


def test_two_hundred_items_at_once_and_no_more_than_allowed() -> None:
    now = most = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return web.Response(text=request.path)

    async def scenario() -> None:
        options = LOCAL | {"concurrency": "12"}
        async with site(handler) as url, engine(options) as e:
            items = [Item(f"item {n}", n * 3, get(f"{url}/{n}")) for n in range(200)]
            heads, bodies = await e.run(a_call(*items))
        assert heads is not None
        assert bodies is not None
        for n, (head, body) in enumerate(zip(heads, bodies, strict=True)):
            assert (head.name, head.key) == (body.name, body.key) == (f"item {n}", n * 3)
            assert body.text() == f"/{n}"

    run(scenario())
    assert 1 < most <= 12


def test_calls_share_the_places() -> None:
    async def scenario() -> None:
        async with raw(stay=True) as server, engine(LOCAL | {"concurrency": "1"}) as e:
            first = asyncio.create_task(e.run(a_call(get(server.url))))
            await server.arrived.wait()
            with pytest.raises(TimedOut):
                await e.run(a_call(get(server.url), seconds=0.02))
            assert len(server.requests) == 1
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

    run(scenario())


def test_one_failure_ends_the_others() -> None:
    async def scenario() -> None:
        async with raw(stay=True) as server, engine() as e:
            waiting = [get(server.url)] * 2
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(*waiting, Item("bad", 0, b"nonsense")))
            assert caught.value.item == "bad"

    run(scenario())


# --- time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", b"HTTP/1.1 2"]
)
def test_a_slow_server_costs_no_more_than_the_deadline(answer: bytes) -> None:
    async def scenario() -> None:
        async with raw(answer, stay=True) as server, engine() as e:
            began = time.monotonic()
            with pytest.raises(TimedOut) as caught:
                await e.run(a_call(get(server.url), seconds=0.05))
            assert time.monotonic() - began < 20
            assert len(server.requests) <= 1  # the deadline may pass before it is read
        assert (caught.value.function, caught.value.what) == ("HTTP", "wall")

    run(scenario())


def test_a_deadline_that_has_passed_sends_nothing() -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            with pytest.raises(TimedOut):
                await e.run(a_call(get(server.url), seconds=-1.0))
            assert server.requests == []

    run(scenario())


def test_connecting_has_a_limit_of_its_own() -> None:
    class Stalling(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
            await asyncio.Event().wait()
            raise AssertionError

        async def close(self) -> None:
            pass

    async def scenario() -> None:
        options = {"connect_s": "0.02", "retries": "0"}
        async with engine(options, Stalling()) as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(get("http://slow.example/")))
        assert "0.02 s" in caught.value.message

    run(scenario())


def test_cancelling_a_call_closes_its_connections() -> None:
    async def scenario() -> None:
        domain = HeapDomain(MIB)
        async with raw(stay=True) as server, engine() as e:
            running = asyncio.create_task(e.run(a_call(get(server.url), domain=domain)))
            await server.arrived.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            async with asyncio.timeout(20):
                await server.gone.wait()
        assert domain.stats().contexts == 0

    run(scenario())


# --- connections that fail ------------------------------------------------------------------


def test_a_response_that_breaks_off_fails_its_item() -> None:
    async def scenario() -> None:
        known = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 5000
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        domain = HeapDomain(MIB)
        for answer in (known, chunked):
            async with raw(answer) as server, engine() as e:
                with pytest.raises(RequestFailed) as caught:
                    await e.run(a_call(get(server.url), domain=domain))
                assert "broke off" in caught.value.message
                assert len(server.requests) == 1  # a response had begun: no retry
                del caught
        gc.collect()
        assert domain.stats().contexts == 0

    run(scenario())


@pytest.mark.parametrize(
    ("method", "tries"), [("GET", 3), ("get", 3), ("PUT", 3), ("POST", 1), ("PATCH", 1)]
)
def test_only_idempotent_requests_are_repeated(
    method: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[HttpEngine.__module__], "_FIRST_PAUSE_S", 0.0)

    async def scenario() -> None:
        async with raw(*[b""] * 5) as server, engine() as e:
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(server.url, method=method)))
            assert len(server.requests) == tries
        async with raw(b"", b"", OK) as server, engine() as e:
            if tries == 3:
                assert only(await e.run(a_call(get(server.url, method=method))))[1] == b"ok"

    run(scenario())


def test_a_refused_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[HttpEngine.__module__], "_FIRST_PAUSE_S", 0.0)
    with socket.socket() as bound:
        bound.bind(
            ("127.0.0.1", 0)
        )  # bound but not listening: connections are refused, and the port stays reserved
        port = bound.getsockname()[1]

        async def scenario() -> None:
            async with engine() as e:
                with pytest.raises(RequestFailed) as caught:
                    await e.run(a_call(get(f"http://127.0.0.1:{port}/")))
            assert f"127.0.0.1:{port}" in caught.value.message

        run(scenario())


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad\r\n\r\n"])
def test_what_is_no_http_fails(answer: bytes) -> None:
    async def scenario() -> None:
        async with raw(answer) as server, engine(LOCAL | {"retries": "0"}) as e:
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(server.url)))

    run(scenario())


def test_plain_http_is_not_taken_for_secure() -> None:
    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, engine(LOCAL | {"retries": "0"}) as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(get(f"https://127.0.0.1:{port}/")))
        assert "secure" in caught.value.message

    run(scenario())


def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scenario() -> None:
        async with raw(OK) as server, engine() as e:
            assert only(await e.run(a_call(get(server.url))))[1] == b"ok"

    run(scenario())


def test_cookies_are_not_stored() -> None:
    async def scenario() -> None:
        answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
        async with raw(answer, OK) as server, engine() as e:
            await e.run(a_call(get(server.url)))
            await e.run(a_call(get(server.url)))
        assert b"ookie" not in server.requests[1]

    run(scenario())


# --- redirects ------------------------------------------------------------------------------


def moved(status: int, location: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Moved", f"Location: {location}", "Connection: close"]
    return "\r\n".join([*lines, "Content-Length: 0", "", ""]).encode()


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "GET", "GET"),
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (302, "post", "GET"),
        (302, "PUT", "PUT"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
def test_redirects_are_followed_as_browsers_do(status: int, method: str, then: str) -> None:
    async def scenario() -> None:
        answer = OK.removesuffix(b"ok") if method == "HEAD" else OK
        async with raw(moved(status, "next?q=1"), answer) as server, engine() as e:
            item = get(f"{server.url}/a/b", "content-type:t", method=method, body=b"body")
            await e.run(a_call(item))
        second = server.requests[1]
        assert second.startswith(f"{then} /a/next?q=1 HTTP/1.1\r\n".encode())
        kept = method == then
        assert (b"content-type" in second) == kept
        assert (b"Content-Length: 4" in second) == kept

    run(scenario())


def test_credentials_stay_with_their_origin() -> None:
    async def scenario() -> None:
        secrets = ["Authorization: x", "cookie: y", "Proxy-Authorization: z", "Host: h"]
        async with (
            raw(OK) as other,
            raw(moved(302, "/here"), moved(302, other.url)) as server,
            engine() as e,
        ):
            await e.run(a_call(get(server.url, *secrets, "x-plain: 1")))
        same, cross = server.requests[1].lower(), other.requests[0].lower()
        for name in (b"authorization", b"cookie", b"proxy-authorization"):
            assert name in same
            assert name not in cross
        assert b"host: h\r\n" in same
        assert b"host: h\r\n" not in cross
        assert b"x-plain: 1" in cross

    run(scenario())


@pytest.mark.parametrize("redirects", [0, 3])
def test_redirects_have_a_limit(redirects: int) -> None:
    async def scenario() -> None:
        options = LOCAL | {"redirects": str(redirects)}
        async with raw(*[moved(302, "/")] * 20) as server, engine(options) as e:
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(server.url)))
            assert len(server.requests) == redirects + 1

    run(scenario())


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://127.0.0.1/", "http://", "//[::1", "http://127.0.0.1:99999/"],
)
def test_redirects_to_bad_addresses_fail(location: str) -> None:
    async def scenario() -> None:
        async with raw(moved(302, location)) as server, engine() as e:
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(server.url)))

    run(scenario())


def test_a_redirect_without_a_place_is_the_answer() -> None:
    async def scenario() -> None:
        async with raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n") as server, engine() as e:
            head, _ = only(await e.run(a_call(get(server.url))))
        assert head.startswith(b"HTTP/1.1 302 Found\n")

    run(scenario())


# --- allowed addresses ---------------------------------------------------------------------


class Names(AbstractResolver):
    """Answers from a list for each name, the last one over and over."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers
        self.requested: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.requested.append(host)
        answers = self.answers[host.split(".")[0]]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(hostname=host, host=a, port=port, family=socket.AF_INET, proto=0, flags=0)
            for a in addresses
        ]

    async def close(self) -> None:
        pass


def port_of(url: str) -> str:
    return url.rsplit(":", 1)[1]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "１２７.0.0.1",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
    ],
)
def test_this_machine_is_out_of_reach(host: str) -> None:
    async def scenario() -> None:
        async with raw(OK) as server, engine({"retries": "0"}) as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(get(f"http://{host}:{port_of(server.url)}/")))
            assert server.requests == []
            assert "reach" in caught.value.message or "LOCALHOST" in host

    run(scenario())


@pytest.mark.parametrize(
    "address",
    ["10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "192.0.0.192",
     "168.63.129.16", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1",
     "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "ff02::1", "fec0::1", "2002:7f00:1::",
     "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe", "::ffff:10.0.0.1", "2001:db8::1", "", "no address"],
)  # fmt: skip
def test_private_addresses_are_not_admitted(address: str) -> None:
    assert not policy.AddressPolicy().admits(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "1.1.1.1"])
def test_public_addresses_are_admitted(address: str) -> None:
    assert policy.AddressPolicy().admits(address)
    assert not policy.AddressPolicy(public=False).admits(address)


def test_settings_admit_networks_and_names() -> None:
    chosen = policy.read_policy("10.0.0.0/8, fd00::/8,192.168.1.7, *.Internal", "no")
    assert chosen.admits("10.200.0.1")
    assert chosen.admits("::ffff:10.200.0.1")
    assert chosen.admits("fd00::1")
    assert chosen.admits("192.168.1.7")
    assert not chosen.admits("192.168.1.8")
    assert not chosen.admits("8.8.8.8")
    assert chosen.trusts("store.internal.")
    assert chosen.trusts("STORE.internal")
    assert not chosen.trusts("internal.example.org")


def test_names_that_point_inside_are_refused() -> None:
    async def scenario() -> None:
        names = Names(evil=[["127.0.0.1"]], meta=[["169.254.169.254"]])
        async with raw(OK) as server, engine({}, names) as e:
            for host in ("evil.example", "meta.example"):
                url = f"http://{host}:{port_of(server.url)}/"
                with pytest.raises(RequestFailed):
                    await e.run(a_call(*[get(url)] * 20))
            assert server.requests == []

    run(scenario())


def test_only_the_checked_address_is_connected_to() -> None:
    async def scenario() -> None:
        names = Names(flips=[["10.9.9.9", "127.0.0.2"], ["127.0.0.1"]])
        async with raw(OK, host="127.0.0.2") as server, engine({"allow": "127.0.0.2"}, names) as e:
            url = f"http://flips.example:{port_of(server.url)}/"
            assert only(await e.run(a_call(get(url))))[1] == b"ok"
        assert names.requested == ["flips.example"]  # asked once, and connected to that answer

    run(scenario())


def test_a_name_that_moves_inside_between_hops_is_refused() -> None:
    async def scenario() -> None:
        names = Names(flips=[["127.0.0.2"], ["127.0.0.1"]])
        async with raw(OK) as inside, engine({"allow": "127.0.0.2"}, names) as e:
            hop = moved(302, f"http://flips.example:{port_of(inside.url)}/")
            async with raw(hop, host="127.0.0.2") as outside:
                with pytest.raises(RequestFailed):
                    await e.run(a_call(get(f"http://flips.example:{port_of(outside.url)}/")))
            assert len(outside.requests) == 1
            assert inside.requests == []
        assert len(names.requested) == 2

    run(scenario())


def test_a_redirect_to_a_forbidden_address_is_refused() -> None:
    async def scenario() -> None:
        async with raw(OK) as inside, engine({"allow": "127.0.0.2"}) as e:
            async with raw(moved(302, inside.url), host="127.0.0.2") as outside:
                with pytest.raises(RequestFailed):
                    await e.run(a_call(get(outside.url)))
            assert inside.requests == []

    run(scenario())


def test_a_trusted_name_is_reached_wherever_it_points() -> None:
    async def scenario() -> None:
        names = Names(store=[["127.0.0.1"]])
        async with raw(OK) as server, engine({"allow": "*.corp", "public": "no"}, names) as e:
            url = f"http://store.corp:{port_of(server.url)}/"
            assert only(await e.run(a_call(get(url))))[1] == b"ok"
            with pytest.raises(RequestFailed):
                await e.run(a_call(get(f"http://store.other:{port_of(server.url)}/")))

    run(scenario())


# --- the driver -----------------------------------------------------------------------------


def test_the_driver_describes_itself() -> None:
    driver = load_driver("http")
    assert driver.hosting is Hosting.LOOP
    assert driver.formats == {"http"}
    spec, whole = driver.platform_functions
    assert (spec.name, spec.input_names, spec.output_names, spec.kind) == (
        "HTTP", ("requests",), ("headers", "bodies"), "io"
    )  # fmt: skip
    assert (whole.name, whole.input_names, whole.output_names, whole.kind) == (
        "HTTP_RESPONSE", ("request",), ("response", "body"), "io"
    )  # fmt: skip
    (resource,) = driver.factory().probe()
    driver.checker().check([Function(one, one.code[0]) for one in (spec, whole)])

    async def scenario() -> None:
        made = driver.factory().engine(resource.name)
        assert isinstance(made, AsyncEngine)
        await made.close()
        await made.close()

    run(scenario())


def test_settings_reach_the_engine() -> None:
    driver = http.driver({"concurrency": "3"})
    assert driver.factory().settings.concurrency == 3
    driver.configure(LOCAL)

    async def scenario() -> None:
        made = driver.factory().engine("http")
        async with raw(OK) as server:
            assert only(await made.run(a_call(get(server.url))))[1] == b"ok"
            await made.close()

    run(scenario())


@pytest.mark.parametrize(
    "options",
    [{"alow": "x"}, {"allow": "10.0.0.0/99"}, {"allow": "a b"}, {"public": "maybe"},
     {"concurrency": "0"}, {"concurrency": "many"}, {"connect_s": "-1"}, {"connect_s": "nan"},
     {"retries": "-1"}, {"redirects": "1.5"}],
)  # fmt: skip
def test_bad_settings_are_named(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        http.driver(options)
    assert caught.value.where == f"options.http.{next(iter(options))}"


def test_functions_of_another_shape_are_refused() -> None:
    code = CodeObject("http", options={"speed": "fast"})
    spec = FunctionSpec("H", http.HTTP.inputs, http.HTTP.inputs, code=(code,))
    with pytest.raises(InvalidFunction) as caught:
        http.driver().checker().check([Function(spec, code)])
    found = [problem.where for problem in caught.value.problems]
    assert found == ["inputs, outputs", "kind", "code.options.speed"]


def test_the_driver_loads_nothing_heavy() -> None:
    script = (
        "import sys; from dandelion.driver import load_driver;"
        "load_driver('http').platform_functions;"
        "sys.exit('aiohttp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("request_", "kind", "transient"),
    [
        (b"nonsense", RequestRefused, False),
        (get("http://10.0.0.1/"), RequestRefused, False),
        (get("http://127.0.0.1:1/"), RequestInterrupted, True),
        (get("{closes}"), RequestInterrupted, True),
        (get("{nonsense}"), RequestFailed, False),
        (get("{loop}"), RequestFailed, False),
        (get("{short}"), RequestInterrupted, True),
    ],
)
def test_failures_say_whether_they_are_transient(
    request_: bytes, kind: type[RequestFailed], transient: bool
) -> None:
    answers = {
        "closes": b"",
        "nonsense": b"nonsense\r\n\r\n",
        "loop": b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        "short": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
    }

    async def scenario() -> None:
        name = next((n for n in answers if n.encode() in request_), "closes")
        async with raw(*[answers[name]] * 20) as server, engine() as e:
            text = request_.replace(b"{%s}" % name.encode(), server.url.encode() + b"/")
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(text))
            assert (type(caught.value), caught.value.transient) == (kind, transient)
            assert caught.value.item == "r0"

    run(scenario())
