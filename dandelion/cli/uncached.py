"""Loads the Python files of users without compiled files.

Python takes a compiled file for current if the source's size and its time of change in seconds are
the same. A file that is edited and loaded again at once may have both.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_PACKAGES = "site-packages"
"""Folders in which files are not edited."""


class UncachedLoader(SourceFileLoader):
    """Compiles a file each time; reads and writes no compiled ones."""

    def path_stats(self, path: str) -> dict[str, float]:
        """Refuse, which means that there is no time to compare."""
        raise OSError(f"{path} is always compiled")


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let a file import the files beside it, as ``python FILE`` does."""
    own = str(folder.resolve())

    def finder(entry: str) -> FileFinder:
        path = Path(entry).resolve()
        if _PACKAGES in path.parts or not path.is_relative_to(own):
            raise ImportError(f"{entry} is not a folder of the user")
        extensions = (ExtensionFileLoader, EXTENSION_SUFFIXES)
        return FileFinder(entry, extensions, (UncachedLoader, SOURCE_SUFFIXES))

    before, hooks = list(sys.path), list(sys.path_hooks)
    sys.path.insert(0, own)
    sys.path_hooks.insert(0, finder)
    _forget(own)
    try:
        yield
    finally:
        sys.path[:], sys.path_hooks[:] = before, hooks
        _forget(own)


def _forget(folder: str) -> None:
    """Have other finders made for a folder and those in it."""
    for entry in list(sys.path_importer_cache):
        if Path(entry).is_relative_to(folder) and _PACKAGES not in entry:
            del sys.path_importer_cache[entry]


def executed(name: str, path: Path) -> ModuleType:
    """Execute a file as a module; raises what it raises."""
    spec = spec_from_file_location(name, path, loader=UncachedLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
