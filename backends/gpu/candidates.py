"""Which alternatives of a blueprint's candidates are the fastest on this device.

A blueprint may offer several lists of actions that do the same. When sizes of inputs are first
seen, the call takes the first alternatives that can be loaded here. So it is known how long a call
takes, and a later call measures if its time limit allows that: before the call itself, its plan is
run with the first alternative of all candidates, then with the second, and so on, with the inputs
of the call, each a few times if there is time, and step by step. The time of each candidates' steps
is taken, in all iterations of loops around them, which end where their words say as in a call, and
the fastest alternative of each is kept with the device, by the function's content and all that its
plan depends on. So later engines, of other processes too, do not measure it again.

Rejected: measuring in the first call. How long a run takes is not known then, and a single kernel
cannot be stopped: a call that would end just before its limit would be late.

An alternative that cannot be loaded or launched here is not chosen. What a call needs is planned
with the first alternatives, so others are only chosen if the whole plan takes no more memory than
the pool has.
"""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from dandelion.errors import DeviceFault, DeviceFull, InvalidBlueprint, InvalidFunction

from .device import Device, Handle
from .draft_records import CandidateGroup, Choices, walked
from .pacing import Pacer, StepTimes
from .plan import Plan
from .sections import Round, Section, sections_of

RUNS = 3
"""So often each alternative is run; the fastest time counts."""
LIMIT_S = 2.0
"""After so long no further alternative is tried."""
MOST_STEPS = 20_000
"""Longer plans are not measured: making their steps ready takes long, and cannot be stopped. Calls
take the first alternatives that can be loaded and launched."""

_Failure: TypeAlias = InvalidFunction | InvalidBlueprint | DeviceFault | DeviceFull


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan that can be run.

    Attributes:
        plan: with one alternative of each candidates.
        steps: prepared.
        times: of the steps.
        begin: brings the inputs to where the plan reads them; the pool is zero.
        read: reads a word at an offset of the pool, when the device has done its work.
        end: makes the pool zero.
    """

    plan: Plan
    steps: list[Handle]
    times: StepTimes
    begin: Callable[[], None]
    read: Callable[[int], int]
    end: Callable[[], None]


@dataclass(slots=True)
class _State:
    """What is known of the candidates of one plan.

    Attributes:
        choices: that calls take; None if others must be found.
        is_open: nothing was measured yet.
        is_long: its steps are too many to be measured.
        count: of the alternatives.
        run_s: the least time that a call took, once there was one.
        failed: numbers of the alternatives that could not be launched.
    """

    choices: Choices | None
    is_open: bool
    is_long: bool
    count: int
    run_s: float = math.inf
    failed: set[int] = field(default_factory=set)


class Chooser:
    """Remembers what was chosen; used by the thread of its engine.

    Args:
        device: of the engine.
        capacity: how many plans are remembered.
    """

    def __init__(self, device: Device, capacity: int = 1024) -> None:
        self._device = device
        self._capacity = capacity
        self._states: OrderedDict[str, _State] = OrderedDict()

    def choices(
        self,
        plan: Plan,
        key: str,
        attempt: Callable[[Choices], Attempt],
        check: Callable[[], None],
        left_s: float,
    ) -> Choices:
        """Choose alternatives, or remember.

        Args:
            plan: with the first alternatives.
            key: text of all that the choice depends on, beside the device.
            attempt: makes a plan ready to run.
            check: called before each part of a run; raises if the call must end.
            left_s: until the call must end.

        Raises:
            InvalidFunction, InvalidBlueprint, DeviceFault, DeviceFull: no alternative can be
                loaded.
        """
        state = self._states.get(key)
        if state is None:
            kept = _read(self._device.measurements.get(key), plan.groups)
            count = max(group.count for group in plan.groups)
            is_open = kept is None and count > 1
            state = _State(kept, is_open, len(plan.steps) > MOST_STEPS, count)
            self._states[key] = state
            if len(self._states) > self._capacity:
                self._states.popitem(last=False)
        if state.choices is None:
            state.choices = _first(self._device, plan, attempt, state.failed)
        if state.is_open and self.has_time(key, left_s):
            found = measured(self._device, plan, key, attempt, check, left_s, state.run_s)
            state.choices, state.is_open = {**state.choices, **found}, False
        return state.choices

    def is_open(self, key: str) -> bool:
        """Tell whether nothing but the order has chosen yet; a later call may measure."""
        state = self._states.get(key)
        return state is not None and state.is_open

    def has_time(self, key: str, left_s: float) -> bool:
        """Tell whether a call with so much time can measure at least two alternatives."""
        state = self._states.get(key)
        if state is None or state.is_long:
            return False
        return 2 * state.run_s <= _budget_s(left_s)

    def ran(self, key: str, took_s: float) -> None:
        """Note how long a call took."""
        state = self._states.get(key)
        if state is not None:
            state.run_s = min(state.run_s, took_s)

    def failed(self, key: str) -> bool:
        """Note that a call could not be launched.

        Returns:
            Whether later calls take other alternatives: so far nothing but the order chose.
        """
        state = self._states.get(key)
        if state is None or state.choices is None or math.isfinite(state.run_s):
            return False
        if not state.is_open:
            return False
        state.failed.add(max(state.choices.values()))
        state.choices = None
        if len(state.failed) < state.count:
            return True
        state.failed.clear()  # perhaps it was the device; the next call tries all again
        return False


def _budget_s(left_s: float) -> float:
    """Seconds that measuring may take in a call with so much time; the other half is the call's."""
    return min(LIMIT_S, left_s / 2)


