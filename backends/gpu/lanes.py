"""Lanes: which steps of a graph run one after the other, and which side by side.

A lane is a chain of steps, like a stream. A step waits for the step before it in its lane and for
steps of other lanes. `LaneSchedule` takes the steps in the order of execution and puts each where
it could begin first, by the times that the steps take (list scheduling). A wait that follows from
others is left out. For this each step has a clock: for each lane, the last step that is certainly
done when this one is done. So whether one step comes before another is one comparison, and a
schedule of n steps costs O(n log n): the lanes are few.

A wait between two lanes takes longer than one within a lane, so a schedule is only used if it pays
(`pays`). Otherwise the steps stay the chain that they are in the order of execution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .hazards import MemoryHazards, Use

CROSSING_NS = 2000.0
"""How much longer a step waits for one of another lane; an estimate for graphs of current GPUs."""
LEAST_GAIN = 0.1
"""By what part of its time a graph must become shorter to be worth lanes."""


class LaneSchedule:
    """Steps on lanes; steps are numbered in the order in which they are added.

    Args:
        lanes: how many there are.

    Attributes:
        lane: of each step.
        waits: for each step, the steps of other lanes that it waits for.
        starts: when each step could begin, in nanoseconds.
        serial_ns: the time of all steps one after the other.
    """

    def __init__(self, lanes: int) -> None:
        self.lane: list[int] = []
        self.waits: list[tuple[int, ...]] = []
        self.starts: list[float] = []
        self.serial_ns = 0.0
        self._ends: list[float] = []
        self._last = [-1] * lanes  # step of each lane
        self._clocks: list[tuple[int, ...]] = []
        self._nothing = (-1,) * lanes

    def add(self, waits: Collection[int], takes_ns: float) -> int:
        """Add a step.

        Args:
            waits: the steps that it must wait for.
            takes_ns: how long it takes, more than 0.

        Returns:
            Its lane.
        """
        if len(waits) == 1:
            (wait,) = waits
            lane = self.lane[wait]
            if self._last[lane] == wait:
                return self._put(lane, self._ends[wait], (), self._clocks[wait], takes_ns)
        kept, clock = self._reduced(waits)
        start, _, lane = min(self._candidates(kept, clock))
        before = self._clock_of(self._last[lane])
        crossing = tuple(wait for wait in kept if before[self.lane[wait]] < wait)
        return self._put(lane, start, crossing, tuple(map(max, before, clock)), takes_ns)

    def _put(
        self, lane: int, start: float, waits: tuple[int, ...], clock: tuple[int, ...], ns: float
    ) -> int:
        step = len(self.lane)
        self.lane.append(lane)
        self.waits.append(waits)
        self.starts.append(start)
        self._ends.append(start + ns)
        self._last[lane] = step
        self._clocks.append((*clock[:lane], step, *clock[lane + 1 :]))
        self.serial_ns += ns
        return lane

    def _reduced(self, waits: Iterable[int]) -> tuple[list[int], tuple[int, ...]]:
        """Leave out steps that others of them wait for; also give the clock of the rest."""
        kept: list[int] = []
        clock = self._nothing
        for wait in sorted(waits, reverse=True):
            if clock[self.lane[wait]] < wait:
                kept.append(wait)
                clock = tuple(map(max, clock, self._clocks[wait]))
        return kept, clock

    def _candidates(
        self, kept: list[int], clock: tuple[int, ...]
    ) -> Iterable[tuple[float, bool, int]]:
        """Give for each lane when the step could begin, and whether it would wait needlessly."""
        for lane, last in enumerate(self._last):
            start = self._ends[last] if last >= 0 else 0.0
            for wait in kept:
                crossing = 0.0 if self.lane[wait] == lane else CROSSING_NS
                start = max(start, self._ends[wait] + crossing)
            yield start, last > clock[lane], lane
            if last < 0:
                return  # further lanes are as empty

    def _clock_of(self, step: int) -> tuple[int, ...]:
        return self._clocks[step] if step >= 0 else self._nothing

    def is_before(self, step: int, later: int) -> bool:
        """Tell whether a step is certainly done when a later one begins."""
        return step != later and self._clocks[later][self.lane[step]] >= step

    @property
    def width(self) -> int:
        """How many lanes are in use."""
        return len(self._last) - self._last.count(-1)

    @property
    def span_ns(self) -> float:
        """The time from the first step's begin to the end of all."""
        return max(self._ends, default=0.0)

    def pays(self, least_ns: float = 0.0) -> bool:
        """Tell whether it takes so much less time than the steps in order that it counts.

        Args:
            least_ns: what it takes even if no step waits for another one.
        """
        return max(self.span_ns, least_ns) <= (1 - LEAST_GAIN) * self.serial_ns


def scheduled(uses: Iterable[Use], takes_ns: Iterable[float], lanes: int) -> LaneSchedule:
    """Put steps on lanes, given what each uses and how long it takes, in the order of execution."""
    hazards = MemoryHazards()
    made = LaneSchedule(lanes)
    for step, (use, ns) in enumerate(zip(uses, takes_ns, strict=True)):
        hazards.record(use, step, made.add(hazards.find(use), ns))
    return made
