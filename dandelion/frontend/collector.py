"""When the collector of cyclic garbage runs in a process that serves.

A connection is about forty objects. With ten thousand of them a full collection looks at half a
million and stops the loop for a tenth of a second, and it comes whenever the number of objects has
grown by a quarter. Requests and connections leave no cycles behind, so it finds nothing. Young
collections stay automatic, but come less often; full ones come when no request is under way. What a
full collection leaves is not looked at by the next one.
"""

from __future__ import annotations

import gc

_YOUNG = 5000
_MIDDLE = 20
_NEVER = 1_000_000_000
QUIET_S = 10.0
"""A full collection comes so long after the one before, if there were no requests just now."""
BUSY_S = 300.0
"""A full collection comes so long after the one before in any case."""


class Collector:
    """Takes over the collector, until it is closed. One for each process."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._last = 0.0
        self._requests = 0
        gc.collect()
        gc.freeze()  # what is there now stays, and is never looked at again
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)

    def tick(self, now: float, requests: int) -> None:
        """Collect if it is time; to be called several times a second.

        Args:
            now: of the loop's clock.
            requests: how many were answered until now.
        """
        quiet = requests == self._requests
        self._requests = requests
        if now - self._last >= (QUIET_S if quiet else BUSY_S):
            gc.collect()
            gc.freeze()
            self._last = now

    def close(self) -> None:
        """Give the collector back as it was."""
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()
