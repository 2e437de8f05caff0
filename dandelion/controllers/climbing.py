"""How many calls a device should run at once: hill climbing over measured throughput.

`throughput` describes what is measured.

The count is changed in pairs of windows: one at the present count, one at a neighbour on `LADDER`.
Both are compared by the kinds that they have in common, with the same mix, so a change of the mix
does not look like one of the speed. A higher count has to be faster by more than `UP_GAIN`; a lower
one must not be slower. If neither neighbour is better, there is a pause: it doubles each time, and
is at least `LOST_FACTOR` times the work that was lost by trying. It ends early if the mix changes,
or if calls wait and hardly any did when it began.

If most calls are others, the count begins at the one that was best for such calls before, or at a
low one: calls of which too many run at once take long, so going up is faster than going down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dandelion.controllers.throughput import CHANGED, Window, gain_of

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
UP_GAIN, DOWN_GAIN = 0.03, -0.002
LEAST_NS, ENOUGH_NS, MOST_NS = 50_000_000, 200_000_000, 1_000_000_000
"""The duration of a window: the least, enough for one before a trial, and the most."""
LEAST_CALLS, LONGEST_CALLS = 8, 4
"""A window has so many calls, and takes as long as so many of the longest ones: else the short ones
would be more often among those that ended in it."""
BASE_ERROR = 0.02
SURE = 1.5
"""How many standard errors better a count is at least, at the end of the time for a trial."""
LOST_FACTOR, CHANGED_FACTOR = 150, 20
"""Pauses, in units of the work that was lost by trying: usually, and if the mix changes."""
FIRST_PAUSE_NS, LAST_PAUSE_NS, CHANGES_NS = 250_000_000, 10_000_000_000, 500_000_000
MOST_PAUSE_NS = 60_000_000_000
OTHERS, FIRST_COUNT = 0.5, 2
"""Most calls are others if this part of the time is that of kinds that were not there lately; then
the count begins with the second number."""
BUSY, QUEUED, NOT_QUEUED = 0.9, 0.5, 0.25
"""Engines are busy for so much of the time; calls wait if so many follow another one at once, and
hardly any wait if fewer than the last part do."""


@dataclass(slots=True)
class Limits:
    """Counts that can be had.

    Attributes:
        now: engines that are up.
        later: engines that are up, or could be started.
    """

    now: int
    later: int


@dataclass(slots=True)
class Climber:
    """Chooses the count.

    Attributes:
        count: the best count so far.
        trial: a count that is being tried; 0 if none is.
        wanted: a count that cannot be tried since engines are not up; 0 if there is none.
    """

    count: int
    trial: int = 0
    wanted: int = 0
    _base: Window | None = None
    _usual: Window | None = None
    _direction: int = 1
    _tried: set[int] = field(default_factory=set)
    _due_ns: int = 0
    _pause_ns: int = 0
    _lost_ns: float = 0.0
    _changed_ns: int = 0
    _unqueued: bool = False  # hardly any calls waited when the pause began

    @property
    def target(self) -> int:
        """How many engines should take calls."""
        return self.trial or self.count

    def look(self, window: Window, limits: Limits, now_ns: int) -> bool:
        """Look at a window at the present target.

        Returns:
            Whether it is over, and another one begins. The target may have changed.
        """
        elapsed_ns = now_ns - window.began_ns
        if self.target > limits.now:  # engines are not up, or one is left for others
            self.trial = 0
            self.count = min(self.count, max(1, limits.later))
            return True
        least_ns = max(LEAST_NS, min(MOST_NS, LONGEST_CALLS * window.longest_ns))
        if window.calls < max(LEAST_CALLS, 2 * self.target) or elapsed_ns < least_ns:
            if self.trial and elapsed_ns > 4 * MOST_NS:  # the calls have ended
                self._rejected(0.0)
                return True
            enough = window.calls >= LEAST_CALLS and elapsed_ns >= LEAST_NS
            return not self.trial and enough and self._changed(window, now_ns)
        if self.trial:
            return self._judge(window, elapsed_ns, now_ns)
        if elapsed_ns < max(ENOUGH_NS, least_ns) and window.error() > BASE_ERROR:
            return False
        self._measured(window, limits, now_ns)
        return True

    def _measured(self, window: Window, limits: Limits, now_ns: int) -> None:
        """A window at the present count is over: perhaps try another count."""
        if self._changed(window, now_ns):
            return  # some of its calls are those of before
        self._base = window
        self.wanted = 0
        queued = window.followed_part >= QUEUED
        if queued and self._unqueued:
            self._restart(now_ns)
        if window.engine_ns < BUSY * window.cycles() or now_ns < self._due_ns:
            return
        for direction in (self._direction, -self._direction):
            if direction in self._tried:
                continue
            if direction > 0:
                rung = above(self.count, limits.later) if queued else 0
            else:
                rung = below(min(self.count, window.engines))
            if rung > limits.now:
                self.wanted = rung  # a lower one is tried only after it
                return
            if rung:
                self.trial, self._direction = rung, direction
                return
        self._unqueued = window.followed_part < NOT_QUEUED
        self._pause(now_ns)

    def _changed(self, window: Window, now_ns: int) -> bool:
        """Look whether the mix has changed; then the pause ends."""
        if self._usual is None:
            self._usual = window
            return False
        if now_ns < self._changed_ns:
            return False
        change = window.change(self._usual)
        if change <= CHANGED:
            return False
        self._usual = window
        self._restart(now_ns)
        self._changed_ns = now_ns + CHANGES_NS
        if window.new_part(now_ns) > OTHERS:
            known = [kind.best for kind in window.main_kinds() if kind.best]
            self.count = known[0] if known else min(self.count, FIRST_COUNT)
        return True

    def _restart(self, now_ns: int) -> None:
        """End the pause: a higher count is tried first."""
        self._due_ns, self._pause_ns, self._lost_ns = now_ns, 0, 0.0
        self._unqueued = False
        self._tried.clear()
        self._direction = 1

    def _pause(self, now_ns: int) -> None:
        self._pause_ns = min(LAST_PAUSE_NS, 2 * self._pause_ns) or FIRST_PAUSE_NS
        least_ns = min(MOST_PAUSE_NS, int(LOST_FACTOR * self._lost_ns))
        self._due_ns = now_ns + max(self._pause_ns, least_ns)
        self._changed_ns = now_ns + max(CHANGES_NS, int(CHANGED_FACTOR * self._lost_ns))
        self._lost_ns = 0.0
        self._tried.clear()
        self._decided(self._base)

    def _judge(self, window: Window, elapsed_ns: int, now_ns: int) -> bool:
        """Compare a trial with the window before it. False if that needs more calls."""
        assert self._base is not None, "it was measured before the trial"
        found = gain_of(window, self._base)
        if found is None:
            if elapsed_ns < 2 * MOST_NS:
                return False
            self._rejected(0.0)  # other calls have come
            return True
        gain, error = found
        needed = UP_GAIN if self.trial > self.count else DOWN_GAIN
        better, worse = gain - 2 * error > needed, gain + 2 * error < needed
        if not (better or worse) and elapsed_ns < MOST_NS:
            return False
        if better or gain > max(needed, SURE * error):
            self.count, self.trial = self.trial, 0
            self._decided(window)
            self._tried = {-self._direction}
            self._pause_ns, self._lost_ns, self._due_ns = 0, 0.0, now_ns
        else:
            self._rejected(elapsed_ns * max(0.0, 1 - math.exp(gain)))
        return True

    def _rejected(self, lost_ns: float) -> None:
        self.trial = 0
        self._lost_ns += lost_ns
        self._tried.add(self._direction)
        self._direction = -self._direction
        self._decided(self._base)

    def _decided(self, window: Window | None) -> None:
        """Remember the count for the calls of a window."""
        self._usual = window
        if window is not None:
            main = window.main_kinds()
            for kind in window.kinds:
                if kind in main or not kind.best:
                    kind.best = self.count


def above(count: int, most: int) -> int:
    """Return the next count on the ladder, or the largest that can be had; 0 if there is none."""
    rung = min(most, next((rung for rung in LADDER if rung > count), count))
    return rung if rung > count else 0


def below(count: int) -> int:
    """Return the count before this one on the ladder; 0 if there is none."""
    return max((rung for rung in LADDER if rung < count), default=0)
