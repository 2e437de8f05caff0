"""The catalogue of ``dandelion serve`` where no setting names one: the user's data folder.

That is ``$XDG_DATA_HOME/dandelion``, by default ``~/.local/share/dandelion``.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

from dandelion.errors import DandelionError, InvalidInput
from dandelion.settings import Settings

CHOICES = (
    "'--catalog sqlite:FOLDER' uses another folder, '--catalog memory:' keeps registrations in "
    "memory until the node ends"
)
_MEMORY = "memory:"


def default_catalog() -> str:
    """Return the catalogue in the user's data folder, which need not exist yet.

    Raises:
        InvalidInput: the user has no home folder.
    """
    try:
        folder = platformdirs.user_data_path("dandelion", appauthor=False)
    except RuntimeError:  # raised by newer versions; older ones return a relative path
        folder = Path()
    if not folder.is_absolute():
        message = "the user has no home folder, where the catalogue is kept by default"
        raise InvalidInput("HOME", message, f"set it to an absolute path; or {CHOICES}")
    return f"sqlite:{folder}"


def add_choices(error: DandelionError, settings: Settings) -> None:
    """Add to an error of opening the catalogue how to use another one."""
    if settings.catalog != _MEMORY:
        error.add_note(f"the catalogue is {settings.catalog}; {CHOICES}")


def announcement(settings: Settings) -> str:
    """Say in one line where a node keeps what is registered."""
    scheme, _, path = settings.catalog.partition(":")
    if scheme == "memory":
        return "Registrations are kept in memory, until this node ends"
    place = Path(path).expanduser() if scheme == "sqlite" else settings.catalog
    return f"Registrations are kept in {place} ('--catalog memory:' keeps them in memory)"
