"""Notices that functions take turns in memory, which slows their calls and shows nowhere else."""

from __future__ import annotations

from collections import deque

from dandelion.scheduler import Flow

RELOADS = 16
WINDOW_NS = 10_000_000_000
"""So many functions that are loaded again within this time are worth a warning,"""
QUIET_NS = 60_000_000_000
"""which is not repeated for so long."""


class ReloadWatch:
    """Counts functions that are loaded into memory again after they were evicted."""

    def __init__(self) -> None:
        self._times: deque[int] = deque(maxlen=RELOADS)
        self._quiet_until_ns = 0

    def evicted(self, flow: Flow) -> None:
        """A function was evicted."""
        flow.was_evicted = True

    def loads(self, flow: Flow, now_ns: int) -> bool:
        """A function is loaded; True if a warning is due."""
        if not flow.was_evicted:
            return False
        flow.was_evicted = False
        self._times.append(now_ns)
        is_often = len(self._times) == RELOADS and now_ns - self._times[0] <= WINDOW_NS
        if not is_often or now_ns < self._quiet_until_ns:
            return False
        self._quiet_until_ns = now_ns + QUIET_NS
        return True
