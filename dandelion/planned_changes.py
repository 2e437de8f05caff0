"""What a registration would change, and what of it callers would notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dandelion.catalog import (
    Batch,
    Catalog,
    CompositionRecord,
    LibraryRecord,
    Record,
    check_against,
    kind_of,
    same_but_version,
)
from dandelion.data import SetSpec
from dandelion.documents import PlannedChange
from dandelion.function import FunctionSpec


def planned_changes(batch: Batch, catalog: Catalog) -> list[PlannedChange]:
    """Compare a checked batch with a catalogue, in the order of `Batch.records`.

    Raises:
        Conflict, Unknown: it cannot be registered, see `check_against`.
    """
    check_against(batch, catalog)
    return [_planned(record, catalog) for record in batch.records()]


def _newest(record: Record, catalog: Catalog) -> Record | None:
    if isinstance(record, LibraryRecord):
        return catalog.find_library(record.name)
    return catalog.find_callable(record.name)


def _planned(new: Record, catalog: Catalog) -> PlannedChange:
    kind, old = kind_of(type(new)), _newest(new, catalog)
    if old is not None and same_but_version(new, old):
        return PlannedChange(kind, new.name, old.version, "same")
    version = catalog.next_version(type(new), new.name)
    if old is None:
        return PlannedChange(kind, new.name, version, "new")
    breaking: tuple[str, ...] = ()
    if isinstance(new, FunctionSpec) and isinstance(old, FunctionSpec):
        breaking = (
            *_differ("input", _given(old), _given(new)),
            *_differ("output", old.outputs, new.outputs),
        )
    elif isinstance(new, CompositionRecord) and isinstance(old, CompositionRecord):
        breaking = (
            *_differ("input", _named(old.inputs), _named(new.inputs)),
            *_differ("output", _named(old.outputs), _named(new.outputs)),
        )
    return PlannedChange(kind, new.name, version, "changed", breaking)


def _given(spec: FunctionSpec) -> list[SetSpec]:
    return [one for one in spec.inputs if one.name not in spec.fixed]


def _named(names: Sequence[str]) -> list[SetSpec]:
    return [SetSpec(name) for name in names]


def _differ(role: str, old: Sequence[SetSpec], new: Sequence[SetSpec]) -> Iterator[str]:
    """Say what callers would notice: not further outputs, nor optional inputs."""
    before, after = {s.name: s for s in old}, {s.name: s for s in new}
    for name, spec in before.items():
        if name not in after:
            yield f"{role} '{name}' is removed"
            continue
        now = after[name]
        if spec.type_text != now.type_text:
            yield f"{role} '{name}' was {spec.type_text}, and becomes {now.type_text}"
        if role == "input" and spec.optional and not now.optional:
            yield f"input '{name}' was optional, and becomes required"
    if role == "input":
        added = [one for name, one in after.items() if name not in before and not one.optional]
        yield from (f"input '{one.name}' is added" for one in added)
