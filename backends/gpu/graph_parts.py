"""Parts of a plan as they are captured: each becomes one graph.

A plan whose steps must follow each other, or gain nothing from running side by side, is cut in the
order of execution, as when it is launched step by step. Otherwise its steps are put on lanes
(`.lanes`), taken in the order in which they can begin, so that branches alternate, and cut where
the lanes together reach the time of a part. Launches that fill the device gain nothing beside each
other, so a part takes at least as long as its launches would fill the whole device.

All of a part is done before the next one begins, so waits for steps of earlier parts are left out,
and a call can be stopped between parts as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dandelion.blueprint import Access

from .forks import Forks
from .hazards import Range, Use, is_chain
from .lanes import LaneSchedule, scheduled
from .layout import aligned
from .pacing import StepTimes
from .plan import Copy, Launch, LibraryCall, Pointer, Step, Zero

LAUNCHED_NS = 8000.0
"""Launching a step by itself takes the host about as long: less says nothing of the step."""
BRIEF_NS = 1500.0
"""What a step of less is taken for, in a graph."""
_LEAST_THREADS = 64
"""A block counts as so many at least: a compute unit runs at most 32 blocks."""


@dataclass(frozen=True, slots=True)
class Width:
    """How much a device can do side by side.

    Attributes:
        lanes: how many steps of a graph.
        units: compute units.
        unit_threads: threads that one of them runs at the same time; 0 if that is not known.
    """

    lanes: int
    units: int = 1
    unit_threads: int = 0

    def share(self, step: Step) -> float:
        """Estimate what part of the device a step needs at least; 0 if that is not known."""
        if not isinstance(step, Launch) or not self.unit_threads:
            return 0.0
        (gx, gy, gz), (bx, by, bz) = step.grid, step.block
        together = self.unit_threads // max(bx * by * bz, _LEAST_THREADS)
        return min(gx * gy * gz / (self.units * max(together, 1)), 1.0)


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Steps that are captured as one graph.

    Attributes:
        steps: indices of the plan's steps, in an order in which they could be launched.
        forks: which of them run side by side; None if none do.
        speedup: how much less time that is expected to take than one step after the other.
    """

    steps: Sequence[int]
    forks: Forks | None = None
    speedup: float = field(default=1.0, compare=False)


def graph_parts(
    steps: Sequence[Step], order: Sequence[int], times: StepTimes, width: Width, brief: bool
) -> list[GraphPart]:
    """Cut a plan into the parts that become graphs.

    Args:
        steps: of the plan.
        order: indices of steps in the order of execution, loops unrolled.
        times: how long each step takes.
        width: of the device.
        brief: make one part of all.
    """
    shares = [width.share(step) for step in steps] if width.lanes > 1 else []
    schedule = _worthwhile(steps, order, times, shares, width.lanes) if shares else None
    if schedule is None:
        return [GraphPart(part) for part in ([order] if brief else times.cut(order))]
    first = sorted(range(len(order)), key=schedule.starts.__getitem__)
    part_ns = math.inf if brief else times.part_ns
    return _cut(first, order, schedule, times, shares, part_ns)


def _worthwhile(
    steps: Sequence[Step],
    order: Sequence[int],
    times: StepTimes,
    shares: Sequence[float],
    lanes: int,
) -> LaneSchedule | None:
    """Put a plan on lanes; None if that is not worth it."""
    uses = [use_of(step) for step in steps]
    if is_chain(uses, order):
        return None
    takes = [_graph_ns(times.expected_ns(index)) for index in range(len(steps))]
    made = scheduled((uses[i] for i in order), (takes[i] for i in order), lanes)
    return made if made.pays(sum(takes[i] * shares[i] for i in order)) else None


def _graph_ns(launched_ns: float) -> float:
    """Estimate how long a step takes in a graph."""
    return launched_ns if launched_ns > LAUNCHED_NS else BRIEF_NS


def _cut(
    first: Sequence[int],
    order: Sequence[int],
    schedule: LaneSchedule,
    times: StepTimes,
    shares: Sequence[float],
    part_ns: float,
) -> list[GraphPart]:
    """Cut places of the order, given in the order in which they can begin."""
    made: list[GraphPart] = []
    part: list[int] = []
    ends: dict[int, float] = {}  # of the steps of the part
    lanes: dict[int, float] = {}  # when each lane is free
    filled_ns = 0.0  # how long its steps fill the device together

    def close() -> None:
        serial_ns = sum(times.expected_ns(order[place]) for place in part)
        made.append(_part(part, order, schedule, serial_ns / max(filled_ns, *ends.values())))

    for place in first:
        lane, ns = schedule.lane[place], times.expected_ns(order[place])
        waits = (ends.get(wait, 0.0) for wait in schedule.waits[place])
        end = max(lanes.get(lane, 0.0), *waits, 0.0) + ns
        filling_ns = ns * shares[order[place]]
        if part and max(end, filled_ns + filling_ns) > part_ns:
            close()
            part, ends, lanes, end, filled_ns = [], {}, {}, ns, 0.0
        part.append(place)
        filled_ns += filling_ns
        ends[place] = lanes[lane] = end
    if part:
        close()
    return made


def _part(
    places: Sequence[int], order: Sequence[int], schedule: LaneSchedule, speedup: float
) -> GraphPart:
    """Make a part of places of the order; the first lane that it uses becomes lane 0."""
    steps = [order[place] for place in places]
    lanes: dict[int, int] = {}
    inside: dict[int, int] = {}
    lane_of: list[int] = []
    waits: list[tuple[int, ...]] = []
    for number, place in enumerate(places):
        inside[place] = number
        lane_of.append(lanes.setdefault(schedule.lane[place], len(lanes)))
        waits.append(tuple(inside[w] for w in schedule.waits[place] if w in inside))
    if len(lanes) == 1:
        return GraphPart(steps)
    return GraphPart(steps, Forks(tuple(lane_of), tuple(waits)), speedup)


def use_of(step: Step) -> Use:
    """Find what a step does with the pool."""
    if isinstance(step, Zero):
        return Use((), (_range(step.offset_bytes, step.size_bytes),))
    if isinstance(step, Copy):
        target, source = step.target, step.source
        read = () if source.constant else (_range(source.offset_bytes, source.size_bytes),)
        return Use(read, (_range(target.offset_bytes, target.size_bytes),))
    if isinstance(step, LibraryCall):
        return _use_of_library(step)
    reads: list[Range] = []
    writes: list[Range] = []
    known = len(step.access)
    for index, argument in enumerate(step.args):
        if isinstance(argument, Pointer) and not argument.constant:
            way = step.access[index] if index < known else Access.BOTH
            used = reads if way is Access.READ else writes
            used.append(_range(argument.offset_bytes, argument.size_bytes))
    return Use(tuple(reads), tuple(writes))


def _use_of_library(step: LibraryCall) -> Use:
    found = {name: _range(p.offset_bytes, p.size_bytes) for name, p in step.operands.items()}
    reads = (found[n] for n, p in step.operands.items() if n != "out" and not p.constant)
    writes = [found["out"]]
    if step.workspace is not None:
        writes.append(_range(step.workspace.offset_bytes, step.workspace.size_bytes))
    return Use(tuple(reads), tuple(writes))


def _range(offset_bytes: int, size_bytes: int) -> Range:
    return offset_bytes, offset_bytes + aligned(size_bytes)
