"""Marks of `.cudalike`: events of the driver, which are used again once they were waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import Calls

_ASLEEP, _WITHOUT_TIME = 1, 2
"""Flags of events: waiting for them takes no core, they do not measure."""


class Marks:
    """The marks of one stream.

    Args:
        calls: of the driver.
        stream: where they are recorded.
        do: gives the result of a call, or raises.
    """

    def __init__(
        self, calls: Calls, stream: Any, do: Callable[[str, tuple[Any, ...]], Any]
    ) -> None:
        self._calls = calls
        self._stream = stream
        self._do = do
        self._events: list[Any] = []
        self._idle: list[Any] = []
        self._recorded: list[Any] = []  # they were not waited for yet

    def mark(self) -> Any:
        """Record an event behind all work so far.

        Raises:
            DeviceFault: that failed.
        """
        if not self._idle:
            event = self._do("mark", self._calls.create_event(_ASLEEP | _WITHOUT_TIME))
            self._events.append(event)
            self._idle.append(event)
        event = self._idle[-1]
        self._do("mark", self._calls.record(event, self._stream))
        self._recorded.append(self._idle.pop())
        return event

    def wait(self, event: Any) -> None:
        """Wait for an event; raises as `mark`."""
        self._do("wait", self._calls.wait(event))
        if event in self._recorded:
            self._recorded.remove(event)
            self._idle.append(event)

    def passed(self) -> None:
        """All work is done."""
        if self._recorded:
            self._idle += self._recorded
            self._recorded.clear()

    def close(self, undo: Callable[..., None]) -> None:
        """Destroy all events."""
        for event in self._events:
            undo(self._calls.destroy_event, event)
