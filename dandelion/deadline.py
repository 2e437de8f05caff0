"""Deadlines of invocations, as callers give them: seconds from now."""

from __future__ import annotations

import numbers

from dandelion.errors import InvalidInput
from dandelion.priority import shown

_LIMIT_S = 1e9


def checked_deadline(value: object) -> float:
    """Check a deadline that a caller gave, in seconds.

    Raises:
        InvalidInput: it is not a positive number below 1e9.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        seconds = _LIMIT_S if isinstance(value, int) and value >= _LIMIT_S else float(value)
        if 0 < seconds < _LIMIT_S:
            return seconds
    message = f"{shown(value)} is not a positive number of seconds below {_LIMIT_S:.0e}"
    raise InvalidInput("deadline_s", message)
