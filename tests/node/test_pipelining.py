"""Clients that send requests before the responses to earlier ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from uvicorn.server import ServerState

from dandelion.frontend import protocol as module
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.admission import ConnectionTable
from dandelion.frontend.asgi import Receive, Response, Scope, Send
from dandelion.frontend.heads import KnownHeads
from dandelion.frontend.protocol import KEPT_BYTES, LATE_BYTES, TURN_STEPS, Protocol
from dandelion.frontend.turns import AT_ONCE
from tests.node.test_heads import LIMITS, Written, request

READ_BYTES = 256_000
"""What uvloop reads at a time."""
ONE = request("/abc", body="x")
MANY = ONE * (READ_BYTES // len(ONE))


class Paused(Written):
    """A transport that can be paused."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Served:
    """A connection to an application. Use it in a loop.

    Args:
        respond: the application.
        table: of the connection.
    """

    def __init__(
        self,
        respond: Callable[[Scope, Receive, Send], Awaitable[None]],
        table: ConnectionTable | None = None,
    ) -> None:
        self.table = table or ConnectionTable(LIMITS)
        acceptor = cast(Any, SimpleNamespace(table=self.table, tls=None))
        newcomer = Newcomer(acceptor, cast(Any, None), "192.0.2.1")
        assert self.table.admit(newcomer, 0.0)
        self.state = ServerState()
        config = cast(Any, SimpleNamespace(loaded=True, loaded_app=respond))
        self.protocol = Protocol(config, self.state, KnownHeads(), newcomer=newcomer)
        self.transport = Paused()
        self.protocol.connection_made(self.transport)

    @property
    def responses(self) -> int:
        return self.transport.output.count(b"HTTP/1.1 ")

    def send_while_read(self, data: bytes, limit: int) -> int:
        """Send the data until the node does not read; return how often that was."""
        count = 0
        while count < limit and not self.transport.paused:
            self.protocol.data_received(data)
            count += 1
        return count

    async def end(self) -> None:
        self.transport.close()
        self.protocol.connection_lost(None)
        async with asyncio.timeout(10):
            while self.state.tasks:
                await asyncio.sleep(0)


async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
    await Response([scope["path"].encode()]).send(send, scope["extensions"])


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the path and the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    answer = b"<%b %d>" % (scope["path"].encode(), size)
    await Response([answer]).send(send, scope["extensions"])


