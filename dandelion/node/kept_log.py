"""The history of an asynchronous invocation in memory, and those that wait for its next line.

A log has the last `LINES` events. A watcher that names an event that is not there any more, or is
of an earlier process of the node, gets all that are there. The last one always has the state.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping

from dandelion.asynchronous.records import KeptEvent, KeptState, OutputSize, Progress
from dandelion.errors import ErrorRecord

LINES = 64
_RUN = os.urandom(4).hex()


class KeptLog:
    """The log of one invocation. For the loop's thread.

    Attributes:
        waiters: are resolved when there is an event, or the invocation is forgotten.
    """

    __slots__ = ("_events", "_number", "_progress", "waiters")

    def __init__(self) -> None:
        self._events: deque[KeptEvent] = deque(maxlen=LINES)
        self._number = 0
        self._progress = Progress()
        self.waiters: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._events)

    def state(self, state: KeptState, error: ErrorRecord | None) -> None:
        """Note a state."""
        if self._events and self._events[-1].kind == "state" and self._events[-1].state is state:
            return
        self._add(KeptEvent(self._next(), "state", state, error=error))

    def application(
        self, state: KeptState, name: str, outputs: Mapping[str, tuple[int, int]], now: Progress
    ) -> None:
        """Note the end of an application."""
        sizes = {key: OutputSize(*size) for key, size in outputs.items()}
        self._progress = now
        self._add(KeptEvent(self._next(), "application", state, name, sizes, now))

    def progress(self, state: KeptState, now: Progress) -> None:
        """Note progress; it replaces the last event if that is one of progress, too."""
        if now == self._progress:
            return
        self._progress = now
        if self._events and self._events[-1].kind == "progress":
            self._events.pop()
        self._add(KeptEvent(self._next(), "progress", state, progress=now))

    def since(self, after: str) -> tuple[KeptEvent, ...]:
        """Give the events after one."""
        run, _, number = after.partition("-")
        if run == _RUN and number.isdecimal() and len(number) < 10:
            seen = int(number)
            if self._events and _number(self._events[0]) - 1 <= seen <= self._number:
                return tuple(event for event in self._events if _number(event) > seen)
        return tuple(self._events)

    def wake(self) -> None:
        """Let all watchers look again."""
        waiters, self.waiters = self.waiters, set()
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _next(self) -> str:
        self._number += 1
        return f"{_RUN}-{self._number}"

    def _add(self, event: KeptEvent) -> None:
        self._events.append(event)
        self.wake()


def _number(event: KeptEvent) -> int:
    return int(event.id.partition("-")[2])
