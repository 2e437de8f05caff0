"""A catalogue in memory: also what durable ones read their files into."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from dandelion.catalog.checks import check_against, check_unused, used_blobs
from dandelion.catalog.contract import Catalog
from dandelion.catalog.records import (
    KINDS,
    Batch,
    CatalogState,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    check_batch,
    kind_of,
    same_but_version,
    slot_of,
    with_version,
)
from dandelion.catalog.view import CatalogView, ReducedView, WholeView
from dandelion.data import Bytes
from dandelion.errors import Unknown, nearest, versions_hint
from dandelion.function import Digest, FunctionSpec

_CHANGES, _LARGE = 1024, 256
"""Of so many changes it is known what they were, unless they were of more records."""


class MemoryCatalog(Catalog):
    """A catalogue in the memory of its process.

    A durable store may derive from it: reads stay in memory, and `_store` writes each change to the
    disk before it is visible. So readers never wait for a disk. Blobs are kept as long as records
    refer to them.
    """

    def __init__(self) -> None:
        self._view = WholeView({})  # each change replaces it
        self._next: dict[Slot, int] = {}
        self._references: Counter[Digest] = Counter()
        self._blobs: dict[Digest, Bytes] = {}
        self._changes: deque[tuple[int, tuple[Slot, ...]]] = deque(maxlen=_CHANGES)
        self._lock = threading.RLock()

    def _register(self, batch: Batch) -> list[Record]:
        return self._exchange(batch, ())

    def replace(self, batch: Batch, replaced: Sequence[Removal]) -> list[Record]:
        check_batch(batch)
        return self._exchange(batch, replaced)

    def _exchange(self, batch: Batch, replaced: Sequence[Removal]) -> list[Record]:
        with self._lock:
            old = {(*slot_of(r), r.version): r for one in replaced for r in self._found(one)}
            check_against(batch, self, ReducedView(self._view, replaced))
            result = [self._planned(record) for record in batch.records()]
            added = [r for r in result if r.version > self._next.get(slot_of(r), 0)]
            kept = {(*slot_of(r), r.version) for r in result}
            removed = [record for key, record in old.items() if key not in kept]
            after = self._view.changed(added, removed)
            _check_all_unused(removed, after)
            if added or removed:
                self._store(added, removed)
            self._keep_blobs({d: batch.blobs[d] for d in used_blobs(result) if d in batch.blobs})
            if added or removed:
                self._show(added, after)
                self._release_of(removed)
                self._changed([*added, *removed])
            return result

    def _planned(self, record: Record) -> Record:
        newest = self._view.find(*slot_of(record))
        if newest is not None and same_but_version(record, newest):
            return newest
        return with_version(record, self.next_version(type(record), record.name))

    def _show(self, added: Iterable[Record], after: WholeView) -> None:
        """Make a view visible, and count the records that are new in it."""
        for record in added:
            slot = slot_of(record)
            self._next[slot] = max(record.version, self._next.get(slot, 0))
            self._references.update(used_blobs([record]))
        self._view = after

    def _release_of(self, removed: Iterable[Record]) -> None:
        for record in removed:
            self._release(used_blobs([record]))

    def _release(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._references[digest] -= 1
            if self._references[digest] <= 0:
                del self._references[digest]
                self._drop_blob(digest)

    def state(self) -> CatalogState:
        with self._lock:
            found = self._view.all_records()
            newest = tuple((*slot, version) for slot, version in self._next.items())
        return CatalogState(
            tuple(r for r in found if isinstance(r, FunctionSpec)),
            tuple(r for r in found if isinstance(r, CompositionRecord)),
            tuple(r for r in found if isinstance(r, LibraryRecord)),
            newest,
        )

    def restore(self, state: CatalogState, blobs: Mapping[Digest, Bytes]) -> list[Record]:
        with self._lock:
            used = used_blobs(state.records())
            for digest in sorted(used):
                if digest not in blobs and not self.has_blob(digest):
                    raise Unknown("blob", digest)
            self._keep_blobs({d: blobs[d] for d in used if not self.has_blob(d)})
            self._replace(state)
            old = self._view.all_records()
            self._next = {(kind, name): version for kind, name, version in state.newest}
            self._show(state.records(), WholeView({}).changed(state.records()))
            self._release_of(old)
            self._changes.clear()
            self.generation += 1
            return [r for r in old if self._view.find(*slot_of(r), r.version) != r]

    def _replace(self, state: CatalogState) -> None:
        """Store a state in the place of everything. An exception undoes it."""

    def _store(self, added: Sequence[Record], removed: Sequence[Record]) -> None:
        """Store a change, in one step. An exception undoes it."""

    def _keep_blobs(self, blobs: dict[Digest, Bytes]) -> None:
        self._blobs.update({d: bytes(b) for d, b in blobs.items()})

    def _drop_blob(self, digest: Digest) -> None:
        self._blobs.pop(digest, None)

    def view(self) -> CatalogView:
        return self._view

    def next_version(self, kind: type[Record], name: str) -> int:
        with self._lock:
            return self._next.get((kind_of(kind), name), 0) + 1

    def has_blob(self, digest: Digest) -> bool:
        return digest in self._blobs

    def blob(self, digest: Digest) -> Bytes:
        try:
            return self._blobs[digest]
        except KeyError:
            raise Unknown("blob", digest) from None

    def blob_bytes(self, digest: Digest) -> int:
        return len(self._blobs.get(digest, b""))

    def remove_together(self, removals: Sequence[Removal]) -> list[Record]:
        with self._lock:
            found = {(*slot_of(r), r.version): r for one in removals for r in self._named(one)}
            removed = list(found.values())
            after = self._view.changed((), removed)
            _check_all_unused(removed, after)
            self._store((), removed)
            self._show((), after)
            self._release_of(removed)
            self._changed(removed)
            return removed

    def _found(self, removal: Removal) -> list[Record]:
        """Find what is to be removed; nothing if it is not there."""
        kind, name = removal.kind, removal.name
        versions = self._view.versions(KINDS[kind], name)
        wanted = versions if removal.version is None else [removal.version]
        return [r for r in (self._view.find(kind, name, v) for v in wanted) if r is not None]

    def _named(self, removal: Removal) -> list[Record]:
        found = self._found(removal)
        if not found:
            kind, name = removal.kind, removal.name
            versions = self._view.versions(KINDS[kind], name)
            known = [] if versions else [r.name for r in self._view.newest() if kind_of(r) == kind]
            hint = versions_hint(versions)
            close = nearest(name, known)
            raise Unknown(kind, name, removal.version, close, hint)
        return found

    def _changed(self, records: list[Record]) -> None:
        """Note what changed, first: who sees the new generation can ask what it is."""
        if len(records) > _LARGE:
            self._changes.clear()
        else:
            self._changes.append((self.generation + 1, tuple(map(slot_of, records))))
        self.generation += 1

    def changed_since(self, generation: int) -> Iterable[Slot] | None:
        with self._lock:
            oldest = self._changes[0][0] if self._changes else self.generation + 1
            if oldest > generation + 1:
                return None
            found = [slots for number, slots in self._changes if number > generation]
        return dict.fromkeys(slot for slots in found for slot in slots)


def _check_all_unused(removed: Iterable[Record], after: WholeView) -> None:
    """Refuse a removal of records that a composition of the view after it uses.

    Raises:
        Conflict: with the names of the users.
    """
    for kind, name in dict.fromkeys(map(slot_of, removed)):
        left = after.find(kind, name) if kind == "library" else after.find_callable(name)
        if left is None:
            check_unused(kind, name, after.all_records())
