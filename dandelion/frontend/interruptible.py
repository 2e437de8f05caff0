"""Long waits of requests, which end early when the server begins to drain."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class InterruptibleWaits:
    """Runs coroutines that may wait for long."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_stopped = False

    async def wait(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await a coroutine; None if the server begins to drain before it is done."""
        if self.is_stopped:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and self.is_stopped:
                return None
            raise
        finally:
            self._tasks.discard(task)

    def stop(self) -> None:
        """End all waits."""
        self.is_stopped = True
        for task in self._tasks:
            task.cancel()
