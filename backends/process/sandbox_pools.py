"""The sandbox pools of a group of engines, one for each content in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from .sandbox_pool import SandboxContent, SandboxPool


class SandboxPools:
    """Starts pools on first use and closes idle ones.

    Of more than `limit` idle pools, the one that was idle longest is closed. All pools are closed
    when the last engine detaches. Safe from any thread.

    Args:
        name: for errors.
        ahead: how many sandboxes are kept ready in each pool.
        limit: how many pools may be idle at once.
        niceness: of the sandboxes, see ``nice(2)``.

    Attributes:
        engines: how many engines are attached.
    """

    def __init__(self, name: str, ahead: int = 4, limit: int = 8, niceness: int = 0) -> None:
        self._name = name
        self._ahead = ahead
        self._limit = limit
        self._niceness = niceness
        self.engines = 0
        self._pools: OrderedDict[SandboxContent, SandboxPool] = OrderedDict()
        self._calls: dict[SandboxContent, int] = {}
        self._lock = threading.Lock()

    def attach(self) -> None:
        """Add an engine, and start the pool without further content for it."""
        with self._lock:
            self.engines += 1
            pool = self._find(SandboxContent())
        pool.start()

    def detach(self) -> None:
        """Remove an engine."""
        with self._lock:
            self.engines -= 1
            leaving = [] if self.engines else list(self._pools.values())
            if not self.engines:
                self._pools.clear()
        for pool in leaving:
            pool.close()

    @contextmanager
    def use(self, content: SandboxContent) -> Iterator[SandboxPool]:
        """Yield the pool with this content; it stays open while a call runs in it."""
        with self._lock:
            pool = self._find(content)
            self._calls[content] = self._calls.get(content, 0) + 1
            leaving = self._surplus()
        for idle in leaving:
            idle.close()
        try:
            yield pool
        finally:
            with self._lock:
                self._calls[content] -= 1
                if not self._calls[content]:
                    del self._calls[content]

    def _find(self, content: SandboxContent) -> SandboxPool:
        pool = self._pools.get(content)
        if pool is None:
            pool = SandboxPool(self._name, content, self._ahead, self._niceness)
            self._pools[content] = pool
        self._pools.move_to_end(content)
        return pool

    def _surplus(self) -> list[SandboxPool]:
        idle = [content for content in self._pools if content not in self._calls]
        return [self._pools.pop(i) for i in idle[: max(0, len(idle) - self._limit)]]
