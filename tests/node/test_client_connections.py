"""Connections of both clients: the pool, time-outs, broken servers, cancellation, copies."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
import uvloop

from dandelion.errors import DeadlineExceeded, InvalidInput
from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client, Unreachable
from dandelion.frontend.problem import ClientClosed
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.loopback import own_host
from tests.node.served import DOCUMENT, SETTINGS, GateDriver


class LoopedClient:
    """`AsyncClient` with the methods of `Client`, on an event loop in a thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            coroutine = getattr(self._client, name)(*arguments, **options)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(params=[Client, LoopedClient])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def gate() -> GateDriver:
    return GateDriver()


@pytest.fixture(scope="module")
def node(gate: GateDriver) -> Iterator[Node]:
    with Node(SETTINGS, [gate]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node
        gate.gate.open(100)


@pytest.fixture(scope="module")
def url(node: Node) -> Iterator[str]:
    with BackgroundServer(node, drain_s=5) as server:
        yield server.url


def received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError("the client left")
    return data


def whole_request(connection: socket.socket) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        request += received(connection)
    head, _, body = request.partition(b"\r\n\r\n")
    size = re.search(rb"(?i)content-length: (\d+)", head)
    while size and len(body) < int(size[1]):
        body += received(connection)
    return head + b"\r\n\r\n" + body


@contextmanager
def scripted(*connections: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one connection for each list: answer each request with the next bytes, then close.

    Gives the URL and the requests that came.
    """
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                connection, _ = listener.accept()
                with connection:
                    for answer in answers:
                        requests.append(whole_request(connection))
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


# --- the pool -----------------------------------------------------------------------------------


def test_a_connection_that_the_server_closed_is_replaced(node: Node, make: Any) -> None:
    server = BackgroundServer(node, own_host())
    with make(server.url, timeout_s=20) as client:
        assert client.invoke("echo", a=b"1").b.bytes() == b"1"
        server.close()
        port = int(server.url.rpartition(":")[2])
        with BackgroundServer(node, own_host(), port):
            assert client.invoke("echo", a=b"2").b.bytes() == b"2"
        with pytest.raises(Unreachable):
            client.invoke("echo", a=b"3")


def test_a_query_is_repeated_on_a_new_connection(make: Any) -> None:
    with scripted([OK, b""], [OK]) as (url, requests), make(url, timeout_s=20) as client:
        assert client.metrics() == "ok"
        assert client.metrics() == "ok"
    assert [request[:12] for request in requests] == [b"GET /metrics"] * 3


@pytest.mark.parametrize(("method", "start"), [("invoke", b"POST"), ("remove", b"DELETE")])
def test_what_changes_something_is_not_repeated(make: Any, method: str, start: bytes) -> None:
    with scripted([OK, b""]) as (url, requests), make(url, timeout_s=20) as client:
        assert client.metrics() == "ok"
        with pytest.raises(Unreachable, match="closed the connection"):
            getattr(client, method)("echo")
    assert [request.split()[0] for request in requests] == [b"GET", start]


def test_a_query_without_an_answer_is_not_repeated(make: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with make(url, timeout_s=0.3) as client, pytest.raises(Unreachable, match=r"for 0\.3 s"):
            client.metrics()
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_was_closed_while_the_loop_was_blocked_is_replaced(
    node: Node, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    server = BackgroundServer(node, own_host())

    async def calls() -> None:
        async with AsyncClient(server.url, timeout_s=20) as client:
            await asyncio.gather(*[client.invoke("echo", a=b"1") for _ in range(3)])
            server.close()
            with BackgroundServer(node, own_host(), int(server.url.rpartition(":")[2])):
                done = await asyncio.gather(*[client.invoke("echo", a=b"2") for _ in range(3)])
                assert [one.b.bytes() for one in done] == [b"2"] * 3

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(calls())


def test_the_number_of_connections_is_limited(url: str, gate: GateDriver, make: Any) -> None:
    with make(url, timeout_s=20, connections=2) as client, ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(client.invoke, "wait", a=b"") for _ in range(2)]
        assert gate.gate.entered()
        third = threads.submit(client.invoke, "echo", a=b"third")
        with pytest.raises(TimeoutError):
            third.result(timeout=0.2)
        gate.gate.open()
        assert third.result(timeout=20).b.bytes() == b"third"
        assert gate.gate.entered()
        gate.gate.open()
        for call in waiting:
            call.result(timeout=20)


def test_a_closed_client(url: str, make: Any) -> None:
    with make(url) as client:
        client.invoke("echo", a=b"")
        client.close()
        with pytest.raises(ClientClosed):
            client.invoke("echo", a=b"")
        with pytest.raises(ClientClosed):  # it does not wait for a node that may be starting
            client.ready(20.0)


def test_a_client_that_is_closed_before_a_request_is_sent() -> None:
    async def call() -> None:
        client = AsyncClient("http://127.0.0.1:1")
        request = asyncio.create_task(client.metrics())
        await asyncio.sleep(0)  # it has begun
        await client.close()
        with pytest.raises(ClientClosed):
            await request

    asyncio.run(call())


def test_another_event_loop(url: str) -> None:
    client = AsyncClient(url)

    async def call(close: bool) -> None:
        try:
            await client.invoke("echo", a=b"")
        finally:
            if close:
                await client.close()

    with asyncio.Runner() as first:
        first.run(call(close=False))
        with asyncio.Runner() as second, pytest.raises(InvalidInput, match="event loop"):
            second.run(call(close=False))
        first.run(call(close=True))


FORKS = """
import os, sys
from dandelion.frontend.client import Client
client = Client(sys.argv[1])
client.invoke("echo", a=b"")
child = os.fork()
word = b"parent" if child else b"child"
same = all(client.invoke("echo", a=word).b.bytes() == word for _ in range(30))
if child:
    same &= os.waitpid(child, 0)[1] == 0
os._exit(not same)
"""


def test_a_client_works_on_both_sides_of_a_fork(url: str) -> None:
    subprocess.run([sys.executable, "-c", FORKS, url], check=True, timeout=60)


# --- requests -----------------------------------------------------------------------------------


def test_headers_are_sent_with_each_request(make: Any) -> None:
    headers = {"X-Team": "red", "Accept": "text/plain"}
    with scripted([OK, OK]) as (url, requests), make(url + "/prefix/", headers=headers) as client:
        client.metrics()
        with pytest.raises(InvalidInput, match="response"):
            client.invoke("a/b", version=3)
    get, post = (request.lower() for request in requests)
    assert get.startswith(b"get /prefix/metrics http/1.1\r\n")
    assert post.startswith(b"post /prefix/v1/invoke/a%2fb?version=3 http/1.1\r\n")
    for request in (get, post):
        assert b"\r\nx-team: red\r\n" in request
        assert b"user-agent" not in request
        assert b"accept-encoding" not in request
    assert b"\r\naccept: text/plain\r\n" in get
    assert b"\r\naccept: application/msgpack\r\n" in post
    assert b"\r\ncontent-length: " in post


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nc: d"}, {"": "x"}, {"a": "\u20ac"}])
def test_malformed_headers(make: Any, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="headers"):
        type_of(make)("http://127.0.0.1", headers=headers)


NO_TIMES: list[Any] = [0, -1, float("inf"), float("nan"), 1e10, 1e300, None, "5", True]


@pytest.mark.parametrize("timeout_s", NO_TIMES)
def test_a_time_out_that_is_none(make: Any, timeout_s: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout_s"):
        type_of(make)("http://127.0.0.1", timeout_s)


@pytest.mark.parametrize(
    "given",
    [
        {"url": None},
        {"url": b"http://127.0.0.1"},
        {"headers": [("a", "b")]},
        {"headers": {"a": 1}},
        {"headers": "a: b"},
        {"token": b"secret"},
        {"tls": 3},
        {"tls": None},
        {"connections": True},
        {"connections": "5"},
        {"connections": 0},
    ],
    ids=str,
)
def test_arguments_of_a_wrong_type(make: Any, given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidInput) as caught:
        type_of(make)(**{"url": "https://127.0.0.1"} | given)
    assert caught.value.where == name
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("deadline_s", [given for given in NO_TIMES if given is not None])
def test_a_deadline_that_is_none(make: Any, deadline_s: Any) -> None:
    with make("http://127.0.0.1:9") as client:
        for method in (client.invoke, client.submit):
            with pytest.raises(InvalidInput, match="deadline_s"):
                method("echo", a=b"", deadline_s=deadline_s)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x:port", "http://a..b", "http://a b"]
)
def test_malformed_urls(make: Any, url: str) -> None:
    with pytest.raises(InvalidInput):
        type_of(make)(url)


def type_of(make: Any) -> Any:
    return AsyncClient if make is LoopedClient else make


@pytest.mark.parametrize("size", [100_000, 6 << 20])
def test_large_bodies_are_not_copied(url: str, make: Any, size: int) -> None:
    array = np.arange(size, dtype="uint8")
    with make(url, timeout_s=20) as client:
        client.invoke("echo", a=array)
        tracemalloc.start()
        try:
            reply = client.invoke("echo", a=array)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert np.array_equal(reply.b.numpy("uint8"), array)
    assert peak < 1.3 * size + 800_000  # the reply, and pieces on their way


# --- servers that do not answer -----------------------------------------------------------------


def test_no_server(make: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with make(f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
            assert not client.ready()
            with pytest.raises(Unreachable, match=r"Connection refused.*dandelion serve"):
                client.invoke("echo", a=b"")


def test_no_such_host(make: Any) -> None:
    with make("http://no.such.host.invalid") as client, pytest.raises(Unreachable):
        client.invoke("echo", a=b"")


@pytest.mark.parametrize("host", ["[::1]", "[fe80::1%lo]"])
def test_no_server_at_an_address_of_version_6(make: Any, host: str) -> None:
    with make(f"http://{host}:1") as client, pytest.raises(Unreachable):
        client.invoke("echo", a=b"")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CUT = "the connection broke in the middle of the response"
NOT_HTTP = "the answer is not valid HTTP; if it serves HTTPS, write https://"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", CUT),
        (CHUNKED + b"5\r\nab", CUT),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xc1\xc1", "not a response of Dandelion"),
        (CHUNKED + b"2\r\nxx\r\n0\r\n\r\n", "not a response of Dandelion"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 5\r\n\r\nproxy", "behind the proxy"),
        (b"not HTTP at all\r\n\r\n", NOT_HTTP),
        (b"\x15\x03\x03\x00\x02\x02F", NOT_HTTP),  # of a server that expects TLS
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", NOT_HTTP),
        (b"", "closed the connection without an answer; if it serves HTTPS, write https://"),
    ],
)
def test_a_server_that_is_not_a_node(make: Any, answer: bytes, reason: str) -> None:
    with (
        scripted([answer]) as (url, _),
        make(url, timeout_s=10) as client,
        pytest.raises((Unreachable, InvalidInput)) as caught,
    ):
        client.invoke("echo", a=b"")
    assert reason in str(caught.value)


def test_a_node_that_is_gone_after_its_first_answer(make: Any) -> None:
    """It is no server that expects TLS."""
    ready = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with scripted([ready, b""]) as (url, _), make(url, timeout_s=10) as client:
        assert client.ready()
        with pytest.raises(Unreachable) as caught:
            client.invoke("echo", a=b"")
    assert str(caught.value).endswith("the server closed the connection before it answered")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "the proxy wants credentials"),
        (413, "larger than the proxy allows"),
        (429, "the proxy takes no more requests"),
        (502, "behind the proxy does not answer"),
        (503, "behind the proxy does not answer"),
        (504, "has not answered in time"),
        (403, "not a Dandelion node"),
    ],
)
def test_errors_of_a_proxy_say_what_to_do(make: Any, status: int, reason: str) -> None:
    answer = b"HTTP/1.1 %d No\r\nContent-Length: 6\r\n\r\n<html>" % status
    with (
        scripted([answer]) as (url, _),
        make(url, timeout_s=10) as client,
        pytest.raises(Unreachable, match=reason),
    ):
        client.invoke("echo", a=b"")


@pytest.mark.parametrize("method", ["invoke", "record", "list", "metrics", "cluster"])
def test_a_redirect_is_told(make: Any, method: str) -> None:
    answer = b"HTTP/1.1 301 Moved\r\nLocation: https://node/\r\nContent-Length: 0\r\n\r\n"
    arguments: dict[str, tuple[Any, ...]] = {"invoke": ("echo",), "record": ("echo", {})}
    with (
        scripted([answer]) as (url, _),
        make(url, timeout_s=10) as client,
        pytest.raises(Unreachable, match="redirects to https://node/"),
    ):
        getattr(client, method)(*arguments.get(method, ()))


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_interim_responses_are_no_answer(make: Any, interim: bytes) -> None:
    before = b"HTTP/1.1 " + interim + b"\r\nLink: </style.css>\r\n\r\n"
    other = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nother\r\n0\r\n\r\n"
    with scripted([2 * before + OK, before + other]) as (url, _), make(url, timeout_s=10) as client:
        assert (client.metrics(), client.metrics()) == ("ok", "other")


@pytest.mark.parametrize("method", ["metrics", "cluster", "engines"])
def test_an_answer_that_is_not_text(make: Any, method: str) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xff"
    with (
        scripted([answer]) as (url, _),
        make(url, timeout_s=10) as client,
        pytest.raises(InvalidInput, match="not a response of Dandelion"),
    ):
        getattr(client, method)()


@pytest.mark.parametrize("body", [b"", b"ok", b'{"a": 1}', b"<html>"])
def test_a_recording_or_trace_that_is_none(make: Any, body: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with scripted([answer, answer]) as (url, _), make(url, timeout_s=10) as client:
        with pytest.raises(InvalidInput, match="not a response of Dandelion"):
            client.record("echo", {"a": b""})
        with pytest.raises(InvalidInput, match="not a response of Dandelion"):
            client.trace("some-id")


@pytest.mark.parametrize("size", [10**15, 2**63 - 1, 2**63, 10**30])
def test_a_response_of_absurd_size(make: Any, size: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nshort" % size
    with (
        scripted([answer], [OK]) as (url, _),
        make(url, timeout_s=10) as client,
    ):
        with pytest.raises(Unreachable):
            client.invoke("echo", a=b"")
        assert client.metrics() == "ok"


@pytest.mark.parametrize("size", [0, 30 << 20])
def test_a_silent_server(make: Any, size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with make(url, timeout_s=0.1) as client:
            with pytest.raises(Unreachable, match="no answer"):
                client.invoke("echo", a=bytes(size))
            listener.close()
            assert not client.ready()  # meanwhile the loop sees that the connection is reset


def test_a_reply_that_stops(make: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionError):  # the client may be gone first
                whole_request(connection)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\nsome")
                connection.recv(65536)  # until the client closes

        thread = threading.Thread(target=serve)
        thread.start()
        with make(url, timeout_s=0.1) as client, pytest.raises(Unreachable, match="no answer"):
            client.invoke("echo", a=b"")
        thread.join()


# --- the end of a call --------------------------------------------------------------------------


def test_deadline(url: str, gate: GateDriver, make: Any) -> None:
    with make(url, timeout_s=20) as client, pytest.raises(DeadlineExceeded):
        client.invoke("wait", a=b"", deadline_s=1.0)
    assert gate.gate.was_cancelled()
    assert gate.gate.entered()


def test_cancelling_a_call_cancels_the_invocation(url: str, gate: GateDriver) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            call = asyncio.create_task(client.invoke("wait", a=b""))
            assert await asyncio.to_thread(gate.gate.entered)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(gate.gate.was_cancelled)
            assert (await client.invoke("echo", a=b"next")).b.bytes() == b"next"

    asyncio.run(main())


class Interrupted(Exception):
    """Raised by a signal."""


def test_interrupting_a_call_cancels_the_invocation(url: str, gate: GateDriver) -> None:
    handled = threading.Event()

    def interrupt(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise Interrupted

    def interrupt_when_started() -> None:
        assert gate.gate.entered()
        while not handled.wait(0.05):  # one that comes just before a system call does not end it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=interrupt_when_started)
    try:
        with Client(url) as client:
            thread.start()
            with pytest.raises(Interrupted):
                client.invoke("wait", a=b"")
            assert gate.gate.was_cancelled()
            assert client.invoke("echo", a=b"next").b.bytes() == b"next"
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
