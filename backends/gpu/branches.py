"""Memory for branches: buffers of launches that could run side by side do not share it.

In the order of execution two branches live one after the other, so their buffers would share
memory. Then one branch could only begin when the other is done. Here the buffers of a plan are
placed again so that only those share memory whose uses are ordered by the data anyway.

This may take more memory, and is done only where that is cheap and can help:

- the device can run launches of a graph side by side, and some launches of the plan could;
- on lanes they take a tenth less time than in order, each launch counted alike;
- the engine's pool has room without growing, and the plan takes at most twice its memory or
  `EXTRA_BYTES` more: so much is zeroed in some 15 us on a current GPU, after the outputs were
  handed over.

With less room fewer lanes are tried, in the end none. The demand that the scheduler sees is always
that of the order of execution: a plan that fits an engine in order is never refused by this.

Correctness does not depend on it. Only buffers that may share memory in order share it here, and
`.graph_parts` derives what must wait for what from the ranges of the final layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from dandelion.blueprint import Access

from .hazards import Range, Use
from .lanes import LaneSchedule, scheduled
from .layout import Lifetime, Slot, place, used_bytes

EXTRA_BYTES = 64 << 20
"""So much more memory a plan may take, even if that is more than twice what it needs."""
_LAUNCH_NS = 10_000.0
"""What each launch is taken to last: nothing is known of it yet."""

Slots: TypeAlias = dict[str, Slot]


@dataclass(frozen=True, slots=True)
class BranchLaunch:
    """A launch of a plan.

    Attributes:
        access: what it does with each buffer; constants on the device are left out.
        count: how often it runs, loops unrolled.
    """

    access: Mapping[str, Access]
    count: int


def set_apart(
    launches: Sequence[BranchLaunch],
    lifetimes: Mapping[str, Lifetime],
    slots: Slots,
    lanes: int,
    room_bytes: int | None,
) -> Slots:
    """Place the buffers of a plan so that its branches can run side by side.

    Args:
        launches: in the order of execution, each once.
        lifetimes: of the buffers, by name.
        slots: where they lie otherwise; some share memory.
        lanes: how many launches can run side by side.
        room_bytes: size of the pool.

    Returns:
        The slots; those that were given, if that is not worth it.
    """
    accesses = [launch.access for launch in launches]
    if _is_chain(accesses):
        return slots
    uses = _uses(accesses)
    needed = used_bytes(slots)
    room = needed + max(needed, EXTRA_BYTES)
    if room_bytes is not None:
        room = min(room, room_bytes)
    while lanes > 1:
        schedule = scheduled(uses, (launch.count * _LAUNCH_NS for launch in launches), lanes)
        if not schedule.pays():
            break
        found, _ = place(lifetimes, False, _Order(schedule, accesses).is_ordered)
        if used_bytes(found) <= room:
            return found
        lanes = (schedule.width + 1) // 2
    return slots


def _is_chain(accesses: Sequence[Mapping[str, Access]]) -> bool:
    """Tell whether each launch must wait for the one before it."""
    for earlier, later in pairwise(accesses):
        for name, way in later.items():
            before = earlier.get(name)
            if before is not None and not (way is before is Access.READ):
                break
        else:
            return False
    return True


def _uses(accesses: Sequence[Mapping[str, Access]]) -> list[Use]:
    """Give uses as if each buffer had memory of its own, one byte of it."""
    numbers: dict[str, int] = {}
    uses = []
    for access in accesses:
        reads: list[Range] = []
        writes: list[Range] = []
        for name, way in access.items():
            number = numbers.setdefault(name, len(numbers))
            used = reads if way is Access.READ else writes
            used.append((number, number + 1))
        uses.append(Use(tuple(reads), tuple(writes)))
    return uses


class _Order:
    """Returns which buffers are used one after the other on the lanes of a schedule."""

    def __init__(self, schedule: LaneSchedule, accesses: Sequence[Mapping[str, Access]]) -> None:
        self._schedule = schedule
        self._firsts: dict[str, dict[int, int]] = {}  # uses on each lane
        self._lasts: dict[str, dict[int, int]] = {}
        for launch, access in enumerate(accesses):
            lane = schedule.lane[launch]
            for name in access:
                self._firsts.setdefault(name, {}).setdefault(lane, launch)
                self._lasts.setdefault(name, {})[lane] = launch

    def is_ordered(self, a: str, b: str) -> bool:
        """Tell whether all uses of one buffer come before those of the other."""
        return self._is_before(a, b) or self._is_before(b, a)

    def _is_before(self, a: str, b: str) -> bool:
        is_before = self._schedule.is_before
        firsts = self._firsts.get(b, {}).values()
        for last in self._lasts.get(a, {}).values():
            for first in firsts:
                if not is_before(last, first):
                    return False
        return True
