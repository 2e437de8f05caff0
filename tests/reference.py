"""A naive interpreter of compositions, written from the rules of docs/language.md.

It shares nothing with the dispatcher but the records: sets are lists of (name, key, data), an
absent set is the empty list, and every rule is spelled out the slow way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dandelion.dataflow.graph import (
    Application,
    Composition,
    Sharding,
    Strategy,
    application_ids,
)

Triple = tuple[str, int, bytes]
Set = list[Triple]
Path = tuple[int, ...]
"""Attempts of the instances that something runs in, from the outside to the inside."""
Pure = Callable[[str, list[Set], Path], list[Set]]
"""Runs a function by name: input sets by position to output sets by position. May raise `Failed`.
"""
ErrorItem = Callable[[str, str, int, int, Set, Set], Triple]
"""Makes an item of an errors set: of kind, application, instance, attempts, and the item or items
that the instance was made for: of `each`, else of `keyed`."""
Signatures = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
Value = dict[str, Set]
"""The sets of one instance for some parameters."""


class Failed(Exception):
    """An instance failed with an error of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class TooBig(Exception):
    """A random composition makes more instances than a test has time for."""


@dataclass
class Partitions:
    """How many partitions `any` shardings get: ``max``, ``fixed`` or ``auto``, with N or cores."""

    mode: str = "max"
    number: int = 1
    minima: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass
class Group:
    """Parameters that are sharded together, with all values that they may have."""

    parameters: list[str]
    values: list[Value]
    is_any: bool


@dataclass
class Frame:
    """What an application needs of the run of its composition; `made` counts its instances."""

    name: str
    path: Path
    origin: tuple[Set, Set]
    made: int = 0
    errors: Set = field(default_factory=list)


def size(items: Set) -> int:
    """Bytes of a set."""
    return sum(len(data) for _, _, data in items)


