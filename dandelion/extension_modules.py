"""The form in which Dandelion runs: modules of Python, or most of a call in extension modules.

``setup.py`` decides which modules are compiled, and when. Both forms behave alike. Python prefers
an extension module even if its source is newer, which happens in a checkout only.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).parent
_SUFFIX = EXTENSION_SUFFIXES[0]
REMEDY = "run make extensions, or make sources to remove them"


def in_use() -> bool:
    """Tell whether the modules on the path of a call are extension modules."""
    found = find_spec("dandelion.dispatcher.walk")
    assert found is not None, "it is a part of this package"
    return (found.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def outdated(package: Path = _PACKAGE) -> list[Path]:
    """Return the extension modules of a checkout that are older than their sources.

    Args:
        package: the folder ``dandelion``. It is a checkout if the backends lie beside it.
    """
    if (package / "backends").is_dir():
        return []
    folders = (package, package.with_name("backends"))
    compiled = sorted(path for folder in folders for path in folder.rglob("*" + _SUFFIX))
    return [path for path in compiled if _is_outdated(path)]


def _is_outdated(compiled: Path) -> bool:
    source = compiled.with_name(compiled.name.removesuffix(_SUFFIX) + ".py")
    return not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime
