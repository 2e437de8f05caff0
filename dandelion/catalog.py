"""The catalogue of registered functions: the contract of every store, and the in-memory one.

The catalogue stores **records** (functions, compositions, libraries), each with a name and versions
that count from 1, and **blobs** (code, weights) named by their SHA-256. A `Batch` is registered
whole or not at all; when `register` returns, it is as durable as the store guarantees. Functions
and compositions share one namespace, libraries have their own.

Durable stores are modules ``dandelion.registry.SCHEME`` with ``open_catalog(url) -> Catalog``.
"""

from __future__ import annotations

import abc
import importlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from dandelion.blobs import Blobs
from dandelion.data import Bytes
from dandelion.errors import BackendUnavailable, Conflict, InvalidInput, Unknown, nearest
from dandelion.function import Digest, FunctionSpec, digest_of


class CompositionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered composition, as canonical language text.

    Attributes:
        name: identifier, unique among functions and compositions.
        text: one composition with its function declarations, in the printer's form.
        inputs, outputs: names of its sets, in order.
        uses: names of the functions and compositions that it applies.
        version: given by the catalogue.
    """

    name: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    version: int = 0


class LibraryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named code object that blueprints refer to by ``path``.

    Attributes:
        name: as blueprints write it; it is a key, never a path on any disk.
        digest: the blob.
        size_bytes: its length.
        version: given by the catalogue.
    """

    name: str
    digest: Digest
    size_bytes: int = 0
    version: int = 0


Record: TypeAlias = FunctionSpec | CompositionRecord | LibraryRecord
Slot: TypeAlias = tuple[str, str]
"""Kind and name of a record: versions count within a slot."""


