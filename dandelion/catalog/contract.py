"""The contract of every store of a catalogue."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence

from dandelion.catalog.records import (
    Batch,
    CatalogState,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    check_batch,
    kind_of,
)
from dandelion.catalog.view import CatalogView
from dandelion.data import Bytes
from dandelion.errors import BackendUnavailable
from dandelion.function import Digest, FunctionSpec


class Catalog(abc.ABC):
    """A store of registered records and blobs. Safe to call from any thread.

    Readers get the newest version unless they name one. `generation` increases with every change,
    so that caches can detect changes.
    """

    generation: int = 0

    def changed_since(self, generation: int) -> Iterable[Slot] | None:
        """Return which records were changed after a generation; None if that is not known."""
        return None

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

    def replace(self, batch: Batch, replaced: Sequence[Removal]) -> list[Record]:
        """Add a batch in the place of other records, all or nothing, as `register`.

        Records of `replaced` that the batch does not have unchanged are removed in the same step,
        so their names may have another kind in the batch. Those that are not there are left out.

        Raises:
            Conflict: also if a registered composition that stays uses one.
            BackendUnavailable: this store cannot.
        """
        raise BackendUnavailable("registry", "this store cannot replace records", "use sqlite")

    @abc.abstractmethod
    def view(self) -> CatalogView:
        """Return all records as of now; what belongs together is looked up in one view."""

    def find_callable(
        self, name: str, version: int | None = None
    ) -> FunctionSpec | CompositionRecord | None:
        """Find a function or composition."""
        return self.view().find_callable(name, version)

    def find_library(self, name: str, version: int | None = None) -> LibraryRecord | None:
        """Find a library."""
        return self.view().find_library(name, version)

    def records(self) -> list[Record]:
        """All newest versions, by kind and name."""
        return self.view().newest()

    def versions(self, kind: type[Record], name: str) -> list[int]:
        """All registered versions of a name, ascending; empty if there is none."""
        return self.view().versions(kind, name)

    @abc.abstractmethod
    def next_version(self, kind: type[Record], name: str) -> int:
        """Tell which version the next change of a name will have; those of removed ones never."""

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

    def remove(self, kind: type[Record], name: str, version: int | None = None) -> list[Record]:
        """Remove one version, or all of a name; see `remove_together`."""
        return self.remove_together((Removal(kind_of(kind), name, version),))

    @abc.abstractmethod
    def remove_together(self, removals: Sequence[Removal]) -> list[Record]:
        """Remove records, all or nothing; delete blobs that no record refers to any more.

        Returns:
            The removed records, in the order of `removals`.

        Raises:
            Unknown: there is no such name or version.
            Conflict: a registered composition that stays uses one.
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
