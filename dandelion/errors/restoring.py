"""Restoring an error from the record that another process sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from dandelion.errors.caller import Problem
from dandelion.errors.error import DandelionError, ErrorRecord
from dandelion.errors.platform import InternalError


def from_record(record: ErrorRecord) -> DandelionError:
    """Restore an error from its record.

    Fields that the class does not have (a newer peer) are left out. A class that this process does
    not know, or fields that do not fit it, become an `InternalError` with the original message.
    """
    cls = _all_classes(DandelionError).get(record.type)
    try:
        if cls is None:
            raise TypeError(record.type)
        hints = {f.name: f.type for f in dataclasses.fields(cls)}
        known = {k: v for k, v in record.fields.items() if k in hints}
        error = cls(**{k: _restore(hints[k], v) for k, v in known.items()})
    except (TypeError, ValueError, msgspec.ValidationError):
        error = InternalError(f"{record.type}: {record.message}")
    if record.cause is not None:
        error.because(from_record(record.cause))
    return error


def _all_classes(root: type[DandelionError]) -> dict[str, type[DandelionError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_all_classes(child))
    return found


def _restore(hint: object, value: Any) -> Any:
    if isinstance(hint, str) and "Problem" in hint:
        return msgspec.convert(value, tuple[Problem, ...])
    return tuple(value) if isinstance(value, list) else value
