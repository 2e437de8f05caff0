"""Entry points of installed distributions: how backends, protocols and policies are found.

Looking through all distributions takes 10 ms and more, and a node looks for some twenty names. So
they are read once for each search path of modules.

Source: the specification of entry points of the Python Packaging Authority.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint


def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Give the entry points of a group by their names; of several, the first of the search path."""
    return _read(group, tuple(sys.path))


@functools.lru_cache(maxsize=16)
def _read(group: str, _: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        found.setdefault(point.name, point)
    return found
