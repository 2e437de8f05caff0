"""Each tenant's part of the catalogue.

Names of tenants other than the default one are stored as ``tenant/name``. A `Namespace` shows only
one tenant's records, under their plain names. Names of libraries may contain slashes, so their
separator is a control character, which no library's name may contain. Blobs are shared: they are
named by their content.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from dandelion.catalog import (
    KINDS,
    Batch,
    Catalog,
    CatalogView,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    kind_of,
)
from dandelion.data import Bytes
from dandelion.errors import Conflict, InvalidInput, Unknown, nearest
from dandelion.function import Digest, FunctionSpec

DEFAULT_TENANT = "default"
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SEPARATOR = "\x1f"
_Named = TypeVar("_Named", FunctionSpec, CompositionRecord, LibraryRecord)


def check_tenant(name: str) -> None:
    """Refuse a text that is not a valid tenant name.

    Raises:
        InvalidInput: it is not 1 to 63 letters, digits, ``_``, ``.`` and ``-``.
    """
    if TENANT_NAME.fullmatch(name) is None:
        hint = "use 1 to 63 letters, digits, '_', '.' and '-', starting with a letter or digit"
        raise InvalidInput("tenant", f"'{name[:64]}' is not a valid tenant name", hint)


def qualified(tenant: str, name: str) -> str:
    """Return the name under which the catalogue stores a tenant's record."""
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


def split_name(name: str) -> tuple[str, str]:
    """Return the tenant and the name of a function under its name in the catalogue."""
    tenant, slash, own = name.partition("/")
    return (tenant, own) if slash else (DEFAULT_TENANT, name)


def _is_qualified(kind: type[Record], name: str) -> bool:
    """Tell whether a name contains the separator, so that no tenant may use it."""
    return (_SEPARATOR if kind is LibraryRecord else "/") in name


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """What begins the names of a tenant's records; nothing for the default tenant.

    Attributes:
        names: of functions and compositions.
        libraries: of libraries.
    """

    names: str
    libraries: str

    def of(self, kind: type[Record]) -> str:
        return self.libraries if kind is LibraryRecord else self.names

    def own(self, kind: type[Record], name: str) -> bool:
        """Tell whether a record of the whole catalogue is the tenant's."""
        if self.names:
            return name.startswith(self.of(kind))
        return not _is_qualified(kind, name)

    def plain(self, record: Record) -> Record:
        """Name a record, and what it uses, as the tenant does."""
        if not self.names:
            return record
        cut = len(self.names)
        if isinstance(record, CompositionRecord):
            uses = tuple(name.removeprefix(self.names) for name in record.uses)
            return msgspec.structs.replace(record, name=record.name[cut:], uses=uses)
        return msgspec.structs.replace(record, name=record.name[cut:])


class _OwnView(CatalogView):
    """A tenant's records, under their plain names."""

    def __init__(self, whole: CatalogView, prefixes: _Prefixes) -> None:
        self._whole = whole
        self._prefixes = prefixes

    def find(self, kind: str, name: str, version: int | None = None) -> Record | None:
        cls = KINDS[kind]
        if _is_qualified(cls, name):
            return None
        found = self._whole.find(kind, self._prefixes.of(cls) + name, version)
        return None if found is None else self._prefixes.plain(found)

    def newest(self) -> list[Record]:
        owns, plain = self._prefixes.own, self._prefixes.plain
        return [plain(one) for one in self._whole.newest() if owns(type(one), one.name)]

    def compositions(self) -> list[CompositionRecord]:
        owns = self._prefixes.own
        own = (c for c in self._whole.compositions() if owns(CompositionRecord, c.name))
        plain = [self._prefixes.plain(composition) for composition in own]
        return [record for record in plain if isinstance(record, CompositionRecord)]

    def versions(self, kind: type[Record], name: str) -> list[int]:
        if _is_qualified(kind, name):
            return []
        return self._whole.versions(kind, self._prefixes.of(kind) + name)


