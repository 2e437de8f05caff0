"""Places of requests that wait at the node, as those for results of asynchronous invocations do.

Each holds a connection of its client meanwhile. With more of them than connections, those that got
none would take a busy client for a node that is away, and other requests would wait for them. So
they have half of the connections, and take turns if they are more, the first one first. While some
wait for their turn, the others are short.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator

SHORT_S = 1.0
"""How long a request waits at the node while others wait for their turn."""


class WaitPlaces:
    """The places of a blocking client. Safe to use from any thread, and after a fork.

    Args:
        connections: of the client.
    """

    def __init__(self, connections: int) -> None:
        self._count = max(1, connections // 2)
        self._open()

    def _open(self) -> None:
        self._lock = threading.Lock()  # held for microseconds
        self._holding: set[threading.Lock] = set()  # the turns of those that have a place
        self._waiting: deque[threading.Lock] = deque()  # each is released when it gets one
        self._process = os.getpid()

    @contextlib.contextmanager
    def taken(self, wait_s: float) -> Iterator[float]:
        """Take a place, and give it back at the end.

        Args:
            wait_s: how long the request may take, in seconds, the wait for a place included.

        Yields:
            How long it may wait at the node; 0 without a place.
        """
        if self._process != os.getpid():
            self._open()
        end_s = time.monotonic() + wait_s
        turn = threading.Lock()
        try:  # a signal may raise from here on
            if wait_s > 0 and self._take(turn, wait_s):
                left_s = max(0.0, end_s - time.monotonic())
                yield min(left_s, SHORT_S) if self._waiting else left_s
            else:
                yield 0.0
        finally:
            self._leave(turn)

    def _take(self, turn: threading.Lock, limit_s: float) -> bool:
        turn.acquire()
        with self._lock:
            if len(self._holding) < self._count and not self._waiting:
                self._holding.add(turn)
                return True
            self._waiting.append(turn)
        return turn.acquire(timeout=limit_s) or turn in self._holding

    def _leave(self, turn: threading.Lock) -> None:
        with self._lock:
            self._holding.discard(turn)
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
            while self._waiting and len(self._holding) < self._count:
                first = self._waiting.popleft()
                self._holding.add(first)
                first.release()


class AsyncWaitPlaces:
    """The places of an awaited client, as `WaitPlaces`; for its event loop.

    Args:
        connections: of the client.
    """

    def __init__(self, connections: int) -> None:
        self._free = asyncio.Semaphore(max(1, connections // 2))  # it lets the first one go first
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def taken(self, wait_s: float) -> AsyncIterator[float]:
        """Take a place, and give it back at the end; as of `WaitPlaces`."""
        end_s = time.monotonic() + wait_s
        if wait_s <= 0 or not await self._take(wait_s):
            yield 0.0
            return
        try:
            left_s = max(0.0, end_s - time.monotonic())
            yield min(left_s, SHORT_S) if self._waiting else left_s
        finally:
            self._free.release()

    async def _take(self, limit_s: float) -> bool:
        self._waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                return await self._free.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