def test_input_is_bounded_while_requests_wait() -> None:
    """Each response lets the next request begin, and no more input be read."""
    release = asyncio.Semaphore(0)

    async def slowly(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.wait({asyncio.ensure_future(release.acquire())})
        left = asyncio.ensure_future(receive())  # as the application looks for disconnection
        await asyncio.sleep(0)
        left.cancel()
        await Response([b"x"]).send(send, scope["extensions"])

    async def run() -> tuple[int, int]:
        served = Served(slowly)
        received = served.send_while_read(MANY, 100)
        for count in range(1, 31):
            release.release()
            async with asyncio.timeout(10):
                while served.responses < count:
                    await asyncio.sleep(0)
            received += served.send_while_read(MANY, 100)
        found = served.responses
        for _ in range(1000):
            release.release()
        await served.end()
        return received, found

    received, found = asyncio.run(run())
    assert found == 30
    assert received * len(MANY) <= READ_BYTES + KEPT_BYTES


def test_a_connection_starts_some_requests_in_each_iteration() -> None:
    async def run() -> list[int]:
        served = Served(at_once)
        served.protocol.data_received(MANY)
        counts = [served.responses]
        while served.responses < MANY.count(ONE):
            await asyncio.sleep(0)
            counts.append(served.responses)
        await served.end()
        return counts

    counts = asyncio.run(run())
    assert counts[-1] == MANY.count(ONE)
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(steps) <= TURN_STEPS


def test_pipelined_requests_of_many_connections_are_counted() -> None:
    connections = 64

    async def run() -> int:
        table = ConnectionTable(LIMITS)
        all_served = [Served(at_once, table) for _ in range(connections)]
        for served in all_served:
            served.protocol.data_received(MANY)
        found = sum(served.responses for served in all_served)
        for served in all_served:
            await served.end()
        return found

    assert asyncio.run(run()) < AT_ONCE


def test_small_chunks_are_parsed_in_turns() -> None:
    """Also those of a body that the application does not read."""
    chunks = b"1\r\nx\r\n" * (READ_BYTES // 6)

    async def run() -> int:
        served = Served(at_once)
        served.protocol.data_received(request("/ab", "Transfer-Encoding: chunked"))
        while not served.responses:
            await asyncio.sleep(0)
        count = served.send_while_read(chunks, 100)
        await served.end()
        return count

    assert asyncio.run(run()) == 1


CHUNKS = b"1\r\nx\r\n" * 10_000
CODED = request("/ab", "Transfer-Encoding: chunked")


async def continued(served: Served, head: bytes, pieces: list[bytes]) -> int:
    """Send pieces of a body after its response; return how many the node read."""
    served.protocol.data_received(head)
    while not served.responses:
        await asyncio.sleep(0)
    for count, piece in enumerate(pieces):
        while served.transport.paused:
            await asyncio.sleep(0)
        if served.transport.closed:
            return count
        served.protocol.data_received(piece)
    return len(pieces)


def test_a_chunked_body_is_parsed_up_to_a_limit_after_its_response() -> None:
    async def run() -> int:
        served = Served(at_once)
        count = await continued(served, CODED, [CHUNKS] * 100)
        assert served.transport.closed
        assert served.responses == 1
        await served.end()
        return count

    assert LATE_BYTES < asyncio.run(run()) * len(CHUNKS) <= LATE_BYTES + 4 * KEPT_BYTES


@pytest.mark.parametrize(
    ("head", "pieces"),
    [
        (CODED, [CHUNKS] * (LATE_BYTES // len(CHUNKS)) + [b"0\r\n\r\n"]),
        (request("/ab", f"Content-Length: {4 * LATE_BYTES}"), [b"x" * LATE_BYTES] * 4),
    ],
    ids=["chunked", "known"],
)
def test_a_connection_goes_on_after_the_rest_of_a_body(head: bytes, pieces: list[bytes]) -> None:
    async def run() -> bytes:
        served = Served(at_once)
        assert await continued(served, head, [*pieces, ONE]) == len(pieces) + 1
        async with asyncio.timeout(10):
            while served.responses < 2:
                await asyncio.sleep(0)
        output = bytes(served.transport.output)
        await served.end()
        return output

    assert asyncio.run(run()).endswith(b"/abc")


def chunked(path: str, size: int) -> bytes:
    piece = b"400\r\n%b\r\n" % (b"y" * 1024)
    head = request(path, "Transfer-Encoding: chunked")
    return head + piece * (size // 1024) + b"0\r\n\r\n"


@pytest.mark.parametrize("read_bytes", [1000, 4096, 70_001, READ_BYTES])
@pytest.mark.parametrize("application", [at_once, whole])
def test_all_requests_are_answered_in_order(read_bytes: int, application: Any) -> None:
    requests: list[bytes] = []
    expected: list[bytes] = []
    for number in range(200):
        path = f"/{number}"
        size = (0, 1, 3000, 5000, 70_000)[number % 5]
        requests += [
            request(path, method="GET"),
            request(path, body="z" * size),
            chunked(path, size),
        ]
        sizes = (0, size, size // 1024 * 1024)
        expected += [b"<%b %d>" % (path.encode(), each) for each in sizes]
    data = b"".join(requests)

    async def run() -> bytes:
        served = Served(application)
        async with asyncio.timeout(60):
            for start in range(0, len(data), read_bytes):
                while served.transport.paused:
                    await asyncio.sleep(0)
                served.protocol.data_received(data[start : start + read_bytes])
            while served.responses < len(requests):
                await asyncio.sleep(0)
        output = bytes(served.transport.output)
        await served.end()
        return output

    output = asyncio.run(run())
    assert output.count(b"HTTP/1.1 200 ") == len(requests)
    if application is whole:
        assert re.findall(rb"<[^>]*>", output) == expected


def test_nothing_behind_the_last_request_is_answered() -> None:
    last = request("/last", "Connection: close", body="x")

    async def run() -> bytes:
        served = Served(at_once)
        served.protocol.data_received(ONE * 300 + last + ONE * 1000)
        while not served.transport.closed:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        output = bytes(served.transport.output)
        await served.end()
        return output

    output = asyncio.run(run())
    assert output.count(b"HTTP/1.1 ") == 301
    assert output.endswith(b"/last")


def test_a_client_that_leaves_ends_its_turns() -> None:
    async def run() -> tuple[int, int]:
        served = Served(at_once)
        served.protocol.data_received(MANY)
        before = served.responses
        await served.end()
        for _ in range(100):
            await asyncio.sleep(0)
        return before, served.responses

    before, after = asyncio.run(run())
    assert before == after


def test_input_behind_a_refused_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused since the node has too many holds its connection."""
    monkeypatch.setattr(module, "RETRY_AFTER_S", 3600)

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await Response([b"x"], hold=True).send(send, scope["extensions"])

    async def run() -> tuple[int, bool]:
        served = Served(refuse)
        served.protocol.data_received(MANY)
        for _ in range(1000):
            await asyncio.sleep(0)
        found = served.responses, served.transport.paused
        await served.end()
        return found

    count, paused = asyncio.run(run())
    assert 0 < count < MANY.count(ONE) // 10
    assert paused
