"""Clients that leave while a request of theirs runs and others wait behind it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from uvicorn.server import ServerState

from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.admission import ConnectionTable
from dandelion.frontend.asgi import Receive, Response, Scope, Send
from dandelion.frontend.heads import KnownHeads
from dandelion.frontend.protocol import Protocol
from tests.node.test_heads import LIMITS, Written, request


class Connected:
    """A connection to an application that waits until its client is gone."""

    def __init__(self) -> None:
        self.left: list[str] = []
        table = ConnectionTable(LIMITS)
        acceptor = cast(Any, SimpleNamespace(table=table, tls=None))
        newcomer = Newcomer(acceptor, cast(Any, None), "192.0.2.1")
        assert table.admit(newcomer, 0.0)
        config = cast(Any, SimpleNamespace(loaded=True, loaded_app=self._wait))
        self.state = ServerState()
        self.protocol = Protocol(config, self.state, KnownHeads(), newcomer=newcomer)
        self.transport = Written()
        self.protocol.connection_made(self.transport)

    async def _wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.append(scope["path"])
        await Response([b""]).send(send, scope["extensions"])


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_the_request_that_runs_learns_that_its_client_is_gone(waiting: int) -> None:
    async def run() -> list[str]:
        connected = Connected()
        behind = [request(f"/{i}", method="GET") for i in range(waiting)]
        connected.protocol.data_received(b"".join([request("/a", method="GET"), *behind]))
        await asyncio.sleep(0)
        connected.protocol.connection_lost(None)
        async with asyncio.timeout(1):
            while connected.state.tasks:
                await asyncio.sleep(0)
        return connected.left

    assert asyncio.run(run()) == ["/a"]


def test_the_request_that_runs_ends_if_what_follows_is_no_request() -> None:
    async def run() -> list[str]:
        connected = Connected()
        both = request("/a", method="GET") + request("/b", method="GET")
        connected.protocol.data_received(both + b"no request\r\n\r\n")
        async with asyncio.timeout(1):
            while connected.state.tasks:
                await asyncio.sleep(0)
        assert bytes(connected.transport.output).count(b"HTTP/1.1 ") == 1
        connected.protocol.connection_lost(None)
        return connected.left

    assert asyncio.run(run()) == ["/a"]
