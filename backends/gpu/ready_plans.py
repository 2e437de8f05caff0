"""A plan that is ready to run on a device, and how its calls run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dandelion.function import Digest

from .constants import ResidentConstants
from .device import Device, Handle
from .graph_parts import GraphPart
from .graph_trials import GraphTrial
from .open_arguments import Values
from .pacing import BRIEF_PARTS, StepTimes
from .plan import Plan
from .sections import ReadyRound, straight

_TOLERATED = 3
"""So many calls in a row must show that the parts have the wrong size before they are cut anew."""
_TOLERATED_MOST = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A part that is captured as one graph.

    Attributes:
        part: which.
        graph: on the device.
        changing: places of the part whose launches have open arguments, and these launches.
    """

    part: GraphPart
    graph: Handle
    changing: Sequence[tuple[int, Handle]] = ()


@dataclass(slots=True, eq=False)
class Ready:
    """A plan on a device.

    Attributes:
        plan: which.
        identity: of its function.
        alike: how many bits its open arguments have.
        resident: constants that its launches point to.
        steps: prepared, by the indices of the plan.
        modules: digests of the modules in use.
        order: prepared steps in the order of execution, if they are not too many.
        times: how long each step takes.
        open_steps: the launches with open arguments; for each of these its position, and its index
            in `Plan.open_arguments`.
        values: that the open arguments have in its launches and graphs; None after a failure.
        own: modules that are loaded for this call alone.
        restored: modules whose variables are restored.
        brief: its calls are short: they are not cut into parts.
        segments: what was captured.
        graph: of all steps, if it is brief and was captured, and the next call is to use it.
        trial: finds out whether it is faster without.
        capture_due: it is to be captured, or anew, before its next call.
        captures: it may be.
        dropped: it cannot run any more.
        sections: of a plan with loops that look at a word, which are what runs then.
    """

    plan: Plan
    identity: str
    resident: ResidentConstants | None
    steps: list[Handle]
    modules: frozenset[Digest]
    order: list[Handle] | None
    times: StepTimes
    alike: tuple[int, ...] = ()
    open_steps: Sequence[tuple[Handle, Sequence[tuple[int, int]]]] = ()
    values: Values | None = ()
    own: list[Handle] = field(default_factory=list)
    restored: tuple[Handle, ...] = ()
    brief: bool = False
    segments: tuple[Segment, ...] = ()
    graph: Handle | None = None
    trial: GraphTrial | None = None
    capture_due: bool = False
    captures: bool = True
    dropped: bool = False
    sections: tuple[Ready | ReadyRound, ...] = ()
    _measured: bool = False
    _misfits: int = 0
    _tolerated: int = _TOLERATED

    @property
    def key(self) -> tuple[Plan, tuple[int, ...]]:
        """By which it is found."""
        return self.plan, self.alike

    @property
    def launches(self) -> int:
        """How many it has prepared and listed."""
        return max(len(self.steps), len(self.order or ()))

    def took_long(self) -> None:
        """A call that was brief was not; the next one is measured."""
        if self.plan.launches > 1:
            self.brief = False
            self.graph = self.trial = None

    def took(self, took_ns: int) -> None:
        """Note how long a call took, while it is tried whether its graph is faster."""
        if self.trial is not None:
            self.graph = self.trial.next(self.graph, took_ns)
            if self.trial.is_over:
                self.trial = None
                self.captures = self.graph is not None

    def ran(self, took_ns: Sequence[int]) -> None:
        """Decide from how long each part of a call took how the next calls run."""
        total_ns, brief_ns = sum(took_ns), BRIEF_PARTS * self.times.part_ns
        short = total_ns <= brief_ns or self.plan.launches == 1
        if not self.segments:
            self.brief = short and self.order is not None
            self.capture_due = not self._measured
            self._measured = True
            return
        self.brief = short and len(self.segments) == 1
        self.graph = self.segments[0].graph if self.brief else None
        self.trial = None
        count = len(self.segments)
        too_small = count > 1 and (short or total_ns < count * self.times.part_ns / 3)
        too_large = any(
            took > brief_ns and len(segment.part.steps) > 1
            for took, segment in zip(took_ns, self.segments, strict=True)
        )
        self._misfits = self._misfits + 1 if too_small or too_large else 0
        if self._misfits >= self._tolerated:
            self._misfits = 0
            self._tolerated = min(2 * self._tolerated, _TOLERATED_MOST)
            self.capture_due = True
            self.brief = short

    def set_values(self, device: Device, values: Values) -> None:
        """Give open arguments the values of a call, in its launches and graphs.

        Raises:
            DeviceFault: the device refuses; all of them are set for the next call.
        """
        before, self.values = self.values, None
        new = [before is None or before[i] != value for i, value in enumerate(values)]
        changed: set[Handle] = set()
        for prepared, open_args in self.open_steps:
            for position, index in open_args:
                if new[index]:
                    device.set_argument(prepared, position, values[index])
                    changed.add(prepared)
        for ready in (self, *straight(self.sections)):
            for segment in ready.segments:
                found = [launch for launch in segment.changing if launch[1] in changed]
                if found:
                    device.update(segment.graph, found)
        self.values = values