class Interpreter:
    """Runs compositions.

    Args:
        run: the functions.
        signatures: input and output names of every function and composition.
        compositions: the compositions that others use, by name.
        budget: instances after which `TooBig` is raised.
        partitions: of `any` shardings.
        error_item: makes the items of errors sets.
        families: for the name of a kind of error, the kinds that it stands for.
        transient: kinds that are tried again if an application does not say which.
    """

    def __init__(
        self,
        run: Pure,
        signatures: Signatures,
        compositions: Mapping[str, Composition],
        budget: int = 1 << 60,
        partitions: Partitions | None = None,
        error_item: ErrorItem | None = None,
        families: Mapping[str, frozenset[str]] | None = None,
        transient: frozenset[str] = frozenset(),
    ) -> None:
        self.run = run
        self.signatures = signatures
        self.compositions = compositions
        self.budget = budget
        self.partitions = partitions or Partitions()
        self.error_item = error_item
        self.families = families or {}
        self.transient = transient
        self.caught = self.retried = 0

    def invoke(
        self,
        composition: Composition,
        inputs: Mapping[str, Set],
        path: Path = (),
        origin: tuple[Set, Set] = ([], []),
    ) -> dict[str, Set]:
        """Return all output sets of a composition.

        Raises:
            Failed: an instance failed, and no application catches it.
        """
        names = application_ids(composition)
        ids = {id(a): name for a, name in zip(composition.applications, names, strict=True)}
        known: dict[str, Set] = {name: list(inputs[name]) for name in composition.inputs}
        waiting = list(composition.applications)
        while waiting:
            ready = [a for a in waiting if all(b.source in known for b in a.bindings)]
            assert ready, "a valid composition has no cycles"
            for application in ready:
                waiting.remove(application)
                frame = Frame(ids[id(application)], path, origin)
                outputs = self.apply(application, known, frame)
                for returned in application.returns:
                    known[returned.target] = outputs[returned.output]
                if application.catch is not None:
                    known[application.catch.target] = sorted(frame.errors, key=lambda t: t[1])
        return {name: known[name] for name in composition.outputs}

    def apply(
        self, application: Application, known: Mapping[str, Set], frame: Frame
    ) -> dict[str, Set]:
        """Return the outputs of one application, after all its iterations."""
        bound = {b.parameter: known[b.source] for b in application.bindings}
        repeat = application.repeat
        if repeat is None:
            return self.iterate(application, bound, frame)
        for _ in range(repeat.times):
            outputs = self.iterate(application, bound, frame)
            if repeat.until is not None and not outputs[repeat.until]:
                break
            if self.is_skipped(application, bound):
                break
            bound |= {feed.parameter: outputs[feed.output] for feed in repeat.feedback}
        return outputs

    def is_skipped(self, application: Application, bound: Mapping[str, Set]) -> bool:
        """A set is empty that is not optional."""
        return any(not b.optional and not bound[b.parameter] for b in application.bindings)

    def iterate(
        self, application: Application, bound: Mapping[str, Set], frame: Frame
    ) -> dict[str, Set]:
        """Return the merged outputs of one application that is run once."""
        parameters, returns = self.signatures[application.function]
        merged: dict[str, Set] = {name: [] for name in returns}
        self.budget -= 1
        if self.is_skipped(application, bound):
            return merged
        instances = self.instances(application, parameters, bound)
        self.budget -= len(instances)
        if self.budget < 0:
            raise TooBig
        for instance in instances:
            outputs = self.attempt(application, instance, frame)
            frame.made += 1
            for name, items in zip(returns, outputs, strict=True):
                merged[name] += items
        return {name: sorted(items, key=lambda t: t[1]) for name, items in merged.items()}

    def attempt(self, application: Application, instance: Value, frame: Frame) -> list[Set]:
        """Return the outputs of one instance, after all its attempts."""
        attempts, catch = application.attempts, application.catch
        most = 1 if attempts is None else attempts.times
        origin = self.origin(application, instance, frame)
        for attempt in range(1, most + 1):
            try:
                return self.run_once(application, instance, (*frame.path, attempt), origin)
            except Failed as failed:
                if attempt < most and self.tries_again(application, failed.kind):
                    self.retried += 1
                    continue
                if catch is None or not self.is_named(failed.kind, catch.kinds):
                    raise
                assert self.error_item is not None
                self.caught += 1
                frame.errors.append(
                    self.error_item(failed.kind, frame.name, frame.made, attempt, *origin)
                )
                return [[] for _ in self.signatures[application.function][1]]
        raise AssertionError("the last attempt returns or raises")

    def run_once(
        self, application: Application, instance: Value, path: Path, origin: tuple[Set, Set]
    ) -> list[Set]:
        """Run an instance of a function or a composition."""
        self.budget -= 1
        if self.budget < 0:
            raise TooBig
        parameters, returns = self.signatures[application.function]
        sets = [instance.get(p, []) for p in parameters]
        nested = self.compositions.get(application.function)
        if nested is None:
            return self.run(application.function, sets, path)
        found = self.invoke(nested, dict(zip(parameters, sets, strict=True)), path, origin)
        return [found[name] for name in returns]

    def origin(self, application: Application, instance: Value, frame: Frame) -> tuple[Set, Set]:
        """Return the first item of `each`, else the items of `keyed`, else those of the frame."""
        parameters, _ = self.signatures[application.function]
        sharding = {b.parameter: b.sharding for b in application.bindings}
        for wanted in (Sharding.EACH, Sharding.KEYED):
            for parameter in parameters:
                if sharding.get(parameter) is wanted and instance.get(parameter):
                    items = instance[parameter]
                    return (items, []) if wanted is Sharding.EACH else ([], items)
        return frame.origin

    def tries_again(self, application: Application, kind: str) -> bool:
        """A failed instance is run again, if there are attempts left."""
        assert application.attempts is not None
        if not application.attempts.kinds:
            return kind in self.transient
        return self.is_named(kind, application.attempts.kinds)

    def is_named(self, kind: str, names: tuple[str, ...]) -> bool:
        """A kind is one of those named, or in one of the families; without names any is."""
        return not names or any(kind in self.families.get(n, {n}) for n in names)

    def instances(
        self, application: Application, parameters: tuple[str, ...], bound: Mapping[str, Set]
    ) -> list[Value]:
        """Return the sets of every instance by parameter, in order."""
        if not any(bound.values()):
            return [{}]
        groups = self.groups(application, parameters, bound)
        if math.prod(len(group.values) for group in groups) > self.budget:
            raise TooBig
        self.partition(application.function, [g for g in groups if g.is_any], bound, groups)
        result = []
        for combination in itertools.product(*(group.values for group in groups)):
            instance: Value = {}
            for part in combination:
                instance.update(part)
            result.append(instance)
        return result

    def groups(
        self, application: Application, parameters: tuple[str, ...], bound: Mapping[str, Set]
    ) -> list[Group]:
        """Return the groups, the slowest first."""
        sharding = {b.parameter: b.sharding for b in application.bindings}
        joined = list(application.join.order) if application.join else []
        strategies = list(application.join.strategies) if application.join else []
        alone = [p for p in parameters if p in bound and p not in joined]
        keyed = [p for p in alone if sharding[p] is Sharding.KEYED]
        rest = [p for p in alone if sharding[p] is not Sharding.KEYED]
        any_words = (Sharding.ANY_EACH, Sharding.ANY_KEYED)
        first = [self.single(p, sharding[p], bound[p]) for p in keyed]
        last = [self.single(p, sharding[p], bound[p]) for p in rest]
        if not joined:
            return first + last
        is_any = sharding[joined[0]] in any_words
        join = Group(joined, self.join(joined, strategies, bound), is_any)
        return [*first, join, *last] if is_any else [join, *first, *last]

    def single(self, parameter: str, sharding: Sharding, items: Set) -> Group:
        """Return the values of one parameter that is not joined."""
        is_any = sharding in (Sharding.ANY_EACH, Sharding.ANY_KEYED)
        if not items or sharding is Sharding.ALL:
            values = [{parameter: items}]
        elif sharding in (Sharding.EACH, Sharding.ANY_EACH):
            values = [{parameter: [item]} for item in items]
        else:
            keys = sorted({key for _, key, _ in items})
            values = [{parameter: [i for i in items if i[1] == key]} for key in keys]
        return Group([parameter], values, is_any)

    def partition(
        self, function: str, chosen: list[Group], bound: Mapping[str, Set], groups: list[Group]
    ) -> None:
        """Merge the values of `any` groups."""
        fixed = math.prod(len(group.values) for group in groups if not group.is_any)
        largest = [max(group.parameters, key=lambda p: size(bound[p])) for group in chosen]
        units = [len(group.values) for group in chosen]
        counts = self.counts(units, [size(bound[p]) for p in largest], fixed)
        for group, parameter, count in zip(chosen, largest, counts, strict=True):
            least = self.partitions.minima.get(function, {}).get(parameter, 0)
            if not size(bound[parameter]):
                least = 0
            group.values = gathered(group.values, count, parameter, least)

    def counts(self, units: list[int], sizes: list[int], fixed: int) -> list[int]:
        """Return the number of partitions of each `any` group."""
        mode, target = self.partitions.mode, self.partitions.number
        if mode == "max" or (mode == "auto" and 0 in sizes):
            return units
        counts = [1 if bytes_ else unit for unit, bytes_ in zip(units, sizes, strict=True)]
        waiting = [i for i, bytes_ in enumerate(sizes) if bytes_ and units[i]]
        left = target // fixed if fixed else target
        while left > 1 and waiting:
            even = [i for i in waiting if units[i] % left == 0]
            shares = {i: (units[i] % left) / units[i] for i in waiting}
            found = even[0] if even else min(waiting, key=shares.__getitem__)
            waiting.remove(found)
            if units[found] >= left:
                counts[found] = left
                break
            counts[found] = units[found]
            left //= units[found]
        return counts

    def join(
        self, order: list[str], strategies: list[Strategy], values: Mapping[str, Set]
    ) -> list[dict[str, Set]]:
        """Join keyed parameters from left to right, by the definition of each join."""

        def of_key(parameter: str, key: int) -> Set:
            return [i for i in values[parameter] if i[1] == key]

        def keys(parameter: str) -> list[int]:
            return sorted({i[1] for i in values[parameter]})

        rows: list[tuple[int, dict[str, Set]]] = [
            (k, {order[0]: of_key(order[0], k)}) for k in keys(order[0])
        ]
        for strategy, right in zip(strategies, order[1:], strict=True):
            joined: list[tuple[int, dict[str, Set]]] = []
            for key, row in rows:
                if strategy is Strategy.CROSS:
                    joined += [(k, {**row, right: of_key(right, k)}) for k in keys(right)]
                elif key in keys(right):
                    joined.append((key, {**row, right: of_key(right, key)}))
                elif strategy in (Strategy.LEFT, Strategy.FULL):
                    joined.append((key, row))
            if strategy in (Strategy.RIGHT, Strategy.FULL):
                left_keys = {key for key, _ in rows}
                alone = [k for k in keys(right) if k not in left_keys]
                joined += [(k, {right: of_key(right, k)}) for k in alone]
                joined.sort(key=lambda row: row[0])
            rows = joined
        return [row for _, row in rows]


def gathered(values: list[Value], count: int, parameter: str, least: int) -> list[Value]:
    """Merge values into at most `count` partitions with at least this many bytes."""
    quotas = [len(values) // count + (n < len(values) % count) for n in range(count)]
    waiting = list(values)
    if least:
        waiting.sort(key=lambda value: size(value.get(parameter, [])))
    partitions: list[Value] = []
    while waiting:
        taken: list[Value] = []
        quota = quotas[len(partitions)]
        while waiting and (
            len(taken) < quota or sum(size(v.get(parameter, [])) for v in taken) < least
        ):
            taken.append(waiting.pop(0))
        names = {name for value in taken for name in value}
        partitions.append({n: [i for v in taken for i in v.get(n, [])] for n in names})
    return partitions
