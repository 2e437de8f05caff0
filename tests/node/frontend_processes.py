"""A node on a loop in a thread, with frontend processes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Self

import uvloop

from dandelion.driver import Driver
from dandelion.frontend_process.supervisor import Supervisor
from dandelion.node import Node, Settings


class Processes:
    """A node on a loop in a thread, served by frontend processes.

    Attributes:
        node: the node.
        supervisor: of its frontends; for the loop alone.
        loop: the node's.
        left: set on the loop, it drains the frontends and ends all.
        port: where they listen.
    """

    def __init__(self, settings: Settings, drivers: Sequence[Driver], count: int) -> None:
        self.node = Node(settings, drivers)
        self._count = count
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)
        self._thread.start()
        try:
            self._begun.result()
        except BaseException:
            self._thread.join()  # it still closes descriptors, which a later test would count
            raise

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.left = asyncio.Event()
        async with self.node:
            try:
                supervisor = Supervisor(self.node, "127.0.0.1", 0, self._count, 5)
            except BaseException as error:
                self._begun.set_exception(error)
                return
            self.supervisor = supervisor
            self.port = supervisor.address[1]
            try:
                await supervisor.start()
                self._begun.set_result(None)
                while not self.left.is_set():
                    supervisor.tick()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.left.wait(), 0.05)
                await supervisor.drain()
            except BaseException as error:
                if self._begun.done():
                    raise
                self._begun.set_exception(error)
            finally:
                await supervisor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.left.set)
        self._thread.join()
