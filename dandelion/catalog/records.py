"""Records of the catalogue, and what is registered or stored at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from dandelion.blobs import Blobs
from dandelion.data import Bytes
from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.language import parse
from dandelion.errors import Conflict, InvalidInput
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

    def _repr_svg_(self) -> str:
        return to_svg(parse(self.text).compositions[-1])


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


class Removal(msgspec.Struct, frozen=True):
    """What is to be removed: one version of a name, or all.

    Attributes:
        kind: ``function``, ``composition`` or ``library``.
        name: of the record.
        version: None for all.
    """

    kind: str
    name: str
    version: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"there is no kind '{self.kind[:80]}'; there are {', '.join(KINDS)}")


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


KINDS: dict[str, type[Record]] = {
    "function": FunctionSpec,
    "composition": CompositionRecord,
    "library": LibraryRecord,
}
"""The kinds of records, by name."""
_NAMES = {cls: name for name, cls in KINDS.items()}


def kind_of(record: Record | type[Record]) -> str:
    """Return the kind of a record: ``function``, ``composition``, ``library``.

    Raises:
        InvalidInput: it is no record, nor the class of one.
    """
    kind = _NAMES.get(record if isinstance(record, type) else type(record))
    if kind is None:
        classes = ", ".join(cls.__name__ for cls in _NAMES)
        raise InvalidInput(
            "kind", f"{record!r} is not a class of records", f"give one of {classes}"
        )
    return kind


def slot_of(record: Record) -> Slot:
    """Return the slot that the versions of a record count in."""
    return kind_of(record), record.name


def same_but_version(a: Record, b: Record | None) -> bool:
    """Tell whether two records are equal except for their versions."""
    return b is not None and with_version(a, 0) == with_version(b, 0)


def with_version(record: Record, version: int) -> Record:
    """Return the same record with another version."""
    return msgspec.structs.replace(record, version=version)


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
