"""Thousands of busy clients take turns: none keeps the event loop from the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import pytest

from dandelion.frontend.protocol import Protocol
from dandelion.frontend.server import BackgroundServer
from dandelion.frontend.turns import AT_ONCE, Turns
from dandelion.node import Node, Settings

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CLIENTS = AT_ONCE + 100


def test_the_count_starts_again_in_the_next_iteration() -> None:
    async def count() -> list[int]:
        loop = asyncio.get_running_loop()
        turns = Turns()
        found = []
        for _ in range(3):
            found.append(sum(turns.begins_at_once(loop) for _ in range(2 * AT_ONCE)))
            await asyncio.sleep(0)
        return found

    assert asyncio.run(count()) == [AT_ONCE - 1] * 3


class Began:
    """Replaces the first step of requests: counts, and stops the loop when it is armed."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.armed = False
        self.stopped, self.release = threading.Event(), threading.Event()
        self.count = 0
        self.in_one_iteration = 0

    def __call__(self, protocol: Protocol, cycle: Any) -> None:
        self.count += 1
        if self.armed:
            self.armed = False
            self.stopped.set()
            assert self.release.wait(20)
            self.count = 0
            loop = protocol.loop
            loop.call_soon(loop.call_soon, self._note)  # before and after sockets are read
        self._step(protocol, cycle)

    def _note(self) -> None:
        self.in_one_iteration = self.count


def test_requests_beyond_a_number_begin_in_the_next_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = Began(Protocol._first_step)
    monkeypatch.setattr(Protocol, "_first_step", lambda *given: began(*given))
    with contextlib.ExitStack() as opened:
        node = opened.enter_context(Node(Settings(backends=("null",))))
        server = opened.enter_context(BackgroundServer(node))
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        first, *others = (
            opened.enter_context(socket.create_connection(address, 20)) for _ in range(CLIENTS)
        )
        for client in (first, *others):
            assert answered(client)
        began.armed = True
        first.sendall(HEALTH)
        assert began.stopped.wait(20)
        for client in others:
            client.sendall(HEALTH)
        began.release.set()
        for client in (first, *others):
            assert received(client)
        assert AT_ONCE // 2 < began.in_one_iteration < AT_ONCE
        for client in others:
            assert answered(client)


def answered(client: socket.socket) -> bool:
    client.sendall(HEALTH)
    return received(client)


def received(client: socket.socket) -> bool:
    return client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
