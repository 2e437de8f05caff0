"""A node with a thousand asynchronous invocations under way is killed: all end, each once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dandelion import AsyncClient
from dandelion.asynchronous.failures import InterruptedTooOften
from dandelion.asynchronous.handle import AsyncInvocationHandle
from dandelion.asynchronous.records import KeptState

ROOT = Path(__file__).resolve().parent.parent.parent
COUNT = 1000
AT_ONCE = 100
"""So many are answered before the node is killed."""


class Node:
    """A node in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dandelion", "serve", "--json", "--port", "0"),
                *("--backends", "null,http", "--catalog", f"sqlite:{folder}"),
                *("--options", "http.allow=127.0.0.1/32", "--options", "http.concurrency=2000"),
                *(
                    "--options",
                    "http.retries=0",
                ),  # a second request of one attempt would be counted
                *("--arena-bytes", "64MiB", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line[line.index("http") :].split('"')[0].strip()

    def kill(self, number: int = signal.SIGKILL) -> str:
        self.process.send_signal(number)
        return self.process.communicate()[1]


class Peer:
    """Answers each request with its path; after the first `AT_ONCE`, once it is released."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.released = asyncio.Event()
        self.changed = asyncio.Event()
        self.node_to_kill: int | None = None
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                name = head.split(b" ")[1].decode()
                self.seen[name] += 1
                self.changed.set()
                if name == "/poison" and self.node_to_kill is not None:
                    os.kill(self.node_to_kill, signal.SIGKILL)
                    return
                if self.seen.total() > AT_ONCE:
                    await self.released.wait()
                body = name.encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.seen.total() < count:
                self.changed.clear()
                await self.changed.wait()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Peer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2 * COUNT)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.released.set()
            server.close()

    def request(self, name: str) -> bytes:
        return f"GET http://127.0.0.1:{self.port}/{name} HTTP/1.1\n\n".encode()


async def submit_all(url: str, peer: Peer) -> dict[str, str]:
    async with AsyncClient(url, connections=50) as client:
        submits = [
            client.submit("HTTP", key=f"key-{number}", requests=peer.request(str(number)))
            for number in range(COUNT)
        ]
        handles = await asyncio.gather(*submits)
        return {handle.id: f"/{number}" for number, handle in enumerate(handles)}


async def ended_by_now(url: str) -> set[str]:
    async with AsyncClient(url) as client:
        page = await client.invocations(KeptState.SUCCEEDED, limit=COUNT)
        return {view.id for view in page.invocations}


async def check_all(url: str, wanted: dict[str, str], ended: set[str], peer: Peer) -> None:
    async with AsyncClient(url, connections=50) as client:

        async def check(id_: str, name: str) -> None:
            handle = client.submitted(id_)
            assert (await handle.result(60)).bodies.text() == name
            view = await handle.view()
            assert view.attempts == 1 if id_ in ended else view.attempts <= 2

        await asyncio.gather(*(check(id_, name) for id_, name in wanted.items()))
        page = await client.invocations(limit=COUNT)
        assert {view.id for view in page.invocations} == wanted.keys()
        again = await client.submit("HTTP", key="key-7", requests=peer.request("7"))
        assert wanted[again.id] == "/7"


async def kill_and_restart(folder: Path) -> None:
    async with Peer().listening() as peer:
        first = await asyncio.to_thread(Node, folder)
        try:
            wanted = await submit_all(first.url, peer)
            await peer.until(COUNT)  # all run
            ended = await ended_by_now(first.url)
        finally:
            await asyncio.to_thread(first.kill)
        assert len(ended) <= AT_ONCE
        peer.released.set()
        second = await asyncio.to_thread(Node, folder)
        try:
            await check_all(second.url, wanted, ended, peer)
        finally:
            log = await asyncio.to_thread(second.kill, signal.SIGTERM)
        assert "Traceback" not in log
        for id_ in ended:
            assert peer.seen[wanted[id_]] == 1, "it was run again after its end was shown"
        assert max(peer.seen.values()) <= 2


@pytest.mark.timeout(120)
def test_a_thousand_under_way_end_after_a_kill(tmp_path: Path) -> None:
    asyncio.run(kill_and_restart(tmp_path))


async def ask_again(client: AsyncClient, good: str, peer: Peer) -> AsyncInvocationHandle:
    """Wait until both invocations have ended; give the handle of the one that kills its node."""
    await client.submitted(good).result(20)
    bad = await client.submit("HTTP", key="k", requests=peer.request("poison"))
    async for _ in bad.events():
        pass
    return bad


async def poison(folder: Path) -> None:
    async with Peer().listening() as peer:
        node = await asyncio.to_thread(Node, folder, "--async-attempts", "2")
        peer.node_to_kill = node.process.pid
        async with AsyncClient(node.url) as client:
            good = await client.submit("HTTP", requests=peer.request("good"))
            with contextlib.suppress(Exception):  # the node may be killed before it answers
                await client.submit("HTTP", key="k", requests=peer.request("poison"))
        await asyncio.to_thread(node.process.communicate)
        for _ in range(4):
            node = await asyncio.to_thread(Node, folder, "--async-attempts", "2")
            peer.node_to_kill = node.process.pid
            async with AsyncClient(node.url) as client:
                asked = asyncio.create_task(ask_again(client, good.id, peer))
                gone = asyncio.create_task(asyncio.to_thread(node.process.wait))
                await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
                if asked.done() and asked.exception() is None:
                    bad = asked.result()
                    break
                asked.cancel()  # it would wait for a node that comes back
                await gone
                await asyncio.to_thread(node.process.communicate)
                await asyncio.wait({asked})
        async with AsyncClient(node.url) as client:
            assert (await client.submitted(good.id).result(20)).bodies.text() == "/good"
            with pytest.raises(InterruptedTooOften) as caught:
                await client.submitted(bad.id).result(20)
            assert caught.value.attempts == 2
        await asyncio.to_thread(node.kill, signal.SIGTERM)
        assert peer.seen["/poison"] == 2


@pytest.mark.timeout(120)
def test_one_that_kills_its_node_fails_in_the_end(tmp_path: Path) -> None:
    asyncio.run(poison(tmp_path))
