"""Key-value servers for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from dandelion.driver import AsyncEngine

from .store_calls import store_engine
from .store_servers import FaultProxy


@contextlib.asynccontextmanager
async def kv(server: Path, **options: str) -> AsyncIterator[AsyncEngine]:
    async with store_engine("kv", s_address=f"unix:{server}", **options) as made:
        yield made


@contextlib.asynccontextmanager
async def behind(proxy: FaultProxy, **options: str) -> AsyncIterator[AsyncEngine]:
    async with store_engine("kv", s_address=f"redis://127.0.0.1:{proxy.port}", **options) as made:
        yield made
