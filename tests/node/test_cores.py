"""Cores that are divided between sandboxes and I/O on a node."""

from __future__ import annotations

import asyncio

import pytest

from dandelion.capacity import CoresCapacity
from dandelion.errors import InvalidInput
from dandelion.node import Node, Settings
from dandelion.scheduler.cores import IO_CALLS

CALLS = 4 * IO_CALLS


def settings(cores: str, policy: str = "fair") -> Settings:
    options = {"http": {"allow": "127.0.0.1", "concurrency": "128"}, "process": {"ahead": "1"}}
    return Settings(backends=("process", "http"), cores=cores, options=options, policy=policy)


class HoldingServer:
    """Answers requests when so many have come."""

    def __init__(self, most: int) -> None:
        self.came = 0
        self.tasks: set[asyncio.Task[object]] = set()
        self._most = most
        self._enough = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        await reader.readuntil(b"\r\n\r\n")
        self.came += 1
        if self.came == self._most:
            self._enough.set()
        await self._enough.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def many_calls(node: Node, at_once: int) -> int:
    """Make `CALLS` calls that are answered once so many have come; give how many succeeded."""
    server = HoldingServer(at_once)
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        request = f"GET http://127.0.0.1:{port}/ HTTP/1.1\n\n"
        calls = [node.invoke_async("HTTP", requests=request) for _ in range(CALLS)]
        found = await asyncio.wait_for(asyncio.gather(*calls), 20)
        await asyncio.gather(*server.tasks)
    return sum(one["bodies"] is not None for one in found)


def test_cores_move_to_the_side_whose_calls_wait() -> None:
    with Node(settings("controlled:4")) as node:
        assert node.wait_ready(30)
        assert node.capacity().cores == CoresCapacity(3, 1, 0)
        assert 'dandelion_cores{side="compute"} 3.0' in node.metrics().decode()
        # no call is answered before more have come than one core lets through
        assert asyncio.run(many_calls(node, 2 * IO_CALLS)) == CALLS
        cores = node.capacity().cores
        assert cores is not None
        assert (cores.io, cores.compute) == (1 + cores.moves, 3 - cores.moves)
        assert cores.moves >= 1
        text = node.metrics().decode()
        assert f'dandelion_cores{{side="io"}} {cores.io}.0' in text
        assert f"dandelion_cores_moved_total {cores.moves}.0" in text


def test_a_fixed_division_holds() -> None:
    with Node(settings("2:1")) as node:
        assert node.wait_ready(30)
        assert sum(e.backend == "process" for e in node.engines()) == 2
        assert asyncio.run(many_calls(node, IO_CALLS)) == CALLS
        assert node.capacity().cores == CoresCapacity(2, 1, 0)


def test_cores_are_shared_by_default() -> None:
    with Node(Settings(backends=("null",))) as node:
        assert node.capacity().cores is None
        assert "dandelion_cores{" not in node.metrics().decode()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cores"):
        Node(settings("3-1"))
    with pytest.raises(InvalidInput, match="static"):
        Node(settings("controlled", policy="static"))
