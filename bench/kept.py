"""Outcomes that were kept as JSON, read again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dandelion.errors import InvalidInput

from .records import Outcome


def read_outcomes(path: Path) -> list[Outcome]:
    """Read an outcome from a file, or all of a folder, ordered by their names.

    JSON of another kind in a folder is passed over.

    Raises:
        InvalidInput: the file, or a file of the folder that names an experiment, is no outcome, or
            the folder has none; `where` is the path.
    """
    if path.is_dir():
        found = [_read(file) for file in sorted(path.glob("*.json")) if _is_outcome(file)]
        if not found:
            raise InvalidInput(str(path), "there is no outcome of an experiment in this folder")
        return found
    return [_read(path)]


def _is_outcome(path: Path) -> bool:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}") from None
    return isinstance(document, dict) and "experiment" in document


def _read(path: Path) -> Outcome:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(str(path), f"is no outcome of an experiment: {error}") from None
