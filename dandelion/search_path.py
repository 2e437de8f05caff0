"""Where programs that this process starts find the engine, also from a checkout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder that the package lies in."""


def search_path() -> str:
    """Give ``PYTHONPATH`` for a program that imports the engine; what is set comes after."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in given if path and path != str(ROOT))])


def environment(further: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give this process's environment, and more, for such a program."""
    return {**os.environ, **(further or {}), "PYTHONPATH": search_path()}
