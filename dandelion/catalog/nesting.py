"""What a composition uses, through all compositions inside of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dandelion.catalog.records import CompositionRecord
from dandelion.errors import Conflict
from dandelion.function import FunctionSpec


def with_uses(
    record: FunctionSpec | CompositionRecord,
    find: Callable[[str], FunctionSpec | CompositionRecord],
) -> Iterator[FunctionSpec | CompositionRecord]:
    """Yield what a record uses, each once and after what itself uses, and last the record.

    Without recursion: compositions may be nested deeply.

    Args:
        record: of a function or composition, of any version.
        find: gives the newest version of a name.

    Raises:
        Conflict: a composition applies itself.
    """
    yielded: set[tuple[str, int]] = set()
    entered: set[tuple[str, int]] = set()
    waiting = [record]
    while waiting:
        current = waiting[-1]
        key = current.name, current.version
        if key not in yielded:
            uses = current.uses if isinstance(current, CompositionRecord) else ()
            found = [one for one in map(find, uses) if (one.name, one.version) not in yielded]
            if found and key in entered:
                raise Conflict("composition", current.name, "it applies itself")
            if found:
                entered.add(key)
                waiting += reversed(found)
                continue
            yielded.add(key)
            yield current
        waiting.pop()
