"""Which known name was meant by one that is unknown, and which versions there are."""

from __future__ import annotations

import difflib
import heapq
import itertools
from collections.abc import Iterable, Sequence

_LOOKED_AT = 2000
_COMPARED = 200
_SHOWN_VERSIONS = 8


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that was most likely meant, or None.

    It is compared with the 200 names of the most similar length among the first 2000, since
    comparing takes long.
    """
    if len(name) > 128:  # the comparison is quadratic, and such a name is not a typing error
        return None
    first = itertools.islice(known, _LOOKED_AT)
    few = heapq.nsmallest(_COMPARED, first, key=lambda other: abs(len(other) - len(name)))
    matches = difflib.get_close_matches(name, few, n=1, cutoff=0.6)
    return matches[0] if matches else None


def suggestion(name: str | None) -> str:
    """Return the end of a message that names what was probably meant."""
    return f"; did you mean '{name}'?" if name else ""


def versions_hint(versions: Sequence[int]) -> str:
    """Say which versions there are, for the hint of an `Unknown`; empty if there are none.

    Args:
        versions: ascending.
    """
    if not versions:
        return ""
    shown = ", ".join(map(str, versions[-_SHOWN_VERSIONS:]))
    more = "..., " if len(versions) > _SHOWN_VERSIONS else ""
    return f"it has version{'s' if len(versions) > 1 else ''} {more}{shown}"
