"""Places on an event loop that tenants take in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TenantPlaces:
    """A number of places. Of those that wait for one, the next is of the tenant that waits longest.

    So a tenant with many requests delays those of another by at most one request of each tenant.
    For one event loop.

    Args:
        count: of places.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        """Take a place, as soon as it is the tenant's turn; give it back at the end."""
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had its turn already
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._waiting:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            while turns and turns[0].done():  # those that wait no longer
                turns.popleft()
            if not turns:
                continue
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            turn.set_result(None)
            return
        self._free += 1
