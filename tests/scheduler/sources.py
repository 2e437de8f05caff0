"""Modules from their sources, also where they were compiled: a bug can be planted only there."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


class Sources(MetaPathFinder):
    """Finds the source of each extension module of the package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not _is_ours(name):
            return None
        found = PathFinder.find_spec(name, path)
        if found is None or not isinstance(found.loader, ExtensionFileLoader):
            return None
        assert found.origin is not None
        source = Path(found.origin).with_name(f"{name.rpartition('.')[2]}.py")
        return spec_from_file_location(name, source)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("dandelion", "tests")


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if _is_ours(name)}


@functools.cache
def from_sources(name: str) -> Any:
    """Import a module of the tests once more, with all modules that it needs, from their sources.

    Native code calls native methods directly, so nothing can be put in their place.
    """
    loaded, finder = _loaded(), Sources()
    for one in loaded:
        del sys.modules[one]
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)
        for one in _loaded():
            del sys.modules[one]
        sys.modules.update(loaded)
