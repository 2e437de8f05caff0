"""The folder with wheels that belongs to a program."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "wheels"


def wheel_folder(path: Path) -> Path:
    """Return the folder for wheels of a program."""
    return path.parent / FOLDER


def wheel_flags(path: Path, given: Path | None) -> dict[str, list[str]]:
    """Return the setting of a node for a program; none if the program has no wheels."""
    folder = wheel_folder(path)
    if given is None and ("DANDELION_PACKAGES_FOLDER" in os.environ or not folder.is_dir()):
        return {}
    return {"packages_folder": [str(given or folder)]}
