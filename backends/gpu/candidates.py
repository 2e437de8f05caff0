"""Which alternatives of a blueprint's candidates are the fastest on this device.

A blueprint may offer several lists of actions that do the same. When sizes of inputs are first
seen, before the call itself, its plan is run with the first alternative of all candidates, then
with the second, and so on, with the inputs of the call, each a few times and step by step. The time
of each candidates' steps is taken, in all iterations of loops around them, which end where their
words say as in a call, and the fastest
alternative of each is kept with the device, by the function's content and all that its plan depends
on. So later engines, of other processes too, do not measure it again.

An alternative that cannot be loaded or launched here is not chosen; if that is so for the first
one, another one is the default. What a call needs is planned with the first alternatives, so others
are only chosen if the whole plan takes no more memory than the pool has.
"""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

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
"""Longer plans are not measured."""


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


class Chooser:
    """Remembers what was chosen; used by the thread of its engine.

    Args:
        device: of the engine.
        capacity: how many calls are remembered.
    """

    def __init__(self, device: Device, capacity: int = 1024) -> None:
        self._device = device
        self._capacity = capacity
        self._chosen: OrderedDict[str, Choices] = OrderedDict()

    def choices(
        self,
        plan: Plan,
        key: str,
        attempt: Callable[[Choices], Attempt],
        check: Callable[[], None],
        left_s: float,
    ) -> Choices:
        """Choose alternatives, or remember; see `measured`."""
        found = self._chosen.get(key)
        if found is None:
            found = measured(self._device, plan, key, attempt, check, left_s)
            self._chosen[key] = found
            if len(self._chosen) > self._capacity:
                self._chosen.popitem(last=False)
        return found


def measured(
    device: Device,
    plan: Plan,
    key: str,
    attempt: Callable[[Choices], Attempt],
    check: Callable[[], None],
    left_s: float = math.inf,
) -> Choices:
    """Choose alternatives.

    Args:
        device: where.
        plan: with the first alternatives.
        key: text of all that the choice depends on, beside the device.
        attempt: makes a plan ready to run.
        check: called before each part of a run; raises if the call must end.
        left_s: until the call must end; at most half of it is taken, if one run is shorter.

    Raises:
        InvalidFunction, InvalidBlueprint: no alternative can be loaded.
    """
    kept = _read(device.measurements.get(key), plan.groups)
    if kept is not None:
        return kept
    times: dict[str, dict[int, float]] = {group.where: {} for group in plan.groups}
    failure: InvalidFunction | InvalidBlueprint | DeviceFault | DeviceFull | None = None
    until = time.monotonic() + min(LIMIT_S, left_s / 2)
    run_s, is_cut = 0.0, False
    default: dict[str, int] = {}
    most = max(group.count for group in plan.groups)
    for number in range(most):
        if default and (plan.launches > MOST_STEPS or time.monotonic() + run_s > until):
            is_cut = True
            break
        choices = {g.where: min(number, g.count - 1) for g in plan.groups}
        try:
            made = attempt(choices)
            default = default or choices
            if plan.launches <= MOST_STEPS and most > 1:
                run_s = _run(device, made, number, times, check, until)
        except (InvalidFunction, InvalidBlueprint, DeviceFault, DeviceFull) as error:
            if device.fault() is not None:
                raise
            failure = failure or error
    if not default:
        assert failure is not None, "nothing was tried"
        raise failure
    best = {w: min(found, key=found.__getitem__) for w, found in times.items() if found}
    chosen = {**default, **best}
    if not is_cut or left_s / 2 >= LIMIT_S:  # else a call with more time may do it
        device.measurements.put(key, json.dumps(chosen).encode())
    return chosen


def _run(
    device: Device,
    made: Attempt,
    number: int,
    times: Mapping[str, dict[int, float]],
    check: Callable[[], None],
    until: float,
) -> float:
    """Run a plan some times, and note the times of its candidates.

    Returns:
        The seconds that the last run took.
    """
    run_s = 0.0
    for count in range(RUNS):
        started = time.monotonic()
        if count and started + run_s > until:
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
