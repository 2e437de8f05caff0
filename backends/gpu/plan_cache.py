"""Plans by function, input sizes and integers: a call of a known shape is a lookup."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from dandelion.blueprint import FromInput, GpuConfig

from .draft_records import Choices
from .layout import Slot
from .lowering import Lowering
from .plan import Plan, plan
from .sizes import ReadInteger

_Key: TypeAlias = tuple[object, ...]


class PlanCache:
    """Plans by function, input sizes and integers; the least recently used go first.

    Args:
        capacity: how many plans are kept.
        limit_bytes, lanes, lowering: as for `plan`.

    Attributes:
        room_bytes: as for `plan`; plans that were made before stay as they are.
    """

    def __init__(
        self,
        capacity: int = 256,
        limit_bytes: int | None = None,
        lanes: int = 1,
        lowering: Lowering | None = None,
    ) -> None:
        self._lowering = lowering
        self._capacity = capacity
        self._limit_bytes = limit_bytes
        self._lanes = lanes
        self.room_bytes = limit_bytes
        self._plans: OrderedDict[_Key, Plan] = OrderedDict()
        self._lock = threading.Lock()
        self.misses = 0

    def get(
        self,
        identity: str,
        config: GpuConfig,
        integers: Sequence[FromInput],
        input_sizes: Mapping[str, int],
        read_integer: ReadInteger,
        resident: Mapping[str, Slot] | None = None,
        choices: Choices | None = None,
    ) -> Plan:
        """Give the plan of a call; see `plan`.

        Args:
            identity: digest of the function; equal identity means an equal `config`.
            integers: see `integers_planned`.
            config, input_sizes, read_integer, resident, choices: as for `plan`.
        """
        numbers = tuple(
            [
                read_integer(w.bufname, w.idx)
                if (w.idx + 1) * 8 <= input_sizes.get(w.bufname, 0)
                else None
                for w in integers
            ]
        )
        chosen = tuple(sorted((choices or {}).items()))
        key = (identity, tuple(input_sizes.values()), numbers, bool(resident), chosen)
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                return found
        made = plan(
            config,
            input_sizes,
            read_integer,
            self._limit_bytes,
            resident,
            self._lanes,
            self.room_bytes,
            self._lowering,
            choices,
        )
        with self._lock:
            self.misses += 1
            made = made.with_twin(plan for known, plan in self._plans.items() if _twins(known, key))
            self._plans[key] = made
            if len(self._plans) > self._capacity:
                self._plans.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._plans)


def _twins(key: _Key, other: _Key) -> bool:
    """Tell whether two plans may differ in the sizes of inputs only."""
    return (key[0], key[2:]) == (other[0], other[2:])
