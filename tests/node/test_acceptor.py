"""New connections on a loop that is busy, and where there are no descriptors left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import uvloop

from dandelion.frontend.acceptor import LATE_BATCH, LOOK_BYTES, Acceptor, Newcomer
from dandelion.frontend.admission import ConnectionTable, Limits

WAITING = 600
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def table() -> ConnectionTable:
    return ConnectionTable(Limits(1000, 1000, 10.0, 75.0, 10.0, 1))


class Counted(asyncio.Protocol):
    """Counts connections, and says when all have come."""

    def __init__(self, awaited: int) -> None:
        self.left = awaited
        self.all = asyncio.Event()

    def __call__(self, newcomer: Newcomer) -> asyncio.Protocol:
        newcomer.table.forget(newcomer)
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.left -= 1
        transport.close()
        if not self.left:
            self.all.set()


class Exhausted:
    """A listening socket of a process that has no descriptors left for a while."""

    def __init__(self, listener: socket.socket, failures: int) -> None:
        self._listener = listener
        self.failures = failures

    def setblocking(self, flag: bool) -> None:
        self._listener.setblocking(flag)

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._listener.accept()


@contextlib.contextmanager
def waiting(count: int) -> Iterator[socket.socket]:
    """A listening socket before which so many clients wait."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
        for _ in range(count):
            client = opened.enter_context(socket.create_connection(listener.getsockname(), 20))
            client.sendall(REQUEST)
        yield listener


async def turns_until_all_are_in(listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    protocol = Counted(WAITING)
    acceptor = Acceptor(loop, listener, table(), protocol)
    turns = 0
    while not protocol.all.is_set():
        turns += 1
        await asyncio.sleep(0)
    acceptor.close()
    acceptor.close()
    await acceptor.wait_closed()
    return turns


def test_newcomers_come_in_many_at_a_turn() -> None:
    with waiting(WAITING) as listener:
        turns = uvloop.run(turns_until_all_are_in(listener))
    assert turns < WAITING / 10
    assert turns > 1  # but not all in one, which would keep requests waiting


def test_a_lack_of_descriptors_is_waited_out(caplog: pytest.LogCaptureFixture) -> None:
    async def accept_all(listener: Exhausted) -> None:
        protocol = Counted(WAITING)
        acceptor = Acceptor(asyncio.get_running_loop(), listener, table(), protocol)  # type: ignore[arg-type]  # it has what is used
        await asyncio.wait_for(protocol.all.wait(), 20)
        acceptor.close()

    with waiting(WAITING) as listener:
        exhausted = Exhausted(listener, failures=2)
        uvloop.run(accept_all(exhausted))
    assert not exhausted.failures
    assert [r.message for r in caplog.records] == ["cannot accept connections, trying again"] * 2


def test_an_acceptor_that_pauses_can_be_closed() -> None:
    async def close_while_it_pauses(listener: Exhausted) -> None:
        made = Acceptor(asyncio.get_running_loop(), listener, table(), Counted(1))  # type: ignore[arg-type]  # it has what is used
        while listener.failures == 5:
            await asyncio.sleep(0)
        made.close()
        await made.wait_closed()

    with waiting(1) as listener:
        uvloop.run(close_while_it_pauses(Exhausted(listener, failures=5)))


def test_silence_and_half_a_head_make_no_protocol() -> None:
    async def accept_all(listener: socket.socket) -> None:
        made = Counted(1)
        places = table()
        acceptor = Acceptor(asyncio.get_running_loop(), listener, places, made)
        address = listener.getsockname()
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(socket.create_connection(address, 20)) for _ in "1234"]
            half, left, long, _silent = clients
            half.sendall(REQUEST[:9])
            while places.count < 4:
                await asyncio.sleep(0)
            left.close()
            while places.count > 3:
                await asyncio.sleep(0)
            assert made.left == 1
            long.sendall(REQUEST[:-2] + b"x: " + b"y" * LOOK_BYTES)  # that is the parser's matter
            await asyncio.wait_for(made.all.wait(), 20)
            assert places.count == 2
            acceptor.close()
            assert places.count == 0

    with socket.create_server(("127.0.0.1", 0)) as listener:
        uvloop.run(accept_all(listener))


def test_half_heads_that_end_make_no_protocol_and_keep_no_one_waiting() -> None:
    many = 10 * LATE_BATCH

    async def serve(listener: socket.socket) -> None:
        made = Counted(1)
        places = table()
        acceptor = Acceptor(asyncio.get_running_loop(), listener, places, made)
        address = listener.getsockname()
        with contextlib.ExitStack() as opened:
            clients = [
                opened.enter_context(socket.create_connection(address, 20)) for _ in range(many)
            ]
            for client in clients:
                client.sendall(REQUEST[:-2])
            while places.count < many:
                await asyncio.sleep(0)
            opened.close()
            caller = opened.enter_context(socket.create_connection(address, 20))
            caller.sendall(REQUEST)
            await asyncio.wait_for(made.all.wait(), 20)
            assert places.count > LATE_BATCH  # the caller overtook them
            while places.count:
                await asyncio.sleep(0)
            assert made.left == 0
            acceptor.close()

    with socket.create_server(("127.0.0.1", 0), backlog=many) as listener:
        uvloop.run(serve(listener))


def test_connections_find_room_in_the_table_of_descriptors() -> None:
    """The table is inherited, and may be large already."""
    program = """
from pathlib import Path
from dandelion.frontend.descriptors import reserve_descriptors

def size():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("FDSize"))

before = size()
reserve_descriptors(2 * before)
print(before, size())
"""
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    before, after = map(int, made.stdout.split())
    assert after >= 2 * before