def _numbered(plan: Plan, number: int) -> Choices:
    """Choose the alternative of a number, or the last one, of all candidates."""
    return {group.where: min(number, group.count - 1) for group in plan.groups}


def _first(
    device: Device, plan: Plan, attempt: Callable[[Choices], Attempt], failed: Container[int]
) -> Choices:
    """Give the first alternatives that can be loaded."""
    failure: _Failure | None = None
    for number in range(max(group.count for group in plan.groups)):
        if number in failed:
            continue
        choices = _numbered(plan, number)
        try:
            attempt(choices)
        except (InvalidFunction, InvalidBlueprint, DeviceFault, DeviceFull) as error:
            if device.fault() is not None:
                raise
            failure = failure or error
        else:
            return choices
    assert failure is not None, "not all are left out"
    raise failure


class _TooLong(Exception):
    """The time for measuring is over."""


def measured(
    device: Device,
    plan: Plan,
    key: str,
    attempt: Callable[[Choices], Attempt],
    check: Callable[[], None],
    left_s: float,
    run_s: float,
) -> Choices:
    """Measure alternatives; gives the fastest of each candidates of which one could be run.

    Args:
        device: where.
        plan: with the first alternatives.
        key: see `Chooser.choices`, as for the others.
        attempt: makes a plan ready to run.
        check: called before each part of a run; raises if the call must end.
        left_s: until the call must end.
        run_s: that a call took.
    """
    times: dict[str, dict[int, float]] = {group.where: {} for group in plan.groups}
    budget_s = _budget_s(left_s)
    began = time.monotonic()
    until = began + budget_s
    count = max(group.count for group in plan.groups)
    is_cut = False

    def check_time() -> None:
        check()
        if time.monotonic() > until:
            raise _TooLong

    for number in range(count):
        if number and time.monotonic() + run_s > until:
            is_cut = True
            break
        try:
            made = attempt(_numbered(plan, number))
            share_ends = began + budget_s * (number + 1) / count  # others are to be run, too
            run_s = _run(device, made, number, times, check_time, share_ends)
        except _TooLong:
            is_cut = True
            break
        except (InvalidFunction, InvalidBlueprint, DeviceFault, DeviceFull):
            if device.fault() is not None:
                raise
    best = {w: min(found, key=found.__getitem__) for w, found in times.items() if found}
    is_known = all(len(times[group.where]) == group.count for group in plan.groups)
    if len(best) == len(times) and (is_known or not is_cut):
        device.measurements.put(key, json.dumps(best).encode())
    return best  # else a call with more time, of another engine, may do it


def _run(
    device: Device,
    made: Attempt,
    number: int,
    times: Mapping[str, dict[int, float]],
    check: Callable[[], None],
    again_until: float,
) -> float:
    """Run a plan some times, all but once until then, and note the times of its candidates.

    Returns:
        The seconds that the last run took.
    """
    run_s = 0.0
    for count in range(RUNS):
        started = time.monotonic()
        if count and started + run_s > again_until:
            break
        check()
        try:
            made.begin()
            device.synchronize()
            took: dict[str, float] = {}
            _time(device, made, sections_of(made.plan.program), took, check)
        finally:
            made.end()
        for group in made.plan.groups:
            found = times[group.where]
            if number < group.count:
                spent = took.get(group.where, 0.0)
                found[number] = min(spent, found.get(number, spent))
        run_s = time.monotonic() - started
    return run_s


def _time(
    device: Device,
    made: Attempt,
    sections: Sequence[Section],
    took: dict[str, float],
    check: Callable[[], None],
) -> None:
    """Run sections as a call does, and add up the seconds that the steps of each group take."""
    of = {i: group.where for group in made.plan.groups for i in range(group.first, group.end)}
    for section in sections:
        if isinstance(section, Round):
            for _ in range(section.times):
                check()
                _time(device, made, section.sections, took, check)
                if section.word and not made.read(made.plan.words[section.word]):
                    break
            continue
        for where, order in groupby(walked(section), lambda index: of.get(index, "")):
            started = time.perf_counter()
            pacer = Pacer(device, made.times, check)
            for part in made.times.cut(order):
                pacer.launch(part, made.steps)
            device.synchronize()
            took[where] = took.get(where, 0.0) + time.perf_counter() - started
            pacer.finish()


def _read(kept: bytes | None, groups: Iterable[CandidateGroup]) -> Choices | None:
    """Read choices that were kept; None if they are not of these candidates."""
    if kept is None:
        return None
    found = json.loads(kept)
    counts = {group.where: group.count for group in groups}
    if not isinstance(found, dict) or found.keys() != counts.keys():
        return None
    if not all(isinstance(n, int) and 0 <= n < counts[where] for where, n in found.items()):
        return None
    return found
