"""What every store checks: batches, names in use, blobs that nothing needs."""

from __future__ import annotations

from collections.abc import Iterable

from dandelion.catalog.contract import Catalog
from dandelion.catalog.records import Batch, CompositionRecord, LibraryRecord, Record, kind_of
from dandelion.catalog.view import CatalogView
from dandelion.errors import Conflict, Unknown
from dandelion.function import Digest, FunctionSpec


def users_of(name: str, records: Iterable[Record]) -> list[str]:
    """Names of the compositions among `records` that use `name`."""
    return [r.name for r in records if isinstance(r, CompositionRecord) and name in r.uses]


def check_against(batch: Batch, catalog: Catalog, view: CatalogView | None = None) -> None:
    """Check a batch against the registered records, or those of another view.

    Raises:
        Conflict: a function's name is used by a composition or the other way round.
        Unknown: a blob is neither in the batch nor in the store.
    """
    view = catalog.view() if view is None else view
    named: list[FunctionSpec | CompositionRecord] = [*batch.functions, *batch.compositions]
    for record in named:
        other = view.find_callable(record.name)
        if other is not None and type(other) is not type(record):
            kind = kind_of(other)
            message = f"a {kind} has this name; rename one, or remove the {kind} first"
            raise Conflict(kind_of(record), record.name, f"{message}: dandelion rm {record.name}")
    for digest in sorted(used_blobs(batch.records())):
        if digest not in batch.blobs and not catalog.has_blob(digest):
            raise Unknown("blob", digest)


def check_unused(kind: str, name: str, records: Iterable[Record]) -> None:
    """Refuse to remove a record that a composition uses.

    Raises:
        Conflict: with the names of the users.
    """
    users = [u for u in users_of(name, records) if u != name] if kind != "library" else []
    if users:
        message = f"composition {', '.join(sorted(users))} uses it; remove that first"
        raise Conflict(kind, name, message)


def used_blobs(records: Iterable[Record]) -> set[Digest]:
    """Return the digests of all blobs that records refer to."""
    used: set[Digest] = set()
    for record in records:
        if isinstance(record, FunctionSpec):
            used |= record.blobs()
        elif isinstance(record, LibraryRecord):
            used.add(record.digest)
    return used
