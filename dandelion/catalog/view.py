"""The records of a catalogue as of one moment."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping

from dandelion.catalog.records import (
    KINDS,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    kind_of,
    slot_of,
)
from dandelion.function import FunctionSpec

_KIND = kind_of(CompositionRecord)


class CatalogView(abc.ABC):
    """Records that do not change, whatever is registered meanwhile.

    Several records that belong together are looked up in one view: a registration is either in it
    whole or not at all. Safe from any thread.
    """

    @abc.abstractmethod
    def find(self, kind: str, name: str, version: int | None = None) -> Record | None:
        """Find a record, by default the newest one; None if there is none."""

    @abc.abstractmethod
    def newest(self) -> list[Record]:
        """All newest versions, by kind and name."""

    @abc.abstractmethod
    def compositions(self) -> list[CompositionRecord]:
        """The newest versions of all compositions."""

    @abc.abstractmethod
    def versions(self, kind: type[Record], name: str) -> list[int]:
        """All versions of a name, ascending; empty if there is none."""

    def find_callable(
        self, name: str, version: int | None = None
    ) -> FunctionSpec | CompositionRecord | None:
        """Find a function or composition."""
        for kind in ("function", "composition"):
            found = self.find(kind, name, version)
            if isinstance(found, FunctionSpec | CompositionRecord):
                return found
        return None

    def find_library(self, name: str, version: int | None = None) -> LibraryRecord | None:
        """Find a library."""
        found = self.find("library", name, version)
        return found if isinstance(found, LibraryRecord) else None


class ReducedView(CatalogView):
    """The records of another view, without some.

    Args:
        view: the other one.
        left_out: those that it does not have.
    """

    def __init__(self, view: CatalogView, left_out: Iterable[Removal]) -> None:
        self._view = view
        self._left_out: dict[Slot, set[int | None]] = {}
        for one in left_out:
            self._left_out.setdefault((one.kind, one.name), set()).add(one.version)

    def find(self, kind: str, name: str, version: int | None = None) -> Record | None:
        if (kind, name) not in self._left_out:
            return self._view.find(kind, name, version)
        versions = self.versions(KINDS[kind], name)
        wanted = version if version is not None else max(versions, default=0)
        return self._view.find(kind, name, wanted) if wanted in versions else None

    def newest(self) -> list[Record]:
        found = (self.find(*slot_of(record)) for record in self._view.newest())
        return [record for record in found if record is not None]

    def compositions(self) -> list[CompositionRecord]:
        return [record for record in self.newest() if isinstance(record, CompositionRecord)]

    def versions(self, kind: type[Record], name: str) -> list[int]:
        left_out = self._left_out.get((kind_of(kind), name), set())
        versions = [] if None in left_out else self._view.versions(kind, name)
        return [version for version in versions if version not in left_out]


class WholeView(CatalogView):
    """All records of a store.

    Args:
        versions: the records by kind and name, and by version; never changed afterwards.
    """

    def __init__(self, versions: Mapping[Slot, Mapping[int, Record]]) -> None:
        self._versions = versions

    def find(self, kind: str, name: str, version: int | None = None) -> Record | None:
        versions = self._versions.get((kind, name))
        if versions is None:
            return None
        return versions.get(max(versions) if version is None else version)

    def newest(self) -> list[Record]:
        return [versions[max(versions)] for _, versions in sorted(self._versions.items())]

    def compositions(self) -> list[CompositionRecord]:
        of_name = (versions for (kind, _), versions in self._versions.items() if kind == _KIND)
        newest = [versions[max(versions)] for versions in of_name]
        return [record for record in newest if isinstance(record, CompositionRecord)]

    def versions(self, kind: type[Record], name: str) -> list[int]:
        return sorted(self._versions.get((kind_of(kind), name), ()))

    def all_records(self) -> list[Record]:
        """All versions of everything."""
        return [record for versions in self._versions.values() for record in versions.values()]

    def changed(self, added: Iterable[Record], removed: Iterable[Record] = ()) -> WholeView:
        """Return the view after a change.

        Args:
            added: records; one of the same name and version is replaced.
            removed: records of this view.
        """
        added, removed = list(added), list(removed)
        whole = dict(self._versions)
        parts = {slot: dict(whole.get(slot, {})) for slot in map(slot_of, (*added, *removed))}
        for record in removed:
            del parts[slot_of(record)][record.version]
        for record in added:
            parts[slot_of(record)][record.version] = record
        for slot, versions in parts.items():
            if versions:
                whole[slot] = versions
            else:
                del whole[slot]
        return WholeView(whole)
