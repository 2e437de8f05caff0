"""How long a thread polls for something that is to come, before it sleeps.

To wake a thread whose processor is halted takes 30 to 60 us on virtual machines, and the thread
then runs with cold caches: a call of 35 us takes 100. A thread that polls avoids both, but uses a
processor meanwhile. So it polls only while that pays:

- How long is learned from the waits before, as the driver `haltpoll` of Linux does it: a wait that
  a thread slept through doubles the time if it ended within the limit, and halves it if it did not.
- Each time it gives its processor to any other thread that can run. If that takes long, threads
  that compute need the processor, and there is no polling for a while: on a busy machine a thread
  that sleeps gets the processor sooner than one that polls.
- It does not poll while there is work for all other processors. A thread that polls on one of two
  keeps Linux from moving other threads there: it looks busy, though it would give way.
"""

from __future__ import annotations

import os
import time

_LEAST_NS = 50_000
"""The shortest time for which a thread polls, if it does."""
_GAP_NS = 1_000_000
"""How long it may take to get the processor back. What is waited for may itself run there."""
_PAUSE_NS = 50_000_000
"""How long there is no polling after that, or after too much work was seen."""
_SOON_NS = 20_000_000
"""If it happens again so soon after a pause, the next pause is twice as long."""
_LONGEST_PAUSE_NS = 3_200_000_000


class Allowance:
    """Whether threads of a process may poll, and for how long. Those that work in turns share it.

    Args:
        limit_us: the longest time, in microseconds; 0 for no polling.

    Attributes:
        most: how many calls may be under way while a thread polls; all other processors work then.
    """

    def __init__(self, limit_us: int = 0) -> None:
        self.allow(limit_us)
        self.most = max(1, len(os.sched_getaffinity(0)) - 1)
        self._pause_ns = _PAUSE_NS
        self._paused_until_ns = 0
        self._crowded_until_ns = 0

    def allow(self, limit_us: int) -> None:
        """Change the longest time."""
        self.limit_ns = 1000 * limit_us

    def permits(self, now_ns: int) -> bool:
        """Tell whether a thread may begin to poll now."""
        return now_ns >= self._paused_until_ns and now_ns >= self._crowded_until_ns

    def delayed(self, now_ns: int) -> None:
        """A thread that gave way got its processor back late: there is no polling for a while."""
        soon = now_ns - self._paused_until_ns < _SOON_NS
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS) if soon else _PAUSE_NS
        self._paused_until_ns = now_ns + self._pause_ns

    def counted(self, calls: int) -> None:
        """So many calls are under way: if they are too many, there is no polling for a while."""
        if calls > self.most:
            self._crowded_until_ns = time.monotonic_ns() + _PAUSE_NS


OF_ENGINE = Allowance()
"""That of an engine process; its program sets the limit."""


class Polling:
    """What one thread has learned. A wait has one `begin`, any number of `again`, and one `ended`.

    Attributes:
        allowance: what it shares with other threads.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self._window_ns = 0
        self._began_ns = 0
        self._last_ns = 0
        self._slept = False

    def begin(self) -> bool:
        """Begin a wait. False if the thread should sleep now."""
        if not self.allowance.limit_ns:
            return False
        self._began_ns = self._last_ns = now_ns = time.monotonic_ns()
        self._slept = not self._window_ns or not self.allowance.permits(now_ns)
        return not self._slept

    def again(self) -> bool:
        """Give way to other threads. False if the thread should sleep now."""
        os.sched_yield()
        now_ns = time.monotonic_ns()
        if now_ns - self._last_ns > _GAP_NS:
            self.allowance.delayed(now_ns)
            self._slept = True
        elif now_ns - self._began_ns > self._window_ns:
            self._slept = True
        self._last_ns = now_ns
        return not self._slept

    def resume(self) -> None:
        """Go on with a wait after this thread did something else, which may have taken long."""
        self._last_ns = time.monotonic_ns()

    def ended(self) -> None:
        """End a wait: what was waited for is there."""
        if not self._slept:
            return
        self._slept = False
        limit_ns = self.allowance.limit_ns
        if time.monotonic_ns() - self._began_ns <= limit_ns:
            self._window_ns = min(max(2 * self._window_ns, _LEAST_NS), limit_ns)
        else:
            half_ns = self._window_ns // 2
            self._window_ns = half_ns if half_ns >= _LEAST_NS else 0
