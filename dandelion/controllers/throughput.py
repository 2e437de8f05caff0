"""The throughput of a device whose calls slow each other down, in windows of whole calls.

With more calls at once each call takes longer, so neither busy time nor the number of busy engines
is throughput. Useful work is: each call counts the time that calls of its **kind** take alone (the
smallest smoothed engine time of the kind), however long it took. A `Window` sums up, for each kind,
the cycles of the engines: a cycle is the time from the end of one call to the end of the next one
of an engine. Work per cycle time, times the number of engines, is the speed of the device. It is
made of whole calls, so few of them suffice, and its standard error follows from their spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

COMMON = 0.5
"""Windows are compared if the kinds that both have take this part of their time."""
CHANGED = 0.25
"""The mix has changed if this part of the time is that of other kinds, or if calls are so much
longer or shorter."""
MUCH, LATELY_NS = 0.2, 5_000_000_000


@dataclass(slots=True, eq=False)
class Kind:
    """Calls that are alike.

    Attributes:
        mean_ns, alone_ns: smoothed engine time of a call, and the smallest such time.
        best: the count that was best when they last took much of the time; 0 if it is not known.
        seen_ns: when the last window with such calls ended.
    """

    mean_ns: float
    alone_ns: float
    best: int = 0
    seen_ns: int = -(1 << 62)


@dataclass(slots=True)
class Sums:
    """Of the calls of one kind in a window. Each member of a batch counts as a call."""

    calls: int = 0
    units: int = 0
    cycles: float = 0.0
    squares: float = 0.0

    def variance(self) -> float:
        """Return the squared relative standard error of the mean cycle."""
        mean = self.cycles / self.units
        return max(0.0, self.squares / self.calls / (mean * mean) - 1) / (self.calls - 1)


@dataclass(slots=True)
class Window:
    """Sums of the calls that ended in some time.

    Attributes:
        calls: how many.
        followed: how many were followed by another one at once, so calls waited.
        engine_ns: their time on engines.
        longest_ns: of their times.
        kinds: sums for each kind.
        engines: how many had calls; known at the end.
    """

    began_ns: int
    calls: int = 0
    followed: int = 0
    engine_ns: float = 0.0
    longest_ns: int = 0
    kinds: dict[Kind, Sums] = field(default_factory=dict)
    engines: int = 0

    @property
    def followed_part(self) -> float:
        """Which part of the calls was followed by another one at once."""
        return self.followed / self.calls

    def add(self, kind: Kind, units: int, cycle_ns: int, engine_ns: int) -> None:
        """Count a call, or a batch of so many units."""
        self.calls += 1
        self.engine_ns += engine_ns
        if engine_ns > self.longest_ns:
            self.longest_ns = engine_ns
        sums = self.kinds.get(kind)
        if sums is None:
            sums = self.kinds[kind] = Sums()
        each_ns = cycle_ns / units
        sums.calls += 1
        sums.units += units
        sums.cycles += cycle_ns
        sums.squares += each_ns * each_ns

    def cycles(self) -> float:
        """Return the time of all cycles."""
        return sum(sums.cycles for sums in self.kinds.values())

    def error(self) -> float:
        """Return the relative standard error of the speed, for its own mix."""
        several = [sums for sums in self.kinds.values() if sums.calls > 1]
        whole = sum(sums.cycles for sums in several)
        return math.sqrt(sum((s.cycles / whole) ** 2 * s.variance() for s in several))

    def main_kinds(self) -> list[Kind]:
        """Return the kinds that took much of the time, that with the most first."""
        least = MUCH * self.cycles()
        kinds = [kind for kind, sums in self.kinds.items() if sums.cycles >= least]
        return sorted(kinds, key=lambda kind: -self.kinds[kind].cycles)

    def change(self, other: Window) -> float:
        """Return which part of the time is that of other kinds than in another window; more than
        `CHANGED` also if calls are longer or shorter."""
        mine, its = self.cycles(), other.cycles()
        kinds = self.kinds.keys() & other.kinds.keys()
        common = sum(min(self.kinds[k].cycles / mine, other.kinds[k].cycles / its) for k in kinds)
        calls = min(self.calls, other.calls)
        chance = math.sqrt(max(len(self.kinds), len(other.kinds)) / calls)
        part = 1 - common - chance / 2
        if part > CHANGED:
            return part
        longer = self.weighted_ns() / other.weighted_ns()
        return abs(math.log(longer)) - 1.5 / math.sqrt(calls)

    def weighted_ns(self) -> float:
        """Return the mean cycle, weighted by itself: that of calls that take most of the time."""
        return sum(sums.squares for sums in self.kinds.values()) / self.cycles()

    def new_part(self, now_ns: int) -> float:
        """Return the part of the time of kinds that were not there lately."""
        new = [s.cycles for kind, s in self.kinds.items() if now_ns - kind.seen_ns > LATELY_NS]
        return sum(new) / self.cycles()


def gain_of(window: Window, base: Window) -> tuple[float, float] | None:
    """Compare the speeds of two windows.

    Returns:
        The logarithm of their ratio and its standard error; None if they have too little in common.
    """
    kinds = [
        kind
        for kind, sums in window.kinds.items()
        if sums.calls > 1 and (other := base.kinds.get(kind)) is not None and other.calls > 1
    ]
    times = [sum(one.kinds[kind].cycles for kind in kinds) for one in (window, base)]
    if times[0] < COMMON * window.cycles() or times[1] < COMMON * base.cycles():
        return None
    speeds, variance = [], 0.0
    for one in (window, base):
        terms = []
        for kind in kinds:
            sums = one.kinds[kind]
            part = window.kinds[kind].cycles / times[0] + base.kinds[kind].cycles / times[1]
            terms.append((part * kind.alone_ns * sums.units / sums.cycles, sums.variance()))
        speed = sum(term for term, _ in terms)
        variance += sum((term / speed) ** 2 * its for term, its in terms)
        speeds.append(speed * one.engines)
    return math.log(speeds[0] / speeds[1]), math.sqrt(variance)
