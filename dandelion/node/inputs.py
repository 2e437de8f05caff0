"""The input sets of an invocation, before it begins.

Engines in processes take their inputs from the arena. Of what does not lie there yet, whoever pumps
copies a little; more would keep it for too long. So the thread that calls brings large inputs there
itself, beside all other callers, as long as there is room to spare; where room is short those have
it that are about to run.
"""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.data import ItemSet
from dandelion.dispatcher import CompositionPlan
from dandelion.errors import ContextFull, InvalidInput, nearest
from dandelion.memory import SharedDomain, Transfers
from dandelion.node.remote import QUICK_BYTES

RESERVE_BYTES = 64 * 1024 * 1024
"""Room that is left to calls that run; half of an arena that is smaller than twice that."""

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
        missing = ", ".join(n for n in names if n not in sets)
        hint = f"'{plan.name}' takes {', '.join(names)}; give null for an empty set"
        raise InvalidInput("sets", f"missing: {missing}", hint) from None
    if len(sets) != len(inputs):
        names = [spec.name for spec in plan.inputs]
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
    moving = [not readers.isdisjoint(formats) for readers in plan.readers]
    if True not in moving:
        return inputs
    wanted = tuple(s if move else None for s, move in zip(inputs, moving, strict=True))
    items = [item for s in wanted if s is not None for item in s.items]
    if sum(item.size_bytes for item in items) <= QUICK_BYTES:
        return inputs
    total = sum(item.size_bytes for item in items if arena.locate(item.data) is None)
    if total <= QUICK_BYTES:
        return inputs
    reserve = min(RESERVE_BYTES, arena.map.size_bytes // 2)
    if arena.largest_free_bytes - total < reserve:
        return inputs
    try:
        placed = transfers.place(wanted, arena)
    except ContextFull:  # somebody was faster; the engine's host finds room, or says so
        return inputs
    return tuple(new if move else s for s, new, move in zip(inputs, placed, moving, strict=True))
