"""Keeps the loop free while an engine handles many items without waiting for a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

TURN_S = 0.002

T = TypeVar("T")


class Turns:
    """How long all calls of an engine have kept the loop since it last did something else.

    Replies that have arrived already are read without waiting, and a call has many of them on each
    of its connections.
    """

    def __init__(self) -> None:
        self._end_s = 0.0

    async def pause(self) -> None:
        """Let the loop do something else if the engine has kept it for `TURN_S`."""
        while self._end_s and time.monotonic() >= self._end_s:
            await asyncio.sleep(0)
        if not self._end_s:
            self._end_s = time.monotonic() + TURN_S
            asyncio.get_running_loop().call_soon(self._end)

    async def through(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Give items, with pauses."""
        for item in items:
            yield item
            if time.monotonic() >= self._end_s:
                await self.pause()

    def _end(self) -> None:
        self._end_s = 0.0
