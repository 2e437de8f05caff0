"""What a folder lacks of what its records need, after it was edited or copied in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dandelion.catalog import CompositionRecord, Record, Slot, kind_of, slot_of, used_blobs
from dandelion.function import Digest

_LIBRARY_SEPARATOR = "\x1f"  # between the tenant and the name of a library


def missing(
    records: Sequence[Record], counted: Mapping[Slot, int], has_blob: Callable[[Digest], bool]
) -> Iterator[str]:
    """Find what is missing; a store that only this package has written lacks nothing.

    Args:
        records: all versions of all records.
        counted: the newest version that was ever given of each name, as the store has it.
        has_blob: whether a blob is stored.

    Yields:
        A clause for each missing thing, with the record that needs it.
    """
    callables = {r.name for r in records if kind_of(r) != "library"}
    known = {name for kind, name in counted if kind != "library"}  # not functions of the platform
    for record in sorted(records, key=lambda r: (*slot_of(r), r.version)):
        this = f"{kind_of(record)} '{_shown(record.name)}' version {record.version}"
        if isinstance(record, CompositionRecord):
            for name in record.uses:
                if name in known - callables:
                    yield f"{this} uses '{_shown(name)}', which has no version"
        for digest in sorted(used_blobs([record])):
            if not has_blob(digest):
                yield f"{this} needs blob {digest}, which is not there"
        if record.version > counted.get(slot_of(record), 0):
            yield f"{this} is not counted, so a version after it may repeat a removed one"


def _shown(name: str) -> str:
    return name.replace(_LIBRARY_SEPARATOR, "/")
