"""The input sets of an invocation, before it begins.

Engines in processes take their inputs from the arena. What does not lie there yet is best brought
there by the thread that calls: the pump must not be kept for long, and each caller copies for
itself, beside all others. So large inputs are copied here, as long as there is room to spare;
small ones cost nothing anywhere, and where room is short those have it that are about to run.
"""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.data import ItemSet
from dandelion.dispatcher import CompositionPlan
from dandelion.errors import ContextFull, InvalidInput, nearest
from dandelion.memory import SharedDomain, Transfers

LARGE_BYTES = 64 * 1024
"""Items of this size and above are brought to the arena by their caller."""
RESERVE_BYTES = 64 * 1024 * 1024
"""Room that is left to calls that run; half of an arena that is smaller than twice that."""

InputSets = tuple[ItemSet | None, ...]


def positional(plan: CompositionPlan, sets: Mapping[str, ItemSet | None]) -> InputSets:
    """Bring sets into the order of the declaration.

    Raises:
        InvalidInput: one is missing, or there is no such input set.
    """
    names = [s.name for s in plan.inputs]
    try:
        inputs = tuple(sets[name] for name in names)
    except KeyError:
        missing = ", ".join(n for n in names if n not in sets)
        hint = f"'{plan.name}' takes {', '.join(names)}; give null for an empty set"
        raise InvalidInput("sets", f"missing: {missing}", hint) from None
    if len(sets) != len(names):
        extra = next(n for n in sets if n not in names)
        close = nearest(extra, names)
        hint = f"did you mean '{close}'?" if close else f"it takes {', '.join(names) or 'no sets'}"
        raise InvalidInput(f"sets.{extra}", f"'{plan.name}' has no such input set", hint)
    return inputs


def brought(
    plan: CompositionPlan,
    inputs: InputSets,
    formats: frozenset[str],
    arena: SharedDomain,
    transfers: Transfers,
) -> InputSets:
    """Copy large inputs to the arena, if functions of some formats read them.

    Args:
        plan: what is invoked.
        inputs: in the order of its declaration.
        formats: of code that runs in engine processes.
        arena: which they map.
        transfers: counts the copy.
    """
    moving = [
        item_set is not None and not readers.isdisjoint(formats) and _is_large(item_set)
        for item_set, readers in zip(inputs, plan.readers, strict=True)
    ]
    if True not in moving:
        return inputs
    wanted = tuple(s if move else None for s, move in zip(inputs, moving, strict=True))
    total = sum(item.size_bytes for s in wanted if s is not None for item in s.items)
    reserve = min(RESERVE_BYTES, arena.map.size_bytes // 2)
    if arena.largest_free_bytes - total < reserve:
        return inputs
    try:
        placed = transfers.place(wanted, arena)
    except ContextFull:  # somebody was faster; the engine's host finds room, or says so
        return inputs
    return tuple(new if move else s for s, new, move in zip(inputs, placed, moving, strict=True))


def _is_large(item_set: ItemSet) -> bool:
    return any(item.size_bytes >= LARGE_BYTES for item in item_set.items)