class Namespace(Catalog):
    """One tenant's part of a catalogue.

    Args:
        catalog: of all tenants; it is not closed here.
        tenant: the tenant.
    """

    def __init__(self, catalog: Catalog, tenant: str) -> None:
        check_tenant(tenant)
        self._all = catalog
        libraries = "" if tenant == DEFAULT_TENANT else tenant + _SEPARATOR
        self._prefixes = _Prefixes(qualified(tenant, ""), libraries)
        self._seen = self._generation = catalog.generation
        self._lock = threading.Lock()

    @property
    def generation(self) -> int:  # type: ignore[override]  # it follows that of the whole catalogue
        """That of the last change of the tenant's records, or of one that is not known."""
        if self._all.generation != self._seen:
            with self._lock:
                whole = self._all.generation
                changed = self._all.changed_since(self._seen)
                if changed is None or any(map(self._is_own, changed)):
                    self._generation = whole
                self._seen = whole
        return self._generation

    def _is_own(self, slot: Slot) -> bool:
        kind, name = slot
        return self._prefixes.own(KINDS[kind], name)

    def _register(self, batch: Batch) -> list[Record]:
        return self._added(batch, self._all.register)

    def replace(self, batch: Batch, replaced: Sequence[Removal]) -> list[Record]:
        qualified = self._qualified_removals(replaced)
        return self._added(batch, lambda own: self._all.replace(own, qualified))

    def _added(self, batch: Batch, add: Callable[[Batch], list[Record]]) -> list[Record]:
        """Add a batch to the whole catalogue by `add`, under the names that it has there."""
        for record in batch.records():
            if _is_qualified(type(record), record.name):
                raise InvalidInput(kind_of(record), f"{record.name!r} is not a valid name")
        if not self._prefixes.names:
            return add(batch)
        own = replace(
            batch,
            functions=[self._qualified(r) for r in batch.functions],
            compositions=[
                msgspec.structs.replace(
                    self._qualified(r), uses=tuple(self._prefixes.names + name for name in r.uses)
                )
                for r in batch.compositions
            ],
            libraries=[self._qualified(r) for r in batch.libraries],
        )
        try:
            return [self._prefixes.plain(record) for record in add(own)]
        except Conflict as error:
            raise self._plain_conflict(error) from None

    def _plain_conflict(self, error: Conflict) -> Conflict:
        """Name records as the tenant does; there are none of others in it."""
        name = error.name.removeprefix(self._prefixes.libraries).removeprefix(self._prefixes.names)
        message = (
            error.message.replace(self._prefixes.names, "")
            if self._prefixes.names
            else error.message
        )
        return replace(error, name=name, message=message)

    def _qualified(self, record: _Named) -> _Named:
        return msgspec.structs.replace(record, name=self._prefixes.of(type(record)) + record.name)

    def view(self) -> CatalogView:
        return _OwnView(self._all.view(), self._prefixes)

    def next_version(self, kind: type[Record], name: str) -> int:
        return self._all.next_version(kind, self._prefixes.of(kind) + name)

    def has_blob(self, digest: Digest) -> bool:
        return self._all.has_blob(digest)

    def blob(self, digest: Digest) -> Bytes:
        return self._all.blob(digest)

    def blob_bytes(self, digest: Digest) -> int:
        return self._all.blob_bytes(digest)

    def _qualified_removals(self, removals: Sequence[Removal]) -> list[Removal]:
        qualified = []
        for one in removals:
            kind = KINDS[one.kind]
            if _is_qualified(kind, one.name):
                raise Unknown(one.kind, one.name, one.version)
            qualified.append(Removal(one.kind, self._prefixes.of(kind) + one.name, one.version))
        return qualified

    def remove_together(self, removals: Sequence[Removal]) -> list[Record]:
        qualified = self._qualified_removals(removals)
        try:
            removed = self._all.remove_together(qualified)
        except Unknown as error:
            kind = KINDS[error.kind]
            name = error.name.removeprefix(self._prefixes.of(kind))
            own = [record.name for record in self.records() if type(record) is kind]
            close = nearest(name, own) if error.version is None else None
            raise Unknown(error.kind, name, error.version, close, error.hint) from None
        except Conflict as error:
            raise self._plain_conflict(error) from None
        return [self._prefixes.plain(record) for record in removed]
