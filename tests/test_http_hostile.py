"""The HTTP function against servers that drip, flood and never end.

Each server is a thread that sends one block over and over until its client leaves. The tests hold
that the event loop goes on meanwhile, that the call ends as documented, and what memory it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dandelion.driver import AsyncEngine, Call
from dandelion.errors import DandelionError, RequestFailed, TimedOut, TooLarge
from dandelion.function import Limits
from tests.http_sites import MIB, a_call, engine, get, only, raw, run

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
STALL_S = 1.0
"""A generous multiple of the longest step of the loop, in seconds."""

FRAMING = {
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "other interim responses": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
    "empty lines": (b"", b"\r\n"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n"),
    "a folded header": (b"HTTP/1.1 200 OK\r\nx: y\r\n", b" more\r\n"),
    "a long header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000),
    "a chunk extension": (CHUNKED + b"1", b";a=bbbbbbbbbbbbbbbbb"),
    "zeros before a chunk's size": (CHUNKED, b"0" * 64),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"x-a: b\r\n"),
    "what follows an upgrade": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"z" * 64,
    ),
}


@contextlib.contextmanager
def flood(head: bytes, block: bytes, times: int = 0, tail: bytes = b"") -> Iterator[str]:
    """A server that sends a head, then blocks endlessly, or `times` blocks and a tail."""
    server = socket.create_server(("127.0.0.1", 0))
    per = 1 + 65536 // len(block)
    joined = block * per
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(head)
            for _ in range(times // per):
                connection.sendall(joined)
            connection.sendall(block * (times % per) + tail)
            while not times:
                connection.sendall(joined)
            connection.recv(1)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(server.accept()[0],)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        accepting.join()
        server.close()
        for thread in threads:
            thread.join()


@contextlib.asynccontextmanager
async def beats() -> AsyncIterator[None]:
    """Asserts that the loop is never busy for long, as a context manager.

    Counts the processor time of its thread, which does not depend on what else the machine does.
    """
    worst = 0.0

    async def beat() -> None:
        nonlocal worst
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            worst, last = max(worst, now - last), now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield
        await asyncio.sleep(0.002)
    finally:
        beating.cancel()
    assert worst < STALL_S, f"the loop was busy for {worst:.1f} s"


async def results(e: AsyncEngine, calls: list[Call]) -> list[object]:
    async with beats():
        return await asyncio.gather(*(e.run(call) for call in calls), return_exceptions=True)


@pytest.mark.parametrize("what", FRAMING)
def test_framing_without_end_is_cut_off(what: str) -> None:
    async def scenario() -> None:
        with flood(*FRAMING[what]) as url:
            async with engine() as e:
                done = await results(e, [a_call(get(url)) for _ in range(8)])
        if "upgrade" in what:  # is an answer, and its connection ends
            assert not any(isinstance(one, BaseException) for one in done)
        else:
            assert all(isinstance(one, RequestFailed) for one in done), done

    run(scenario())


def test_an_unrequested_response_is_not_the_next_answer() -> None:
    """It comes with the answer; one that comes after the next request looks like its answer."""
    unrequested = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"

    async def scenario() -> None:
        with flood(EMPTY + unrequested, unrequested) as url:
            async with engine() as e:
                for _ in range(3):
                    (done,) = await results(e, [a_call(get(url))])
                    assert only(done)[0].startswith(b"HTTP/1.1 200")  # type: ignore[arg-type]

    run(scenario())


def test_an_answer_before_the_request_is_complete_is_an_answer() -> None:
    async def scenario() -> None:
        async with raw(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno") as server, engine() as e:
            (done,) = await results(e, [a_call(get(server.url, method="POST", body=b"z" * MIB))])
        assert isinstance(done, RequestFailed) or only(done)[1] == b"no"  # type: ignore[arg-type]

    run(scenario())


@pytest.mark.parametrize("chunk", [b"2\r\nxx\r\n", b"1;" + b"e" * 4000 + b"\r\nx\r\n"])
def test_deadlines_hold_in_a_flood_of_chunks(chunk: bytes) -> None:
    async def scenario() -> None:
        with flood(CHUNKED, chunk) as url:
            async with engine() as e:
                done = await results(e, [a_call(get(url), seconds=0.3) for _ in range(8)])
        assert all(isinstance(one, TimedOut) for one in done), done

    run(scenario())


@pytest.mark.parametrize("chunk", [b"2\r\nxx\r\n", b"4000\r\n" + b"z" * 0x4000 + b"\r\n"])
@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_limit_holds_in_a_flood(head: bytes, chunk: bytes) -> None:
    async def scenario() -> None:
        limits = Limits(output_bytes=MIB // 4)
        with flood(head, chunk) as url:
            async with engine() as e:
                done = await results(e, [a_call(get(url), limits=limits) for _ in range(4)])
        assert all(isinstance(one, TooLarge) for one in done), done

    run(scenario())


def test_a_body_takes_its_bytes_whatever_its_chunks() -> None:
    async def scenario() -> None:
        size = MIB // 2
        with flood(CHUNKED, b"2\r\nxy\r\n", size // 2, b"0\r\n\r\n") as url:
            async with engine() as e:
                await e.run(a_call(get(url)))  # makes what is made once
                tracemalloc.start()
                try:
                    (done,) = await results(e, [a_call(get(url))])
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
        assert only(done)[1] == b"xy" * (size // 2)  # type: ignore[arg-type]
        assert peak < 6 * size  # the buffer, its copy in a context, what is held; chunks were 22

    run(scenario())


@pytest.mark.parametrize("redirects", [3])
def test_redirects_that_never_end_do_end(redirects: int) -> None:
    async def scenario() -> None:
        again = b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 1000000000\r\n\r\n"
        with flood(again, b"z" * 1000) as url:
            options = {"allow": "127.0.0.0/8", "redirects": str(redirects)}
            async with engine(options) as e:
                done = await results(e, [a_call(get(url)) for _ in range(4)])
        assert all(isinstance(one, RequestFailed) for one in done), done

    run(scenario())


def test_a_large_ordinary_body_comes_through_a_slow_reader() -> None:
    async def scenario() -> None:
        size = 24 * MIB
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        with flood(head, b"0123456789abcdef", size // 16) as url:
            async with engine() as e:
                (done,) = await results(e, [a_call(get(url))])
        assert not isinstance(done, DandelionError), done
        assert only(done)[1] == b"0123456789abcdef" * (size // 16)  # type: ignore[arg-type]

    run(scenario())


def test_a_connection_that_stays_open_after_its_body_is_used_again() -> None:
    async def scenario() -> None:
        opened: list[Any] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with engine() as e:
            for _ in range(3):
                assert only(await e.run(a_call(get(url))))[1] == b"ok"
        server.close()
        await server.wait_closed()
        assert len(opened) == 1

    run(scenario())
