"""Waiting for a device without keeping a core busy all the time.

A driver's own wait spins: it returns within microseconds, and takes a whole core. For a long call
that is a waste, and where many workers share a device it takes the cores from the node that feeds
them (measured with 16 workers on 16 cores: 1.2 thousand calls a second, 1.9 without). So this
thread sleeps for the first part of a long call, and spins for the rest.

How long a call will take is known from earlier calls: the shortest time of each kind counts, and
slowly grows until a call is as short again. If the device is ready when the thread wakes up, it
slept too long; the next calls are waited for without sleep, to measure them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LONG_NS = 1_000_000
"""Calls that take less are waited for without sleep."""
ASLEEP = 0.7
"""Part of the shortest time that is slept; waking up may take some hundred microseconds."""
_PROMPT_NS = 20_000  # a wait for a device that is ready takes less
_UNUSUAL = 2  # the first calls of a kind prepare things
_LOOKS = 3  # calls that are measured without sleep before one is slept


@dataclass(slots=True, eq=False)
class AdaptiveWait:
    """How one kind of call is waited for.

    Attributes:
        least_ns: the shortest time of late; 0 while it is not known.
    """

    least_ns: int = 0
    _calls: int = 0

    def wait(self, synchronize: Callable[[], None], began_ns: int) -> None:
        """Wait until the device is ready.

        Args:
            synchronize: waits awake.
            began_ns: when the device was asked, by `time.perf_counter_ns`.
        """
        known = self._calls >= _UNUSUAL + _LOOKS and self.least_ns > LONG_NS
        slept = known and _sleep_until(began_ns + int(self.least_ns * ASLEEP))
        woke_ns = time.perf_counter_ns() if slept else 0
        synchronize()
        ended_ns = time.perf_counter_ns()
        self._calls += 1
        if slept and ended_ns - woke_ns < _PROMPT_NS:
            self.least_ns, self._calls = 0, _UNUSUAL
        elif self._calls > _UNUSUAL:
            took_ns = ended_ns - began_ns
            known_ns = self.least_ns
            self.least_ns = min(took_ns, known_ns + (known_ns >> 4)) if known_ns else took_ns


def _sleep_until(end_ns: int) -> bool:
    left_ns = end_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
    return left_ns > 0
