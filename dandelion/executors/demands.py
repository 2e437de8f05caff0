"""What calls need of a device, as their engine processes planned it.

The demand of a call follows from its function, the sizes of its inputs and the integers inside of
them that its planner reads. An engine process says which integers these are, and plans each
combination once; the node keeps the answers, so that a call that is like an earlier one is placed
without asking.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.driver import Demand, InstanceSets
from dandelion.function import Function

Reads: TypeAlias = Sequence[tuple[int, int]]
"""Integers that a demand depends on: position of the input set, offset in bytes."""

KEPT_FUNCTIONS = 1024
KEPT_DEMANDS = 256
"""For each function."""
_INTEGER = struct.Struct("<q")


@dataclass(slots=True)
class _Planned:
    reads: Reads
    demands: OrderedDict[tuple[int | None, ...], Demand] = field(default_factory=OrderedDict)


class Demands:
    """Demands by backend, function and inputs. Used on the node's loop."""

    def __init__(self) -> None:
        self._planned: OrderedDict[tuple[str, str], _Planned] = OrderedDict()

    def find(self, backend: str, function: Function, inputs: InstanceSets) -> Demand | None:
        """Give the demand of a call if one like it was planned."""
        planned = self._planned.get((backend, function.identity))
        if planned is None:
            return None
        key = _key(function, inputs, planned.reads)
        return None if key is None else planned.demands.get(key)

    def add(
        self, backend: str, function: Function, inputs: InstanceSets, reads: Reads, demand: Demand
    ) -> None:
        """Keep the demand of a call that was planned."""
        planned = self._planned.setdefault((backend, function.identity), _Planned(reads))
        key = _key(function, inputs, planned.reads)
        if key is None:
            return
        planned.demands[key] = demand
        if len(planned.demands) > KEPT_DEMANDS:
            planned.demands.popitem(last=False)
        if len(self._planned) > KEPT_FUNCTIONS:
            self._planned.popitem(last=False)


def _key(function: Function, inputs: InstanceSets, reads: Reads) -> tuple[int | None, ...] | None:
    key: list[int | None] = []
    for position in function.given:
        item_set = inputs[position]
        if item_set is None or len(item_set.items) != 1:
            return None
        key.append(item_set.items[0].size_bytes)
    for position, offset in reads:
        item_set = inputs[position]
        if item_set is None:
            return None
        item = item_set.items[0]
        inside = offset + _INTEGER.size <= item.size_bytes
        key.append(_INTEGER.unpack_from(item.data, offset)[0] if inside else None)
    return tuple(key)
