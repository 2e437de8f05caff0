"""How many calls a device should run at once: hill climbing over measured throughput.

With more calls at once each call takes longer, so neither busy time nor the number of busy engines
is throughput. Useful work is: each call counts the time that calls of its kind take **alone** (the
smallest smoothed engine time of the kind), however long it took. A `Window` sums up the calls of
some time: their work, and the time from the end of one call of an engine to the end of its next
one (a cycle). The speed of the device is the number of engines, times work per cycle time. It
counts whole calls only, so it needs few of them, and its standard error follows from their spread.

The count is changed in pairs of windows: one at the present count, one at a neighbour on `LADDER`.
A higher count has to be faster by more than `UP_GAIN`; a lower one must not be slower. If neither
neighbour is better, there is a pause: it doubles each time, and is at least `LOST_FACTOR` times the
work that was lost by trying. It ends early if the calls have changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
UP_GAIN, DOWN_GAIN = 0.03, -0.002
SURE = 1.5
"""How many standard errors better a count is at least, at the end of the time for a trial."""
LEAST_NS, MOST_NS = 50_000_000, 1_000_000_000
"""The duration of a window."""
LEAST_CALLS = 8
LONGEST_CALLS = 4
"""A window takes as long as so many of the longest calls, since others end in it more often."""
BASE_ERROR, ENOUGH_NS = 0.02, 200_000_000
"""The window before a trial ends with the first of both."""
LOST_FACTOR, CHANGED_FACTOR = 150, 50
"""Pauses, in units of the work that was lost by trying: without and with new kinds of calls."""
FIRST_PAUSE_NS, LAST_PAUSE_NS = 250_000_000, 10_000_000_000
CHANGED = 0.25
"""How much the duration of calls changes, or which part of the time new kinds take, if calls
have changed."""
CHANGES_NS = 500_000_000
"""Pauses are ended at most so often."""
BUSY, QUEUED = 0.9, 0.5


@dataclass(slots=True)
class Window:
    """Sums of the calls that ended in some time.

    Attributes:
        calls: how many.
        followed: how many were followed by another one at once, so calls waited.
        work, cycles, engine: their time alone, from the end before, and on the engine, in ns.
        others, others_ns: calls of new kinds, which are not counted above, and their time.
        longest_ns: of their times on the engine.
    """

    began_ns: int
    calls: int = 0
    followed: int = 0
    work: float = 0.0
    cycles: float = 0.0
    engine: float = 0.0
    others: int = 0
    others_ns: int = 0
    longest_ns: int = 0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def add(self, work: float, cycle: float, engine_ns: int) -> None:
        """Count a call."""
        self.calls += 1
        self.work += work
        self.cycles += cycle
        self.engine += engine_ns
        if engine_ns > self.longest_ns:
            self.longest_ns = engine_ns
        both, works, cycles = self.squares
        self.squares = both + work * cycle, works + work * work, cycles + cycle * cycle

    def reading(self, engines: int) -> Reading:
        """Measure the device; it has calls on so many engines."""
        slowdown = self.cycles / self.work
        both, works, cycles = self.squares
        spread = cycles - 2 * slowdown * both + slowdown * slowdown * works
        return Reading(
            engines,
            engines / slowdown,
            math.sqrt(max(0.0, spread)) / self.cycles,
            cycles / self.cycles,
            self.engine / self.cycles,
            self.followed / (self.calls + self.others),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What a window measured.

    Attributes:
        engines: that had calls.
        speed: time alone of the calls that ended, for each unit of time.
        error: standard error of the speed, as a part of it.
        call_ns: mean duration of calls, weighted by it: that of those that take most of the time.
        busy: part of the time in which engines had calls.
        queued: part of the calls after which another one waited.
    """

    engines: int
    speed: float
    error: float
    call_ns: float
    busy: float
    queued: float


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
    _base: Reading | None = None
    _usual: Reading | None = None
    _direction: int = 1
    _tried: set[int] = field(default_factory=set)
    _due_ns: int = 0
    _pause_ns: int = 0
    _lost_ns: float = 0.0
    _changed_ns: int = -CHANGES_NS
    _patient_ns: int = 0

    @property
    def target(self) -> int:
        """How many engines should take calls."""
        return self.trial or self.count

    def look(self, window: Window, engines: int, limits: Limits, now_ns: int) -> bool:
        """Look at a window.

        Args:
            window: at the present target.
            engines: how many had calls in it.
            limits: counts that can be had.
            now_ns: now.

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
            return False
        reading = window.reading(engines)
        if self.trial:
            return self._judge(reading, elapsed_ns, now_ns)
        if reading.error > BASE_ERROR and elapsed_ns < max(ENOUGH_NS, least_ns):
            return False
        self._measured(reading, limits, now_ns)
        return True

    def _measured(self, reading: Reading, limits: Limits, now_ns: int) -> None:
        """A window at the present count is over: perhaps try another count."""
        self._base = reading
        if self._differs(reading) and now_ns - self._changed_ns >= CHANGES_NS:
            self._usual = reading
            self._end_pause(now_ns)
        self.wanted = 0
        if reading.busy < BUSY or now_ns < self._due_ns:
            return
        for direction in (self._direction, -self._direction):
            if direction in self._tried or (direction > 0 and reading.queued < QUEUED):
                continue
            rung = above(self.count, limits.later) if direction > 0 else below(reading.engines)
            if not rung:
                continue
            if rung > limits.now:
                self.wanted = rung
                continue
            self.trial, self._direction = rung, direction
            return
        if not self.wanted:
            self._pause(now_ns)

    def new_kinds(self, now_ns: int) -> None:
        """Much of the time is that of calls whose time alone is not known yet."""
        if now_ns >= self._patient_ns and now_ns - self._changed_ns >= CHANGES_NS:
            self._end_pause(now_ns)

    def _end_pause(self, now_ns: int) -> None:
        self._changed_ns = self._due_ns = now_ns
        self._pause_ns, self._lost_ns = 0, 0.0
        self._tried.clear()

    def _pause(self, now_ns: int) -> None:
        self._pause_ns = min(LAST_PAUSE_NS, 2 * self._pause_ns) or FIRST_PAUSE_NS
        self._due_ns = now_ns + max(self._pause_ns, int(LOST_FACTOR * self._lost_ns))
        self._patient_ns = now_ns + int(CHANGED_FACTOR * self._lost_ns)
        self._lost_ns = 0.0
        self._tried.clear()

    def _differs(self, reading: Reading) -> bool:
        """Tell whether the calls are others than those of the last decision."""
        usual = self._usual
        if usual is None:
            return True
        slower = abs(math.log(reading.call_ns / usual.call_ns))
        return slower > CHANGED + 3 * (reading.error + usual.error)

    def _judge(self, reading: Reading, elapsed_ns: int, now_ns: int) -> bool:
        """Compare a trial with the window before it. False if that needs more calls."""
        assert self._base is not None, "it was measured before the trial"
        gain = math.log(reading.speed / self._base.speed)
        error = math.hypot(reading.error, self._base.error)
        needed = UP_GAIN if self.trial > self.count else DOWN_GAIN
        better, worse = gain - 2 * error > needed, gain + 2 * error < needed
        if not (better or worse) and elapsed_ns < MOST_NS:
            return False
        if better or gain > max(needed, SURE * error):
            self.count, self.trial = self.trial, 0
            self._tried = {-self._direction}
            self._pause_ns, self._lost_ns, self._due_ns = 0, 0.0, now_ns
            self._usual = reading
        else:
            self._rejected(elapsed_ns * max(0.0, 1 - reading.speed / self._base.speed))
        return True

    def _rejected(self, lost_ns: float) -> None:
        self.trial = 0
        self._lost_ns += lost_ns
        self._tried.add(self._direction)
        self._direction = -self._direction
        self._usual = self._base


def above(count: int, most: int) -> int:
    """Return the next count on the ladder, or the largest that can be had; 0 if there is none."""
    rung = min(most, next((rung for rung in LADDER if rung > count), count))
    return rung if rung > count else 0


def below(count: int) -> int:
    """Return the count before this one on the ladder; 0 if there is none."""
    return max((rung for rung in LADDER if rung < count), default=0)
