"""Which steps of a plan must wait for which others, derived from the memory that they use.

A step uses ranges of the pool. It must wait for

- the last step that wrote what it reads,
- all steps that read what it writes, since that was written last,
- the last step that wrote what it writes, if no step read it since.

Ranges are those of the layout, not names of buffers: two buffers that share memory, and a step that
zeroes memory amid a call, conflict like two uses of one buffer. A parameter without declared access
is read and written. Constants that stay on the device are read-only, the device enforces that, so
they are not looked at.

`MemoryHazards` keeps for each range the last writer and, for each lane, the last reader (see
`.lanes`). A write joins the ranges below it to one, so a step costs O(log n) for each argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""The first byte of the pool, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a step does with the pool.

    Attributes:
        reads: ranges that are only read.
        writes: ranges that are written, and perhaps read.
    """

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]

    def conflicts(self, later: Use) -> bool:
        """Tell whether `later` must wait for this one."""
        for written in self.writes:  # most often it is the same range
            if written in later.reads or written in later.writes:
                return True
        return _overlap(self.writes, later.reads + later.writes) or _overlap(
            self.reads, later.writes
        )


def _overlap(some: Iterable[Range], others: Sequence[Range]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def is_chain(uses: Sequence[Use], order: Iterable[int]) -> bool:
    """Tell whether each step must wait for the one before it.

    Args:
        uses: of each step of a plan.
        order: indices of steps in the order of execution, loops unrolled.
    """
    seen: set[tuple[int, int]] = set()
    for pair in pairwise(order):
        if pair not in seen:
            if not uses[pair[0]].conflicts(uses[pair[1]]):
                return False
            seen.add(pair)
    return True


@dataclass(slots=True)
class _State:
    """What was done last with a range."""

    writer: int = -1
    readers: dict[int, int] = field(default_factory=dict)  # by lane, since the writer


def _read_after_write(state: _State) -> Collection[int]:
    return () if state.writer < 0 else (state.writer,)


def _write_after_read(state: _State) -> Collection[int]:
    return state.readers.values()


def _write_after_write(state: _State) -> Collection[int]:
    return () if state.writer < 0 or state.readers else (state.writer,)


class MemoryHazards:
    """The last uses of each range, while the steps are looked at in the order of execution."""

    def __init__(self) -> None:
        self._starts = [0]
        self._states = [_State()]

    def find(self, use: Use) -> set[int]:
        """Find the steps that a next one must wait for; others are implied by these."""
        waits: set[int] = set()
        for wanted in use.reads:
            for state in self._states_of(wanted):
                waits.update(_read_after_write(state))
        for wanted in use.writes:
            for state in self._states_of(wanted):
                waits.update(_write_after_read(state))
                waits.update(_write_after_write(state))
        return waits

    def record(self, use: Use, step: int, lane: int) -> None:
        """Note that a step does this; steps of a lane run in the order in which they are noted."""
        for wanted in use.reads:
            for state in self._states_of(wanted):
                state.readers[lane] = step
        for wanted in use.writes:
            first, behind = self._places(wanted)
            self._starts[first:behind] = [wanted[0]]
            self._states[first:behind] = [_State(step)]

    def _states_of(self, wanted: Range) -> Iterator[_State]:
        first, behind = self._places(wanted)
        return iter(self._states[first:behind])

    def _places(self, wanted: Range) -> tuple[int, int]:
        """Find the ranges within a range, after splitting those that are only partly inside."""
        return self._split(wanted[0]), self._split(wanted[1])

    def _split(self, at: int) -> int:
        """Give the place of the range that begins here."""
        place = bisect_right(self._starts, at) - 1
        if self._starts[place] == at:
            return place
        old = self._states[place]
        self._starts.insert(place + 1, at)
        self._states.insert(place + 1, _State(old.writer, dict(old.readers)))
        return place + 1
