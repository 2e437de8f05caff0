"""The input sets of an invocation, before it begins.

Engine processes read their inputs from the arena. A blocking caller copies large inputs there in
its own thread, in parallel with other callers. It may have to wait for an engine afterwards, so all
callers together may take a small part of the arena only. What finds no room is copied when its call
is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from dandelion.arrays import text_of
from dandelion.data import ItemSet, SetSpec, Value
from dandelion.dispatcher import CompositionPlan
from dandelion.errors import ContextFull, InvalidInput, nearest
from dandelion.executors.staging import INLINE_COPY_BYTES
from dandelion.memory import SharedDomain, Transfers
from dandelion.set_values import check_mapping, item_set

STAGING_DIVISOR = 8
"""This fraction of the arena, 1/STAGING_DIVISOR, is for inputs of callers that may have to wait."""
_FREE_FACTOR = 4  # times the bytes of the inputs must be free beforehand

InputSets = tuple[ItemSet | None, ...]


def positional(plan: CompositionPlan, sets: Mapping[str, ItemSet | None]) -> InputSets:
    """Bring sets into the order of the declaration.

    Raises:
        InvalidInput: one is missing, or there is no such input set.
    """
    try:
        inputs = tuple([sets[spec.name] for spec in plan.inputs])
    except KeyError:
        names = [spec.name for spec in plan.inputs]
        _refuse_others(plan, sets, names)  # a misspelt name is also missing
        missing = [s for s in plan.inputs if s.name not in sets and not s.optional]
        if missing:
            hint = f"'{plan.name}' takes {', '.join(map(_declared, plan.inputs))}"
            if all(s.dtype is None for s in missing):
                hint += "; give null (None) for a set that may be empty"
            text = ", ".join(s.name for s in missing)
            raise InvalidInput("sets", f"missing: {text}", hint) from None
        return positional(plan, {**dict.fromkeys(names), **sets})
    if len(sets) != len(inputs):
        _refuse_others(plan, sets, [spec.name for spec in plan.inputs])
    return inputs


def converted(plan: CompositionPlan, sets: Mapping[str, Value]) -> dict[str, ItemSet | None]:
    """Make sets of Python values, see `dandelion.set_values.item_set`.

    Sets that the plan does not have are None; `positional` refuses them.
    """
    made: dict[str, ItemSet | None] = {}
    for spec in plan.inputs:
        name = spec.name
        if name in sets:
            made[name] = item_set(name, sets[name], spec)
    return made if len(made) == len(sets) else {**dict.fromkeys(sets), **made}


def with_sets(plan: CompositionPlan, given: Mapping[str, Value]) -> Mapping[str, ItemSet | None]:
    """Make sets of those values that are no sets yet. Sets are taken as they are.

    Raises:
        InvalidInput: a value cannot be a set, or there are no names.
    """
    check_mapping(given)
    values = {n: v for n, v in given.items() if v is not None and not isinstance(v, ItemSet)}
    return {**given, **converted(plan, values)} if values else given


def _declared(spec: SetSpec) -> str:
    return spec.name if spec.dtype is None else f"{spec.name}: {text_of(spec.dtype, spec.shape)}"


def _refuse_others(
    plan: CompositionPlan, sets: Mapping[str, ItemSet | None], names: list[str]
) -> None:
    extra = next((name for name in sets if name not in names), None)
    if extra is not None:
        close = nearest(extra, names)
        hint = f"did you mean '{close}'?" if close else f"it takes {', '.join(names) or 'no sets'}"
        argument = None if close else nearest(extra, _ARGUMENTS)
        hint += f"; did you mean the argument '{argument}'?" if argument else ""
        raise InvalidInput(f"sets.{extra}", f"'{plan.name}' has no such input set", hint)


_ARGUMENTS = ("version", "deadline_s", "priority", "tenant")
"""What is given to an invocation beside its sets."""


class InputStager:
    """Copies large inputs to the arena, in the caller's thread.

    Args:
        formats: of code that runs in engine processes.
        arena: which they map.
        transfers: counts the copies.
    """

    def __init__(self, formats: frozenset[str], arena: SharedDomain, transfers: Transfers) -> None:
        self._formats = formats
        self._arena = arena
        self._transfers = transfers
        self._room = arena.map.size_bytes // STAGING_DIVISOR
        self._lock = threading.Lock()

    def stage(self, plan: CompositionPlan, inputs: InputSets) -> tuple[InputSets, int]:
        """Copy large inputs that such code reads as they are, if there is room.

        Args:
            plan: what is invoked.
            inputs: in the order of its declaration.

        Returns:
            The inputs, and a size in bytes to be given to `release` when the invocation ended.
        """
        moving = [not readers.isdisjoint(self._formats) for readers in plan.readers]
        if True not in moving:
            return inputs, 0
        wanted = tuple(s if move else None for s, move in zip(inputs, moving, strict=True))
        items = [item for s in wanted if s is not None for item in s.items]
        if sum(item.size_bytes for item in items) <= INLINE_COPY_BYTES:
            return inputs, 0
        locate = self._arena.locate
        try:
            size = sum(item.size_bytes for item in items if locate(item.data) is None)
            if size <= INLINE_COPY_BYTES or not self._taken(size):
                return inputs, 0
        except (BufferError, ValueError):  # the code that reads the bytes says what is wrong
            return inputs, 0
        try:
            placed = self._transfers.place(wanted, self._arena)
        except ContextFull:  # another caller was faster
            self.release(size)
            return inputs, 0
        except BaseException:
            self.release(size)
            raise
        chosen = zip(inputs, placed, moving, strict=True)
        return tuple(new if move else old for old, new, move in chosen), size

    def release(self, size: int) -> None:
        """An invocation ended, and what was staged for it is not needed any more."""
        if size:
            with self._lock:
                self._room += size

    def _taken(self, size: int) -> bool:
        with self._lock:
            if size > self._room or _FREE_FACTOR * size > self._arena.largest_free_bytes:
                return False
            self._room -= size
            return True
