"""How a client that waits for what comes later bears a node that is away for a while."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dandelion.errors import DandelionError
from dandelion.frontend.problem import Crowded, ShuttingDown, Unreachable

OUTAGE_S = 60.0
"""So long a node may give no answer, as while it is restarted."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
T = TypeVar("T")
_AWAY = (Unreachable, ShuttingDown, Crowded)
_logger = logging.getLogger("dandelion")


class Outage:
    """Tells whether a request is to be sent again. May be used by several threads.

    Args:
        is_reached: the node was reached before. A node that never was is not waited for, since its
            URL may be wrong.
    """

    def __init__(self, *, is_reached: bool) -> None:
        self._is_reached = is_reached
        self._since_s: float | None = None
        self._pause_s = 0.0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note whether a request gets an answer."""
        try:
            yield
        except _AWAY:
            if self._since_s is None:
                self._since_s, self._pause_s = time.monotonic(), FIRST_PAUSE_S
            raise
        except DandelionError:
            self._over()
            raise
        self._over()

    def _over(self) -> None:
        self._is_reached, self._since_s = True, None

    def asked(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, or the node is given up."""
        while True:
            try:
                with self.noted():
                    return ask()
            except DandelionError as error:
                pause_s = self.pause_s(error)
                if pause_s is None:
                    raise
                time.sleep(pause_s)

    def pause_s(self, error: DandelionError) -> float | None:
        """Return how long to wait before the same is requested again; None: it is given up."""
        since_s = self._since_s
        if not self._is_reached or since_s is None or not isinstance(error, _AWAY):
            return None
        if time.monotonic() - since_s >= OUTAGE_S:
            return None
        if self._pause_s == FIRST_PAUSE_S:
            _logger.warning("%s; trying again for %g seconds", error, OUTAGE_S)
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s * random.uniform(0.5, 1.0)  # not all clients at once
