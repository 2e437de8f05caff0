"""The HTTP function: bodies, limits, time, and connections that fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
import time
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from dandelion.data import Item
from dandelion.errors import (
    ContextFull,
    RequestFailed,
    TimedOut,
    TooLarge,
)
from dandelion.function import Limits
from dandelion.memory import HeapDomain, SharedDomain
from tests.http_sites import (
    LOCAL,
    MIB,
    OK,
    HttpEngine,
    a_call,
    engine,
    get,
    only,
    raw,
    run,
    site,
)


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


def test_bodies_of_unknown_length_are_not_collected_on_the_heap() -> None:
    pieces = 256
    left = pieces

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal left
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(pieces):
                await response.write(bytes(MIB // 2))
                left -= 1
        return response

    async def scenario() -> None:
        domain = SharedDomain(4 * MIB)
        async with site(handler) as url, engine() as e:
            with pytest.raises(ContextFull):
                await e.run(a_call(get(url), domain=domain))
        assert left > pieces // 2, "it is given up when the arena is full, not at its end"
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
    ("answer", "found"),
    [
        (b"not HTTP\r\n\r\n", "b'not HTTP'"),
        (b"HTTP/1.1 20x OK\r\n\r\n", "b'HTTP/1.1 20x OK'"),
        (b"HTTP/1.1 200 OK\r\nA b\r\n\r\n", "b'A b'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "b'zz'"),
    ],
)
def test_the_message_of_a_response_that_is_not_http_is_one_line(answer: bytes, found: str) -> None:
    async def scenario() -> None:
        async with raw(answer) as server, engine() as e:
            with pytest.raises(RequestFailed) as caught:
                await e.run(a_call(get(server.url)))
        assert caught.value.message.endswith(found)
        assert "\n" not in caught.value.message

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
