"""Frontend processes: memory that they share with the node, and their settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from dandelion.cli.settings import load_settings
from dandelion.errors import ContextFull, InvalidInput
from dandelion.frontend_process import supervisor as supervisor_module
from dandelion.frontend_process.leases import SLAB_BYTES
from dandelion.frontend_process.messages import Lease
from dandelion.frontend_process.supervisor import Supervisor
from dandelion.frontend_process.wire import INLINE_BYTES, PART_ITEMS
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from tests.node.served_processes import JSON, LIMIT_S, RAW, SETTINGS, Served, invoke

from .frontend_processes import Processes
from .served import DOCUMENT, GateDriver


@pytest.fixture(scope="module")
def started() -> Iterator[Served]:
    gate = GateDriver()
    with Processes(SETTINGS, [gate], 2) as processes:
        processes.node.register(DOCUMENT)
        assert processes.node.wait_ready()
        wait_until(lambda: processes.node.info().arena.contexts == 5)  # status, two slabs for each
        yield Served(processes, gate)
        gate.gate.open(100)


@pytest.fixture
def served(started: Served) -> Iterator[Served]:
    wait_until(started.rests)  # also after a test that failed
    with started.opened:
        yield started


@pytest.mark.parametrize(
    "size", [0, INLINE_BYTES, INLINE_BYTES + 1, SLAB_BYTES // 4 + 1, 70_000, 300_000, 5_000_000]
)
def test_bodies_of_all_sizes(served: Served, size: int) -> None:
    body = os.urandom(size)
    for connection in served.connections():
        for _ in range(5):
            assert invoke(connection, "echo", body) == (200, body)
    wait_until(served.rests)


def test_equal_bodies_do_not_wait_for_memory(served: Served) -> None:
    body = os.urandom(100_000)
    (first, *_) = served.connections()
    asked_ahead: list[bool] = []

    def noted(handle: Callable[[Lease], None], lease: Lease) -> None:
        asked_ahead.append(lease.ahead)
        handle(lease)

    for place in served.processes.supervisor._places:
        assert place.link is not None
        handlers = place.link._handlers
        handlers[Lease] = partial(noted, handlers[Lease])
    for _ in range(20):
        assert invoke(first, "echo", body) == (200, body)
    assert asked_ahead.count(False) <= 4
    wait_until(served.rests)  # what lies ready goes back, too


def test_a_body_of_unknown_size(served: Served) -> None:
    with contextlib.closing(served.connect()) as connection:
        connection.request("POST", "/v1/invoke/echo", iter([bytes(100_000)] * 3), RAW)
        assert connection.getresponse().read() == bytes(300_000)
    wait_until(served.rests)


@pytest.mark.parametrize("count", [PART_ITEMS, PART_ITEMS + 1, 3 * PART_ITEMS + 1])
def test_many_items(served: Served, count: int) -> None:
    left = [{"name": str(i), "key": i, "text": "x" * (6000 if not i % 400 else 1)}
            for i in range(count)]  # fmt: skip
    body = json.dumps({"sets": {"left": left, "right": None}}).encode()
    with contextlib.closing(served.connect()) as connection:
        connection.request("POST", "/v1/invoke/pair", body, JSON)
        sets = json.loads(connection.getresponse().read())["sets"]
    assert list(sets) == ["left", "right"]
    assert sets == {"left": left, "right": None}
    wait_until(served.rests)


def test_a_full_arena_is_an_answer(served: Served) -> None:
    (first, *_) = served.connections()
    held = []
    for size in (1 << 20, 64 << 10, 4096):
        with contextlib.suppress(ContextFull):
            while True:
                held.append(served.node.acquire(size))
    status, data = invoke(first, "echo", bytes(3_000_000))
    assert (status, json.loads(data)["error"]["type"]) == (507, "ContextFull")
    for _ in range(2 * SLAB_BYTES // 10_000):  # there is no room for slabs either
        assert invoke(first, "echo", bytes(10_000)) == (200, bytes(10_000))
    held.clear()
    assert invoke(first, "echo", bytes(3_000_000)) == (200, bytes(3_000_000))
    wait_until(served.rests)


def test_a_result_is_kept_while_its_reader_is_slow(served: Served) -> None:
    body = os.urandom(11_000_000)  # more than the kernel's buffers take
    connection = served.connect()
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
    connection.sock.settimeout(LIMIT_S)
    connection.sock.connect(("127.0.0.1", served.processes.port))
    connection.request("POST", "/v1/invoke/echo", body, RAW)
    answer = connection.getresponse()
    with contextlib.closing(served.connect()) as other:
        for _ in range(4):  # what is used anew is not what is still read
            assert invoke(other, "echo", bytes(2_000_000))[0] == 200
    assert answer.read() == body
    connection.request("POST", "/v1/invoke/echo", body, RAW)
    with connection.getresponse() as unread:
        unread.read(10)
    connection.close()  # a reader that leaves keeps nothing
    wait_until(served.rests)


def test_a_client_that_leaves_cancels_its_invocation(served: Served) -> None:
    for size in (1, 100_000):
        connection = served.connect()
        connection.request("POST", "/v1/invoke/wait", bytes(size), RAW)
        assert served.gate.gate.entered(LIMIT_S)
        connection.close()
        assert served.gate.gate.was_cancelled(LIMIT_S)
    wait_until(served.rests)


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_bad_numbers_of_frontends_are_refused(count: str) -> None:
    with pytest.raises(InvalidInput, match="frontends"):
        load_settings(None, {}, {"frontends": [count]})
    assert load_settings(None, {"DANDELION_FRONTENDS": "3"}, {}).frontends == 3


def test_the_port_is_not_shared_with_another_program(served: Served) -> None:
    async def second() -> None:
        async with Node(SETTINGS) as node:
            Supervisor(node, "127.0.0.1", served.processes.port, 2, 1)

    with pytest.raises(InvalidInput, match="in use"):
        asyncio.run(second())


def test_limits_of_connections_are_split() -> None:
    settings = Settings(max_connections=101, max_connections_per_peer=50)
    share = supervisor_module._share(settings, 4)
    assert (share.max_connections, share.max_connections_per_peer) == (26, 13)
