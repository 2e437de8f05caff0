"""The form in which Dandelion runs: modules of Python, or most of a call in extension modules.

``setup.py`` decides which modules are compiled, and when. Both forms behave alike.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec


def in_use() -> bool:
    """Tell whether the modules on the path of a call are extension modules."""
    found = find_spec("dandelion.dispatcher.walk")
    assert found is not None, "it is a part of this package"
    return (found.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
