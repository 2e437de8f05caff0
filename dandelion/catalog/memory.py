"""A catalogue in memory: also what durable ones read their files into."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from dandelion.catalog.checks import check_against, check_unused, used_blobs
from dandelion.catalog.contract import Catalog
from dandelion.catalog.records import (
    Batch,
    CatalogState,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    kind_of,
    same_but_version,
    slot_of,
    with_version,
)
from dandelion.data import Bytes
from dandelion.errors import Unknown, nearest, versions_hint
from dandelion.function import Digest, FunctionSpec

_CHANGES, _LARGE = 1024, 256
"""Of so many changes it is known what they were, unless they were of more records."""


class MemoryCatalog(Catalog):
    """A catalogue in the memory of its process.

    A durable store may derive from it: reads stay in memory, and `_save` and `_erase` write each
    change to the disk before it is visible. Blobs are kept as long as records refer to them.
    """

    def __init__(self) -> None:
        self._records: dict[Slot, dict[int, Record]] = {}
        self._next: dict[Slot, int] = {}
        self._references: Counter[Digest] = Counter()
        self._blobs: dict[Digest, Bytes] = {}
        self._changes: deque[tuple[int, tuple[Slot, ...]]] = deque(maxlen=_CHANGES)
        self._lock = threading.RLock()

    def _register(self, batch: Batch) -> list[Record]:
        with self._lock:
            check_against(batch, self)
            result = [self._planned(record) for record in batch.records()]
            added = [r for r in result if r.version > self._next.get(slot_of(r), 0)]
            if added:
                self._save(added)
            self._keep_blobs({d: batch.blobs[d] for d in used_blobs(result) if d in batch.blobs})
            for record in added:
                self._insert(record)
            if added:
                self._changed(added)
            return result

    def _planned(self, record: Record) -> Record:
        versions = self._records.get(slot_of(record))
        newest = versions[max(versions)] if versions else None
        if newest is not None and same_but_version(record, newest):
            return newest
        return with_version(record, self.next_version(type(record), record.name))

    def _insert(self, record: Record) -> None:
        slot = slot_of(record)
        self._records.setdefault(slot, {})[record.version] = record
        self._next[slot] = max(record.version, self._next.get(slot, 0))
        self._references.update(used_blobs([record]))

    def _release(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._references[digest] -= 1
            if self._references[digest] <= 0:
                del self._references[digest]
                self._drop_blob(digest)

    def state(self) -> CatalogState:
        with self._lock:
            found = [r for versions in self._records.values() for r in versions.values()]
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
            old = [r for versions in self._records.values() for r in versions.values()]
            self._records.clear()
            self._next = {(kind, name): version for kind, name, version in state.newest}
            for record in state.records():
                self._insert(record)
            self._release(d for record in old for d in used_blobs([record]))
            self._changes.clear()
            self.generation += 1
            return [r for r in old if self._find(*slot_of(r), r.version) != r]

    def _replace(self, state: CatalogState) -> None:
        """Store a state in the place of everything. An exception undoes it."""

    def _save(self, added: list[Record]) -> None:
        """Store new records. An exception undoes the registration."""

    def _erase(self, removed: list[Record]) -> None:
        """Store a removal. An exception undoes it."""

    def _keep_blobs(self, blobs: dict[Digest, Bytes]) -> None:
        self._blobs.update({d: bytes(b) for d, b in blobs.items()})

    def _drop_blob(self, digest: Digest) -> None:
        self._blobs.pop(digest, None)

    def find_callable(
        self, name: str, version: int | None = None
    ) -> FunctionSpec | CompositionRecord | None:
        for kind in ("function", "composition"):
            found = self._find(kind, name, version)
            if isinstance(found, FunctionSpec | CompositionRecord):
                return found
        return None

    def find_library(self, name: str, version: int | None = None) -> LibraryRecord | None:
        found = self._find("library", name, version)
        return found if isinstance(found, LibraryRecord) else None

    def _find(self, kind: str, name: str, version: int | None) -> Record | None:
        with self._lock:
            versions = self._records.get((kind, name))
            if not versions:
                return None
            return versions.get(max(versions) if version is None else version)

    def records(self) -> list[Record]:
        with self._lock:
            return [v[max(v)] for _, v in sorted(self._records.items())]

    def versions(self, kind: type[Record], name: str) -> list[int]:
        with self._lock:
            return sorted(self._records.get((kind_of(kind), name), ()))

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
            counts = Counter(map(slot_of, found.values()))
            gone = [slot for slot, count in counts.items() if count == len(self._records[slot])]
            if gone:
                everything = [r for versions in self._records.values() for r in versions.values()]
                stays = [r for r in everything if (*slot_of(r), r.version) not in found]
                for kind, name in gone:
                    check_unused(kind, name, stays)
            removed = list(found.values())
            self._erase(removed)
            for record in removed:
                versions = self._records[slot_of(record)]
                del versions[record.version]
                if not versions:
                    del self._records[slot_of(record)]
                self._release(used_blobs([record]))
            self._changed(removed)
            return removed

    def _named(self, removal: Removal) -> list[Record]:
        versions = self._records.get((removal.kind, removal.name), {})
        found = [r for v, r in sorted(versions.items()) if removal.version in (None, v)]
        if not found:
            known = [] if versions else [n for k, n in self._records if k == removal.kind]
            hint = versions_hint(sorted(versions))
            close = nearest(removal.name, known)
            raise Unknown(removal.kind, removal.name, removal.version, close, hint)
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
