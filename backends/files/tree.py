"""Listing the files below a folder, in the order of their paths, with bounded work."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from ..stores.failures import ItemFailed
from ..stores.listing import Found
from .folder import TEMPORARY, Check, opened_folder

ENTRIES_LIMIT = 100_000
_FIRST_S = -62_135_596_800
"""Year 1 in seconds; `datetime` has no earlier one."""
_LAST_S = 253_402_300_799
"""The last second of year 9999."""
_DEPTH_LIMIT = 32


@dataclass(slots=True)
class TreeWalk:
    """One walk over a tree of folders.

    Attributes:
        check: raises if the walk is not wanted any more.
        after: the walk begins behind this path; its parts.
        entries: how many were looked at.
    """

    check: Check
    after: tuple[str, ...] = ()
    entries: int = 0

    def files(self, folder: int, above: tuple[str, ...] = ()) -> Iterator[Found]:
        """Yield regular files, those of a folder and of its subfolders, sorted by their parts.

        Links, special files and names that are not UTF-8 are left out.

        Raises:
            ItemFailed: there are too many entries to look at.
        """
        for name, is_folder in self._sorted(folder):
            self.check()
            parts = (*above, name)
            if is_folder:
                if len(parts) < _DEPTH_LIMIT and parts >= self.after[: len(parts)]:
                    yield from self._below(folder, parts)
            elif parts > self.after:
                found = _found(folder, parts)
                if found is not None:
                    yield found

    def _below(self, folder: int, parts: tuple[str, ...]) -> Iterator[Found]:
        try:
            with opened_folder(folder, [parts[-1]]) as below:
                yield from self.files(below, parts)
        except (FileNotFoundError, PermissionError):
            return  # it is gone, or not to be read

    def _sorted(self, folder: int) -> list[tuple[str, bool]]:
        names: list[tuple[str, bool]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > ENTRIES_LIMIT:
                    hint = "list a folder below it"
                    raise ItemFailed(f"there are more than {ENTRIES_LIMIT} entries; {hint}")
                is_folder = entry.is_dir(follow_symlinks=False)
                if not is_folder and not entry.is_file(follow_symlinks=False):
                    continue
                if not entry.name.startswith(TEMPORARY) and _is_unicode(entry.name):
                    names.append((entry.name, is_folder))
        return sorted(names)


def _found(folder: int, parts: tuple[str, ...]) -> Found | None:
    try:
        facts = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    modified_s = min(max(facts.st_mtime, _FIRST_S), _LAST_S)
    return Found("/".join(parts), facts.st_size, datetime.fromtimestamp(modified_s, UTC))


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
