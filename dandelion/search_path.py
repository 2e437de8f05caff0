"""The search path by which child processes import the engine, also from a checkout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the package."""


def search_path() -> str:
    """Return ``PYTHONPATH`` for a program that imports the engine; keeps the current value."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in given if path and path != str(ROOT))])


_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "PYTHONHOME", "PYTHONHASHSEED")
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def small_environment() -> dict[str, str]:
    """Return the environment of a program that will run code of users.

    It has nothing of this process but what finds libraries, and numpy starts no threads there.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": search_path()}


def environment(further: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, with `further` variables, for such a program."""
    return {**os.environ, **(further or {}), "PYTHONPATH": search_path()}
