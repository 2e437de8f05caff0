"""A naive interpreter of compositions, written from the rules of docs/language.md.

It shares nothing with the dispatcher but the records: sets are lists of (name, key, data), an
absent set is the empty list, and every rule is spelled out the slow way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from dandelion.dataflow.graph import Application, Composition, Sharding, Strategy

Triple = tuple[str, int, bytes]
Set = list[Triple]
Pure = Callable[[str, list[Set]], list[Set]]
"""Runs a function by name: input sets by position to output sets by position."""


class TooBig(Exception):
    """A random composition makes more instances than a test has time for."""


class Interpreter:
    """Runs compositions.

    Args:
        run: the functions.
        signatures: input and output names of every function and composition.
        compositions: the compositions that others use, by name.
        budget: instances after which `TooBig` is raised.
    """

    def __init__(
        self,
        run: Pure,
        signatures: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]],
        compositions: Mapping[str, Composition],
        budget: int = 1 << 60,
    ) -> None:
        self.run = run
        self.signatures = signatures
        self.compositions = compositions
        self.budget = budget

    def invoke(self, composition: Composition, inputs: Mapping[str, Set]) -> dict[str, Set]:
        """Give all output sets of a composition."""
        known: dict[str, Set] = {name: list(inputs[name]) for name in composition.inputs}
        waiting = list(composition.applications)
        while waiting:
            ready = [a for a in waiting if all(b.source in known for b in a.bindings)]
            assert ready, "a valid composition has no loops"
            for application in ready:
                waiting.remove(application)
                outputs = self.apply(application, known)
                for returned in application.returns:
                    known[returned.target] = outputs[returned.output]
        return {name: known[name] for name in composition.outputs}

    def apply(self, application: Application, known: Mapping[str, Set]) -> dict[str, Set]:
        """Give the merged outputs of one application."""
        parameters, returns = self.signatures[application.function]
        bound = {b.parameter: b for b in application.bindings}
        for b in application.bindings:
            if not b.optional and not known[b.source]:
                return {name: [] for name in returns}
        merged: dict[str, Set] = {name: [] for name in returns}
        instances = self.instances(application, parameters, known)
        self.budget -= len(instances)
        if self.budget < 0:
            raise TooBig
        for instance in instances:
            sets = [instance.get(p, []) for p in parameters]
            if application.function in self.compositions:
                nested = self.compositions[application.function]
                found = self.invoke(nested, dict(zip(parameters, sets, strict=True)))
                outputs = [found[name] for name in returns]
            else:
                outputs = self.run(application.function, sets)
            for name, items in zip(returns, outputs, strict=True):
                merged[name] += items
        assert set(bound) <= set(parameters)
        return {name: sorted(items, key=lambda t: t[1]) for name, items in merged.items()}

    def instances(
        self, application: Application, parameters: tuple[str, ...], known: Mapping[str, Set]
    ) -> list[dict[str, Set]]:
        """Give the sets of every instance by parameter, in order."""
        bound = {b.parameter: b for b in application.bindings}
        values = {p: known[bound[p].source] for p in parameters if p in bound}
        if not any(values.values()):
            return [{}]
        joined = list(application.join.order) if application.join else []
        strategies = list(application.join.strategies) if application.join else []
        keyed = [p for p in values if bound[p].sharding is Sharding.KEYED and p not in joined]
        rest = [p for p in values if p not in joined and p not in keyed]
        groups: list[list[dict[str, Set]]] = []
        if joined:
            groups.append(self.join(joined, strategies, values))
        groups += [self.parts(p, bound[p].sharding, values[p]) for p in keyed + rest]
        if math.prod(map(len, groups)) > self.budget:
            raise TooBig
        result = []
        for combination in itertools.product(*groups):
            instance: dict[str, Set] = {}
            for part in combination:
                instance.update(part)
            result.append(instance)
        return result

    def parts(self, parameter: str, sharding: Sharding, items: Set) -> list[dict[str, Set]]:
        """Give the values of one parameter that is not joined."""
        if not items or sharding is Sharding.ALL:
            return [{parameter: items}]
        if sharding is Sharding.EACH:
            return [{parameter: [item]} for item in items]
        assert sharding is Sharding.KEYED
        keys = sorted({key for _, key, _ in items})
        return [{parameter: [i for i in items if i[1] == key]} for key in keys]

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
