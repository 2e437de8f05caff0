"""The operator's settings of the protocol: ``bson.preload``, ``bson.local_path``."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from dandelion.errors import InvalidInput, nearest
from dandelion.settings import Settings

PROTOCOL = "bson"
EXECUTABLE_LIMIT_BYTES = 256 * 1024 * 1024
_NAMES = ("preload", "local_path")


@dataclass(frozen=True, slots=True)
class BsonOptions:
    """Settings of the protocol.

    Attributes:
        preload: a file of functions and compositions that are registered at start, or None.
        folder: where clients may name executables by ``local_path``; None refuses all of them.
    """

    preload: Path | None = None
    folder: Path | None = None

    def read(self, local_path: str) -> bytes:
        """Read the executable that a client names.

        All refusals have the same message, so nothing is learned about files.

        Raises:
            InvalidInput: it is not a regular file in the folder.
        """
        found = None if self.folder is None else _contents(self.folder, local_path)
        if found is None:
            message = "there is no such file that clients may use"
            hint = "send the executable in 'binary', or ask the operator about bson.local_path"
            raise InvalidInput("local_path", message, hint)
        return found


def read_options(settings: Settings) -> BsonOptions:
    """Read the options of the protocol.

    Raises:
        InvalidInput: an option is unknown, or names no folder.
    """
    given = settings.options.get(PROTOCOL, {})
    for name in given:
        if name not in _NAMES:
            close = nearest(name, _NAMES)
            hint = f"did you mean '{close}'?" if close else f"there are {', '.join(_NAMES)}"
            raise InvalidInput(f"options.{PROTOCOL}.{name}", "no such option", hint)
    preload, folder = given.get("preload"), given.get("local_path")
    if folder is not None and not Path(folder).is_dir():
        where = f"options.{PROTOCOL}.local_path"
        raise InvalidInput(where, f"'{folder}' is not a folder", "name a folder of executables")
    return BsonOptions(
        None if preload is None else Path(preload),
        None if folder is None else Path(folder).resolve(),
    )


def _contents(folder: Path, local_path: str) -> bytes | None:
    """Read a regular file below a folder; links are followed first and must stay inside."""
    try:
        path = (folder / local_path).resolve(strict=True)
        if not path.is_relative_to(folder):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > EXECUTABLE_LIMIT_BYTES:
                return None
            return file.read(EXECUTABLE_LIMIT_BYTES)
    except (OSError, ValueError, RuntimeError):  # a missing file, a NUL, a loop of links
        return None