class CatalogState(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a catalogue has but its blobs, as it is sent to another node.

    Attributes:
        functions, compositions, libraries: all versions of all records.
        newest: kind, name and newest version that was ever given, also of removed names.
    """

    functions: tuple[FunctionSpec, ...]
    compositions: tuple[CompositionRecord, ...]
    libraries: tuple[LibraryRecord, ...]
    newest: tuple[tuple[str, str, int], ...]

    def records(self) -> list[Record]:
        """All records."""
        return [*self.libraries, *self.functions, *self.compositions]


@dataclass(slots=True)
class Batch:
    """Records and blobs that are registered together, all or nothing.

    `blobs` needs only the blobs that the catalogue does not have yet, see `Catalog.has_blob`.
    Digests of any mapping but `Blobs` are checked.
    """

    functions: list[FunctionSpec] = field(default_factory=list)
    compositions: list[CompositionRecord] = field(default_factory=list)
    libraries: list[LibraryRecord] = field(default_factory=list)
    blobs: Mapping[Digest, Bytes] = field(default_factory=dict)

    def records(self) -> list[Record]:
        """All records: libraries, functions, compositions."""
        return [*self.libraries, *self.functions, *self.compositions]


class Catalog(abc.ABC):
    """A store of registered records and blobs. Safe to call from any thread.

    Readers get the newest version unless they name one. `generation` increases with every change,
    so that caches can detect changes.
    """

    generation: int = 0

    def register(self, batch: Batch) -> list[Record]:
        """Add a batch; return its records with their versions, in the order of `Batch.records`.

        A record equal to its newest registered version is not added again: registering is
        idempotent.

        Raises:
            Conflict: a name is used by a record of another kind, or twice in the batch.
            Unknown: a blob is neither in the batch nor in the store.
            InvalidInput: a blob's bytes do not have its digest.
        """
        check_batch(batch)
        return self._register(batch)

    @abc.abstractmethod
    def _register(self, batch: Batch) -> list[Record]:
        """Add a batch that passed `check_batch`; run `check_against` in the same atomic step."""

    @abc.abstractmethod
    def find_callable(
        self, name: str, version: int | None = None
    ) -> FunctionSpec | CompositionRecord | None:
        """Find a function or composition."""

    @abc.abstractmethod
    def find_library(self, name: str, version: int | None = None) -> LibraryRecord | None:
        """Find a library."""

    @abc.abstractmethod
    def records(self) -> list[Record]:
        """All newest versions, by kind and name."""

    @abc.abstractmethod
    def versions(self, kind: type[Record], name: str) -> list[int]:
        """All registered versions of a name, ascending; empty if there is none."""

    @abc.abstractmethod
    def has_blob(self, digest: Digest) -> bool:
        """Tell whether a blob is stored."""

    @abc.abstractmethod
    def blob(self, digest: Digest) -> Bytes:
        """Read a blob.

        Raises:
            Unknown: it is not stored.
            CatalogCorrupt: its bytes no longer match its digest.
        """

    @abc.abstractmethod
    def blob_bytes(self, digest: Digest) -> int:
        """Return the size of a blob without reading it; 0 if it is not stored."""

    @abc.abstractmethod
    def remove(self, kind: type[Record], name: str, version: int | None = None) -> list[Record]:
        """Remove one version, or all of a name; delete blobs that no record refers to any more.

        Raises:
            Unknown: there is no such name or version.
            Conflict: a registered composition uses it.
        """

    def state(self) -> CatalogState:
        """Return all records, as of one moment.

        Raises:
            BackendUnavailable: this store cannot tell.
        """
        raise BackendUnavailable("registry", "this store cannot be used in a cluster", "use sqlite")

    def restore(self, state: CatalogState, blobs: Mapping[Digest, Bytes]) -> list[Record]:
        """Replace everything by a state, all or nothing; return the records that are gone.

        Args:
            state: of another catalogue.
            blobs: those that this catalogue lacks; they are read one after the other.

        Raises:
            Unknown: a blob is neither in `blobs` nor in the store.
            BackendUnavailable: this store cannot.
        """
        raise BackendUnavailable("registry", "this store cannot be used in a cluster", "use sqlite")

    def close(self) -> None:
        """Release files and connections."""


KINDS: dict[str, type[Record]] = {
    "function": FunctionSpec,
    "composition": CompositionRecord,
    "library": LibraryRecord,
}
"""The kinds of records, by name."""
_NAMES = {cls: name for name, cls in KINDS.items()}


def kind_of(record: Record | type[Record]) -> str:
    """Return the kind of a record: ``function``, ``composition``, ``library``."""
    cls = record if isinstance(record, type) else type(record)
    return _NAMES.get(cls, "library")


def _slot(record: Record) -> Slot:
    return kind_of(record), record.name


def users_of(name: str, records: Iterable[Record]) -> list[str]:
    """Names of the compositions among `records` that use `name`."""
    return [r.name for r in records if isinstance(r, CompositionRecord) and name in r.uses]


def check_batch(batch: Batch) -> None:
    """Check a batch by itself.

    Raises:
        Conflict: a name is used twice.
        InvalidInput: a blob's bytes do not have its digest.
    """
    spaces: list[list[Record]] = [[*batch.functions, *batch.compositions], [*batch.libraries]]
    for records in spaces:
        seen: set[str] = set()
        for record in records:
            if record.name in seen:
                raise Conflict(kind_of(record), record.name, "it appears twice in one registration")
            seen.add(record.name)
    for digest, data in () if isinstance(batch.blobs, Blobs) else batch.blobs.items():
        if digest_of(data) != digest:
            raise InvalidInput(f"blobs.{digest}", f"its bytes have the digest {digest_of(data)}")


def check_against(batch: Batch, catalog: Catalog) -> None:
    """Check a batch against the registered records.

    Raises:
        Conflict: a function's name is used by a composition or the other way round.
        Unknown: a blob is neither in the batch nor in the store.
    """
    named: list[FunctionSpec | CompositionRecord] = [*batch.functions, *batch.compositions]
    for record in named:
        other = catalog.find_callable(record.name)
        if other is not None and type(other) is not type(record):
            raise Conflict(
                kind_of(record), record.name, f"a {kind_of(other)} has this name; rename one"
            )
    for digest in sorted(used_blobs(batch.records())):
        if digest not in batch.blobs and not catalog.has_blob(digest):
            raise Unknown("blob", digest)


def same_but_version(a: Record, b: Record | None) -> bool:
    """Tell whether two records are equal except for their versions."""
    return b is not None and with_version(a, 0) == with_version(b, 0)


def with_version(record: Record, version: int) -> Record:
    """Return the same record with another version."""
    return msgspec.structs.replace(record, version=version)


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
        self._lock = threading.RLock()

    def _register(self, batch: Batch) -> list[Record]:
        with self._lock:
            check_against(batch, self)
            result = [self._planned(record) for record in batch.records()]
            added = [r for r in result if r.version > self._next.get(_slot(r), 0)]
            if added:
                self._save(added)
            self._keep_blobs({d: batch.blobs[d] for d in used_blobs(result) if d in batch.blobs})
            for record in added:
                self._insert(record)
            self.generation += bool(added)
            return result

    def _planned(self, record: Record) -> Record:
        versions = self._records.get(_slot(record))
        newest = versions[max(versions)] if versions else None
        if newest is not None and same_but_version(record, newest):
            return newest
        return with_version(record, self._next.get(_slot(record), 0) + 1)

    def _insert(self, record: Record) -> None:
        slot = _slot(record)
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
            self.generation += 1
            return [r for r in old if self._find(*_slot(r), r.version) != r]

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

    def has_blob(self, digest: Digest) -> bool:
        return digest in self._blobs

    def blob(self, digest: Digest) -> Bytes:
        try:
            return self._blobs[digest]
        except KeyError:
            raise Unknown("blob", digest) from None

    def blob_bytes(self, digest: Digest) -> int:
        return len(self._blobs.get(digest, b""))

    def remove(self, kind: type[Record], name: str, version: int | None = None) -> list[Record]:
        with self._lock:
            slot = (kind_of(kind), name)
            versions = self._records.get(slot, {})
            removed = [r for v, r in sorted(versions.items()) if version in (None, v)]
            if not removed:
                known = [] if versions else [n for k, n in self._records if k == slot[0]]
                raise Unknown(slot[0], name, version, nearest(name, known))
            if len(removed) == len(versions):
                everything = (r for v in self._records.values() for r in v.values())
                check_unused(slot[0], name, everything)
            self._erase(removed)
            for record in removed:
                del versions[record.version]
            if not versions:
                del self._records[slot]
            for record in removed:
                self._release(used_blobs([record]))
            self.generation += 1
            return removed


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


def open_catalog(url: str) -> Catalog:
    """Open a catalogue: ``memory:``, or ``SCHEME:PATH`` of a store in ``dandelion.registry``.

    Raises:
        BackendUnavailable: no store has that scheme.
        CatalogCorrupt: the store's files are damaged.
    """
    scheme, _, path = url.partition(":")
    if scheme == "memory":
        return MemoryCatalog()
    try:
        module = importlib.import_module(f"dandelion.registry.{scheme}")
    except ModuleNotFoundError:
        raise BackendUnavailable(f"registry {scheme}", "no such store", "use sqlite:PATH") from None
    opener: Callable[[str], Catalog] | None = getattr(module, "open_catalog", None)
    if opener is None:
        raise BackendUnavailable(f"registry {scheme}", "no such store", "use sqlite:PATH")
    return opener(path)
