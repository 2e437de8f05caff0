"""Memory that lies ready for the bodies of a frontend's next requests.

A body that is received piece by piece needs memory of the arena before its second piece. Asking the
node for it takes as long as a short invocation. So a frontend that had to ask twice for a size asks
for more of it, together with the next invocation that it sends. The answer comes with that of an
invocation, so neither side wakes up for it.
"""

from __future__ import annotations

from collections.abc import Callable

from dandelion.memory import Context
from dandelion.memory.context import PAGE_BYTES

_LARGEST_BYTES = 256 * 1024  # receiving a larger body takes far longer than asking
_MOST = 4  # of one size
_KEPT_S = 0.5


class Spares:
    """Contexts that lie ready. For the loop's thread alone.

    Args:
        request: asks the node for a context of so many bytes, without waiting.
        limit_bytes: largest sum of all that lie ready or were asked for.
    """

    def __init__(self, request: Callable[[int], None], limit_bytes: int) -> None:
        self._request = request
        self._limit_bytes = limit_bytes
        self._ready: dict[int, list[Context]] = {}
        self._missed: dict[int, int] = {}  # by size: how often there was none
        self._held: dict[int, int] = {}  # by size: how many lie ready or were asked for
        self._bytes = 0
        self._is_short = False
        self._used_s = 0.0

    def take(self, size_bytes: int, now_s: float) -> Context | None:
        """Take a context of a size; None if there is none."""
        size = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        if size > _LARGEST_BYTES:
            return None
        self._used_s = now_s
        self._is_short = True
        ready = self._ready.get(size)
        if not ready:
            self._missed[size] = self._missed.get(size, 0) + 1
            return None
        spare = ready.pop()
        self._count(size, -1)
        return Context(spare.domain, spare.offset_bytes, size_bytes, spare.view[:size_bytes])

    def fill(self) -> None:
        """Ask for what is missing."""
        if not self._is_short:
            return
        self._is_short = False
        for size, missed in self._missed.items():
            while self._held.get(size, 0) < min(missed - 1, _MOST):
                if self._bytes + size > self._limit_bytes:
                    self.clear()  # other sizes are in use now
                    return
                self._count(size, 1)
                self._request(size)

    def add(self, size_bytes: int, context: Context | None) -> None:
        """Take a context that was asked for; None if there is no room for it."""
        if context is not None and size_bytes in self._missed:
            self._ready.setdefault(size_bytes, []).append(context)
        else:
            self._count(size_bytes, -1)

    def expire(self, now_s: float) -> None:
        """Give all back if none was used for a time."""
        if self._missed and now_s - self._used_s > _KEPT_S:
            self.clear()

    def clear(self) -> None:
        """Give all back."""
        for size, ready in self._ready.items():
            self._count(size, -len(ready))
        self._ready.clear()
        self._missed.clear()

    def _count(self, size: int, change: int) -> None:
        self._held[size] = self._held.get(size, 0) + change
        self._bytes += change * size
