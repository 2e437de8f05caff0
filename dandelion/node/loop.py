"""The node's event loop: in a thread of its own, or the caller's.

It also keeps the arena clean, and looks for the answers of engine processes.
"""

from __future__ import annotations

import asyncio
import threading

import uvloop

from dandelion.memory import SharedDomain
from dandelion.node.replies import Replies

JANITOR_S = 0.1
"""How often contexts that were returned are zeroed, away from the calls, and deadlines are kept."""


class NodeLoop:
    """Starts and stops the loop.

    Args:
        arena: zeroed in the background.
        replies: looked for on the loop.
    """

    def __init__(self, arena: SharedDomain, replies: Replies) -> None:
        self._arena = arena
        self._replies = replies
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._janitor: asyncio.Future[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
        """Use a running loop, or without one run a loop in a thread."""
        if loop is None:
            loop = uvloop.new_event_loop()
            self._thread = threading.Thread(
                target=loop.run_forever, name="dandelion-loop", daemon=True
            )
            self._thread.start()
        self._loop = loop
        self._replies.start(loop)
        loop.call_soon_threadsafe(self._start_janitor)
        return loop

    def _start_janitor(self) -> None:
        self._janitor = asyncio.ensure_future(self._keep_house())

    async def _keep_house(self) -> None:
        zeroing: asyncio.Future[int] | None = None
        while True:
            await asyncio.sleep(JANITOR_S)
            self._replies.check()
            if self._arena.dirty and (zeroing is None or zeroing.done()):
                # Not waited for: the executor is the loop's, and others may keep it busy.
                zeroing = asyncio.ensure_future(asyncio.to_thread(self._arena.recycle))

    def stop(self) -> None:
        """Stop what runs on the loop, and the loop if it is ours. Not from the loop itself."""
        if self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop_janitor(), self._loop).result()
        self._replies.close()
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._loop = None

    async def _stop_janitor(self) -> None:
        self._replies.stop()
        if self._janitor is not None:
            self._janitor.cancel()
            await asyncio.gather(self._janitor, return_exceptions=True)
