"""Values that are due at a time. Pure: the times come from the caller."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Value = TypeVar("Value")

_KEPT = 64
"""The heap may have this many timers that were cancelled, or one for each that was not."""


class Timer(Generic[Value]):
    """One value; None after the timer has ended."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value: Value | None = value


class Timers(Generic[Value]):
    """Timers in the order of their times; those of equal times, in the order of `add`."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer[Value]]] = []  # due, number: no two are equal
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, due_ns: int, value: Value) -> Timer[Value]:
        """Begin a timer; the value is not None."""
        self._number += 1
        timer = Timer(value)
        heapq.heappush(self._heap, (due_ns, self._number, timer))
        return timer

    def cancel(self, timer: Timer[Value]) -> None:
        """End a timer early, and drop its value. One that has ended stays as it is."""
        if timer.value is not None:
            timer.value = None
            self._cancelled += 1
            if self._cancelled > _KEPT and 2 * self._cancelled > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].value is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def take_due(self, now_ns: int) -> Value | None:
        """End the first timer whose time has come, and return its value; None if there is none."""
        due_ns = self.next_due_ns
        if due_ns is None or due_ns > now_ns:
            return None
        timer = heapq.heappop(self._heap)[2]
        value, timer.value = timer.value, None
        return value

    @property
    def next_due_ns(self) -> int | None:
        """When the first timer is due; None if there is none."""
        heap = self._heap
        while heap and heap[0][2].value is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None
