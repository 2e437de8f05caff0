"""The nurseries of a group of engines, one for each set of imports in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from .nursery import Nursery

Imports = tuple[str, ...]


class Nurseries:
    """Starts nurseries when they are needed and ends them when they are not.

    The last engine that parts closes all; of more than `limit` import sets, the one that was idle
    longest is closed. Safe from any thread.

    Args:
        name: for errors.
        ahead: how many sandboxes wait in each nursery.
        limit: how many nurseries may be idle at once.
        niceness: how far sandboxes give way to the node, see ``nice(2)``.

    Attributes:
        engines: how many engines joined.
    """

    def __init__(self, name: str, ahead: int = 4, limit: int = 8, niceness: int = 0) -> None:
        self._name = name
        self._ahead = ahead
        self._limit = limit
        self._niceness = niceness
        self.engines = 0
        self._nurseries: OrderedDict[Imports, Nursery] = OrderedDict()
        self._calls: dict[Imports, int] = {}
        self._lock = threading.Lock()

    def join(self) -> None:
        """Count an engine in, and get sandboxes without imports ready for it."""
        with self._lock:
            self.engines += 1
            nursery = self._find(())
        nursery.start()

    def part(self) -> None:
        """Count an engine out."""
        with self._lock:
            self.engines -= 1
            leaving = [] if self.engines else list(self._nurseries.values())
            if not self.engines:
                self._nurseries.clear()
        for nursery in leaving:
            nursery.close()

    @contextmanager
    def use(self, imports: Imports) -> Iterator[Nursery]:
        """Give the nursery for these imports, and keep it while a call runs in it."""
        with self._lock:
            nursery = self._find(imports)
            self._calls[imports] = self._calls.get(imports, 0) + 1
            leaving = self._surplus()
        for idle in leaving:
            idle.close()
        try:
            yield nursery
        finally:
            with self._lock:
                self._calls[imports] -= 1
                if not self._calls[imports]:
                    del self._calls[imports]

    def _find(self, imports: Imports) -> Nursery:
        nursery = self._nurseries.get(imports)
        if nursery is None:
            nursery = Nursery(self._name, imports, self._ahead, self._niceness)
            self._nurseries[imports] = nursery
        self._nurseries.move_to_end(imports)
        return nursery

    def _surplus(self) -> list[Nursery]:
        idle = [imports for imports in self._nurseries if imports not in self._calls]
        return [self._nurseries.pop(i) for i in idle[: max(0, len(idle) - self._limit)]]
