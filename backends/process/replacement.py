"""When used sandboxes are replaced: between calls, unless calls wait for a sandbox.

A fork and an exit each take about a millisecond of a core, which a running call may need. So both
are deferred until no request has come for `QUIET_MS`; a used sandbox waits to be killed instead of
exiting. When a call finds no ready sandbox, or as many are used as are kept ahead, replacement is
urgent: each sandbox is replaced as soon as this is requested, and sandboxes exit by themselves,
until calls pause. A sandbox that a call waits for does not warm up.
"""

from __future__ import annotations

from collections import deque

QUIET_MS = 1
"""Time without a request after which a fork may take a core."""
PAUSE_MS = 4
"""Time without a request after which replacement is no longer urgent."""


class SandboxReplacement:
    """Tracks which sandboxes to replace, and when. Pure state, no clock.

    Args:
        ahead: how many sandboxes are kept ready.

    Attributes:
        urgent: sandboxes are used as fast as they are forked.
        awaited: a call waits for the next one.
    """

    def __init__(self, ahead: int) -> None:
        self.urgent = self.awaited = False
        self._ahead = ahead
        self._used: deque[int] = deque()

    def request(self, pid: int) -> None:
        """Request the replacement of a sandbox; 0 stands for one that is gone already."""
        self._used.append(pid)
        self.urgent = self.urgent or len(self._used) >= self._ahead

    def mark_urgent(self) -> None:
        """Record that a call waits for a sandbox."""
        self.urgent = self.awaited = True

    def wait_ms(self) -> int | None:
        """Return how many milliseconds to wait for requests before `due`; None if it is idle."""
        if self.urgent:
            return 0 if self._used else PAUSE_MS
        return QUIET_MS if self._used else None

    def due(self) -> int | None:
        """Return the sandbox to replace after a wait without a request, or None."""
        if self._used:
            return self._used.popleft()
        self.urgent = False
        return None
