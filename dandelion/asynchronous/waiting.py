"""Which kept invocation is begun next, and what is due at a time.

Tenants begin in turn; within a tenant the order is by priority, then by age.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

_STALE = 64


class WaitingLine:
    """Ids that wait for a place. Removing one costs nothing until its turn comes."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[int, int, str]]] = {}
        self._turns: deque[str] = deque()
        self._members: dict[str, int] = {}  # by id: its number in the line
        self._numbers = itertools.count(1)
        self._first = itertools.count(-1, -1)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._members

    def add(self, tenant: str, id_: str, priority: int, *, first: bool = False) -> None:
        """Let an id wait; with `first`, before all others of its tenant and priority."""
        number = next(self._first) if first else next(self._numbers)
        heap = self._heaps.get(tenant)
        if heap is None:
            heap = self._heaps[tenant] = []
            self._turns.append(tenant)
        if len(heap) > 2 * len(self._members) + _STALE:
            heap[:] = [entry for entry in heap if self._members.get(entry[2]) == entry[1]]
            heapq.heapify(heap)
        heapq.heappush(heap, (-priority, number, id_))
        self._members[id_] = number

    def remove(self, id_: str) -> None:
        """Let an id wait no longer; it need not be there."""
        self._members.pop(id_, None)

    def take(self, may_take: Callable[[str], bool]) -> str | None:
        """Take the next id; None if none of a tenant that may be taken waits.

        Args:
            may_take: is asked for tenants of which an id waits, in turn.
        """
        for _ in range(len(self._turns)):
            tenant = self._turns[0]
            heap = self._heaps[tenant]
            while heap and self._members.get(heap[0][2]) != heap[0][1]:
                heapq.heappop(heap)
            if not heap:
                del self._heaps[tenant]
                self._turns.popleft()
                continue
            self._turns.rotate(-1)
            if may_take(tenant):
                id_ = heapq.heappop(heap)[2]
                del self._members[id_]
                return id_
        return None


class DueTimes:
    """Ids with the times at which they are due, one for each. Removing one costs nothing.

    Args:
        longest_s: nothing is set that is due later than in so many seconds. What seems to be is
            due at once, since the clock was set back.
    """

    def __init__(self, longest_s: float = math.inf) -> None:
        self._longest_s = longest_s
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __bool__(self) -> bool:
        return bool(self._due)

    def set(self, due_s: float, id_: str) -> None:
        """Set the time of an id, instead of an earlier one."""
        self._due[id_] = due_s
        if len(self._heap) > 2 * len(self._due) + _STALE:
            self._heap = [(due_s, id_) for id_, due_s in self._due.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (due_s, id_))

    def remove(self, id_: str) -> None:
        """Forget an id; it need not be there."""
        self._due.pop(id_, None)

    def take(self, now_s: float) -> list[str]:
        """Take all that is due."""
        due = []
        while self._heap and not 0.0 < self._heap[0][0] - now_s <= self._longest_s:
            due_s, id_ = heapq.heappop(self._heap)
            if self._due.get(id_) == due_s:
                del self._due[id_]
                due.append(id_)
        return due
