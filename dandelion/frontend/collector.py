"""When the cyclic garbage collector runs in a serving process.

A connection consists of about forty objects. With ten thousand connections a full collection visits
half a million objects and stops the event loop for 0.1 s. By default it runs whenever the number of
objects has grown by a quarter. Requests and connections create no cycles, so it frees nothing. Here
young collections stay automatic but are less frequent. Full collections run when there have been no
requests for a while, and objects that survive one are not visited again.
"""

from __future__ import annotations

import gc
import math

_YOUNG = 5000
_MIDDLE = 20
_NEVER = 1_000_000_000
QUIET_S = 10.0
"""Time between full collections if there are no requests, in seconds."""
BUSY_S = 300.0
"""Longest time between full collections, in seconds."""
REST_S = 1.0
"""How long there must be no requests before a full collection, in seconds. Clients that leave all
at once occupy the loop for a while, and others come just then."""


class Collector:
    """Controls the garbage collector until it is closed. One for each process."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._last = 0.0
        self._requests = 0
        self._quiet_since = math.inf
        gc.collect()
        gc.freeze()  # objects that exist now are never visited again
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)

    def tick(self, now: float, requests: int, under_way: int) -> None:
        """Collect if it is time. Call this several times a second.

        Args:
            now: of the loop's clock.
            requests: how many requests were served until now.
            under_way: how many are being served.
        """
        if requests != self._requests or under_way:
            self._requests = requests
            self._quiet_since = math.inf
        else:
            self._quiet_since = min(self._quiet_since, now)
        quiet = now - self._quiet_since >= REST_S
        if now - self._last >= (QUIET_S if quiet else BUSY_S):
            gc.collect()
            gc.freeze()
            self._last = now

    def close(self) -> None:
        """Restore the settings of the garbage collector."""
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()
