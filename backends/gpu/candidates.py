"""Which alternatives of a blueprint's candidates are the fastest on this device.

A blueprint may offer several lists of actions that do the same. When sizes of inputs are first
seen, before the call itself, its plan is run with the first alternative of all candidates, then
with the second, and so on, with the inputs of the call, each a few times and step by step. The time
of each candidates' steps is taken, in all iterations of loops around them, and the fastest
alternative of each is kept with the device, by the function's content and all that its plan depends
on. So later engines, of other processes too, do not measure it again.

An alternative that cannot be loaded or launched here is not chosen; if that is so for the first
one, another one is the default. What a call needs is planned with the first alternatives, so others
are only chosen if the whole plan takes no more memory than the pool has.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dandelion.errors import DeviceFault, DeviceFull, InvalidBlueprint, InvalidFunction

from .device import Device, Handle
from .drafts import CandidateGroup, Choices
from .plan import Plan

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
        begin: brings the inputs to where the plan reads them; the pool is zero.
        end: makes the pool zero.
    """

    plan: Plan
    steps: list[Handle]
    begin: Callable[[], None]
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
    ) -> Choices:
        """Choose alternatives, or remember; see `measured`."""
        found = self._chosen.get(key)
        if found is None:
            found = measured(self._device, plan, key, attempt, check)
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
) -> Choices:
    """Choose alternatives.

    Args:
        device: where.
        plan: with the first alternatives.
        key: text of all that the choice depends on, beside the device.
        attempt: makes a plan ready to run.
        check: called before each run; raises if the call must end.

    Raises:
        InvalidFunction, InvalidBlueprint: no alternative can be loaded.
    """
    kept = _read(device.measurements.get(key), plan.groups)
    if kept is not None:
        return kept
    times: dict[str, dict[int, float]] = {group.where: {} for group in plan.groups}
    failure: InvalidFunction | InvalidBlueprint | DeviceFault | DeviceFull | None = None
    began = time.monotonic()
    default: dict[str, int] = {}
    most = max(group.count for group in plan.groups)
    for number in range(most):
        if default and (plan.launches > MOST_STEPS or time.monotonic() - began > LIMIT_S):
            break
        choices = {g.where: min(number, g.count - 1) for g in plan.groups}
        try:
            made = attempt(choices)
            default = default or choices
            if plan.launches <= MOST_STEPS and most > 1:
                _run(device, made, number, times, check)
        except (InvalidFunction, InvalidBlueprint, DeviceFault, DeviceFull) as error:
            if device.fault() is not None:
                raise
            failure = failure or error
    if not default:
        assert failure is not None, "nothing was tried"
        raise failure
    best = {w: min(found, key=found.__getitem__) for w, found in times.items() if found}
    chosen = {**default, **best}
    device.measurements.put(key, json.dumps(chosen).encode())
    return chosen


def _run(
    device: Device,
    made: Attempt,
    number: int,
    times: Mapping[str, dict[int, float]],
    check: Callable[[], None],
) -> None:
    """Run a plan some times, and note the times of its candidates."""
    for _ in range(RUNS):
        check()
        try:
            made.begin()
            took = _timed(device, made.plan.groups, made.plan.walk(), made.steps)
        finally:
            made.end()
        for group in made.plan.groups:
            found = times[group.where]
            if number < group.count:
                found[number] = min(took[group.where], found.get(number, took[group.where]))


def _timed(
    device: Device, groups: Iterable[CandidateGroup], order: Iterable[int], steps: list[Handle]
) -> dict[str, float]:
    """Launch all steps, and give the seconds that the steps of each group took."""
    of = {index: group.where for group in groups for index in range(group.first, group.end)}
    took = dict.fromkeys((group.where for group in groups), 0.0)
    inside, started = "", 0.0
    for index in (*order, -1):
        now = of.get(index, "")
        if now != inside:
            device.synchronize()
            ended = time.perf_counter()
            if inside:
                took[inside] += ended - started
            inside, started = now, time.perf_counter()
        if index >= 0:
            device.launch([steps[index]])
    device.synchronize()
    return took


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
