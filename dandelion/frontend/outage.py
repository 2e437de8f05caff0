"""How a client that waits for what comes later bears a node that is away for a while.

A proxy may end each request that waits, since it gets no answer within its own time-out. So a wait
that failed in this way is made shorter. Otherwise an invocation that takes longer than `OUTAGE_S`
would look like an outage. The first wait of a handle is short, since it also tells whether there is
a node.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dandelion.errors import DandelionError
from dandelion.frontend.problem import ClientClosed, Crowded, ShuttingDown, Unreachable

OUTAGE_S = 60.0
"""So long a node may give no answer, as while it is restarted."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SHORTEST_WAIT_S = 1.0
"""Waits are not made shorter than this, nor after a failure that comes sooner."""
T = TypeVar("T")
_AWAY = (Unreachable, ShuttingDown, Crowded)
_logger = logging.getLogger("dandelion")


class Outage:
    """Tells whether a request is to be sent again. May be used by several threads.

    Args:
        is_reached: the node was reached before. A node that never was is not waited for, since its
            URL may be wrong.
        clock: tells the time in seconds.
    """

    def __init__(self, *, is_reached: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_reached = is_reached
        self._clock = clock
        self._wait_limit_s = math.inf
        self._since_s: float | None = None
        self._pause_s = 0.0

    @contextlib.contextmanager
    def noted(self, wait_s: float) -> Iterator[float]:
        """Note whether a request gets an answer; give how long the node may wait before it."""
        limit_s = self._wait_limit_s if self._is_reached else SHORTEST_WAIT_S
        wait_s = min(wait_s, limit_s)
        began_s = self._clock()
        try:
            yield wait_s
        except _AWAY as error:
            now_s = self._clock()
            if isinstance(error, Unreachable):
                self._shorten(min(wait_s, now_s - began_s))
            if self._since_s is None:
                self._since_s, self._pause_s = now_s, FIRST_PAUSE_S
            raise
        except DandelionError:
            self._over()
            raise
        self._over()

    def _shorten(self, waited_s: float) -> None:
        if waited_s >= SHORTEST_WAIT_S:
            self._wait_limit_s = max(SHORTEST_WAIT_S, waited_s / 2)

    def _over(self) -> None:
        self._is_reached, self._since_s = True, None

    def asked(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, or the node is given up."""
        while True:
            try:
                with self.noted(0.0):
                    return ask()
            except DandelionError as error:
                pause_s = self.pause_s(error)
                if pause_s is None:
                    raise
                time.sleep(pause_s)

    def pause_s(self, error: DandelionError) -> float | None:
        """Return how long to wait before the same is requested again; None: it is given up."""
        if not self._is_reached or not isinstance(error, _AWAY) or isinstance(error, ClientClosed):
            return None
        since_s = self._since_s
        if since_s is None:  # another thread has reached it since
            return FIRST_PAUSE_S
        if self._clock() - since_s >= OUTAGE_S:
            return None
        if self._pause_s == FIRST_PAUSE_S:
            _logger.warning("%s; trying again for %g seconds", error, OUTAGE_S)
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s * random.uniform(0.5, 1.0)  # not all clients at once
